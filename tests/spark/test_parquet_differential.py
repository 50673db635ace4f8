"""Every type that a Parquet file can hold against every type that a source can declare, by our reader and by Spark.

A cell is (type in the file, encoding, declared type). For each, one of these holds:

- read by both: the records, keys and receipts are the same, bit for bit; but numbers that the declared type may not
  hold, of which Spark takes the lower bits, are as if read by ours alone
- read by ours alone: numbers have the value that the file has, or make their record malformed
- read by neither, or by Spark alone where SEMANTICS.md says so (`_BITS_OF_THE_FILE`): the file leaves as
  `file_unreadable`, and the job goes on

The tier `change` has the cells that were wrong once. `night` has all pairs of types: each in a drawn encoding, and in
some more if any reader reads it. A refusal is slow, and is one of types. The files of two types are a batch.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from deduper.core.verdict import Admission
from deduper.sources.files.batch import SourceFileBatch
from deduper.tasks import exchange
from deduper.tasks.readers.parquet import _int96_writer
from deduper.tasks.readers.reading_tasks import receipts_of
from deduper.window.jobs.local import SparkJobs
from tests import tiers
from tests.deduper.digest_cases import SALT
from tests.spark.harness import Job
from tests.spark.spark_reader import parquet_rows
from tests.spark.test_parquet_records import batch_of, check_left, spill, task_of

pytestmark = pytest.mark.spark

_DAY = date(2020, 1, 1)
_FILES: dict[str, pa.Array] = {
    "int8": pa.array([-128, 127, None, 1], pa.int8()),
    "int16": pa.array([-(2**15), 127, None, 2**15 - 1], pa.int16()),
    "int32": pa.array([-(2**31), 1, None, 2**31 - 1], pa.int32()),
    "int64": pa.array([-(2**63), 1, None, 2**63 - 1], pa.int64()),
    "small int32": pa.array([-128, 127, None, -128], pa.int32()),
    "small int64": pa.array([-128, 127, None, -128], pa.int64()),
    "uint8": pa.array([0, 127, None, 255], pa.uint8()),
    "uint16": pa.array([0, 127, None, 2**16 - 1], pa.uint16()),
    "uint32": pa.array([0, 127, None, 2**32 - 1], pa.uint32()),
    "uint64": pa.array([0, 127, None, 2**64 - 1], pa.uint64()),
    "small uint64": pa.array([0, 127, None, 127], pa.uint64()),
    "float16": pa.array([1.0, -2.0, None, 1.0], pa.float16()),
    "float32": pa.array([1.5, -0.0, None, float("nan")], pa.float32()),
    "float64": pa.array([1.5, -0.0, None, float("inf")]),
    "bool": pa.array([True, False, None, True]),
    "string": pa.array(["a", "", None, "ü"]),
    "large string": pa.array(["a", "", None, "ü"], pa.large_string()),
    "binary": pa.array([b"a", b"", None, b"\xff"]),
    "fixed": pa.array([b"abcd", b"abce", None, b"\0\0\0\0"], pa.binary(4)),
    "date32": pa.array([_DAY, date(1, 1, 1), None, date(9999, 12, 31)]),
    "time32": pa.array([time(1), time(0), None, time(1)], pa.time32("ms")),
    "time64": pa.array([time(1), time(0), None, time(1)], pa.time64("us")),
    "time64 ns": pa.array([1, 2, None, 1], pa.time64("ns")),
    **{
        f"timestamp {unit}{zone and ' ' + zone}": pa.array([1, -1, None, 10**12], pa.timestamp(unit, zone or None))
        for unit in ("ms", "us", "ns")
        for zone in ("", "UTC", "Asia/Kathmandu")
    },
    "far timestamp ms": pa.array([2**62, 0, None, 1], pa.timestamp("ms", "UTC")),
    "far timestamp us": pa.array([-(2**63), 2**63 - 1, None, 0], pa.timestamp("us", "UTC")),
    **{
        f"decimal({precision},{scale})": pa.array(
            [Decimal(125).scaleb(-scale), Decimal(-(10**precision - 1)).scaleb(-scale), None, Decimal(7)],
            pa.decimal128(precision, scale),
        )
        for precision, scale in ((5, 0), (9, 2), (18, 2))
    },
    "decimal(38,2)": pa.array([Decimal("1.25"), Decimal(-1), None, Decimal("1.25")], pa.decimal128(38, 2)),
    "decimal256": pa.array([Decimal("1.25"), Decimal(-1), None, Decimal(0)], pa.decimal256(40, 2)),
    "list of int64": pa.array([[1, None], [], None, [2]], pa.list_(pa.int64())),
    "list of uint64": pa.array([[2**63, 1], [], None, [1, 1]], pa.list_(pa.uint64())),
    "list of int32": pa.array([[2**31 - 1, 1], [], None, [1, 1]], pa.list_(pa.int32())),
    "struct of int64": pa.array([{"x": 1}, {"x": None}, None, {"x": 1}], pa.struct({"x": pa.int64()})),
    "struct of uint32": pa.array([{"x": 2**32 - 1}, {"x": 1}, None, {"x": 1}], pa.struct({"x": pa.uint32()})),
    "map to int64": pa.array([[("a", 1)], [], None, [("b", None)]], pa.map_(pa.string(), pa.int64())),
    "map to uint64": pa.array([[("a", 2**63)], [], None, [("b", 1), ("c", 1)]], pa.map_(pa.string(), pa.uint64())),
    "null": pa.nulls(4),
}
_DECLARED = [
    *("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "binary", "date", "timestamp"),
    *("timestamp_ntz", "decimal(5,0)", "decimal(9,2)", "decimal(18,2)", "decimal(20,0)", "decimal(38,2)"),
    *("array<bigint>", "array<smallint>", "struct<x: bigint>", "struct<x: int>", "map<string,bigint>"),
]
_ENCODINGS: dict[str, dict[str, Any]] = {
    "dictionary": {},
    "plain": {"use_dictionary": False},
    "schema kept": {"store_schema": True},
    "decimals as integers": {"store_decimal_as_integer": True, "use_dictionary": False},
    "dictionary of integers": {"store_decimal_as_integer": True},
    "second pages": {"data_page_version": "2.0"},
    "first version": {"version": "1.0"},
    "delta": {"use_dictionary": False, "column_encoding": {"v": "DELTA_BINARY_PACKED"}},
    "delta bytes": {"use_dictionary": False, "column_encoding": {"v": "DELTA_BYTE_ARRAY"}},
    "delta lengths": {"use_dictionary": False, "column_encoding": {"v": "DELTA_LENGTH_BYTE_ARRAY"}},
    "split": {"use_dictionary": False, "column_encoding": {"v": "BYTE_STREAM_SPLIT"}},
    "run lengths": {"use_dictionary": False, "column_encoding": {"v": "RLE"}},
    "gzip": {"compression": "gzip"},
    "zstd": {"compression": "zstd"},
    "lz4": {"compression": "lz4"},
    "brotli": {"compression": "brotli"},
    "row groups": {"row_group_size": 2, "write_page_index": True},
}
_BITS_OF_THE_FILE = ("binary", "double", "date32[day]")
"""Declared types by which Spark alone reads decimals, 16-bit floats, days and times of day: as the file stores them.

Spark 4.3 does so by `date` too, of what is stored in 32 bits."""
_ORDINARY = [name for name, options in _ENCODINGS.items() if "column_encoding" not in options and name != "brotli"]
"""Those that values of any type can have."""
_MORE = 1
"""Encodings that a night draws for two types beside the first: all of them would take hours."""

_ALWAYS = [
    ("uint64", "dictionary", "bigint"),
    ("uint64", "plain", "bigint"),
    ("small uint64", "delta", "bigint"),
    ("uint32", "dictionary", "int"),
    ("uint32", "plain", "double"),
    ("uint32", "dictionary", "date"),
    ("uint8", "plain", "tinyint"),
    ("int32", "dictionary", "smallint"),
    ("decimal(9,2)", "dictionary of integers", "int"),
    ("list of uint64", "dictionary", "array<bigint>"),
    ("decimal(9,2)", "dictionary", "decimal(5,0)"),
    ("timestamp ns", "dictionary", "timestamp"),
    ("timestamp us", "dictionary", "bigint"),
    ("date32", "plain", "timestamp_ntz"),
    ("binary", "dictionary", "string"),
    ("fixed", "plain", "binary"),
    ("float64", "split", "double"),
    ("string", "brotli", "string"),
]
"""Cells that have been wrong, or ended a job, or are of a kind of their own."""


@dataclass
class Outcome:
    """What a reader made of a file; or why it did not."""

    left: list[tuple[Any, ...]] | None
    why_not: str = ""

    @property
    def column(self) -> pa.Array:
        """V, in order."""
        assert self.left is not None
        return pa.concat_arrays([chunk for _, records, _ in self.left for chunk in records.column("_1").chunks])

    @property
    def admissions(self) -> list[int]:
        """What became of the records, in order."""
        assert self.left is not None
        found: dict[int, int] = {}
        for _, _, keys in self.left:
            for batch in keys:
                rows, admissions = (batch.column(name).to_pylist() for name in (exchange.ROW, exchange.ADMISSION))
                found.update(zip(rows, admissions, strict=True))
        return [found[row] for row in sorted(found)]


class Readers:
    """Both readers of a job whose column V is of one type."""

    def __init__(self, session: SparkSession, job: Job) -> None:
        self._session = session
        self._job = job
        self._jobs = SparkJobs(session, job.config)
        self._tries = 0

    def ours(self, batch: SourceFileBatch) -> list[Outcome]:
        """What our reader makes of each file."""
        task = self._task()
        with self._jobs.open(1, 0) as run:
            read = run.read(batch.records(), task)
        return [
            Outcome(spill(task, receipts_of([one])))
            if one.fault is None
            else Outcome(None, f"{one.fault.admission.reason}: {one.fault.text}")
            for one in read
        ]

    def by_spark(self, batch: SourceFileBatch) -> list[Outcome]:
        """What Spark makes of each file."""
        paths = {ordinal: file.path for ordinal, file in enumerate(batch.files)}
        try:
            return self._by_spark(paths)
        except (PySparkException, Py4JJavaError) as exc:
            if len(paths) == 1:
                return [Outcome(None, str(exc))]
        outcomes = []
        for ordinal, path in paths.items():
            try:
                outcomes += self._by_spark({ordinal: path})
            except (PySparkException, Py4JJavaError) as exc:
                outcomes.append(Outcome(None, str(exc)))
        return outcomes

    def _by_spark(self, paths: dict[int, str]) -> list[Outcome]:
        task = self._task()
        with self._jobs.open(1, 0) as run:
            read = run.read(parquet_rows(self._session, self._job.config, SALT, paths), task)
        receipts = receipts_of(read)
        assert len(receipts) == len(paths)
        return [Outcome(spill(task, [receipt])) for receipt in receipts]

    def close(self) -> None:
        """No file comes any more."""
        self._jobs.close()

    def _task(self) -> Any:
        self._tries += 1
        return task_of(self._job, self._job.directory / f"task{self._tries}")


@pytest.fixture
def new_readers(session: SparkSession, new_job: Callable[..., Job]) -> Iterator[Callable[[str], tuple[Job, Readers]]]:
    """Makes the readers of a declared type."""
    made: list[Readers] = []

    def make(declared: str) -> tuple[Job, Readers]:
        is_key = "<" not in declared
        job = new_job(
            source={"file_format": "parquet", "schema": f"k string, v {declared}"},
            key=["k", "v"] if is_key else "k",
            null_keys="allow",
            expiry={"by": "never"},
        )
        made.append(Readers(session, job))
        return job, made[-1]

    yield make
    for readers in made:
        readers.close()


def batch_with(job: Job, values: pa.Array, codings: Iterable[str]) -> tuple[SourceFileBatch, list[str]]:
    """A batch of a file of these values for each encoding that they can have, and these encodings."""
    folder = job.directory / "in"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    table = pa.table({"k": [str(number) for number in range(len(values))], "v": values})
    written: list[str] = []
    for coding in codings:
        path = folder / f"{len(written):02}.parquet"
        try:
            parquet.write_table(table, path, **{"store_schema": False, **_ENCODINGS[coding]})
            written.append(coding)
        except (pa.ArrowException, OSError, ValueError):
            path.unlink(missing_ok=True)
    return batch_of(job), written


def has_numbers(kind: pa.DataType) -> bool:
    """Whether a type is of whole numbers or decimals, or has some."""
    if pa.types.is_nested(kind):
        return any(has_numbers(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind) or kind == pa.float64())


def is_sound(stored: pa.Array, outcome: Outcome) -> bool:
    """Whether the values are those of the file, but for records that are malformed."""
    given = outcome.column
    for value, found, admission in zip(stored.to_pylist(), given.to_pylist(), outcome.admissions, strict=True):
        is_same = found == (float(value) if isinstance(found, float) else value)
        if found is None and value is not None:
            is_same = admission == Admission.MALFORMED and not fits(value, given.type)
        if not is_same:
            return False
    return True


def fits(value: int | Decimal, kind: pa.DataType) -> bool:
    """Whether a type holds a number."""
    try:
        return bool(pa.array([value]).cast(kind)[0].as_py() == value)
    except (pa.ArrowException, OverflowError):
        return False


def problem_of(found: str, ours: Outcome, theirs: Outcome) -> str | None:
    """What is wrong with a cell."""
    if ours.left is None:
        is_known = theirs.left is None or str(theirs.column.type) in _BITS_OF_THE_FILE
        return None if is_known else f"read by Spark alone: {ours.why_not}"
    stored = _FILES[found]
    if stored.type in (pa.date32(), pa.time32("ms")):
        stored = stored.view(pa.int32())  # to Spark and to us, a number of days or ms where a number is declared
    if has_numbers(stored.type) and has_numbers(ours.column.type) and not is_sound(stored, ours):
        return "other numbers"
    if theirs.left is None:
        return None
    try:
        check_left(ours.left, theirs.left)
    except AssertionError as exc:
        is_misread = has_numbers(stored.type) and not is_sound(stored, theirs)
        return None if is_misread else f"differs: {str(exc)[:200]}"
    return None


def try_cells(job: Job, readers: Readers, found: str, codings: Iterable[str]) -> tuple[int, list[str], bool]:
    """How many of these cells there are, what is wrong with them, and whether any was read."""
    batch, written = batch_with(job, _FILES[found], codings)
    if not written:
        return 0, [], False
    both = list(zip(written, readers.ours(batch), readers.by_spark(batch), strict=True))
    problems = [f"{found}, {coding}: {problem}" for coding, *left in both if (problem := problem_of(found, *left))]
    return len(written), problems, any(one.left is not None for _, *left in both for one in left)


@pytest.mark.night(but=["bigint", "int", "array<bigint>", "timestamp", "string"])
@pytest.mark.parametrize("declared", _DECLARED if tiers.is_night() else dict.fromkeys(cell[2] for cell in _ALWAYS))
def test_every_type_against_every_type(new_readers: Callable[[str], tuple[Job, Readers]], declared: str) -> None:
    """The same by both readers, or by ours alone and exact, or an error tuple; never the end of a job."""
    job, readers = new_readers(declared)
    rnd = random.Random(f"{declared} {tiers.seed()}")
    count, wrong = 0, list[str]()
    for found in _FILES:
        always = [coding for one, coding, kind in _ALWAYS if (one, kind) == (found, declared)]
        first = [*always, rnd.choice(_ORDINARY)] if tiers.is_night() else always
        tried, problems, is_read = try_cells(job, readers, found, dict.fromkeys(first))
        if is_read and tiers.is_night():
            others = [coding for coding in _ENCODINGS if coding not in first]
            more, others, _ = try_cells(job, readers, found, rnd.sample(others, _MORE))
            tried, problems = tried + more, problems + others
        count, wrong = count + tried, wrong + problems
    print(f"declared {declared}: {count} cells, {len(wrong)} wrong, seed {tiers.seed()}")
    assert wrong == [], "\n".join(wrong)


_EPOCH_DAY = 2_440_588
_DAY_NS = 86_400_000_000_000
_INT96 = {
    "ordinary": [(_EPOCH_DAY, 0), (_EPOCH_DAY + 20_000, 123_456_789), (_EPOCH_DAY - 100_000, 5)],
    "below zero": [(_EPOCH_DAY, -1), (_EPOCH_DAY, -1_000_000), (_EPOCH_DAY - 1, -_DAY_NS)],
    "beyond a day": [(_EPOCH_DAY, _DAY_NS + 1_000), (_EPOCH_DAY, 5 * _DAY_NS)],
    "days of no calendar": [(0, 0), (-1, 0), (-100_000_000, 0)],
    "last day": [(100_000_000, 0)],
}


def write_int96(path: Path, values: list[tuple[int, int]], metadata: dict[str, str]) -> None:
    """A file with times of these days and nanoseconds, which no library would write."""
    stamps = pa.array(
        [datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=at) for at in range(len(values))], pa.timestamp("ns")
    )
    table = pa.table({"k": [str(at) for at in range(len(values))], "v": stamps})
    options = {"compression": "none", "use_dictionary": False, "store_schema": False, "write_statistics": False}
    with parquet.ParquetWriter(path, table.schema, use_deprecated_int96_timestamps=True, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata)
    data = path.read_bytes()
    for at, (day, nanoseconds) in enumerate(values):
        placeholder = struct.pack("<QI", at * 1_000_000_000, _EPOCH_DAY + 10_957)
        assert data.count(placeholder) == 1
        data = data.replace(placeholder, struct.pack("<qi", nanoseconds, day))
    path.write_bytes(data)


@pytest.mark.parametrize("metadata", [{}, {"org.apache.spark.version": "3.5.0"}], ids=["plain", "mark of Spark's"])
@pytest.mark.parametrize("values", _INT96.values(), ids=list(_INT96))
def test_int96_of_others(
    new_readers: Callable[[str], tuple[Job, Readers]], values: list[tuple[int, int]], metadata: dict[str, str]
) -> None:
    """Arrow takes some of its values for other times; a mark of Spark's may have been passed on by another writer."""
    job, readers = new_readers("timestamp")
    path = job.directory / "in/a.parquet"
    path.parent.mkdir()
    write_int96(path, values, metadata)
    batch = batch_of(job)
    (ours,), (theirs,) = readers.ours(batch), readers.by_spark(batch)
    assert ours.left is not None
    assert theirs.left is not None
    check_left(ours.left, theirs.left)
    # Java's division cuts nanoseconds off towards zero.
    found = ours.column.cast(pa.int64()).to_pylist()
    assert found == [(day - _EPOCH_DAY) * _DAY_NS // 1_000 + int(nanoseconds / 1_000) for day, nanoseconds in values]


@pytest.mark.parametrize(
    ("creator", "version", "writer"),
    [
        ("parquet-mr version 1.13.1 (build db4183109d5b734ec5930d870cdae161e408ddba)", b"3.5.0", (3, 5)),
        ("parquet-mr version 1.10.1", b"3.0.3", (3, 0)),
        ("parquet-mr version 1.16.0", b"4.10.2-preview", (4, 10)),
        ("parquet-mr version 1.16.0", None, (0, 0)),
        ("parquet-mr version 1.16.0", b"odd", (0, 0)),
        ("parquet-cpp-arrow version 26.0.1", b"3.5.0", (0, 0)),
    ],
)
def test_who_wrote_int96(creator: str, version: bytes | None, writer: tuple[int, int]) -> None:
    """Spark names itself, and the library that it writes with."""
    metadata = None if version is None else {b"org.apache.spark.version": version}
    footer: Any = SimpleNamespace(created_by=creator, metadata=metadata)
    assert _int96_writer(footer) == writer
