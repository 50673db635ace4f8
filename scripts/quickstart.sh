#!/usr/bin/env bash
# From a fresh clone to four outputs: installs missing tools, then runs the quickstart in ./demo.
# Arguments go to `deduper quickstart`; `--help` names them. A second run adds nothing twice.
set -euo pipefail
# shellcheck source=scripts/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

setup_python
setup_java
exec deduper quickstart "$@"
