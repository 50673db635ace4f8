#!/usr/bin/env bash
# A Kafka broker in the foreground, with its data in ./demo-kafka: to try the job without Docker.
# Arguments: [--port 9092] [--tls] [--directory DIR] [TOPIC[:PARTITIONS]...]; `--help` explains them.
set -euo pipefail
# shellcheck source=scripts/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

setup_python test
setup_java
here="$PWD"
cd "$REPO"
exec python -m tests.services.kafka_broker --directory "$here/demo-kafka" "$@"
