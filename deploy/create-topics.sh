#!/bin/bash
# The topics of deploy/deduper.yaml. Safe to repeat; a topic that is there is left as it is.
set -euo pipefail
topic() {
  /opt/kafka/bin/kafka-topics.sh --bootstrap-server "$BROKER" --create --if-not-exists \
    --topic "$1" --partitions "$2" --replication-factor 1 "${@:3}"
}
topic clicks 4
# The headers that are added make a record larger; and rows keep the source's timestamps, so they are kept as long.
for name in unique duplicate expired error; do
  topic "$name" 4 --config max.message.bytes=1049088
done
