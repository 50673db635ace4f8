#!/usr/bin/env bash
# Checks and tests, in tiers (tests/tiers.py):
#
#   scripts/test.sh                what every change passes: a quarter of an hour, and always the same tests
#   scripts/test.sh --fast         a minute: the checks, and the tests that start nothing and take no time
#   scripts/test.sh --all [2/7]    everything, or one part of it (tests/parts.py): two to three hours; a part, at most 40 minutes
#
# Processes share the tests: two, or three where tests wait for servers; `-n 0` uses one. Further arguments go to pytest.
set -euo pipefail
# shellcheck source=scripts/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

tier=change
tools=test
processes=3
case "${1:-}" in
  --fast) tier=check && processes=2 && shift ;;
  --all) tier=night && tools=night && shift ;;
esac

make_venv
if [[ "$tier" != check ]]; then
  # Packages of the system come while those of Python do.
  (setup_java && setup_prometheus && setup_redis && { [[ "$tier" == change ]] || setup_night; }) &
  system=$!
fi
setup_python "$tools"
# Kernels are compiled once, while other things come, and not by each process of the tests.
(cd "$REPO" && python -m deduper.service.kernels) &
kernels=$!
[[ "$tier" == check ]] || (cd "$REPO" && python -m tests.spark.pyspark_releases) &
releases=$!
if [[ "$tier" != check ]]; then
  wait "$system" || exit 2
  setup_java
  cd "$REPO"
  python -m tests.services.jars
fi
wait "$kernels"
wait "$releases"
cd "$REPO"
# The night starts Java hundreds of times, each with a third less CPU by its archive.
[[ "$tier" != night ]] || python -m deduper.spark.class_archive
say "Set-up took $SECONDS s."

# Tests sync what they write thousands of times. None of them cuts the machine's power, so memory serves.
if [[ -z "${TMPDIR:-}" && -w /dev/shm && "$(df --output=avail -k /dev/shm | tail -1)" -gt 8000000 ]]; then
  TMPDIR="$(mktemp -d /dev/shm/t.XXXXXX)"
  export TMPDIR
  trap 'rm -rf "$TMPDIR"' EXIT
fi

if [[ "$tier" == night ]]; then
  python -m tests.parts "$@"
else
  python -m pytest --tier "$tier" -n "$processes" --durations=20 "$@"
fi
