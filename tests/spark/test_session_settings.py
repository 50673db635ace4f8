"""What a Spark session is set to, wherever that comes from, changes no verdict: it is overruled, refused, or fixed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from bucket_store.errors import SettingsChangedError
from deduper.errors import UsageError
from deduper.spark_promises import TIME_ZONE
from tests.spark.harness import PORTS, Job, read_rows

pytestmark = pytest.mark.spark

_TIMES = {"source": {"schema": "k string, at timestamp"}, "key": ["at"]}
_ROWS = 3000


@contextlib.contextmanager
def setting(session: SparkSession, job: Job, name: str, value: str) -> Iterator[None]:
    """The session, and the job's section `spark`, with a setting."""
    before, settings = session.conf.get(name, None), job.settings
    session.conf.set(name, value)
    job.settings = {**settings, "spark": {name: value}}
    try:
        yield
    finally:
        if before is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, before)
        job.settings = settings


def times(job: Job, *texts: str) -> None:
    """A file of records at these times."""
    job.add_records({"k": "a", "at": text} for text in texts)


def test_a_time_without_a_zone_is_of_the_sessions(session: SparkSession, new_job: Callable[..., Job]) -> None:
    """With one it is that instant in any session; so the same text is another key in each, and the same in one."""
    texts = ("2024-01-01T12:00:00Z", "2024-01-01T13:00:00+01:00", "2024-01-01 12:00:00", "2024-01-01 13:00:00")
    for zone, unique in (("UTC", {12, 13}), ("Europe/Berlin", {12, 11})):
        job = new_job(zone.replace("/", "-"), **_TIMES)
        times(job, *texts)
        with setting(session, job, TIME_ZONE, zone):
            job.run()
        assert {row["at"].hour for row in job.rows("unique")} == unique
        assert len(job.rows("duplicate")) == 2


def test_a_store_keeps_its_zone(session: SparkSession, new_job: Callable[..., Job]) -> None:
    """In another one its keys would be other instants: refused, before anything is touched."""
    job = new_job(**_TIMES)
    times(job, "2024-01-01 12:00:00")
    job.run()
    times(job, "2024-01-01 12:00:00")
    refused = pytest.raises(SettingsChangedError, match="the store has 'UTC', not 'Europe/Berlin'")
    with setting(session, job, TIME_ZONE, "Europe/Berlin"), refused:
        job.run()
    job.run()
    assert [len(job.rows(port)) for port in ("unique", "duplicate")] == [1, 1]


def test_a_session_that_is_not_as_it_must_be(session: SparkSession, new_job: Callable[..., Job]) -> None:
    """One that is given is looked at too, and nothing is judged with it."""
    job = new_job()
    job.add_records([{"k": "a"}])
    for name, value in (("spark.sql.ansi.enabled", "false"), ("spark.sql.legacy.useV1Command", "true")):
        reported = f"{name} is `{value}` in the Spark session.*equal keys stay equal"
        with setting(session, Job(job.directory, None, {}), name, value), pytest.raises(UsageError, match=reported):
            job.run()
    assert job.run().windows == 1


def test_offsets_with_seconds_keep_the_instant(session: SparkSession, new_job: Callable[..., Job]) -> None:
    """Before railways a zone was as far from UTC as its sun: ports of text have the instant to the second."""
    sinks = {
        "unique": {"format": "json", "path": "out/unique"},
        "duplicate": {"format": "csv", "path": "out/duplicate"},
    }
    job = new_job(**_TIMES, sinks=sinks)
    times(job, *["1880-01-01T00:00:00Z"] * 2)
    with setting(session, job, TIME_ZONE, "Europe/Berlin"):
        job.run()
    (unique,) = job.rows("unique")
    (file,) = (job.directory / "out/duplicate").glob("*.csv")
    for text in (unique["at"], file.read_text(encoding="utf-8").splitlines()[1].split(",")[1]):
        assert text == "1880-01-01T00:53:28.000000+00:53:28"


_FREE = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.chunkBase64String.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.columnNameOfCorruptRecord": "k",
    "spark.sql.exchange.reuse": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
    "spark.sql.leafNodeDefaultParallelism": "7",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.optimizer.enableCsvExpressionOptimization": "false",
    "spark.sql.optimizer.enableJsonExpressionOptimization": "false",
    "spark.sql.optimizer.nestedSchemaPruning.enabled": "false",
    "spark.sql.parquet.columnarReaderBatchSize": "5",
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.unionOutputPartitioning": "false",
}
_TEXTS = {
    "json": [
        '{"k": "a", "d": 1.5, "at": "2024-01-01 12:00:00"}',
        '{"k": {"x": 1.0}, "d": "1.50", "at": "2024-01-01T12:00:00Z"}',
        '{"k": {"x":1.0}, "d": 2, "at": 7}',
        '{"K": "a", "d": 1.5}',
        '{"k": "a", "k": "b", "d": "x"}',
        '{"k": "a"} {"k": "b"}',
        "{",
    ],
    "csv": ["a,1.5,2024-01-01 12:00:00", "a,1.50,2024-01-01T12:00:00Z", '"a",x,', '"a,1', "a,1,2,3", ",1,", "é"],
}


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_settings_that_are_the_users_change_no_verdict(
    session: SparkSession, new_job: Callable[..., Job], kind: str
) -> None:
    """Each of them once as nobody has it."""
    source = {"file_format": kind, "schema": "k string, d decimal(9,2), at timestamp", "max_files_per_batch": 2}
    found = []
    for name, settings in (("usual", {}), ("free", _FREE)):
        job = new_job(name, source=source, key=["k", "d", "at"], null_keys="allow")
        for _ in range(3):
            if kind == "parquet":
                at = pa.array([1, 1, None, -(10**16)] * 5, pa.timestamp("us", "UTC"))
                cost = pa.array([Decimal("1.5"), None, Decimal("-1.5"), Decimal(0)] * 5, pa.decimal128(9, 2))
                job.add_table(pa.table({"k": ["a", "", None, "é"] * 5, "d": cost, "at": at}))
            else:
                job.add_file([text.encode() for text in _TEXTS[kind]] * 3 + [b"\xff"])
        with contextlib.ExitStack() as set_so:
            for setting_name, value in settings.items():
                set_so.enter_context(setting(session, job, setting_name, value))
            job.settings = {**job.settings, "spark": settings}
            job.run()
        found.append(
            [
                (
                    port,
                    os.path.basename(dedup["source"]),  # noqa: PTH119 - a text
                    dedup["position"],
                    dedup["reason"],
                    row,
                )
                for port in PORTS
                for row in sorted(job.rows(port), key=lambda row: (row["_dedup"]["source"], row["_dedup"]["position"]))
                for dedup in (row.pop("_dedup"),)
            ]
        )
    assert found[0] == found[1]
    assert len(found[0]) == 3 * (20 if kind == "parquet" else 22)


_HOSTILE = """\
spark.sql.files.maxPartitionBytes 10k
spark.sql.files.openCostInBytes 1
spark.sql.ansi.enabled false
spark.sql.adaptive.enabled true
spark.sql.caseSensitive true
spark.sql.session.timeZone Asia/Tokyo
spark.sql.timestampType TIMESTAMP_NTZ
spark.sql.legacy.timeParserPolicy LEGACY
spark.sql.optimizer.disableHints true
spark.sql.extensions no.such.Extension
spark.hadoop.mapreduce.input.linerecordreader.line.maxlength 10
spark.driver.extraJavaOptions -Duser.timezone=Asia/Tokyo
"""
_SITE = """\
<configuration>
<property><name>fs.defaultFS</name><value>hdfs://nowhere:1/</value></property>
<property><name>mapreduce.input.linerecordreader.line.maxlength</name><value>10</value></property>
</configuration>
"""


def ran(job: Job, **environment: str) -> subprocess.CompletedProcess[str]:
    """`deduper run` of a job, in a process of its own."""
    config = {**json.loads(job.config.model_dump_json(by_alias=True, exclude_none=True)), "trigger": "available_now"}
    file = job.directory / "job.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-c", "from deduper.cli.main import main; main()", "run", str(file), "--once"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.night
def test_files_and_variables_of_sparks_change_nothing(tmp_path: Path) -> None:
    """Its defaults, Hadoop's site, options of the JVM, another zone, no UTF-8: the job goes by its own settings."""
    job = Job(tmp_path, None, {"source": {"file_format": "csv", "schema": "k string, at timestamp", "header": True}})
    rows = [f"{number:060d}é,2024-01-01 12:00:00" for number in range(_ROWS)]
    job.add_file(["k,at", *rows], name="ü.csv")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/spark-defaults.conf").write_text(_HOSTILE, encoding="utf-8")
    (tmp_path / "conf/core-site.xml").write_text(_SITE, encoding="utf-8")
    done = ran(
        job,
        SPARK_CONF_DIR=str(tmp_path / "conf"),
        HADOOP_CONF_DIR=str(tmp_path / "conf"),
        JAVA_TOOL_OPTIONS="-Duser.timezone=Asia/Tokyo -Dfile.encoding=ISO-8859-1 -Duser.language=tr",
        PYSPARK_SUBMIT_ARGS="--conf spark.sql.files.maxPartitionBytes=10k pyspark-shell",
        TZ="Asia/Tokyo",
        LC_ALL="C",
    )
    assert done.returncode == 0, done.stderr
    found = read_rows(tmp_path / "out/unique")
    assert {row["_dedup"]["position"] for row in found} == set(range(1, _ROWS + 1))
    assert {row["at"].isoformat() for row in found} == {"2024-01-01T12:00:00+00:00"}


@pytest.mark.night
def test_what_cannot_be_overruled_is_refused(tmp_path: Path) -> None:
    """With exit code 2, the promise, and the place where it stands; nothing is judged."""
    job = Job(tmp_path, None, {})
    job.add_records([{"k": "a"}])
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/spark-defaults.conf").write_text("spark.sql.files.maxPartitionNum 1\n", encoding="utf-8")
    done = ran(job, SPARK_CONF_DIR=str(tmp_path / "conf"), _JAVA_OPTIONS="-Duser.timezone=Asia/Tokyo")
    assert done.returncode == 2, done.stderr
    reported = done.stderr
    assert "spark.sql.files.maxPartitionNum is `1` in the Spark session" in reported
    assert f"remove it: it is in {tmp_path / 'conf/spark-defaults.conf'}" in reported
    assert "-Duser.timezone is `Asia/Tokyo`" in reported
    assert "it is in _JAVA_OPTIONS" in reported
    assert read_rows(tmp_path / "out/unique") == []


@pytest.mark.night
def test_another_spark_is_refused_before_it_starts(tmp_path: Path) -> None:
    """With exit code 2 and what to do."""
    job = Job(tmp_path, None, {})
    job.add_records([{"k": "a"}])
    done = ran(job, SPARK_REMOTE="sc://elsewhere")
    assert done.returncode == 2, done.stderr
    assert "unset SPARK_REMOTE" in done.stderr
    done = ran(job, SPARK_HOME=str(tmp_path))
    assert done.returncode == 2, done.stderr
    assert "unset SPARK_HOME" in done.stderr
    assert read_rows(tmp_path / "out/unique") == []
