"""Every mistake in the settings of Kafka: found in its exact place, with what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduper.config.load import load_config
from deduper.config.model import Config
from tests.deduper.config.cases import cases, problems_of
from tests.deduper.kafka_configs import BASE, FROM_TOMBSTONES, JAAS, JSON_VALUE, SSL, TO_TOMBSTONES

CASES = cases(
    r"""
unknown | topics: | topcs:
  5:3: source.topcs: unknown setting; did you mean `topics`?
files-setting |   tombstones: error |   max_files_per_batch: 3
  11:3: source.max_files_per_batch: does not apply to topics; write `max_offsets_per_batch`
no-servers |   bootstrap_servers: "b1:9092,b2:9092"\n | (nothing)
  2:1: source.bootstrap_servers: is missing; write `bootstrap_servers: "localhost:9092"`
servers-number | "b1:9092,b2:9092" | 9092
  4:22: source.bootstrap_servers: `9092` has no broker; write `"host:9092"`, several with commas
servers-no-port | "b1:9092,b2:9092" | "b1:9092,b2"
  4:22: source.bootstrap_servers: `b2` is not host:port; write `"host:9092"`, several with commas
servers-port | "b1:9092,b2:9092" | "b1:99999"
  4:22: source.bootstrap_servers: `b1:99999` has no port; ports are 1 to 65535
servers-protocol | "b1:9092,b2:9092" | "SASL_SSL://b1:9092"
  4:22: source.bootstrap_servers: `SASL_SSL://b1:9092` has a protocol; write host:port, and the protocol as `options:
      {kafka.security.protocol: SASL_SSL}`
servers-bare-v6 | "b1:9092,b2:9092" | "::1:9092"
  4:22: source.bootstrap_servers: `::1:9092` is not host:port; write an IPv6 address as `"[::1]:9092"`
servers-bad-v6 | "b1:9092,b2:9092" | "[1::2::3]:9092"
  4:22: source.bootstrap_servers: `[1::2::3]:9092` is not an IPv6 address; write it as `"[::1]:9092"`
dedup-headers-text | topic: unique} | topic: unique, dedup_headers: verdict}
  18:57: sinks.unique.dedup_headers: must be a list, found `verdict`; write `dedup_headers: [verdict, origin]`, or `[]`
dedup-headers-unknown | topic: unique} | topic: unique, dedup_headers: [origin, offset]}
  18:66: sinks.unique.dedup_headers.1: `offset` is no header; use verdict, reason, detail, window, origin, first_seen, fingerprint
dedup-headers-twice | topic: unique} | topic: unique, dedup_headers: [origin, origin]}
  18:66: sinks.unique.dedup_headers.1: `origin` appears twice; name every header once
no-topics |   topics: [clicks, taps]\n | (nothing)
  2:1: source.topics: is missing; write `topics: [clicks]`, or a `topic_pattern`
topics-empty | [clicks, taps] | []
  5:11: source.topics: has no topic; write `topics: [clicks]`, or a `topic_pattern`
topics-map | [clicks, taps] | {clicks: 4}
  5:11: source.topics: must be a list of topics, found `{'clicks': 4}`; write `topics: [clicks]`
topics-number | [clicks, taps] | [clicks, 5]
  5:20: source.topics.1: `5` is not a topic name; put it in quotes
topics-name | [clicks, taps] | [clicks/eu]
  5:12: source.topics.0: `clicks/eu` is not a topic name; use letters, digits, `.`, `_` and `-`, at most 249
topics-twice | [clicks, taps] | [clicks, clicks]
  5:20: source.topics.1: topic `clicks` appears twice; name every topic once
topics-and-pattern | topics: [clicks, taps] | topics: clicks\n  topic_pattern: c.*
  6:3: source.topic_pattern: cannot be combined with `topics`; remove one of the two
pattern-open | topics: [clicks, taps] | topic_pattern: clicks-(a|b
  5:25: source.topic_pattern: is not a regular expression: missing ), unterminated subpattern; write one such as
      `clicks-.*`
pattern-empty | topics: [clicks, taps] | topic_pattern: ''
  5:18: source.topic_pattern: `` is not a regular expression; write one such as `clicks-.*`
start-word | starting_offsets: earliest | starting_offsets: newest
  6:21: source.starting_offsets: `newest` is not a starting position; write `earliest`, `latest`, `{time:
      "2025-03-01T00:00:00Z"}` or `{clicks: {"0": 12}}`
start-time | starting_offsets: earliest | starting_offsets: {time: yesterday}
  6:28: source.starting_offsets.time: `yesterday` is not a time; write `{time: "2025-03-01T00:00:00Z"}`; without a zone
      it is UTC
start-long-ago | starting_offsets: earliest | starting_offsets: {time: 1969-12-31}
  6:28: source.starting_offsets.time: `1969-12-31` is before 1970; write `starting_offsets: earliest`
start-topic | starting_offsets: earliest | starting_offsets: {klicks: {0: 5}}
  6:22: source.starting_offsets.klicks: `klicks` is not a topic of the source; topics are clicks, taps
start-partition | starting_offsets: earliest | starting_offsets: {clicks: {first: 5}}
  6:31: source.starting_offsets.clicks.first: `first` is not a partition; write `{clicks: {"0": 12}}`
start-negative | starting_offsets: earliest | starting_offsets: {clicks: {0: -1}}
  6:34: source.starting_offsets.clicks.0: `-1` is not an offset; write a whole number, 0 or more; a partition that is
      left out starts at its earliest offset
start-none | starting_offsets: earliest | starting_offsets: {clicks: {}}
  6:30: source.starting_offsets.clicks: has no partition; write `{clicks: {"0": 12}}`
order-without-slack |   tombstones: error |   order: time
  2:1: source.slack: is missing; write how far partitions may be apart, as `slack: 2h`
slack-without-order |   tombstones: error |   slack: 2h
  11:3: source.slack: has no effect; add `order: time`, or remove it
slack-beyond-period |   tombstones: error |   order: time\n  slack: 25h
  12:10: source.slack: lets partitions be further apart than the period of 1d; write a part of the period
slack-of-nothing |   tombstones: error |   order: time\n  slack: 999us
  12:10: source.slack: is less than time stamps tell apart; write a second or more
order-of-nothing | <TO_EXPIRY> |   order: time\n  slack: 2h\nkey: [user, id]\nexpiry: {by: never}\n
  11:10: source.order: `time` does nothing for records that expire by never; remove it and `slack`, or write `expiry:
      {by: event_time, …}`
batch-zero |   tombstones: error |   max_offsets_per_batch: 0
  11:26: source.max_offsets_per_batch: must be at least 1, found 0; remove it to have the default, 500000
no-value |   value:\n<JSON_VALUE> | (nothing)
  2:1: source.value: is missing; write `value: {format: json, schema: "..."}`
value-text |   value:\n<JSON_VALUE> |   value: json\n
  7:10: source.value: must be a section of settings, found `json`; write `value: {format: json, schema: "..."}`
value-no-format |     format: json\n | (nothing)
  7:3: source.value.format: is missing; write `format: json`
value-format |     format: json\n |     format: protobuf\n
  8:13: source.value.format: `protobuf` is not a valid choice; write one of json, csv, common_log, combined_log,
      logfmt, text, avro
value-avro-none | <JSON_VALUE> |     format: avro\n
  7:3: source.value.avro_schema: is missing; write the path of an .avsc file, or the schema as JSON
value-avro-ddl |     format: json\n |     format: avro\n
  9:5: source.value.schema: does not apply to avro, which has those of avro_schema; remove it, or write `format: json`
value-avro-file | <JSON_VALUE> |     format: avro\n    avro_schema: none.avsc\n
  9:18: source.value.avro_schema: none.avsc cannot be read: No such file or directory; write the path of an .avsc file,
      or the schema as JSON
value-avro-type | <JSON_VALUE> |     format: avro\n    avro_schema: {type: record, name: C, fields: [{name: n, type:
      lng}]}\n
  9:18: source.value.avro_schema: `C.n` has the unknown type `lng`; types are int, long, float, double, boolean, string,
      bytes, record, enum, fixed, array and map
value-avro-twice | <JSON_VALUE> |     format: avro\n    avro_schema: {"type": "record", "name": "C", "fields": [{"name":
      "n", "type": "int"}, {"name": "N", "type": "int"}]}\n
  9:18: source.value.avro_schema: column `N` appears twice; remove one of the two
value-schema-ids |     format: json\n |     format: json\n    schema_ids: any\n
  9:5: source.value.schema_ids: does not apply to json; remove it, or write `format: avro`
value-typo |     schema: |     shema:
  9:5: source.value.shema: unknown setting; did you mean `schema`?
value-no-schema | <JSON_VALUE> |     format: json\n
  7:3: source.value.schema: is missing; write `schema: "user string, id long, ts timestamp"`, or `format: text`
value-schema | id long | id lng
  9:17: source.value.schema: `lng` is not a type; did you mean `long`?
value-taken | id long | _dedup long
  9:13: source.value.schema: column `_dedup` would collide with the struct that deduper adds to every row; rename the
      column; names that begin with `_dedup` are reserved
value-port | id long | _Port long
  9:13: source.value.schema: column `_Port` would collide with a column of deduper's own; rename the column
value-text-schema |     format: json\n |     format: text\n
  9:5: source.value.schema: does not apply to text, which has one column, `value string`; remove it, or write `format:
      json`
value-log-field |     format: json\n |     format: combined_log\n
  9:13: source.value.schema: combined_log has no field `id`; its fields are host, ident, user, time, request, method,
      target, protocol, status, bytes, referer, agent, rest
value-csv-nested |     format: json\n |     format: csv\n
  9:13: source.value.schema: a CSV field cannot hold column `tags` of type array<string>; declare it as string, or write
      `format: json`
value-delimiter |     format: json\n |     format: json\n    delimiter: ;\n
  9:5: source.value.delimiter: does not apply to json; remove it, or write `format: csv`
value-delimiter-long |     format: json\n |     format: csv\n    delimiter: ';;'\n
  9:16: source.value.delimiter: must be one character, found `;;`; write one such as `","` or `"\t"`
record-part | user: key | user: keys
  10:18: source.record.user: `keys` is not a part of a record; write key, key_binary, timestamp, topic, partition,
      offset or header:NAME
record-header | "header:trace-id" | "header:"
  10:30: source.record.trace: `header:` is not a part of a record; write key, key_binary, timestamp, topic, partition,
      offset or header:NAME
record-case | user: key | user: key, User: topic
  10:23: source.record.User: column `User` appears twice, because Spark ignores case; rename one of the two
record-value | arrived: timestamp | TS: timestamp
  10:49: source.record.TS: column `TS` is one of the value's columns too; rename one of the two
record-taken | arrived: timestamp | _dedup_at: timestamp
  10:49: source.record._dedup_at: column `_dedup_at` would collide with the struct that deduper adds to every row;
      rename the column; names that begin with `_dedup` are reserved
record-list | {user: key, trace: "header:trace-id", arrived: timestamp} | [key]
  10:11: source.record: must be a section of settings, found `['key']`; write `record: {user: key, arrived: timestamp}`
key-column | key: [user, id] | key: [usr, id]
  14:7: key.0: source.value.schema and source.record have no column `usr`; did you mean `user`?
expiry-column | field: ts | field: trace
  15:33: expiry.field: column `trace` is string, which is not a time; declare the column as timestamp, or as bigint and
      write its `unit`
tombstones-word | tombstones: error | tombstones: drop
  11:15: source.tombstones: `drop` is not a valid choice; write one of error, judge
tombstones-key-and-expiry | tombstones: error | tombstones: judge
  11:15: source.tombstones: key column `id` is in the value, which a tombstone lacks: each tombstone would be an error;
      take the key from the record (`record: {user: key}`), or write `null_keys: allow` or `tombstones: error`
  11:15: source.tombstones: expiry.field `ts` is in the value, which a tombstone lacks: each tombstone would be an
      error; take it from the record (`record: {arrived: timestamp}`), or write `tombstones: error`
data-loss | tombstones: error | data_loss: ignore
  11:14: source.data_loss: `ignore` is not a valid choice; write one of fail, continue
group | tombstones: error | group: true
  11:10: source.group: `true` is not the name of a group; write a name, or `off`
deadline | tombstones: error | deadline: 0s
  11:13: source.deadline: a duration of zero is not allowed; write more than `0s`
option-prefix | <SSL> |     security.protocol: SSL\n
  13:5: source.options.security.protocol: is not a Kafka option; write it with its prefix: `kafka.security.protocol`
option-capitals | <SSL> |     kafka.Security.Protocol: SSL\n
  13:5: source.options.kafka.Security.Protocol: is not a Kafka option; write it in small letters:
      `kafka.security.protocol`
option-ours | <SSL> |     kafka.group.id: me\n
  13:5: source.options.kafka.group.id: is set by the job; write `group`
option-ours-native | <SSL> |     librdkafka.bootstrap.servers: me\n
  13:5: source.options.librdkafka.bootstrap.servers: is set by the job; write `bootstrap_servers`
option-of-spark | <SSL> |     failOnDataLoss: false\n
  13:5: source.options.failOnDataLoss: is set by the job; write `data_loss`
option-empty | <SSL> |     kafka.client.id:\n
  13:5: source.options.kafka.client.id: has no value; write a value, or remove the line
option-list | <SSL> |     kafka.client.id: [a]\n
  13:22: source.options.kafka.client.id: must be text, a number, true or false, found `['a']`; put it in quotes
options-native | <SSL> | <SSL>    kafka.sasl.password: hunter2\n    kafka.ssl.ca.location: ca.pem\n
  14:5: source.options.kafka.sasl.password: is librdkafka's name, and no option of Kafka's; write `<JAAS>`
options-text |   options:\n<SSL> |   options: SSL\n
  12:12: source.options: must be a section of settings, found `SSL`; write `options: {kafka.security.protocol: SSL}`
option-jks | <SSL> |     kafka.ssl.truststore.location: /etc/ca.jks\n
  13:5: source.options.kafka.ssl.truststore.location: is /etc/ca.jks, a key store of type JKS, which librdkafka cannot
      read; make a PEM file of it (keytool -importkeystore -srckeystore /etc/ca.jks -destkeystore s.p12 -deststoretype
      PKCS12; openssl pkcs12 -in s.p12 -out s.pem), and write `kafka.ssl.truststore.type: PEM` too
option-of-consumers-of-java | <SSL> |     kafka.allow.auto.create.topics: false\n
  13:5: source.options.kafka.allow.auto.create.topics: is an option of Java's client alone, which no job uses; remove
      it, or write the `librdkafka.` option of the same meaning
option-of-java-alone | <SSL> |     kafka.sasl.login.class: Mine\n
  13:5: source.options.kafka.sasl.login.class: does not exist in librdkafka, which the job uses; remove it, or
      write the `librdkafka.` option of the same meaning
option-jaas | <SSL> |     <JAAS>: "com.sun.security.auth.module.Krb5LoginModule required keyTab=x;"\n
  13:5: source.options.<JAAS>: has Krb5LoginModule with keyTab, which is not supported; write PlainLoginModule or
      ScramLoginModule with username and password, OAuthBearerLoginModule with clientId and clientSecret, or
      librdkafka.sasl.* options
sink-no-topic | topic: unique} | }
  18:3: sinks.unique.topic: is missing; write `topic: unique`
sink-path | topic: unique} | topic: unique, path: out/unique}
  18:42: sinks.unique.path: does not apply to a topic; remove it, or write `format: parquet`
sink-file-topic | path: out/expired} | path: out/expired, topic: expired}
  20:49: sinks.expired.topic: does not apply to files; remove it, or write `format: kafka`
sink-topic-name | topic: unique} | topic: unique records}
  18:34: sinks.unique.topic: `unique records` is not a topic name; use letters, digits, `.`, `_` and `-`, at most 249
sink-delivery | topic: duplicate} | topic: duplicate, delivery: at_least_once}
  19:48: sinks.duplicate.delivery: unknown setting; settings here are format, topic, bootstrap_servers, preserve_order,
      dedup_headers, options
sink-order | topic: unique} | topic: unique, preserve_order: maybe}
  18:58: sinks.unique.preserve_order: must be true or false, found `maybe`; write `true` or `false`
sink-typo | topic: unique} | topic: unique, preserve_orders: true}
  18:42: sinks.unique.preserve_orders: unknown setting; did you mean `preserve_order`?
sink-source-topic | topic: unique} | topic: taps}
  18:34: sinks.unique.topic: `taps` is a topic of the source: the job would read its own output; send to another topic
sink-same-brokers | topic: unique} | topic: taps, bootstrap_servers: "B2:9092"}
  18:34: sinks.unique.topic: `taps` is a topic of the source: the job would read its own output; send to another topic
sink-pattern | topics: [clicks, taps] | topic_pattern: '[a-z]+que'
  18:34: sinks.unique.topic: `unique` matches source.topic_pattern: the job would read its own output; send to another
      topic
sink-option | topic: unique} | topic: unique, options: {kafka.transactional.id: x}}
  18:52: sinks.unique.options.kafka.transactional.id: is set by the job; remove it: the job makes it from its name, the
      store, the port and the slot
sink-option-partitioner | topic: unique} | topic: unique, options: {kafka.partitioner.class: Mine}}
  18:52: sinks.unique.options.kafka.partitioner.class: cannot be set: keys go to the partitions of Kafka's default
      partitioner; leave it out
sink-csv | format: parquet | format: csv
  20:21: sinks.expired.format: CSV cannot hold column `tags` of type array<string>; write `format: parquet` or `format:
      json`
""",  # noqa: E501  # a message is one line
    {"JAAS": JAAS, "JSON_VALUE": JSON_VALUE, "SSL": SSL, "TO_EXPIRY": FROM_TOMBSTONES},
)


@pytest.mark.parametrize(("old", "new", "problems"), CASES.values(), ids=CASES.keys())
def test_a_mistake_is_told_with_its_place_and_what_to_write(
    old: str, new: str, problems: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One change to a valid file gives exactly these problems."""
    assert BASE.count(old) >= 1
    assert problems_of(BASE.replace(old, new, 1), tmp_path, monkeypatch) == problems


# Both sides of the rules: what is replaced in BASE, and what then holds.
SOUND: dict[str, tuple[str, str]] = {
    "nothing": ("", ""),
    "servers-v6": ('"b1:9092,b2:9092"', '"[::1]:9092, [fe80::2]:65535"'),
    "servers-list": ('"b1:9092,b2:9092"', "[b1:9092, b_2.example-host:1]"),
    "topics-text": ("[clicks, taps]", "clicks"),
    "pattern": ("topics: [clicks, taps]", "topic_pattern: 'clicks-(eu|us)[.-]\\\\d{1,3}(?!x).*'"),
    "start-latest": ("offsets: earliest", "offsets: latest"),
    "start-time": ("offsets: earliest", "offsets: {time: 2025-03-01T00:00:00+01:00}"),
    "start-day": ("offsets: earliest", "offsets: {time: 1970-01-01}"),
    "start-offsets": ("offsets: earliest", "offsets: {clicks: {0: 0, 1: 9223372036854775807}, taps: {0: 5}}"),
    "start-topic-time": ("[clicks, taps]\n  starting_offsets: earliest", "time\n  starting_offsets: {time: {0: 3}}"),
    "value-csv": (JSON_VALUE, "    {format: csv, schema: 'id long, ts timestamp', delimiter: ;}\n"),
    "value-text": (
        JSON_VALUE + "  record: {user: key,",
        "    format: text\n  record: {user: key, id: offset, ts: timestamp,",
    ),
    "value-avro": (
        JSON_VALUE,
        "    format: avro\n    schema_ids: [17, 18]\n"
        '    avro_schema: {"type": "record", "name": "C", "fields": [{"name": "id", "type": "long"}, {"name": "ts", '
        '"type": {"type": "long", "logicalType": "timestamp-millis"}}]}\n',
    ),
    "tombstones-judged": (FROM_TOMBSTONES, TO_TOMBSTONES.replace("key: [user, id]", "key: user")),
    "tombstones-null-keys": (FROM_TOMBSTONES, TO_TOMBSTONES + "null_keys: allow\n"),
    "group-off": ("tombstones: error", "group: off"),
    "option-isolation": (SSL, "    kafka.isolation.level: read_uncommitted\n    kafka.max.poll.records: 7\n"),
    "option-pem": (SSL, "    kafka.ssl.truststore.location: /ca.pem\n"),
    "sink-elsewhere": ("topic: unique}", "topic: taps, bootstrap_servers: 'other:9092'}"),
    "one-topic-for-two-ports": ("topic: duplicate", "topic: unique"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), SOUND.values(), ids=SOUND.keys())
def test_what_stands_on_the_other_side_of_a_rule_is_taken(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And written back, it is the same configuration."""
    text = BASE.replace(old, new, 1)
    assert old in BASE
    assert problems_of(text, tmp_path, monkeypatch) == []
    config = load_config(tmp_path / "job.yaml", environment={})
    assert Config.model_validate(config.model_dump(mode="json", by_alias=True)) == config
