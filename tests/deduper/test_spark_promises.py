"""Settings of Spark that a promise rests on are refused, at their place; the others are the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduper.config.load import load_config
from deduper.config.model import Config
from deduper.config.problems import ConfigError
from deduper.spark_promises import REQUIRED, TIME_ZONE, broken, have_spare_cores
from deduper.window.policy import changed_settings, fixed_settings

_JOB = """\
source: {{format: files, path: in/, file_format: json, schema: "k string, at {kind}, t bigint"}}
key: {key}
expiry: {{by: {by}}}
sinks: {{unique: {{format: none}}, duplicate: {{format: none}}, expired: {{format: none}}, error: {{format: none}}}}
spark:
"""


def loaded(folder: Path, *lines: str, kind: str = "timestamp", key: str = "k", by: str = "never") -> Config:
    """A job with these lines in its section `spark`."""
    file = folder / "job.yaml"
    file.write_text(_JOB.format(kind=kind, key=key, by=by) + "".join(f"  {line}\n" for line in lines or ("{}",)))
    return load_config(file, environment={})


@pytest.mark.parametrize(
    ("line", "promise"),
    [
        ("spark.sql.files.maxPartitionBytes: 1m", "one task reads a file from its beginning to its end"),
        ("spark.sql.files.maxPartitionNum: 1", "one task reads a file from its beginning to its end"),
        ("spark.sql.adaptive.enabled: true", "one task reads a file from its beginning to its end"),
        ("spark.sql.optimizer.disableHints: true", "one task reads a file from its beginning to its end"),
        ("spark.sql.files.ignoreCorruptFiles: true", "a file that cannot be read leaves by the error port"),
        ("spark.sql.files.ignoreMissingFiles: true", "a file that cannot be read leaves by the error port"),
        (
            "spark.hadoop.mapreduce.input.linerecordreader.line.maxlength: 1000",
            "every line of a file becomes one tuple",
        ),
        ("spark.sql.legacy.timeParserPolicy: LEGACY", "equal keys stay equal"),
        ("spark.sql.legacy.anything: true", "equal keys stay equal"),
        ("spark.sql.json.enableExactStringParsing: false", "equal keys stay equal"),
        ("spark.sql.csv.parser.columnPruning.enabled: false", "equal keys stay equal"),
        ("spark.sql.parquet.int96RebaseModeInRead: LEGACY", "equal keys stay equal"),
        ("spark.sql.parquet.enableVectorizedReader: false", "equal keys stay equal"),
        ("spark.sql.timestampType: TIMESTAMP_NTZ", "equal keys stay equal"),
        ("spark.driver.extraJavaOptions: -Xss4m -Duser.timezone=Asia/Tokyo", "equal keys stay equal"),
        ("spark.hadoop.fs.defaultFS: hdfs://n/", "paths name files of this machine"),
        (
            "spark.sql.execution.datasources.hadoopLineRecordReader.enabled: false",
            "every line of a file becomes one tuple",
        ),
        ("spark.sql.function.concatBinaryAsString: true", "equal keys stay equal"),
        ("spark.api.mode: connect", "the service has a Spark of its own"),
        ("spark.remote: sc://elsewhere", "the service has a Spark of its own"),
    ],
)
def test_a_setting_that_breaks_a_promise_is_refused(tmp_path: Path, line: str, promise: str) -> None:
    """With the promise, and at the line and column of its value."""
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, "spark.driver.memory: 2g", line)
    (problem,) = refused.value.problems
    assert promise in str(refused.value)
    assert f"job.yaml:7:{len(line.partition(': ')[0]) + 5}: spark.spark." in str(refused.value)
    assert problem is not None


_SET, _NAMED = "--set {}", "DEDUPER__SPARK__{}"


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (_SET, "spark.spark.sql.files.maxPartitionBytes", "1m"),
        (_SET, "spark.sql.files.maxPartitionBytes", "1m"),
        (_SET, "spark.sql.ansi.enabled", "false"),
        (_SET, "spark.sql.function.eltOutputAsString", "true"),
        (_NAMED, "spark.sql.files.maxPartitionBytes", "1m"),
        (_NAMED, "sql__legacy__timeParserPolicy", "LEGACY"),
        (_NAMED, "SQL__ANSI__ENABLED", "false"),
        (_NAMED, "SPARK__SQL__FILES__MAXPARTITIONBYTES", "1m"),
    ],
)
def test_flags_and_variables_are_refused_too(tmp_path: Path, place: str, name: str, value: str) -> None:
    """Naming the flag or the variable."""
    file = tmp_path / "job.yaml"
    file.write_text(_JOB.format(kind="timestamp", key="k", by="never") + "  {}\n")
    flags = [f"{name}={value}"] if place == _SET else []
    variables = {place.format(name): value} if place == _NAMED else {}
    load_config(file, environment={})
    with pytest.raises(ConfigError, match="a promise depends on it") as refused:
        load_config(file, overrides=flags, environment=variables)
    assert place.format(name) in str(refused.value)


def test_settings_that_are_the_users(tmp_path: Path) -> None:
    """Memory, parallelism, logs and what no verdict depends on; and the very values that promises need."""
    given = {
        "spark.master": "local[4]",
        "spark.driver.memory": "8g",
        "spark.driver.extraJavaOptions": "-Xss4m -Duser.timezone=UTC",
        "spark.ui.enabled": True,
        "spark.log.level": "WARN",
        "spark.sql.shuffle.partitions": 8,
        "spark.sql.execution.arrow.maxRecordsPerBatch": 1000,
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.autoBroadcastJoinThreshold": -1,
        "spark.sql.streaming.stateStore.providerClass": "x",
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.hadoop.io.file.buffer.size": 65536,
        **{name: needed.value for name, needed in REQUIRED.items()},
    }
    assert list(broken(given)) == []
    lines = (
        f"{name}: {str(value).lower() if isinstance(value, bool) else repr(value)}" for name, value in given.items()
    )
    assert loaded(tmp_path, *lines).spark["spark.sql.shuffle.partitions"] == 8


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "yarn", "localhost"])
def test_masters_of_other_processes(tmp_path: Path, master: str) -> None:
    """Only a local one has the settings of this process's JVM."""
    with pytest.raises(ConfigError, match=r"spark\.master"):
        loaded(tmp_path, f"spark.master: '{master}'")


@pytest.mark.parametrize(
    ("job", "zone"),
    [
        ({"key": "[k, at]"}, "UTC"),
        ({"by": "event_time, field: at, period: 1h"}, "UTC"),
        ({"key": "[k, at]", "kind": "timestamp_ntz"}, None),
        ({"key": "[k, at]", "kind": "date"}, None),
        ({}, None),
    ],
)
def test_a_zone_is_fixed_where_a_key_is_a_time(tmp_path: Path, job: dict[str, str], zone: str | None) -> None:
    """An instant that is written without a zone is another one in each; other types and columns do not matter."""
    assert fixed_settings(loaded(tmp_path, **job)).get(TIME_ZONE) == zone
    other = loaded(tmp_path, f"{TIME_ZONE}: Europe/Berlin", **job)
    changed = changed_settings(other, fixed_settings(loaded(tmp_path, **job)))
    assert changed == ({} if zone is None else {TIME_ZONE: ("UTC", "Europe/Berlin")})


@pytest.mark.parametrize(
    ("master", "asked", "expected"),
    [
        ("local[8]", None, False),
        ("local[8]", "8", False),  # its tasks are children of the driver
        ("local-cluster[2,1,1024]", None, False),
        ("local-cluster[2, 2, 1024]", None, True),
        ("spark://head:7077", None, True),
        ("spark://head:7077", "1", False),
        ("spark://head:7077", " 4 ", True),
        ("yarn", None, False),
        ("yarn", "2", True),
        ("k8s://https://head:6443", None, False),
        ("k8s://https://head:6443", "3", True),
    ],
)
def test_executors_of_two_cores_have_one_to_send(master: str, asked: str | None, expected: bool) -> None:
    """By what is set, or Spark's own defaults."""
    assert have_spare_cores(master, asked) is expected
