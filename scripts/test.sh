#!/usr/bin/env bash
# Everything that must hold before a change goes in: lint, format, types, layers, and all tests but the benchmarks.
#
#   scripts/test.sh           all of it
#   scripts/test.sh --fast    only the tests that need no JVM, no service and no killed process
#
# All of it is divided between two processes (tests/conftest.py says how); `-n 0` keeps it in one.
#
# Further arguments go to pytest. A failing check doesn't keep the tests from running; the exit code is 0 only when all is well.
set -euo pipefail
# shellcheck source=scripts/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

selected=(-m "not bench" -n 2)
if [[ "${1:-}" == --fast ]]; then
  shift
  selected=()
fi

setup_python test
if [[ ${#selected[@]} != 0 ]]; then
  setup_java
  setup_maven
  setup_prometheus
fi
cd "$REPO"

failed=()
check() {
  echo "== $*"
  "$@" || failed+=("$1 $2")
}
check ruff check .
check ruff format --check .
check mypy --no-error-summary --pretty
check lint-imports --no-logo

[[ ${#failed[@]} == 0 ]] || echo "FAILED:$(printf ' [%s]' "${failed[@]}"), see above; the tests follow"
status=0
python -m pytest "${selected[@]}" "$@" || status=$?
echo "== the whole took $SECONDS s"
[[ ${#failed[@]} == 0 ]] || exit 1
exit "$status"
