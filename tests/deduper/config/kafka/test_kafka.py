"""Kafka in the configuration: what is filled in, what is written back, and every mistake with its place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deduper.cli.commands.job import starter_config
from deduper.columns import parse_columns
from deduper.config.kafka.sections import RECORD_PARTS, KafkaSink
from deduper.config.load import load_config, load_with_sources
from deduper.config.messages import findings
from deduper.config.model import Config
from deduper.config.problems import ConfigError
from deduper.config.sections import PORTS
from deduper.units import MAX_I64
from deduper.window.policy import settings_hash
from tests.deduper.config.cases import check_words, problems_of
from tests.deduper.kafka_configs import BASE, JAAS, SSL, kafka_source, loaded

ROOT = Path(__file__).parent.parent.parent.parent.parent


def test_columns_are_the_values_and_the_records(tmp_path: Path) -> None:
    """In this order, found by name, and as DDL that reads back to the same columns whatever their names."""
    source = kafka_source(loaded(BASE.replace("user: key", "user: key, 'odd `name': offset"), tmp_path))
    assert [(column.name, column.type.text) for column in source.parsed_columns] == [
        ("id", "bigint"),
        ("ts", "timestamp"),
        ("tags", "array<string>"),
        ("user", "string"),
        ("odd `name", "bigint"),
        ("trace", "string"),
        ("arrived", "timestamp"),
    ]
    assert parse_columns(source.columns) == source.parsed_columns
    assert [part for _, part in source.record_columns] == ["key", "offset", "header:trace-id", "timestamp"]
    assert source.column("user") == source.record_columns[0][0]


def test_what_nobody_wrote_is_filled_in(tmp_path: Path) -> None:
    """The group has the job's name; a port has the source's brokers, and of its options those for connecting."""
    text = BASE.replace(SSL, SSL + "    kafka.max.poll.records: 7\n    librdkafka.socket.keepalive.enable: true\n")
    text = text.replace("topic: unique}", "topic: unique, options: {kafka.security.protocol: PLAINTEXT}}")
    config = loaded(text.replace("topic: duplicate", 'topic: duplicate, bootstrap_servers: "o:1"'), tmp_path)
    assert kafka_source(config).group == "clicks"
    assert config.sinks.unique == KafkaSink(
        format="kafka",
        topic="unique",
        bootstrap_servers="b1:9092,b2:9092",
        options={"kafka.security.protocol": "PLAINTEXT", "librdkafka.socket.keepalive.enable": "true"},
    )
    assert isinstance(config.sinks.duplicate, KafkaSink)
    assert (config.sinks.duplicate.bootstrap_servers, config.sinks.duplicate.options) == ("o:1", {})


def test_a_group_can_be_named_or_off(tmp_path: Path) -> None:
    """None is off."""
    groups = [
        kafka_source(loaded(BASE.replace("tombstones: error", f"group: {text}"), tmp_path)).group
        for text in ("lag", "off")
    ]
    assert groups == ["lag", None]


def test_kafka_ports_need_a_kafka_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they send on is records, and files have none; a Kafka source may write to files, though."""
    files = 'source: {format: files, path: in, file_format: json, schema: "id long, user string, ts timestamp"}\n'
    text = BASE[: BASE.index("source:")] + files + BASE[BASE.index("key:") :]
    assert problems_of(text, tmp_path, monkeypatch) == [
        f"{line}: sinks.{port}.format: sends records of a Kafka source, but the source is files; write "
        f"`{port}: {{format: parquet, path: out/{port}}}`, or read from Kafka"
        for line, port in (("7:20", "unique"), ("8:23", "duplicate"))
    ]


def test_settings_that_change_verdicts_change_their_hash(tmp_path: Path) -> None:
    """An intent is repeated only under the same reading of the same offsets."""
    changes = [
        ("", ""),
        ("id long", "id int"),
        ("user: key", "user: topic"),
        ("tombstones: error", "tombstones: judge"),
        (SSL, "    kafka.isolation.level: read_uncommitted\n"),
        ("    format: json", "    format: csv"),
        ("    format: json", "    format: csv\n    delimiter: ;"),
    ]
    base = BASE.replace(", tags array<string>", "").replace("field: ts", "field: arrived")
    base = base.replace("key: [user, id]", "key: user")
    hashes = [settings_hash(loaded(base.replace(old, new, 1), tmp_path)) for old, new in changes]
    assert len(set(hashes)) == len(changes)
    same = [(SSL, "    kafka.client.id: me\n"), ("b1:9092,", ""), ("[clicks, taps]", "[clicks, taps, more]")]
    assert {settings_hash(loaded(base.replace(old, new, 1), tmp_path)) for old, new in same} == {hashes[0]}


@pytest.mark.parametrize(("pattern", "offset"), [("clicks-.*", None), (r"(?P<n>a)\pL", 8), ("*a", 0), ("a{,3}", None)])
def test_a_pattern_is_a_regular_expression(pattern: str, offset: int | None, tmp_path: Path) -> None:
    """The caret stands where it goes wrong."""
    text = BASE.replace("topics: [clicks, taps]", f"topic_pattern: '{pattern}'")
    if offset is None:
        assert kafka_source(loaded(text, tmp_path)).topic_pattern == pattern
        return
    with pytest.raises(ConfigError) as caught:
        loaded(text, tmp_path)
    (problem,) = caught.value.problems
    assert (problem.setting, problem.place.line, problem.place.column) == ("source.topic_pattern", 5, 19 + offset)


def test_a_pattern_is_of_whole_names(tmp_path: Path) -> None:
    """A topic in whose name it can be found is none of the source's."""
    source = kafka_source(loaded(BASE.replace("topics: [clicks, taps]", "topic_pattern: clicks|taps"), tmp_path))
    for topic, is_read in (("clicks", True), ("taps", True), ("clicks-2", False), ("my-taps", False)):
        assert source.reads(topic) == is_read, topic


SECRETS = f"""\
    {JAAS}: 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="hunter1";'
    kafka.ssl.keystore.password: hunter2
    kafka.ssl.keystore.type: PEM
    kafka.ssl.keystore.key: hunter3
    kafka.ssl.key.password: hunter4
    librdkafka.ssl.key.pem: hunter5
    librdkafka.sasl.oauthbearer.client.secret: hunter6
    kafka.sasl.mechanism: PLAIN
"""


def test_secrets_are_never_printed(tmp_path: Path) -> None:
    """Neither the source's nor those a port has from it, by show or by a message."""
    file = tmp_path / "job.yaml"
    file.write_text(BASE.replace(SSL, SECRETS), encoding="utf-8")
    shown = {setting.setting: setting.value for setting in load_with_sources(file, environment={}).settings}
    assert "hunter" not in str(shown)
    assert shown["source.options.kafka.sasl.mechanism"] == shown["sinks.unique.options.kafka.sasl.mechanism"] == "PLAIN"
    assert [name for name, value in shown.items() if name.startswith("sinks.unique.options.") and value == "***"] == [
        f"sinks.unique.options.{name}"
        for name in (
            JAAS,
            "kafka.ssl.keystore.password",
            "kafka.ssl.keystore.key",
            "kafka.ssl.key.password",
            "librdkafka.ssl.key.pem",
            "librdkafka.sasl.oauthbearer.client.secret",
        )
    ]
    for line in (line for line in SECRETS.splitlines() if "hunter" in line):
        name = line.split(":")[0].strip()
        for broken in (
            f"    {name}: [hunter7]",
            line.replace("PlainLoginModule", "Krb5LoginModule") + "\n    kafka.x: []",
        ):
            with pytest.raises(ConfigError) as caught:
                loaded(BASE.replace(SSL, broken + "\n"), tmp_path)
            assert "hunter" not in str(caught.value)


def test_what_a_port_has_from_the_source_is_said_to_come_from_there(tmp_path: Path) -> None:
    """Brokers and options for connecting, unless it has brokers of its own; what nobody wrote is a default."""
    file = tmp_path / "job.yaml"
    file.write_text(BASE, encoding="utf-8")

    def origins(*overrides: str) -> dict[str, str]:
        settings = load_with_sources(file, overrides=overrides, environment={}).settings
        return {setting.setting: setting.source for setting in settings}

    own = origins()
    for name in ("bootstrap_servers", *(name for name in own if name.startswith("source.options."))):
        name = name.removeprefix("source.")
        assert own[f"sinks.unique.{name}"] == own[f"source.{name}"] != "default"
    assert own["sinks.unique.preserve_order"] == "default"
    flag = origins("source.bootstrap_servers=other:9092")
    assert flag["sinks.unique.bootstrap_servers"] == "--set source.bootstrap_servers"
    far = origins("sinks.unique.bootstrap_servers=far:9092")
    assert far["sinks.unique.bootstrap_servers"] == "--set sinks.unique.bootstrap_servers"
    assert far["sinks.unique.options"] == "default"


def test_options_in_flags_keep_their_dots(tmp_path: Path) -> None:
    """And a secret is the text it is."""
    overrides = [
        "source.options.kafka.security.protocol=SASL_SSL",
        "source.options.kafka.ssl.key.password={007",
        "sinks.unique.options.kafka.linger.ms=5",
    ]
    config = loaded(BASE, tmp_path, overrides=overrides)
    wanted = {"kafka.security.protocol": "SASL_SSL", "kafka.ssl.key.password": "{007"}
    assert kafka_source(config).options == wanted
    assert isinstance(config.sinks.unique, KafkaSink)
    assert config.sinks.unique.options == {**wanted, "kafka.linger.ms": "5"}


def test_what_is_written_down_for_people_is_valid(tmp_path: Path) -> None:
    """The example's config, the one of the documentation, and what `deduper init` has for Kafka in its comments."""
    example = load_config(ROOT / "examples/kafka/deduper.yaml", environment={})
    assert kafka_source(example).topics == ("clicks",)
    document = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(source:\n  format: kafka.*?)```", document, re.DOTALL)
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p";'
    source = kafka_source(loaded(block, tmp_path, environment={"JAAS": jaas}))
    assert source.options[JAAS] == jaas

    starter = starter_config("job.yaml", "job")
    begin, end = starter.index("source:\n  format: files"), starter.index("key:")
    comment = re.findall(r"^#(source:| .*)$", starter[begin:end], re.MULTILINE)
    variant = "\n".join(line for line in comment if not line.startswith(" Or")) + "\n"
    config = loaded(starter[:begin] + variant + starter[end:], tmp_path)
    assert kafka_source(config).record == {"arrived": "timestamp"}


@pytest.mark.slow
def test_checking_a_file_loads_no_client(tmp_path: Path) -> None:
    """Not of Kafka, which takes as long as all the rest."""
    (tmp_path / "job.yaml").write_text(BASE, encoding="utf-8")
    code = (
        "import sys\n"
        "from deduper.config.load import load_config\n"
        "load_config('job.yaml', environment={})\n"
        "sys.exit(' '.join(name for name in ('confluent_kafka', 'pyspark') if name in sys.modules) or 0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")


SETTINGS = [
    *("source.bootstrap_servers", "source.topics", "source.topic_pattern", "source.starting_offsets", "source.value"),
    *("source.max_offsets_per_batch", "source.record", "source.tombstones", "source.data_loss", "source.group"),
    *("source.deadline", "source.options", "source.nonsense", "source.value.format", "source.value.schema"),
    *("source.order", "source.slack"),
    *(
        "source.value.delimiter",
        "source.value.avro_schema",
        "source.value.nonsense",
        "source.record.user",
        "source.options.kafka.x",
    ),
    *("source.starting_offsets.clicks", "sinks.unique", "sinks.unique.topic", "sinks.unique.bootstrap_servers"),
    *("sinks.unique.preserve_order", "sinks.unique.options", "sinks.unique.options.kafka.x"),
    *("sinks.unique.nonsense", "sinks.unique.format"),
]
ODD_VALUES: list[object] = [
    *(None, True, 0, -1, 2**70, 1.5, "", "x", " ", "${", "off", "earliest", "json", "csv", "text", "kafka", "a:1,,b:1"),
    *([], [None], [[]], ["x", "x"], {}, {"x": None}, {"": ""}, {"time": None}, {"time": {}}, {"time": 20250301}),
    *({"clicks": {"0": True}}, {"clicks": {"٣": 1}}, {"clicks": {"00": 1, "0": 1}}, {"x`y": "key"}, {"format": {}}),
    *({"kafka.x": {}}, {"kafka.": 1}, {"kafka.buffer.memory": "many"}, "(" * 2000, "[" * 50, "a{99999999999}"),
]


def plain(source: dict[str, Any] | None = None) -> dict[str, Any]:
    """A configuration as the YAML gives it."""
    return {
        "name": "clicks",
        "source": {
            "format": "kafka",
            "bootstrap_servers": "b:1",
            "topics": ["clicks"],
            "value": {"format": "json", "schema": "id long"},
            "record": {"user": "key"},
            "options": {},
            **(source or {}),
        },
        "key": ["user"],
        "expiry": {"by": "never"},
        "store": {"url": "file:state"},
        "sinks": {port: {"format": "kafka", "topic": port, "options": {}} for port in PORTS},
    }


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_no_value_of_any_setting_is_a_crash(setting: str, tmp_path: Path) -> None:
    """Whatever stands where: it is taken, or everything that is wrong with it has words and advice."""
    path = setting.replace("kafka.x", "kafka-x").split(".")
    for value in ODD_VALUES:
        data = plain()
        inner = data
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1].replace("-", ".")] = value
        check_words(data, tmp_path, value)


NAMES = st.text("abcXYZ é`_", min_size=1, max_size=5).filter(str.strip)
TOPICS = st.from_regex(r"\A[a-zA-Z0-9_-]{1,12}\Z")
OPTIONS = st.dictionaries(
    st.sampled_from(["kafka.client.id", "kafka.linger.ms", "librdkafka.debug", "kafka.ssl.key.password", "kafka.x"]),
    st.one_of(st.text(max_size=8), st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)),
)
STARTS = st.one_of(
    st.sampled_from(["earliest", "latest"]),
    st.integers(0, 4_000_000_000).map(lambda second: {"time": datetime.fromtimestamp(second, UTC).isoformat()}),
    st.dictionaries(st.integers(0, 99).map(str), st.integers(0, MAX_I64), min_size=1).map(lambda at: {"clicks": at}),
)
VALUES = st.sampled_from(
    [
        {"format": "json", "schema": "id long"},
        {"format": "csv", "schema": "id long", "delimiter": "\t"},
        {"format": "text"},
    ]
)
PARTS = st.sampled_from([*RECORD_PARTS, "header:h"])
RECORDS = st.dictionaries(NAMES, PARTS).map(lambda columns: {**columns, "user": "key"})
SOURCES = st.fixed_dictionaries(
    {"record": RECORDS},
    optional={
        "bootstrap_servers": st.lists(st.sampled_from(["b:1", "[::1]:9", "c.d:65535"]), min_size=1),
        "starting_offsets": STARTS,
        "max_offsets_per_batch": st.integers(1, MAX_I64),
        "value": VALUES,
        "tombstones": st.sampled_from(["error", "judge"]),
        "data_loss": st.sampled_from(["fail", "continue"]),
        "group": st.sampled_from(["off", "lag", False]),
        "deadline": st.sampled_from(["5s", "1h"]),
        "options": OPTIONS,
    },
)
EXPIRIES: list[dict[str, Any]] = [
    {"by": "never"},
    {"by": "processing_time", "period": "1h"},
    {"by": "event_time", "field": "at", "period": "1h"},
    {"by": "event_time", "field": "at", "period": "1h", "max_ahead_of_now": "off", "max_jump": "5m"},
    {"by": "category", "field": "user", "live_categories": 3},
]
SINKS = st.one_of(
    st.just({"format": "none"}),
    st.fixed_dictionaries(
        {"format": st.just("kafka"), "topic": TOPICS},
        optional={
            "bootstrap_servers": st.just("other:1"),
            "preserve_order": st.booleans(),
            "options": OPTIONS,
        },
    ),
)


@pytest.mark.slow
@settings(deadline=None)
@given(source=SOURCES, sinks=st.lists(SINKS, min_size=4, max_size=4), expiry=st.sampled_from(EXPIRIES))
def test_every_configuration_that_is_written_out_reads_back_the_same(
    source: dict[str, Any], sinks: list[dict[str, Any]], expiry: dict[str, Any]
) -> None:
    """Through every default, `off`, and what is filled in from elsewhere."""
    data = plain(source)
    data["sinks"] = dict(zip(PORTS, sinks, strict=True))
    data["source"]["record"]["at"] = "timestamp"
    data["expiry"] = expiry
    config, found = findings(data, base_dir=ROOT)
    assume(not found)  # names that stand twice
    assert config is not None
    written = config.model_dump(mode="json", by_alias=True)
    again = Config.model_validate(written)
    assert again == config
    assert again.model_dump(mode="json", by_alias=True) == written
