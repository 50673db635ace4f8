"""What a file itself decides, a Parquet file by its footer, before anything of a window is read."""

from __future__ import annotations

import bz2
import errno
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from deduper.config.files import FilesSource
from deduper.sources.files.batch import FileBatch
from deduper.sources.files.file_ways import file_ways
from deduper.sources.files.plain_reading import plain_reading
from deduper.sources.files.plan import _stored_types
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.sources.record_layout import record_layout
from deduper.tasks.read import ReadTask
from deduper.tasks.readers import declared
from deduper.tasks.readers.parquet import ParquetReading
from deduper.tasks.readers.plain_file import FilePart
from deduper.tasks.readers.reading_tasks import PlainReading, read_part
from tests.deduper.digest_cases import SALT
from tests.spark.harness import Job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Files of Parquet."""
    return Job(tmp_path, None, {"source": {"file_format": "parquet", "schema": "k string, t bigint"}})


@pytest.fixture(params=[True, False], ids=["plain", "by Spark"])
def reading(request: pytest.FixtureRequest, job: Job) -> PlainReading | None:
    """How files are read without Spark, or that they are not."""
    return plain_reading(job.config, SALT) if request.param else None


def batch_of(job: Job, names: str = "*") -> FileBatch:
    """The files of the job, as a window lists them."""
    source = job.config.source
    assert isinstance(source, FilesSource)
    files = sorted(source.folder.glob(names))
    return FileBatch(
        source, tuple(stat_files([ListedFile(str(file), file.stat().st_mtime_ns // 10**6) for file in files]))
    )


def table(rows: int) -> pa.Table:
    """Some rows."""
    return pa.table({"k": [f"{number}" for number in range(rows)], "t": range(rows)})


def rows_held(footer: parquet.FileMetaData) -> int:
    """The rows of all row groups."""
    return sum(footer.row_group(group).num_rows for group in range(footer.num_row_groups))


def flipped(path: Path, until: Callable[[parquet.FileMetaData], bool]) -> parquet.FileMetaData:
    """Flip a bit of a file's footer, so that it says something else."""
    whole = path.read_bytes()
    end = len(whole) - 8
    for at in range(end - int.from_bytes(whole[end : end + 4], "little"), end):
        for bit in range(8):
            data = bytearray(whole)
            data[at] ^= 1 << bit
            try:
                footer = parquet.read_metadata(pa.BufferReader(bytes(data)))
            except (OSError, ValueError):
                continue
            if until(footer):
                path.write_bytes(data)
                return footer
    raise AssertionError("no bit of the footer does that")


def test_only_files_that_nobody_can_read_are_refused(job: Job, reading: PlainReading | None) -> None:
    """By their end, or their count; the same files for both readers. Spark decides doubtful ones."""
    job.add_table(table(3))
    for content in (b"PAR1 torn", b"x", b"", bytes(20) + b"PAR1", bytes(20) + b"PARE"):
        job.add_file([], f"file-{job._files:04d}.parquet").write_bytes(content)
    footer = flipped(job.add_table(table(300)), lambda footer: footer.num_rows != rows_held(footer))
    ways = file_ways(batch_of(job), reading)
    assert list(ways.unreadable) == [1, 2, 6]
    assert "it does not end in PAR1" in ways.unreadable[1]
    assert ways.unreadable[6] == (f"its footer says {footer.num_rows} rows, its row groups hold {rows_held(footer)}")
    assert [part.ordinal for part in ways.parts] == ([] if reading is None else [0])
    assert list(ways.by_spark) == ([0, 3, 4, 5] if reading is None else [3, 4, 5])


def test_each_file_is_decided_alone(job: Job) -> None:
    """One that is for Spark takes no neighbour with it."""
    job.add_table(table(3))
    job.add_table(table(3).set_column(1, "t", pa.array(range(3), pa.int32())))
    job.add_table(table(3).slice(0, 0))
    job.add_table(table(3))
    ways = file_ways(batch_of(job), plain_reading(job.config, SALT))
    assert [part.ordinal for part in ways.parts] == [0, 3]
    assert list(ways.by_spark) == [1]


def test_text_is_decided_by_names(tmp_path: Path) -> None:
    """Nothing is read for it. What only Spark unpacks, and what is in a folder whose value it casts, is for Spark."""
    job = Job(tmp_path, None, {"source": {"schema": "k string, x double, n int"}})
    for name in ("a.json", "b.json.gz", "c.json.deflate", "d.json.zst", "e.json.bz2"):
        job.add_file(["{}"], name)
    for number, folder in enumerate(("n=5", "x=1.5")):
        (tmp_path / "in" / folder).mkdir()
        job.add_file(["{}"], f"{folder}/f{number}.json")
    batch = batch_of(job, "**/*.json*")
    ways = file_ways(batch, plain_reading(job.config, SALT))
    named = {ordinal: Path(file.path).name for ordinal, file in enumerate(batch.files)}
    assert [named[part.ordinal] for part in ways.parts] == [
        "a.json",
        "b.json.gz",
        "d.json.zst",
        "e.json.bz2",
        "f0.json",
    ]
    assert {named[ordinal]: reason.partition(": ")[2] for ordinal, reason in ways.by_spark.items()} == {
        "c.json.deflate": "compressed in a way that Spark reads",
        "f1.json": "`1.5` of a folder is cast to double by Spark",
    }
    assert ways.unreadable == {}
    by_spark = file_ways(batch, None)
    assert list(by_spark.by_spark) == list(named)


def test_a_size_below_nothing(job: Job) -> None:
    """Files are dealt to tasks by their sizes, which a damaged footer need not have."""
    flipped(job.add_table(table(300)), lambda footer: footer.row_group(0).total_byte_size < 0)
    (part,) = file_ways(batch_of(job), plain_reading(job.config, SALT)).parts
    assert part.plain_bytes == 0


def test_a_creator_that_is_no_text(job: Job, reading: PlainReading | None) -> None:
    """One flipped bit, in a file with the mark of Spark's: it is for Spark, and its neighbour is read."""
    job.add_table(table(3))
    path = job.add_table(table(3).replace_schema_metadata({"org.apache.spark.version": "3.5.0"}))
    data = bytearray(path.read_bytes())
    data[data.rindex(b"parquet-cpp-arrow") + 3] ^= 0x80
    path.write_bytes(data)
    ways = file_ways(batch_of(job), reading)
    assert (list(ways.by_spark), ways.unreadable) == ([1] if reading else [0, 1], {})


def test_no_error_over_a_footer_ends_the_job(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is, Spark decides."""
    job.add_table(table(3))

    def failing(*_: object) -> None:
        raise LookupError("never heard of")

    monkeypatch.setattr(ParquetReading, "part", failing)
    (reason,) = file_ways(batch_of(job), plain_reading(job.config, SALT)).by_spark.values()
    assert reason.endswith("LookupError: never heard of")


def test_a_name_that_is_no_text(job: Job) -> None:
    """A plain file of it is read like any other."""
    path = job.add_table(table(3))
    path.rename(path.with_name(os.fsdecode(b"\xff.parquet")))
    reading, part, task = part_of(job, rows=2)
    read = read_part(reading, task, part)
    assert read.refusal is None
    assert read.rows == 3


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_fault_of_the_machine_after_the_footer(job: Job, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """When the file is checked once more: Spark is not asked."""
    reading, part, task = part_of(job)
    real = Path.stat

    def failing(path: Path, **more: Any) -> Any:
        if str(path) == part.path:
            raise OSError(code, os.strerror(code), part.path)
        return real(path, **more)

    monkeypatch.setattr(Path, "stat", failing)
    with pytest.raises(OSError, match=os.strerror(code)):
        read_part(reading, task, part)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.EACCES])
def test_types_that_cannot_be_looked_at(job: Job, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Spark must not read the file a moment later: it would take wide numbers for others."""
    path = job.add_table(table(3))
    assert set(_stored_types(str(path))) == {"k", "t"}

    def failing(*_: object) -> Any:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(pa, "OSFile", failing)
    with pytest.raises(OSError, match=os.strerror(code)):
        _stored_types(str(path))
    path.write_bytes(b"no Parquet")
    monkeypatch.undo()
    assert _stored_types(str(path)) == {}


def part_of(job: Job, rows: int = 100) -> tuple[PlainReading, FilePart, ReadTask]:
    """The oldest file, a plain one, and how it is set aside."""
    job.add_table(table(rows))
    reading = plain_reading(job.config, SALT)
    assert reading is not None
    part, *_ = file_ways(batch_of(job), reading).parts
    folder = job.directory / "spool"
    folder.mkdir()
    layout = record_layout(job.config)
    return reading, part, ReadTask(str(folder), 2, layout, None, in_order=False, keeps_latest=False)


def test_rows_that_are_missing_are_noticed_in_their_file(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark is to say what becomes of it; the window's counts need not disagree for that."""
    reading, part, task = part_of(job)
    real = parquet.ParquetFile.iter_batches

    def but_one(file: parquet.ParquetFile, *arguments: Any, **more: Any) -> Iterator[pa.RecordBatch]:
        for batch in real(file, *arguments, **more):
            yield batch.slice(1)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", but_one)
    assert read_part(reading, task, part).refusal == f"{part.path}: 99 rows were read, its footer says 100"


def test_no_error_over_a_file_ends_the_job(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is, Spark is to say."""
    reading, part, task = part_of(job)

    def failing(*_: object) -> None:
        raise LookupError("never heard of")

    monkeypatch.setattr(declared, "array_digest", failing)
    assert read_part(reading, task, part).refusal == f"{part.path}: LookupError: never heard of"


def test_a_page_that_asks_for_too_much_is_no_fault_of_the_machine(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged header may give any size: Spark is to say what becomes of the file."""
    reading, part, task = part_of(job)

    def failing(*_: object, **__: object) -> Iterator[pa.RecordBatch]:
        raise pa.ArrowMemoryError("malloc of size 1152921504606846976 failed")
        yield

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", failing)
    assert read_part(reading, task, part).refusal == f"{part.path}: malloc of size 1152921504606846976 failed"


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ESTALE])
def test_a_fault_of_the_machine_is_none_of_a_file(job: Job, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Spark might not be able to read a file that Arrow can: what fails for a moment must not depend on it."""
    reading, part, task = part_of(job)
    real = pa.OSFile

    def failing(path: bytes, *arguments: Any) -> Any:
        if path == os.fsencode(part.path):
            raise OSError(code, os.strerror(code), path)
        return real(path, *arguments)

    monkeypatch.setattr(pa, "OSFile", failing)
    with pytest.raises(OSError, match=os.strerror(code)):
        file_ways(batch_of(job), reading)
    with pytest.raises(OSError, match=os.strerror(code)):
        read_part(reading, task, part)


_PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: bytes(pa.Codec("zstd").compress(data, asbytes=True)),
    ".deflate": zlib.compress,
}


@pytest.mark.parametrize("suffix", _PACKED)
@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "by Spark"])
def test_the_header_of_each_file_decides(tmp_path: Path, suffix: str, is_plain: bool) -> None:
    """For both readers alike: files of another header are read by neither."""
    source = {"file_format": "csv", "schema": "k string, t bigint, day date", "header": True}
    job = Job(tmp_path, None, {"source": source})
    texts = {
        "a.csv": b"k,t,day\na,1,\n",
        "b.csv": b"\xef\xbb\xbfK,T\n",
        "c.csv": b"t,k,day\n1,a,\n",
        "d.csv": b"a,1,2026-01-01\n",
        "day=2026-01-01/e.csv": b"k,t",
        "day=2026-01-01/f.csv": b"k,t,day\n",
        "g.csv": b"\nk,t,day\n",
        "h.csv": b"k,t,day\n" + b"x" * 200_000,
    }
    for name, text in texts.items():
        path = tmp_path / "in" / f"{name}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_PACKED[suffix](text))
    batch = batch_of(job, "**/*.csv*")
    found = file_ways(batch, plain_reading(job.config, SALT) if is_plain else None)
    names = {Path(batch.files[ordinal].path).name.removesuffix(suffix) for ordinal in found.misheaded}
    assert names == {"c.csv", "d.csv", "f.csv", "g.csv"}
    read = {part.ordinal for part in found.parts} | set(found.by_spark)
    assert read == set(range(len(texts))) - set(found.misheaded)


def test_a_file_without_text_has_no_header(tmp_path: Path) -> None:
    """It has no records either; one that cannot be read is left to its reader."""
    source = {"file_format": "csv", "schema": "k string", "header": True}
    job = Job(tmp_path, None, {"source": source, "key": ["k"]})
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_bytes(b"\xef\xbb\xbf")
    (tmp_path / "in/b.csv.gz").write_bytes(b"no gzip")
    (tmp_path / "in/c.csv.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "in/d.csv.deflate").write_bytes(b"no zlib")
    found = file_ways(batch_of(job), None)
    assert (found.misheaded, sorted(found.by_spark)) == ({}, [0, 1, 2, 3])
