#!/usr/bin/env bash
# Packs a virtual environment that has this package, with compiled kernels, for the hosts of a Spark cluster, which
# unpack it by `spark.archives` (docs/how-to/cluster.md):
#
#     scripts/archive.sh /opt/deduper deduper-env.tar.gz
#
# An environment names the Python that it was made with, which must lie at the same path on every host. Spark's jars stay
# out: executors have those of their Spark. The environment itself is not changed.
set -euo pipefail
from=$(realpath "${1:?usage: scripts/archive.sh ENVIRONMENT FILE.tar.gz}")
out=$(realpath -m "${2:?usage: scripts/archive.sh ENVIRONMENT FILE.tar.gz}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp -a "$from" "$work/env"
run() { (cd "$work" && env -u NUMBA_CACHE_DIR -u PYTHONPATH -u SPARK_HOME "$work/env/bin/python" "$@"); }

# An editable installation points to a clone that other hosts do not have.
run -c 'import sys, deduper; sys.exit(not deduper.__file__.startswith(sys.prefix) and f"{deduper.__file__} is not in {sys.prefix}")'
# numba takes compiled code for stale when the module has another time, and archives keep whole seconds.
find "$work/env" -name '*.py' -exec touch -d @1700000000 {} +
# The code goes beside the modules: a folder of its own is found by the path of the modules, another one on each host.
run -m deduper.service.kernels
if [ -z "$(find "$work/env" -path '*/__pycache__/*' -name '*.nbc' -print -quit)" ]; then
    echo "numba has not kept its code in $work/env" >&2
    exit 1
fi
tar --directory "$work/env" --exclude=./lib/python3.*/site-packages/pyspark/jars --exclude=./lib/python3.*/site-packages/pip \
    --create --gzip --file "$out" .
echo "$out"
