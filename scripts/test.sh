#!/usr/bin/env bash
# All checks before a change is merged: lint, format, types, layers, and all tests except the benchmarks.
#
#   scripts/test.sh           all of it
#   scripts/test.sh --fast    only the tests that need no JVM, no service and no killed process, and are not slow
#
# A machine that takes over two minutes for what takes 45 s elsewhere (four archives of Java's classes) would be at it for
# hours. Of the tests that start processes it takes one in 4, one in 8 beyond 200 s, and of those that kill them
# half as many, drawn anew each time. It says so. TESTS_SHARE=1 takes all.
#
# Two processes share the tests (see tests/conftest.py), as three take as long on two processors; `-n 0` uses one.
#
# Further arguments go to pytest. The tests run even if a check fails; the exit code is 0 only if all passed.
set -euo pipefail
# shellcheck source=scripts/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

selected=(-m "not bench" -n 2)
if [[ "${1:-}" == --fast ]]; then
  shift
  selected=(-n 2)
fi

# Tests sync what they write thousands of times. None of them cuts the machine's power, so memory serves.
if [[ -z "${TMPDIR:-}" && -w /dev/shm && "$(df --output=avail -k /dev/shm | tail -1)" -gt 8000000 ]]; then
  TMPDIR="$(mktemp -d /dev/shm/t.XXXXXX)"
  export TMPDIR
  trap 'rm -rf "$TMPDIR"' EXIT
fi

setup_python test
if [[ "${selected[*]}" == *-m* ]]; then
  setup_java
  setup_prometheus
  setup_redis
  setup_kerberos
  command -v zsh >/dev/null || try_install zsh || say "Without zsh its completion is not tested."
fi
cd "$REPO"

# Java's classes for the tests, beside the checks: two processors do both in the time of one.
archiving=
if [[ "${selected[*]}" == *-m* ]]; then
  python -m tests.java &
  archiving=$!
fi

failed=()
check() {
  echo "== $*"
  "$@" || failed+=("$1 $2")
}
check ruff check .
check ruff format --check .
check mypy --no-error-summary --pretty
check lint-imports --no-logo

[[ -z "$archiving" ]] || wait "$archiving" || echo "Java's classes could not be archived; the tests take longer."
took="$(cat "$VENV/java-classes/seconds" 2>/dev/null || echo 0)"
if [[ -z "${TESTS_SHARE:-}" && -n "$archiving" && "$took" -gt 120 ]]; then
  export TESTS_SHARE=$((took < 200 ? 4 : 8)) TESTS_SEED="${TESTS_SEED:-$RANDOM}"
fi
echo "== set-up and checks took $SECONDS s"
[[ ${#failed[@]} == 0 ]] || echo "FAILED:$(printf ' [%s]' "${failed[@]}"), see above; the tests follow"
status=0
python -m pytest "${selected[@]}" --durations=20 "$@" || status=$?
[[ ${#failed[@]} == 0 ]] || exit 1
exit "$status"
