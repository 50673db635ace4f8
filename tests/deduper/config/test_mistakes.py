"""Every mistake of a configuration: found with all the others, in its exact place, with what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bucket_store.places.hdfs import HdfsNames
from deduper.config.load import load_config
from deduper.config.problems import ConfigError
from deduper.config.sections import PORTS
from tests.deduper.config.cases import cases, check_words, problems_of
from tests.tiers import is_night

BASE = """\
name: clicks
source:
  format: files
  path: in/
  file_format: json
  schema: "user string, id long, ts timestamp, tags array<string>, n int, price decimal(10,2), d double, f float"
key: [user, id]
expiry:
  by: event_time
  field: ts
  period: 24h
store:
  url: rocksdb:state/clicks
sinks:
  unique: {format: parquet, path: out/unique}
  duplicate: {format: parquet, path: out/duplicate}
  expired: {format: none}
  error: {format: json, path: out/error}
"""
SOURCE = BASE[BASE.index("source:") : BASE.index("key:")]
SCHEMA = BASE[BASE.index("schema:") : BASE.index("\nkey:")]
EVENT_TIME = BASE[BASE.index("  by:") : BASE.index("store:")]
SINKS = BASE[BASE.index("sinks:") :]

MOUNT = "name the mount that all hosts see in `shared_folders`, or write `spark.master: local[*]`"

CASES = cases(
    r"""
unknown-section | name: clicks | nmae: clicks
  1:1: nmae: unknown setting; did you mean `name`?
metrics-port | name: clicks | name: clicks\nmetrics: {port: 99999}
  2:17: metrics.port: must be at most 65535, found 99999; remove it to have the default, 9108
metrics-host | name: clicks | name: clicks\nmetrics: {host: ""}
  2:17: metrics.host: is empty; remove it to have the default, 127.0.0.1
metrics-unknown | name: clicks | name: clicks\nmetrics: {prot: 9108}
  2:11: metrics.prot: unknown setting; did you mean `port`?
metrics-number | name: clicks | name: clicks\nmetrics: 9108
  2:10: metrics: must be a section of settings, found `9108`; write `metrics: {port: 9108}`
bad-name | name: clicks | name: My Clicks
  1:7: name: `My Clicks` is not a valid name; use small letters, digits, `.`, `_` and `-`, beginning with a letter or
      digit
name-number | name: clicks | name: 5
  1:7: name: must be text, found `5`; put it in quotes
empty-value | name: clicks | name:
  1:1: name: has no value; write `name: clicks`
long-name | name: clicks | name:
      aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
  1:7: name: is longer than 100 characters; shorten it
kafka | format: files\n | format: kafka\n
  2:1: source.bootstrap_servers: is missing; write `bootstrap_servers: "localhost:9092"`
  2:1: source.value: is missing; write `value: {format: json, schema: "..."}`
  4:3: source.path: does not apply to topics; remove it, or write `format: files`
  5:3: source.file_format: does not apply to topics; write `value: {format: json}`
  6:3: source.schema: belongs to the value; write `value: {format: json, schema: "..."}`
format-typo | format: files\n | format: file\n
  3:11: source.format: `file` is not a valid choice; did you mean `files`?
no-format |   format: files\n | (nothing)
  2:1: source.format: is missing; write `format:` with one of files, kafka
no-path |   path: in/\n | (nothing)
  2:1: source.path: is missing; write `path: in/`
s3 | path: in/ | path: s3a://bucket/in
  4:9: source.path: files in `s3a:` cannot be a source; mount the folder, copy the files, or read a topic
source-in-hdfs | path: in/ | path: hdfs://namenode:8020/in
  4:9: source.path: files in `hdfs:` cannot be a source; mount the folder, copy the files, or read a topic
file-format | file_format: json | file_format: avro
  5:16: source.file_format: `avro` is not a valid choice; write one of json, csv, parquet, common_log, combined_log,
      logfmt
log-nested | file_format: json | file_format: logfmt
  6:11: source.schema: a field of logfmt cannot hold column `tags` of type array<string>; declare it as string
log-time | file_format: json\n  schema: "user | file_format: common_log\n  schema: "time date, user
  6:11: source.schema: column `time` is date, and the time of common_log is an instant; declare it as timestamp, or as
      string: `time timestamp`
  6:11: source.schema: a field of common_log cannot hold column `tags` of type array<string>; declare it as string
header | file_format: json | file_format: json\n  header: true
  6:3: source.header: does not apply to json files; remove it, or write `file_format: csv`
header-bool | file_format: json | file_format: csv\n  header: maybe
  6:11: source.header: must be true or false, found `maybe`; write `true` or `false`
delimiter | file_format: json | file_format: csv\n  delimiter: ab
  6:14: source.delimiter: must be one character, found `ab`; write one such as `","` or `"\t"`
csv-nested | file_format: json | file_format: csv
  6:11: source.schema: a CSV field cannot hold column `tags` of type array<string>; declare it as string, or read JSON
      or Parquet
json-map-keys | tags array<string> | tags array<map<int,string>>
  6:11: source.schema: column `tags` has a map with keys of type int, and names in JSON are texts; write
      `map<string,…>`
name-pattern-no-group | path: in/ | path: in/\n  name_pattern: '.*\.log'
  5:17: source.name_pattern: has no named group, so it gives no column; write one such as
      `access-(?P<day>\d{4}-\d{2}-\d{2})\.log.*`
name-pattern-none | path: in/ | path: in/\n  name_pattern: '(?P<user'
  5:22: source.name_pattern: is not a regular expression: missing >, unterminated name; write one such as
      `access-(?P<day>\d{4}-\d{2}-\d{2})\.log.*`
name-pattern-unknown | path: in/ | path: in/\n  name_pattern: '(?P<usr>.*)'
  5:17: source.name_pattern: the schema has no column `usr`; did you mean `user`?
name-pattern-nested | path: in/ | path: in/\n  name_pattern: '(?P<tags>.*)'
  5:17: source.name_pattern: column `tags` is array<string>, which a name does not have; declare it as string
max-files-zero | path: in/ | path: in/\n  max_files_per_batch: 0
  5:24: source.max_files_per_batch: must be at least 1, found 0; remove it to have the default, 1000
max-files-text | path: in/ | path: in/\n  max_files_per_batch: many
  5:24: source.max_files_per_batch: must be a whole number, found `many`; write digits only
max-files-true | path: in/ | path: in/\n  max_files_per_batch: true
  5:24: source.max_files_per_batch: must be a whole number, found `true`; write digits only
max-files-half | path: in/ | path: in/\n  max_files_per_batch: 1.5
  5:24: source.max_files_per_batch: must be a whole number, found `1.5`; write digits only
schema-type | id long | id lng
  6:28: source.schema: `lng` is not a type; did you mean `long`?
schema-dedup | n int | _dedup int
  6:11: source.schema: column `_dedup` would collide with the struct that deduper adds to every row; rename the column;
      names that begin with `_dedup` are reserved
source-text | <SOURCE> | source: in/\n
  2:9: source: must be a section of settings, found `in/`; write `source: {format: files, path: in/, ...}`
key-column | key: [user, id] | key: [usr, id]
  7:7: key.0: source.schema has no column `usr`; did you mean `user`?
key-nested | key: [user, id] | key: [user, tags]
  7:13: key.1: column `tags` is array<string>, which cannot be part of a key; name columns such as string, bigint, date
      or timestamp
key-twice | key: [user, id] | key: [user, user]
  7:13: key.1: column `user` appears twice; name every column once
key-field | <SCHEMA>\nkey: [user, id] | schema: "id long, ts timestamp, m struct<id:string>"\nkey: [m.id]
  7:7: key.0: source.schema has no column `m.id`: it is a field of an object; write `rows.withColumn("m_id",
      rows["m.id"])` in a query of your own, and `m_id` here
key-empty | key: [user, id] | key: []
  7:6: key: must name at least one column; write `key: [user, id]`
key-map | key: [user, id] | key: {user: id}
  7:6: key: must be a list of columns; write `key: [user, id]`
key-commas | key: [user, id] | key: user, id
  7:6: key.0: source.schema has no column `user, id`; write `key: [user, id]`
key-commas-wrong | key: [user, id] | key: user, it
  7:6: key.0: source.schema has no column `user, it`; did you mean `user`?
schema-mapping | <SCHEMA> | schema: {user: string}
  6:11: source.schema: must be text, found a mapping; write all columns in one text, such as `"user string, id long, ts
      timestamp"`
expiry-period-alone | expiry:\n<EVENT_TIME> | expiry: 24h\n
  8:9: expiry: must be a section of settings, found `24h`; write `expiry: {by: event_time, field: ts, period: 24h, span:
      1h}`
period-word | period: 24h | period: 24 moons
  11:11: expiry.period: `moons` is not a unit of time in `24 moons`; units are w, d, h, m, s, ms, us
key-number | key: [user, id] | key: [user, 7]
  7:13: key.1: must be text, found `7`; put it in quotes
no-key | key: [user, id]\n | (nothing)
  1:1: key: is missing; write `key: [user, id]`
null-keys | key: [user, id] | key: [user, id]\nnull_keys: ignore
  8:12: null_keys: `ignore` is not a valid choice; write one of error, allow
digest | key: [user, id] | key: [user, id]\ndigest: md5
  8:9: digest: `md5` is not a valid choice; write one of fast, secure
by-unknown | by: event_time | by: event-time
  9:7: expiry.by: `event-time` is not a valid choice; did you mean `event_time`?
by-missing |   by: event_time\n | (nothing)
  8:1: expiry.by: is missing; write `by:` with one of event_time, ordered, processing_time, category, never
by-empty | by: event_time | by:
  9:3: expiry.by: has no value; write one of event_time, ordered, processing_time, category, never
never-period | by: event_time | by: never
  10:3: expiry.field: does not apply to keys that never expire; remove it, or write `by: event_time`
  11:3: expiry.period: does not apply to keys that never expire; remove it, or write `by: event_time`
field-missing | field: ts | field: tz
  10:10: expiry.field: source.schema has no column `tz`; columns are user, id, ts, tags, n, price, d, f
field-string | field: ts | field: user
  10:10: expiry.field: column `user` is string, which is not a time; declare the column as timestamp, or as bigint and
      write its `unit`
unit-missing | field: ts | field: id
  8:1: expiry.unit: is missing: column `id` is bigint, which has no unit of its own; write `unit: s`, `unit: ms` or
      `unit: us`
unit-refused | field: ts | field: ts\n  unit: ms
  11:3: expiry.unit: column `ts` is a timestamp, which has its own unit; remove `unit`
unit-unknown | field: ts | field: id\n  unit: h
  11:9: expiry.unit: `h` is not a valid choice; write one of us, ms, s
period-number | period: 24h | period: 24
  11:11: expiry.period: a duration needs a unit, found `24`; write `24s` for seconds; units are w, d, h, m, s, ms, us
period-typo | period: 24h | perod: 24h
  11:3: expiry.perod: unknown setting; did you mean `period`?
period-zero | period: 24h | period: 0s
  11:11: expiry.period: a duration of zero is not allowed; write more than `0s`
period-list | period: 24h | period: [24h]
  11:11: expiry.period: `['24h']` is not a duration; write a number and a unit, such as `90s` or `24h`
span-long | period: 24h | period: 24h\n  span: 25h
  12:9: expiry.span: is longer than the period; write at most the period
lookup | period: 24h | period: 24h\n  lookup: everywhere
  12:11: expiry.lookup: `everywhere` is not a valid choice; write one of own_bucket, all_live
ahead-true | period: 24h | period: 24h\n  max_ahead_of_now: true
  12:21: expiry.max_ahead_of_now: `true` is not a duration; write a duration such as `1h`, or `off`
ahead-word | period: 24h | period: 24h\n  max_ahead_of_now: never
  12:21: expiry.max_ahead_of_now: `never` is not a duration; write a number and a unit, such as `90s`, `24h`, `7d` or
      `1h30m`; or write `off`
ordered-time | <EVENT_TIME> |   by: ordered\n  field: ts\n  period: 10\n  span: 1\n
  10:10: expiry.field: column `ts` is timestamp, which `ordered` cannot use; write `by: event_time` for times
ordered-float | <EVENT_TIME> |   by: ordered\n  field: f\n  period: 10\n  span: 1\n
  10:10: expiry.field: column `f` is float, which `ordered` cannot use; declare it as int, bigint, double, or a decimal
      of at most 18 digits
ordered-fraction | <EVENT_TIME> |   by: ordered\n  field: n\n  period: 1.5\n  span: 1\n
  11:11: expiry.period: 1.5 is between two values of column `n`, which is int; write it with whole numbers
ordered-scale | <EVENT_TIME> |   by: ordered\n  field: price\n  period: 10\n  span: 0.001\n
  12:9: expiry.span: 0.001 is between two values of column `price`, which is decimal(10,2); write it with at most 2
      digits after the point
ordered-duration | <EVENT_TIME> |   by: ordered\n  field: n\n  period: 10h\n  span: 1\n
  11:11: expiry.period: `10h` is not a number; write a plain number such as `1000`: `ordered` has no units
ordered-negative | <EVENT_TIME> |   by: ordered\n  field: n\n  period: -10\n  span: 1\n
  11:11: expiry.period: must be more than 0, found -10; write a plain number such as `1000`: `ordered` has no units
ordered-ahead | <EVENT_TIME> |   by: ordered\n  field: n\n  period: 10\n  span: 1\n  max_ahead_of_now: 1h\n
  13:3: expiry.max_ahead_of_now: is refused: a number is not measured against the wall clock; write `max_jump` instead
processing-lookup | <EVENT_TIME> |   by: processing_time\n  period: 1h\n  lookup: own_bucket\n
  11:3: expiry.lookup: is refused: it is always all_live for processing_time; remove it
processing-clock | <EVENT_TIME> |   by: processing_time\n  period: 1h\n  clock: arrival\n
  11:3: expiry.clock: is refused: it is always batch for processing_time; remove it
processing-field | <EVENT_TIME> |   by: processing_time\n  period: 1h\n  field: ts\n
  11:3: expiry.field: is refused: processing_time is the wall clock of the window; remove it, or write `by: event_time`
never-clock | <EVENT_TIME> |   by: never\n  clock: batch\n
  10:3: expiry.clock: is refused: without an expiry key there is no latest point; remove it
category-clock | <EVENT_TIME> |   by: category\n  field: user\n  live_categories: 7\n  clock: batch\n
  12:3: expiry.clock: is refused: categories have no latest point; remove it
category-double | <EVENT_TIME> |   by: category\n  field: d\n  live_categories: 7\n
  10:10: expiry.field: column `d` is double, which cannot be a category; name a column of type string, date, boolean,
      tinyint, smallint, int or bigint
category-missing | <EVENT_TIME> |   by: category\n  field: user\n
  8:1: expiry.live_categories: is missing; write `live_categories: 7`
category-period | <EVENT_TIME> |   by: category\n  field: user\n  live_categories: 7\n  period: 7d\n
  12:3: expiry.period: is refused: categories are counted, not timed; write `live_categories` instead
hdfs | rocksdb:state/clicks | hdfs://host:9000/
  13:8: store.url: `hdfs://host:9000/` is not the URL of a folder in HDFS; write `hdfs://HOST:PORT/PATH`
url-of-hadoop | rocksdb:state/clicks | s3a://bucket/state
  13:8: store.url: `s3a:` is not the name of an object store here; write `s3://BUCKET/PREFIX`
url-with-a-login | rocksdb:state/clicks | s3://id:secret@bucket/state
  13:8: store.url: is not the URL of an object store; write `s3://BUCKET/PREFIX` and no more: credentials, region and
      endpoint are variables of the environment
url-scheme | rocksdb:state/clicks | state/clicks
  13:8: store.url: `state/clicks` is not the URL of a store; write `rocksdb:PATH` or `file:PATH`
url-path | rocksdb:state/clicks | "rocksdb:"
  13:8: store.url: `rocksdb:` has no path; write `rocksdb:PATH` or `file:PATH`
store-in-source | rocksdb:state/clicks | rocksdb:in/state
  13:8: store.url: overlaps source.path (in): one lies inside the other; keep the store outside the input
zone | url: rocksdb:state/clicks | url: rocksdb:state/clicks\nspark: {spark.sql.session.timeZone: Europe/Pariss}
  14:37: spark.spark.sql.session.timeZone: `Europe/Pariss` is no time zone; write `Europe/Paris`
zone-of-java | url: rocksdb:state/clicks | url: rocksdb:state/clicks\nspark: {spark.sql.session.timeZone: SystemV/PST8}
  14:37: spark.spark.sql.session.timeZone: `SystemV/PST8` is no time zone; write a name such as Europe/Paris, or an
      offset such as +02:00
zone-far | url: rocksdb:state/clicks | url: rocksdb:state/clicks\nspark: {spark.sql.session.timeZone: Mars}
  14:37: spark.spark.sql.session.timeZone: `Mars` is no time zone; write a name such as Europe/Paris, or an offset such
      as +02:00
shards | url: rocksdb:state/clicks | url: rocksdb:state/clicks\n  shards: 5000
  14:11: store.shards: must be at most 4096, found 5000; remove it to have the default, 4
memory | url: rocksdb:state/clicks | url: rocksdb:state/clicks\n  memory: 2G
  14:11: store.memory: `G` is not a unit of size in `2G`; write `2GiB` (1024) or `2GB` (1000)
memory-number | url: rocksdb:state/clicks | url: rocksdb:state/clicks\n  memory: 2048
  14:11: store.memory: a size needs a unit, found `2048`; write it as `2GiB` or `512MiB`; units are B, KiB, MiB, GiB,
      TiB, kB, MB, GB, TB
tables-number | url: rocksdb:state/clicks | url: rocksdb:state/clicks\n  tables: 3
  14:11: store.tables: `3` is not a path; write a path such as `out/unique`
no-name | url: rocksdb:state/clicks | url: rocksdb:state/clicks\n  "": 3
  14:3: store.: unknown setting; settings here are url, shards, memory, tables, deadline, first_seen
first-seen | url: rocksdb:state/clicks | url: rocksdb:state/clicks\n  first_sen: false
  14:3: store.first_sen: unknown setting; did you mean `first_seen`?
no-port |   expired: {format: none}\n | (nothing)
  14:1: sinks.expired: is missing; write `expired: {format: parquet, path: out/expired}`, or `expired: {format: none}`
      to drop it
no-sinks | <SINKS> | (nothing)
  1:1: sinks: is missing; write a line for each of unique, duplicate, expired, error
port-unknown |   expired: {format: none}\n |   expired: {format: none}\n  errors: {format: none}\n
  18:3: sinks.errors: unknown setting; did you mean `error`?
sink-delta | {format: none} | {format: delta, path: out/x}
  17:21: sinks.expired.format: `delta` is not a valid choice; write one of parquet, json, csv, kafka, none
sink-format | {format: none} | {format: parqet, path: out/x}
  17:21: sinks.expired.format: `parqet` is not a valid choice; did you mean `parquet`?
sink-no-format | {format: none} | {path: out/x}
  17:3: sinks.expired.format: is missing; write `format:` with one of parquet, json, csv, kafka, none
sink-no-path | {format: none} | {format: csv}
  17:3: sinks.expired.path: is missing; write `path: out/expired`
sink-none-path | {format: none} | {format: none, path: out/x}
  17:27: sinks.expired.path: does not apply to a port that is dropped; remove it, or write `format: parquet`
sink-text | {format: none} | none
  17:12: sinks.expired: must be a section of settings, found `none`; write `expired: {format: parquet, path:
      out/expired}`, or `expired: {format: none}` to drop it
sink-shared | out/duplicate | out/unique
  16:38: sinks.duplicate.path: is also the path of port `unique`; give every port its own directory
sink-of-nobody | out/duplicate | ~nobody-here/dup
  16:38: sinks.duplicate.path: `~nobody-here/dup`: the user of `~nobody-here` is unknown here; write the folder in full,
      or `./~nobody-here` for a name that begins with `~`
sink-through-itself | out/duplicate | loop/dup
  16:38: sinks.duplicate.path: `loop/dup` has a symbolic link that leads to itself; write another path
sink-no-character | out/duplicate | "a\0b"
  16:38: sinks.duplicate.path: `a\0b`: no path has a `\0`; write a path such as `out/unique`
sink-nested | out/duplicate | out/unique/dup
  16:38: sinks.duplicate.path: overlaps the path of port `unique`: one lies inside the other; give every port its own
      directory
sink-in-hdfs-without-host | out/duplicate | hdfs:/out/duplicate
  16:38: sinks.duplicate.path: `hdfs:/out/duplicate` is not the URL of a folder in HDFS; write `hdfs://HOST:PORT/PATH`
sink-at-the-root-of-hdfs | out/duplicate | hdfs://nn:9000/
  16:38: sinks.duplicate.path: `hdfs://nn:9000/` is not the URL of a folder in HDFS; write `hdfs://HOST:PORT/PATH`
sink-in-source | out/duplicate | in/dup
  16:38: sinks.duplicate.path: overlaps source.path (in): the job would read its own output; keep input and output in
      separate directories
sink-in-store | out/duplicate | state/clicks/dup
  16:38: sinks.duplicate.path: overlaps the store (state/clicks): one lies inside the other; keep the store and the
      outputs in separate directories
sink-csv | {format: none} | {format: csv, path: out/expired}
  17:21: sinks.expired.format: CSV cannot hold column `tags` of type array<string>; write `format: parquet` or `format:
      json`
trigger-number | name: clicks | name: clicks\ntrigger: 10
  2:10: trigger: a duration needs a unit, found `10`; write `10s` for seconds; units are w, d, h, m, s, ms, us; or write
      `available_now`
trigger-word | name: clicks | name: clicks\ntrigger: now
  2:10: trigger: `now` is not a duration; write a number and a unit, such as `90s`, `24h`, `7d` or `1h30m`; or write
      `available_now`
spark-prefix | name: clicks | name: clicks\nspark: {master: local}
  2:8: spark: `master` is not a Spark setting; write it with its prefix: `spark.master`
spark-list | name: clicks | name: clicks\nspark: {spark.jars: [a]}
  2:21: spark.spark.jars: must be text, a number, true or false, found `['a']`; put the value in quotes
spark-text | name: clicks | name: clicks\nspark: local
  2:8: spark: must be a section of settings, found `local`; write `spark: {spark.master: "local[4]"}`
spark-cluster | name: clicks | name: clicks\nspark: {spark.master: "spark://host:7077"}
  5:9: source.path: in is a folder of this machine, and `spark.master: spark://host:7077` has executors on others;
      <MOUNT>
  14:8: store.url: `rocksdb:` stores are of one process, and `spark.master: spark://host:7077` has executors of their
      own; write `hdfs://…`, `s3://…`, or `file:PATH` on a mount that you name in `shared_folders`, or `spark.master:
      local[*]`
  16:35: sinks.unique.path: out/unique is a folder of this machine, and `spark.master: spark://host:7077` has executors
      on others; <MOUNT>
  17:38: sinks.duplicate.path: out/duplicate is a folder of this machine, and `spark.master: spark://host:7077` has
      executors on others; <MOUNT>
  19:31: sinks.error.path: out/error is a folder of this machine, and `spark.master: spark://host:7077` has executors on
      others; <MOUNT>
spark-cluster-deploy-mode | name: clicks | name: clicks\nspark: {spark.submit.deployMode: cluster}
  2:34: spark.spark.submit.deployMode: the driver is the process of `deduper run`: it stops at a signal, and serves
      metrics and status; write `client`, and start `deduper run` on a host, or in a pod, of the cluster
spark-cluster-rocksdb | name: clicks | name: clicks\nspark: {spark.master: "local-cluster[2,1,1024]"}
  14:8: store.url: `rocksdb:` stores are of one process, and `spark.master: local-cluster[2,1,1024]` has executors of
      their own; write `hdfs://…`, `s3://…`, or `file:PATH` on a mount that you name in `shared_folders`, or
      `spark.master: local[*]`
yaml-tab |   path: in/ | \tpath: in/
  4:1: is not YAML: found character '\t' that cannot start any token; indent with spaces, and put a value with `: `,
      `#`, `[` or `{` in quotes
yaml-quote | path: in/ | path: "in/
  6:12: is not YAML: expected <block end>, but found '<scalar>'; indent with spaces, and put a value with `: `, `#`, `[`
      or `{` in quotes
yaml-twice | path: in/ | path: in/\n  path: other/
  5:3: source.path: is set twice, first on line 4; remove one of the two
yaml-merge | path: in/ | <<: {path: in/}
  2:1: source.path: is missing; write `path: in/`
  4:3: source: uses the merge key `<<`; write the settings out
yaml-tag | path: in/ | path: !!python/name:os.system in/
  4:9: source.path: has the tag `!!python/name:os.system`; remove the tag: values are plain YAML
yaml-list | <BASE> | - name: clicks\n
  1:1: is not a mapping; write `name: value` lines
variable | path: in/ | path: ${INPUT_DIR}/in
  4:9: source.path: the environment variable `INPUT_DIR` is not set; set it, or write `${INPUT_DIR:-default}`
variable-brace | path: in/ | path: "x${INPUT/in"
  4:11: source.path: `${` does not begin a reference; write `${NAME}` or `${NAME:-default}`, or `$$` for a dollar
""",
    {"BASE": BASE, "EVENT_TIME": EVENT_TIME, "MOUNT": MOUNT, "SCHEMA": SCHEMA, "SINKS": SINKS, "SOURCE": SOURCE},
)


@pytest.mark.parametrize(("old", "new", "problems"), CASES.values(), ids=CASES.keys())
def test_a_mistake_is_told_with_its_place_and_what_to_write(
    old: str, new: str, problems: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One change to a valid file gives exactly these problems."""
    assert old in BASE
    (tmp_path / "loop").symlink_to("loop")
    assert problems_of(BASE.replace(old, new, 1), tmp_path, monkeypatch) == problems


def test_the_file_that_the_mistakes_are_made_in_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the cases would prove nothing."""
    assert problems_of(BASE, tmp_path, monkeypatch) == []


@pytest.mark.parametrize("url", ["hdfs://nn:9000/out/duplicate", "hdfs://cluster/a/", "HDFS://nn:9000/out/unique"])
def test_a_port_of_files_may_be_in_hdfs(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its URL is kept whole, whatever lies under this path here; its files are for others to read."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(BASE.replace("out/duplicate", url, 1), encoding="utf-8")
    sinks = load_config(Path("job.yaml"), environment={}).file_ports
    assert sinks["duplicate"].url == "hdfs" + url[4:].rstrip("/")
    assert (sinks["duplicate"].is_local, sinks["unique"].is_local) == (False, True)
    assert sinks["unique"].url == str(tmp_path / "out/unique")
    names = sinks["duplicate"].place.names
    assert isinstance(names, HdfsNames)
    assert names.is_public
    Path("job.yaml").write_text(BASE.replace("out/duplicate", url, 1).replace("out/unique", f"{url}/in", 1))
    with pytest.raises(ConfigError, match="one lies inside the other"):
        load_config(Path("job.yaml"), environment={})


@pytest.mark.parametrize(
    ("master", "shared"),
    [
        ("spark://host:7077", "shared_folders: [.]\n"),
        ("yarn", "shared_folders: [.]\n"),
        ("local-cluster[2,1,1024]", ""),
    ],
)
def test_a_cluster_takes_a_file_store_that_its_hosts_see(
    master: str, shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a shared folder, or where all executors are on this machine."""
    monkeypatch.chdir(tmp_path)
    text = BASE.replace("rocksdb:", "file:") + f'spark: {{spark.master: "{master}"}}\n'
    Path("job.yaml").write_text(text + shared, encoding="utf-8")
    assert load_config(Path("job.yaml"), environment={}).spark["spark.master"] == master


SETTINGS = [
    *("name", "source", "key", "null_keys", "digest", "expiry", "store", "sinks", "trigger", "spark"),
    *("source.format", "source.path", "source.file_format", "source.schema", "source.max_files_per_batch"),
    "source.name_pattern",
    *("source.header", "source.delimiter", "expiry.by", "expiry.field", "expiry.period", "expiry.span", "expiry.unit"),
    *("expiry.lookup", "expiry.clock", "expiry.max_ahead_of_now", "expiry.max_jump"),
    *("expiry.live_categories", "expiry.remember_dropped", "store.url", "store.shards", "store.memory"),
    *(
        "store.tables",
        "store.first_seen",
        "sinks.unique",
        "sinks.unique.format",
    ),
    *("sinks.unique.path", "spark.x", "spark.spark.x", "nonsense", "source.nonsense", "sinks.unique.nonsense"),
    *("metrics", "metrics.port", "metrics.host", "metrics.nonsense"),
]
ODD_VALUES: list[object] = [
    *(None, True, 0, -1, 2**70, 1.5, "", "x", " ", "${", "never", "none", "ordered", "category", "csv", "off"),
    *("~nobody-here", "a\0b", "~a\0b"),
    *([], [None], [[]], ["x", "x"], {}, {"x": None}, {"by": []}, {"format": {}}, {"format": "none"}, {"by": "never"}),
]
EXPIRIES: list[dict[str, object]] = [
    {"by": "never"},
    {"by": "event_time", "field": "ts", "period": "24h"},
    {"by": "ordered", "field": "n", "period": 10, "span": 1},
    {"by": "processing_time", "period": "1h"},
    {"by": "category", "field": "user", "live_categories": 3},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "expiry"),
    [
        pytest.param(setting, expiry, id=f"{setting}-{expiry['by']}")
        for setting in (SETTINGS if is_night() else SETTINGS[::3])
        # Other sections do not care by what keys expire.
        for expiry in (EXPIRIES if setting.startswith("expiry.") else EXPIRIES[1:2])
    ],
)
def test_no_value_of_any_setting_is_a_crash(setting: str, expiry: dict[str, object], tmp_path: Path) -> None:
    """Whatever stands where: it is taken, or everything that is wrong with it has words and advice."""
    section, _, inner = setting.partition(".")
    for value in ODD_VALUES:
        data: dict[str, Any] = {
            "name": "clicks",
            "source": {
                "format": "files",
                "path": "in",
                "file_format": "json",
                "schema": "user string, ts timestamp, n int",
            },
            "key": ["user"],
            "expiry": dict(expiry),
            "store": {"url": "file:state"},
            "sinks": {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS},
            "spark": {},
        }
        if not inner:
            data[section] = value
        elif section == "sinks" and "." in inner:
            data["sinks"]["unique"][inner.partition(".")[2]] = value
        else:
            data.setdefault(section, {})[inner] = value
        check_words(data, tmp_path, value)
