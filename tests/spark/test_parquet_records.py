"""Parquet files: read bit for bit as Spark reads them.

Both read the same files for the same job; what they set aside for the other two steps is compared: the records, the
keys dealt to the shards, the receipts, the counts.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from deduper.arrow_columns import arrow_type
from deduper.config.files import FilesSource
from deduper.core.clock import ClockRules
from deduper.core.digests import key_type
from deduper.core.verdict import Admission
from deduper.sources.declared_columns import file_reading, record_layout
from deduper.sources.files.batch import SourceFileBatch
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.tasks import exchange
from deduper.tasks import write as write_task
from deduper.tasks.read import ReadReceipt, ReadTask
from deduper.tasks.readers.file_parts import FileChanged, FileFault, FileGone, FilePart, UnreadableFile
from deduper.tasks.readers.parquet import ParquetReading
from deduper.tasks.readers.reading_tasks import receipts_of
from deduper.window.exchange_folder import ExchangeFolders
from deduper.window.jobs import local as window_jobs
from deduper.window.jobs.local import SparkJobs
from tests.deduper.digest_cases import SALT, SCALARS
from tests.spark.harness import PORTS, Job
from tests.spark.spark_reader import parquet_rows

pytestmark = pytest.mark.spark

_NOW_US = 1_700_000_000_000_000
_NEVER = {"by": "never"}
_EVENTS = {"by": "event_time", "field": "t", "period": "1h", "span": "10m"}
_ORDERED = {"by": "ordered", "field": "t", "period": 50, "span": 10}


def batch_of(job: Job) -> SourceFileBatch:
    """All files of the job's source, as a window lists them."""
    files = sorted((job.directory / "in").glob("*.parquet"))
    listed = [ListedFile(str(file), file.stat().st_mtime_ns // 1_000_000) for file in files]
    source = job.config.source
    assert isinstance(source, FilesSource)
    return SourceFileBatch(source, tuple(stat_files(listed)), reading=reading_of(job))


def reading_of(job: Job) -> ParquetReading:
    """How the job reads its files."""
    source = job.config.source
    assert isinstance(source, FilesSource)
    reading = file_reading(job.config, source, SALT)
    assert isinstance(reading, ParquetReading)
    return reading


def parts_of(job: Job, batch: SourceFileBatch | None = None) -> list[FilePart]:
    """The files that have rows."""
    reading, files = reading_of(job), (batch or batch_of(job)).files
    parts = [reading.part(ordinal, file) for ordinal, file in enumerate(files)]
    return [part for part in parts if part is not None]


def task_of(job: Job, directory: Path) -> ReadTask:
    """A reading task as the job's judge would make it."""
    config = job.config
    directory.mkdir()
    clock = None
    if config.expiry.by in ("event_time", "ordered"):
        rules = ClockRules(config.expiry_key_scale.is_float, 50, 60_000_000, None, _NOW_US, None, 0)
        clock = rules if config.expiry.by == "event_time" else dataclasses.replace(rules, max_ahead_of_now_us=None)
    in_order = config.clock == "arrival"
    return ReadTask(str(directory), 3, record_layout(config), clock, in_order, in_order)


def spill(task: ReadTask, receipts: list[ReadReceipt]) -> list[tuple[Any, ...]]:
    """All that a reading job leaves, without the names and times that differ from run to run."""
    left = []
    for receipt in receipts:
        records = exchange.mapped(exchange.rows_file(task.directory, receipt.name)).read_all().combine_chunks()
        keys = exchange.mapped(exchange.keys_file(task.directory, receipt.name))
        assert records.validate(full=True) is None
        plain = dataclasses.replace(receipt, name="", seconds={})
        left.append((plain, records, [keys.get_batch(shard) for shard in range(task.shards)]))
    return left


def read_both_ways(session: SparkSession, job: Job, tmp_path: Path) -> list[tuple[Any, ...]]:
    """What is set aside by our reader, after comparing it with what is set aside of Spark's records."""
    jobs, batch = SparkJobs(session, job.config), batch_of(job)
    ours, theirs = task_of(job, tmp_path / "ours"), task_of(job, tmp_path / "theirs")
    with jobs.open(1, 0) as run:
        of_parts = run.read(batch.records(), ours)
    with jobs.open(1, 0) as run:
        paths = {ordinal: file.path for ordinal, file in enumerate(batch.files)}
        by_spark = run.read(parquet_rows(session, job.config, SALT, paths), theirs)
    jobs.close()
    assert not [part.fault for part in of_parts if part.fault is not None]
    assert sum(part.rows for part in of_parts) == by_spark[-1].rows
    left, expected = spill(ours, receipts_of(of_parts)), spill(theirs, receipts_of(by_spark))
    check_left(left, expected)
    return left


def check_left(left: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    """Receipts, records and keys."""
    assert [one[0] for one in left] == [one[0] for one in expected]
    for (_, records, keys), (_, spark_records, spark_keys) in zip(left, expected, strict=True):
        check_same(records.columns, spark_records.columns)
        for batch_of_keys, spark_batch in zip(keys, spark_keys, strict=True):
            assert batch_of_keys.schema == spark_batch.schema
            check_same(_usable(batch_of_keys), _usable(spark_batch))


def _usable(keys: pa.RecordBatch) -> list[Any]:
    """The columns of keys; NaN and infinity are no expiry keys, so they may be any number."""
    return [
        pc.if_else(pc.is_finite(column), column, 0.0) if pa.types.is_floating(column.type) else column
        for column in keys.columns
    ]


def check_same(columns: list[Any], others: list[Any]) -> None:
    """Types and values; every NaN is the same one."""
    for column, other in zip(columns, others, strict=True):
        assert column.type == other.type
        assert column.is_null().equals(other.is_null())
        if pa.types.is_floating(column.type):
            np.testing.assert_array_equal(np.asarray(column), np.asarray(other))
        else:
            assert column.equals(other), (column, other)


def admissions(left: list[tuple[Any, ...]]) -> set[int]:
    """All admissions that were given."""
    return {
        admission for _, _, keys in left for batch in keys for admission in batch.column(exchange.ADMISSION).to_pylist()
    }


@pytest.fixture(params=["driver", "tasks"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are read in the driver, others by tasks."""
    if request.param == "tasks":
        monkeypatch.setattr(write_task, "_WRITER_BYTES", 1)


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("digest", ["fast", "secure"])
def test_every_scalar_type(session: SparkSession, new_job: Callable[..., Job], tmp_path: Path, digest: str) -> None:
    """The extremes of every type and nulls, as part of the key."""
    names = list(SCALARS)
    columns = {
        f"c{number}": pa.array([*SCALARS[name], None], arrow_type(key_type(name))) for number, name in enumerate(names)
    }
    longest = max(map(len, columns.values()))
    padded = {
        name: pa.concat_arrays([values, pa.nulls(longest - len(values), values.type)])
        for name, values in columns.items()
    }
    schema = ", ".join(f"c{number} {name}" for number, name in enumerate(names))
    source = {"file_format": "parquet", "schema": schema}
    job = new_job(source=source, key=list(columns), null_keys="allow", expiry=_NEVER, digest=digest)
    job.add_table(pa.table(padded))
    job.add_table(pa.table(padded).slice(1, 3))
    read_both_ways(session, job, tmp_path)


_TIMES = [_NOW_US, None, _NOW_US + 1, _NOW_US + 10**9, -(2**63), 2**63 - 1, 0, _NOW_US - 49, _NOW_US - 51, _NOW_US]
_WHOLE = [10, 100, None, 70, 49, 2**63 - 1, -(2**63), 50]


@pytest.mark.parametrize(
    ("declared", "expiry", "values", "errors"),
    [
        ("timestamp", _EVENTS, _TIMES, {Admission.NULL_EXPIRY, Admission.AHEAD_OF_NOW}),
        ("timestamp", {**_EVENTS, "clock": "batch"}, _TIMES, {Admission.NULL_EXPIRY, Admission.AHEAD_OF_NOW}),
        ("bigint", {**_EVENTS, "unit": "us"}, _TIMES, {Admission.NULL_EXPIRY, Admission.AHEAD_OF_NOW}),
        (
            "bigint",
            {**_EVENTS, "unit": "ms"},
            [None if at is None else at // 1000 for at in _TIMES]
            + [2**63 - 1, -(2**63), -(2**63) // 1000, 2**63 // 1000],
            {Admission.NULL_EXPIRY, Admission.BAD_EXPIRY, Admission.AHEAD_OF_NOW},
        ),
        ("int", {**_EVENTS, "unit": "s"}, [1_700_000_000, None, -(2**31), 2**31 - 1], {Admission.NULL_EXPIRY}),
        ("bigint", _ORDERED, _WHOLE, {Admission.NULL_EXPIRY}),
        ("int", {**_ORDERED, "lookup": "all_live"}, [10, 100, None, 49], {Admission.NULL_EXPIRY}),
        (
            "double",
            _ORDERED,
            [1.5, None, 70.0, float("nan"), float("inf"), -0.0],
            {Admission.NULL_EXPIRY, Admission.BAD_EXPIRY},
        ),
        (
            "string",
            {"by": "category", "field": "t", "live_categories": 2},
            ["a", "b", None, "a", "c"],
            {Admission.NULL_EXPIRY},
        ),
        (
            "decimal(12,3)",
            _ORDERED,
            [Decimal("1.5"), None, Decimal("-0.001"), Decimal(10**9 - 1)],
            {Admission.NULL_EXPIRY},
        ),
        (
            "date",
            {"by": "category", "field": "t", "live_categories": 2},
            [0, 3672152, None, -719163, -719529, -719530],
            {Admission.NULL_EXPIRY},
        ),
        ("bigint", {"by": "processing_time", "period": "1h", "span": "10m"}, [1, None], set()),
    ],
)
def test_every_expiry(
    session: SparkSession,
    new_job: Callable[..., Job],
    tmp_path: Path,
    declared: str,
    expiry: dict[str, Any],
    values: list[Any],
    errors: set[Admission],
) -> None:
    """Expiry keys at the ends of their types, missing, and none at all; a missing key comes first."""
    job = new_job(source={"file_format": "parquet", "schema": f"k string, t {declared}"}, expiry=expiry)
    keys = [None if number % 4 == 3 else f"k{number % 3}" for number in range(len(values) * 2)]
    kind = arrow_type(key_type(declared))
    times = pa.array(values, pa.int64()).view(kind) if declared == "timestamp" else pa.array(values, kind)
    job.add_table(pa.table({"k": keys, "t": pa.concat_arrays([times, times])}))
    job.add_table(pa.table({"t": times[:1], "k": pa.array(["other"])}))
    assert admissions(read_both_ways(session, job, tmp_path)) >= {Admission.ADMITTED, Admission.NULL_KEY, *errors}


def test_what_others_write(session: SparkSession, new_job: Callable[..., Job], tmp_path: Path) -> None:
    """Spark's INT96, milliseconds, another zone, long offsets, columns in another order, too many or none of."""
    job = new_job(
        source={"file_format": "parquet", "schema": "k string, t timestamp, n bigint, d binary"}, expiry=_EVENTS
    )
    at = datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    old = datetime(1400, 1, 1, tzinfo=UTC)
    for kind in (pa.timestamp("ms", "UTC"), pa.timestamp("us", "Asia/Kathmandu")):
        job.add_table(pa.table({"t": pa.array([at, old, None], kind), "k": ["a", "b", "c"], "more": [1, 2, 3]}))
    large = pa.array(["a", "ü", None], pa.large_string())
    job.add_table(
        pa.table({"k": large, "t": pa.array([at] * 3, pa.timestamp("us", "UTC")), "d": large.cast(pa.large_binary())})
    )
    target = tmp_path / "by_spark"
    session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        session.sql(
            "SELECT * FROM VALUES ('a', timestamp'2023-11-14 22:13:20.123456', 7L), ('b', timestamp'0001-01-01', 8L), "
            "(NULL, timestamp'9999-12-31 23:59:59.999999', 9L) AS t(k, t, n)"
        ).coalesce(1).write.parquet(str(target))
    finally:
        session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    (written,) = target.glob("*.parquet")
    written.rename(job.directory / "in" / "zz.parquet")
    left = read_both_ways(session, job, tmp_path)
    assert len(left) == 4
    assert [row["_1"].year for row in left[-1][1].to_pylist()] == [2023, 1, 9999]


_NESTED = (
    "k string, s struct<x: int, y: struct<at: timestamp, cost: decimal(30,5)>>, "
    "l array<struct<tags: array<string>>>, m map<string, timestamp>"
)
_NESTED_TYPES = pa.schema(
    [
        ("k", pa.string()),
        (
            "s",
            pa.struct(
                [
                    ("x", pa.int32()),
                    ("y", pa.struct([("at", pa.timestamp("us", "UTC")), ("cost", pa.decimal128(30, 5))])),
                ]
            ),
        ),
        ("l", pa.list_(pa.struct([("tags", pa.list_(pa.string()))]))),
        ("m", pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
    ]
)
_NESTED_ROWS = [
    {
        "k": "a",
        "s": {"x": 1, "y": {"at": datetime(2023, 1, 1, tzinfo=UTC), "cost": Decimal("1.50000")}},
        "l": [{"tags": ["a", None]}, None],
        "m": [("a", datetime(1, 1, 1, tzinfo=UTC)), ("b", None)],
    },
    {"k": "b", "s": {"x": None, "y": None}, "l": [{"tags": None}, {"tags": []}], "m": []},
    {"k": "c", "s": None, "l": None, "m": None},
    {"k": "d", "s": {"x": 1, "y": {"at": None, "cost": None}}, "l": [], "m": [("", None)]},
]


def test_nested_columns(session: SparkSession, new_job: Callable[..., Job], tmp_path: Path) -> None:
    """Beside the keys: of Arrow's and of Spark's making, with times of INT96, with nulls at every level."""
    job = new_job(source={"file_format": "parquet", "schema": _NESTED}, expiry=_NEVER)
    table = pa.Table.from_pylist(_NESTED_ROWS, _NESTED_TYPES)
    path = job.add_table(table)
    for times in ("INT96", "TIMESTAMP_MICROS"):
        session.conf.set("spark.sql.parquet.outputTimestampType", times)
        session.read.parquet(str(path)).coalesce(1).write.parquet(str(tmp_path / times))
        (written,) = (tmp_path / times).glob("*.parquet")
        written.rename(job.directory / "in" / f"{times}.parquet")
    left = read_both_ways(session, job, tmp_path)
    assert [one[1].select(["_1", "_2", "_3"]).rename_columns(["s", "l", "m"]).to_pylist() for one in left] == [
        table.drop_columns("k").to_pylist()
    ] * 3


def test_many_batches_and_row_groups(session: SparkSession, new_job: Callable[..., Job], tmp_path: Path) -> None:
    """Rows keep their numbers over batches and row groups; a file without rows is no task."""
    job = new_job(source={"file_format": "parquet", "schema": "k string, t bigint"}, expiry=_ORDERED)
    count = 150_000
    table = pa.table({"k": [f"{number % 999}" for number in range(count)], "t": np.arange(count)})
    path = job.add_table(table.slice(0, 0))
    path = job.add_table(table)
    times = path.stat()
    parquet.write_table(table, path, row_group_size=7_777)
    assert times.st_ino == path.stat().st_ino
    (left,) = read_both_ways(session, job, tmp_path)
    assert left[0].first_order == 1 << 40
    assert left[1].column(0).to_pylist() == [(1 << 40) + number for number in range(count)]


_AT = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("schema", "table", "options"),
    [
        ("k string, t bigint", {"K": ["a"], "T": [1]}, {}),
        ("k string, t bigint", {"k": pa.array(["a", "b", "a"]).dictionary_encode(), "t": [1, 2, None]}, {}),
        ("k string, t bigint", {"other": ["a"]}, {}),
        ("k string, l array<int>", {"l": pa.array([[1], [], None], pa.list_(pa.int32()))}, {"compliant": False}),
        ("k string, l array<int>", {"l": pa.array([[1]], pa.large_list(pa.int32()))}, {}),
        ("k string, s struct<x: int, y: int>", {"s": [{"x": 1}, None]}, {}),
        ("k string, s struct<x: int, y: int>", {"s": [{"Y": 1, "x": 2}]}, {}),
        ("k string, s struct<x: int, y: int>", {"s": [{"x": 1, "y": 2, "z": 3}]}, {}),
        ("k string, t timestamp", {"t": pa.array([-(10**17), 0], _AT)}, {"org.apache.spark.version": "2.4.8"}),
        ("k string, t timestamp", {"t": pa.array([-(10**17)], _AT)}, {"org.apache.spark.legacyDateTime": ""}),
    ],
    ids=["case", "dictionary", "missing", "old list", "large list", "few", "order", "more", "version", "calendar"],
)
def test_layouts_of_others(
    session: SparkSession,
    new_job: Callable[..., Job],
    tmp_path: Path,
    schema: str,
    table: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Names in another case, other columns and fields, older layouts of lists, an older calendar."""
    job = new_job(source={"file_format": "parquet", "schema": schema}, expiry=_NEVER, null_keys="allow")
    made = pa.table(table)
    if "s" in table:
        fields = [pa.field(field.name, pa.int32()) for field in made.schema.field("s").type]
        made = pa.table({"s": made["s"].cast(pa.struct(fields))})
    compliant = options.pop("compliant", True)
    path = job.add_table(made)
    parquet.write_table(made.replace_schema_metadata(options), path, use_compliant_nested_type=compliant)
    read_both_ways(session, job, tmp_path)


def test_a_file_that_is_no_parquet(new_job: Callable[..., Job]) -> None:
    """Torn, which its end tells; empty, with a footer of nothing, or gone."""
    job = new_job(source={"file_format": "parquet", "schema": "k string"}, expiry=_NEVER)
    path = job.add_table(pa.table({"k": ["a"]}))
    listed, whole = batch_of(job), path.read_bytes()
    for torn in (whole[:-1], whole[:40], b"x", b"", bytes(20) + b"PAR1", whole[:4] + whole[-4:]):
        path.write_bytes(torn)
        is_ended = torn.endswith(b"PAR1")
        with pytest.raises(UnreadableFile, match=None if is_ended else "no Parquet file, or not"):
            parts_of(job, batch_of(job))
        with pytest.raises(FileChanged):
            parts_of(job, listed)
    path.unlink()
    with pytest.raises(FileGone):
        parts_of(job, listed)


@pytest.mark.parametrize(
    ("change", "fault"),
    [("time", FileChanged), ("bytes", FileChanged), ("pages", UnreadableFile), ("gone", FileGone)],
)
def test_a_file_that_changes(new_job: Callable[..., Job], change: str, fault: type[FileFault]) -> None:
    """Between listing and the end of reading."""
    job = new_job(source={"file_format": "parquet", "schema": "k string"}, expiry=_NEVER)
    path = job.add_table(pa.table({"k": [f"{number}" for number in range(100_000)]}))
    reading = reading_of(job)
    (part,) = parts_of(job)
    times = path.stat()
    records = reading.records(part)
    first = next(records)
    assert first.num_rows == 65_536
    if change == "pages":
        data = bytearray(path.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 2_000] = bytes(2_000)
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        records = reading.records(part)
    elif change == "gone":
        path.unlink()
    elif change == "time":
        path.touch()
    else:
        with path.open("ab") as file:
            file.write(b"more")
    with pytest.raises(fault):
        list(records)


@contextmanager
def heard(caplog: pytest.LogCaptureFixture, module: str) -> Iterator[None]:
    """What a module logs is in `caplog`, also after a command of another test has set up logging."""
    logger = logging.getLogger(f"deduper.{module}")
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(caplog.handler)
        logger.setLevel(logging.NOTSET)


_PARQUET = {"file_format": "parquet", "schema": "k string, t bigint"}


def test_a_window_writes_over_the_spool_of_the_one_before(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its own tasks did all of it."""
    monkeypatch.setattr(write_task, "_WRITER_BYTES", 1)
    left: list[list[str]] = []
    leave, remove = ExchangeFolders.leave, ExchangeFolders.remove

    def leaving(places: ExchangeFolders, folder: Path, reads: Sequence[str]) -> None:
        left.append(sorted(f"{file.stat().st_ino}{file.suffix}" for file in folder.glob("*.[rk]*")))
        leave(places, folder, reads)

    monkeypatch.setattr(ExchangeFolders, "leave", leaving)
    removed: list[Path] = []
    monkeypatch.setattr(
        ExchangeFolders, "remove", lambda places, folder: removed.append(folder) or remove(places, folder)
    )
    job = new_job(source={**_PARQUET, "max_files_per_batch": 1}, expiry=_NEVER)
    for number in range(3):
        job.add_table(pa.table({"k": ["a", f"b{number}"], "t": [1, 2]}))
    job.run()
    assert sorted(row["k"] for row in job.rows("unique")) == ["a", "b0", "b1", "b2"]
    assert len(removed) == 3
    assert not any(folder.exists() for folder in removed)
    assert len(left) == 3
    assert len({tuple(names) for names in left}) == 1


def test_a_window_is_judged_without_sockets_too(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a job a step, where the file system of the spool has none."""
    monkeypatch.setattr(write_task, "_WRITER_BYTES", 1)

    def without(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(window_jobs, "TaskPool", without)
    job = new_job(source=_PARQUET, expiry=_NEVER)
    job.add_table(pa.table({"k": ["a", "b", "a"]}))
    with heard(caplog, "window.jobs"):
        job.run()
    assert "no socket in" in caplog.text
    assert sorted(row["k"] for row in job.rows("unique")) == ["a", "b"]
    assert [row["k"] for row in job.rows("duplicate")] == ["a"]


def test_a_window_that_turns_out_small_leaves_its_cores_to_spark(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read by as many tasks as cores, written without any; then Spark makes the ports."""
    monkeypatch.setattr(window_jobs, "is_small", lambda _: False)
    sinks = {port: {"format": "json", "path": f"out/{port}"} for port in PORTS}
    job = new_job(source=_PARQUET, expiry=_NEVER, sinks=sinks)
    job.add_table(pa.table({"k": ["a", "b", "a"]}))
    job.run()
    assert sorted(row["k"] for row in job.rows("unique")) == ["a", "b"]
    assert [row["k"] for row in job.rows("duplicate")] == ["a"]


@pytest.mark.parametrize(
    ("schema", "table", "metadata"),
    [
        ("k string, t bigint", {"K": pa.array(["a"]), "T": pa.array([1])}, {}),
        ("k string, t bigint", {"k": pa.array([b"a"]), "t": pa.array([1], pa.int16())}, {}),
        ("k string, t bigint", {"k": pa.array(["a", None]).dictionary_encode(), "t": pa.array([1, 2])}, {}),
        ("k string, t timestamp", {"k": pa.array(["a"]), "t": pa.array([1], pa.timestamp("us"))}, {}),
        ("k string, t timestamp_ntz", {"k": pa.array(["a"]), "t": pa.array([1], _AT)}, {}),
        ("k string, t decimal(9,2)", {"k": pa.array(["a"]), "t": pa.array([Decimal("1.2")], pa.decimal128(8, 1))}, {}),
        ("k string, t bigint", {"other": pa.array(["a", "b"])}, {}),
        (
            '`k.x` string, `a b` bigint, `"ü` int',
            {"k.x": pa.array(["a"]), "a b": pa.array([1]), '"Ü': pa.array([2], pa.int32())},
            {},
        ),
        *(
            ("k string, t timestamp, d date", {"k": keys, "t": times, "d": days}, {version: text})
            for keys, times, days in [
                (
                    pa.array(["a", "b", "c"]),
                    pa.array([-(6 * 10**16), -(2 * 10**16), None], _AT),
                    pa.array([-719_164, -141_428, 0], pa.int32()).view(pa.date32()),
                )
            ]
            for version, text in (
                ("org.apache.spark.version", "2.4.8"),
                ("org.apache.spark.version", "3.0.1"),
                ("org.apache.spark.legacyDateTime", ""),
            )
        ),
    ],
)
def test_what_is_converted(
    session: SparkSession,
    new_job: Callable[..., Job],
    tmp_path: Path,
    schema: str,
    table: dict[str, pa.Array],
    metadata: dict[str, str],
) -> None:
    """Other types, names, calendars: as Spark converts them."""
    key = ["`k.x`", "k"]["k " in schema]
    job = new_job(source={"file_format": "parquet", "schema": schema}, key=[key.strip("`")], expiry=_NEVER)
    path = job.add_table(pa.table(table))
    for name, is_int96 in ((path, False), (path.with_name("zz.parquet"), True)):
        with parquet.ParquetWriter(
            name, pa.table(table).schema, use_deprecated_int96_timestamps=is_int96, store_schema=False
        ) as writer:
            writer.write_table(pa.table(table))
            writer.add_key_value_metadata(metadata)
    read_both_ways(session, job, tmp_path)


@pytest.mark.parametrize(
    ("schema", "table", "why"),
    [
        ("k string, t bigint", {"k": ["a"], "K": ["b"]}, "column k: more than one could be meant: k, K"),
        ("k string, t bigint", {"k": ["a"], "t": ["b"]}, "column t is declared bigint, the file has string"),
        ("k string, l array<int>", {"k": ["a"], "l": [{"x": 1}]}, "column l is declared array<int>, the file has str"),
    ],
)
def test_what_cannot_be_read(new_job: Callable[..., Job], schema: str, table: dict[str, Any], why: str) -> None:
    """No value is of the declared type, or more than one column could be meant: one error for the file."""
    job = new_job(source={"file_format": "parquet", "schema": schema}, expiry=_NEVER)
    job.add_table(pa.table(table))
    with pytest.raises(UnreadableFile, match=f"^{why}"):
        parts_of(job)


def test_texts_that_are_not_utf8(new_job: Callable[..., Job]) -> None:
    """Leave as errors of their records, and every port can be read."""
    job = new_job(source={"file_format": "parquet", "schema": "k string, v string"}, expiry=_NEVER)
    texts = pa.array([b"ok", b"\xff", b"\xfe", "ü".encode()]).view(pa.string())
    job.add_table(pa.table({"k": ["a", "b", "a", "c"], "v": texts}))
    job.run()
    assert [(row["k"], row["v"]) for row in job.rows("unique")] == [("a", "ok"), ("c", "ü")]
    assert [(row["k"], row["v"], row["_dedup"]["reason"], row["_dedup"]["detail"]) for row in job.rows("error")] == [
        ("b", None, "invalid_utf8", "v: bytes that are not UTF-8"),
        ("a", None, "invalid_utf8", "v: bytes that are not UTF-8"),
    ]


def test_files_of_other_types_have_the_same_keys(new_job: Callable[..., Job]) -> None:
    """In the same window and in the next one."""
    job = new_job(
        source={"file_format": "parquet", "schema": "k string, t bigint", "max_files_per_batch": 2}, expiry=_ORDERED
    )
    job.add_table(pa.table({"k": ["a", "b"], "t": [1, 2]}))
    job.add_table(pa.table({"k": ["a", "c"], "t": pa.array([1, 2], pa.int32())}))
    job.add_table(pa.table({"k": ["b", "d"], "t": [2, 3]}))
    job.run()
    assert sorted(row["k"] for row in job.rows("unique")) == ["a", "b", "c", "d"]
    assert sorted((row["k"], row["_dedup"]["window"]) for row in job.rows("duplicate")) == [("a", 0), ("b", 1)]


def test_times_are_the_same_in_any_zone(session: SparkSession, new_job: Callable[..., Job]) -> None:
    """The session's zone has no part in them, at any depth."""
    zone = "spark.sql.session.timeZone"
    source = {"file_format": "parquet", "schema": "k string, x double, at timestamp, l array<timestamp>"}
    job = new_job(source=source, expiry=_NEVER, spark={zone: "Europe/Berlin"})
    at = datetime(2026, 7, 1, 12, tzinfo=UTC)
    kind = pa.timestamp("us", "UTC")
    for key, number in (("a", pa.float64()), ("b", pa.float32())):
        columns = {"k": pa.array([key]), "x": pa.array([1.0], number), "at": pa.array([at], kind)}
        job.add_table(pa.table({**columns, "l": pa.array([[at]], pa.list_(kind))}))
    session.conf.set(zone, "Europe/Berlin")
    try:
        job.run()
    finally:
        session.conf.set(zone, "UTC")
    assert sorted((row["k"], row["at"], row["l"]) for row in job.rows("unique")) == [("a", at, [at]), ("b", at, [at])]
