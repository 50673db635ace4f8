#!/usr/bin/env bash
# Writes deploy/requirements.txt and deploy/requirements-build.txt: the versions and hashes of the image's packages.
# Run it after a change of the dependencies in pyproject.toml, or to take newer versions (--upgrade); it needs the network.
# Python must be the image's: 3.11.
set -euo pipefail
# shellcheck source=scripts/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

setup_python test
cd "$REPO"
[[ "$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" == 3.11 ]] ||
  { say "The image has Python 3.11; PYTHON=/path/to/python3.11 names one."; exit 2; }

lock() {
  uv pip compile --quiet --generate-hashes --no-header --no-annotate --output-file "$1" "${@:2}"
  sed -i '1i # Written by scripts/lock.sh for Python 3.11; the image installs nothing that is not here.' "$1"
}
lock deploy/requirements.txt --extra hdfs --extra kafka --extra objects --extra service pyproject.toml "$@"
python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' |
  lock deploy/requirements-build.txt - "$@"
