"""The configuration that `deduper init` writes: every setting a beginner needs, each with a line of explanation. PURE.

It is valid as it stands, which a test checks, so the first error of a beginner is about data, not about typing.
"""

from __future__ import annotations

STARTER = """\
# A deduplication job: every record leaves as unique, duplicate, expired or error, exactly once.
#   {check}checks this file, and what the job needs
#   {run}starts the job
#   {schema}describes every setting, for editors
# Relative paths start at this file's folder. ${{VAR}} and ${{VAR:-default}} are filled in from the environment;
# any setting can also be given as DEDUPER__STORE__SHARDS=8 or --set store.shards=8.

name: {name}

source:
  format: files
  path: in/                       # a directory, or a glob such as in/*.json
  file_format: json               # json (one object a line) | csv | parquet | combined_log | logfmt
  schema: "user string, id long, ts timestamp, page string"
  max_files_per_batch: 1000       # maximum number of files in a window

# Or from Kafka. Ports may then send to topics too: `unique: {{format: kafka, topic: unique}}`.
#source:
#  format: kafka
#  bootstrap_servers: "localhost:9092"
#  topics: [clicks]                # or topic_pattern: clicks-.*
#  starting_offsets: earliest      # earliest | latest | {{time: "2025-03-01T00:00:00Z"}} | {{clicks: {{"0": 12}}}}
#  max_offsets_per_batch: 500000   # maximum number of offsets in a window
#  value: {{format: json, schema: "user string, id long, ts timestamp, page string"}}    # json | csv | text | avro
#  record: {{arrived: timestamp}}    # key | key_binary | timestamp | topic | partition | offset | header:NAME
#  tombstones: error               # error | judge: records without a value
#  options: {{}}                     # such as kafka.security.protocol: SASL_SSL

key: [user, id]                   # equal in all of these = the same record
null_keys: error                  # error | allow: may a key be null?
digest: fast                      # fast | secure (SHA-256, for input that an attacker may choose)

expiry:                           # when a key is forgotten
  by: event_time                  # event_time | ordered | processing_time | category | never
  field: ts                       # a timestamp, or a bigint with `unit: s`, `ms` or `us`
  period: 24h                     # remembered until ts is this far behind the latest one
  span: 1h                        # forgotten in steps of this
  lookup: own_bucket              # own_bucket: equal keys have equal times | all_live: a retry may carry a new time
  clock: arrival                  # arrival: the latest point moves with every tuple | batch: once a window
  max_ahead_of_now: 1h            # a time further in the future is an error | off

store:
  url: "rocksdb:state/{name}"     # rocksdb:PATH | file:PATH
  shards: 4                       # slices of the key space; later only by `deduper reshard`
  memory: 2GiB                    # maximum bytes of tables in memory; eight times as many on the local disk
  first_seen: true                # every duplicate names its first copy; costs 34 bytes of memory and 16 of disk a key

sinks:                            # parquet | json | csv | kafka | none, each in a directory of its own
  unique:    {{format: parquet, path: out/unique}}
  duplicate: {{format: parquet, path: out/duplicate}}
  expired:   {{format: parquet, path: out/expired}}
  error:     {{format: json, path: out/error}}

trigger: 10s                      # time between two windows | available_now: stop when the source is drained

#metrics: {{port: 9108}}            # numbers for Prometheus, at http://127.0.0.1:9108/metrics

spark: {{}}                         # settings of Spark, such as spark.driver.memory: 2g
"""


def starter_config(file: str, name: str) -> str:
    """The text of a first configuration for a job of this name, to be written to `file`."""
    commands = {"check": f"deduper check {file}", "run": f"deduper run {file}", "schema": "deduper show --schema"}
    width = max(map(len, commands.values())) + 2
    return STARTER.format(name=name, **{part: command.ljust(width) for part, command in commands.items()})
