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
from deduper.core.verdict import Admission
from deduper.sources.declared_columns import file_reading, record_layout
from deduper.sources.files.batch import SourceFileBatch
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.tasks.read import ReadTask
from deduper.tasks.readers.file_parts import FilePart, WindowFile
from deduper.tasks.readers.parquet import ParquetReading
from deduper.tasks.readers.reading_tasks import FileReading, PartRead, read_file
from tests.deduper.digest_cases import SALT
from tests.spark.harness import Job

_EVERY_TYPE = (
    '`a "k"` string, k string, b boolean, i tinyint, x float, d decimal(38, 3), day date, at timestamp, raw binary, '
    "s struct<a: int, b: array<string>>, m map<string, bigint>"
)
_SOUND: list[dict[str, Any]] = [
    {"file_format": "parquet", "schema": _EVERY_TYPE},
    {"file_format": "json", "schema": _EVERY_TYPE},
    {"file_format": "csv", "schema": '`a "k"` string, k string, b boolean, day date', "header": True},
]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Files of Parquet."""
    return Job(tmp_path, None, {"source": {"file_format": "parquet", "schema": "k string, t bigint"}})


def reading_of(job: Job) -> FileReading:
    """How the job's files are read."""
    source = job.config.source
    assert isinstance(source, FilesSource)
    return file_reading(job.config, source, SALT)


def faults(batch: SourceFileBatch) -> dict[int, str]:
    """The files that are errors before anything of them is read, by ordinal, and why."""
    return {part.ordinal: part.fault.text for part in batch.records().parts if part.fault is not None}


def sound(batch: SourceFileBatch) -> list[int]:
    """The ordinals of the files that tasks read."""
    return [part.ordinal for part in batch.records().parts if part.fault is None]


def batch_of(job: Job, names: str = "*") -> SourceFileBatch:
    """The files of the job, as a window lists them."""
    source = job.config.source
    assert isinstance(source, FilesSource)
    files = [file for file in sorted(source.folder.glob(names)) if file.is_file()]
    listed = [ListedFile(str(file), file.stat().st_mtime_ns // 10**6) for file in files]
    return SourceFileBatch(source, tuple(stat_files(listed)), reading_of(job))


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


def test_only_files_that_nobody_can_read_are_refused(job: Job) -> None:
    """By their end, their footer, or their count."""
    job.add_table(table(3))
    for content in (b"PAR1 torn", b"x", b"", bytes(20) + b"PAR1", bytes(20) + b"PARE"):
        job.add_file([], f"file-{job._files:04d}.parquet").write_bytes(content)
    footer = flipped(job.add_table(table(300)), lambda footer: footer.num_rows != rows_held(footer))
    batch = batch_of(job)
    unreadable = faults(batch)
    assert list(unreadable) == [1, 2, 3, 4, 5, 6]
    assert "it does not end in PAR1" in unreadable[1]
    assert unreadable[5] == "its footer is encrypted"
    assert unreadable[6] == f"its footer says {footer.num_rows} rows, its row groups hold {rows_held(footer)}"
    assert sound(batch) == [0]


def test_each_file_is_decided_alone(job: Job) -> None:
    """One whose column is of a type without values of the declared one takes no neighbour with it."""
    job.add_table(table(3))
    job.add_table(table(3).set_column(1, "t", pa.array(range(3), pa.int32())))
    job.add_table(table(3).set_column(1, "t", pa.array(["1", "2", "3"])))
    job.add_table(table(3).slice(0, 0))
    job.add_table(table(3))
    batch = batch_of(job)
    assert sound(batch) == [0, 1, 4]
    assert faults(batch) == {2: "column t is declared bigint, the file has string"}


def test_text_is_decided_by_names(tmp_path: Path) -> None:
    """Nothing is read for it. What says a format that is not unpacked is for no reader."""
    job = Job(tmp_path, None, {"source": {"schema": "k string, x double, n int"}})
    for name in ("a.json", "b.json.gz", "c.json.deflate", "d.json.zst", "e.json.bz2", "g.json.lz4"):
        job.add_file(["{}"], name)
    for number, folder in enumerate(("n=5", "x=1.5")):
        (tmp_path / "in" / folder).mkdir()
        job.add_file(["{}"], f"{folder}/f{number}.json")
    batch = batch_of(job, "**/*.json*")
    named = {ordinal: Path(file.path).name for ordinal, file in enumerate(batch.files)}
    assert [named[ordinal] for ordinal in sound(batch)] == [
        "a.json",
        "b.json.gz",
        "c.json.deflate",
        "d.json.zst",
        "e.json.bz2",
        "f0.json",
        "f1.json",
    ]
    assert [named[ordinal] for ordinal in faults(batch)] == ["g.json.lz4"]


def test_a_size_below_nothing(job: Job) -> None:
    """Files are dealt to tasks by their sizes, which a damaged footer need not have."""
    flipped(job.add_table(table(300)), lambda footer: footer.row_group(0).total_byte_size < 0)
    (part,) = batch_of(job).records().parts
    assert part.decoded_bytes == 0


def test_a_creator_that_is_no_text(job: Job) -> None:
    """One flipped bit, in a file with the mark of Spark's: it counts where times are INT96, and harms no neighbour."""
    job.add_table(table(3))
    stamps = pa.array([1, 2, 3], pa.timestamp("ns"))
    for more in (table(3), table(3).append_column("at", stamps)):
        path = job.add_table(more.replace_schema_metadata({"org.apache.spark.version": "3.5.0"}))
        parquet.write_table(parquet.read_table(path), path, use_deprecated_int96_timestamps=True)
        data = bytearray(path.read_bytes())
        data[data.rindex(b"parquet-cpp-arrow") + 3] ^= 0x80
        path.write_bytes(data)
    batch = batch_of(job)
    assert sound(batch) == [0, 1]
    assert list(faults(batch)) == [2]


def test_no_error_over_a_footer_ends_the_job(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is, the file is an error."""
    path = job.add_table(table(3))
    real = ParquetReading.part

    def failing(reading: ParquetReading, ordinal: int, file: WindowFile) -> FilePart | None:
        if file.path == str(path):
            raise LookupError("never heard of")
        return real(reading, ordinal, file)

    monkeypatch.setattr(ParquetReading, "part", failing)
    assert faults(batch_of(job)) == {0: "LookupError: never heard of"}


def test_a_name_that_is_no_text(job: Job) -> None:
    """A plain file of it is read like any other."""
    path = job.add_table(table(3))
    path.rename(path.with_name(os.fsdecode(b"\xff.parquet")))
    reading, part, task = part_of(job, rows=2)
    read = read_file(reading, task, part)
    assert read.fault is None
    assert read.rows == 3


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_fault_of_the_machine_after_the_footer(job: Job, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """When the file is checked once more."""
    reading, part, task = part_of(job)
    real = Path.stat

    def failing(path: Path, **more: Any) -> Any:
        if str(path) == part.path:
            raise OSError(code, os.strerror(code), part.path)
        return real(path, **more)

    monkeypatch.setattr(Path, "stat", failing)
    with pytest.raises(OSError, match=os.strerror(code)):
        read_file(reading, task, part)


def part_of(job: Job, rows: int = 100) -> tuple[FileReading, FilePart, ReadTask]:
    """The oldest file, and how it is set aside."""
    job.add_table(table(rows))
    reading = reading_of(job)
    part, *_ = batch_of(job).records().parts
    folder = job.directory / "spool"
    folder.mkdir()
    layout = record_layout(job.config)
    return reading, part, ReadTask(str(folder), 2, layout, None, in_order=False, keeps_latest=False)


def why(read: PartRead) -> str | None:
    """Why a file is an error as a whole."""
    return None if read.fault is None else read.fault.text


def test_rows_that_are_missing_are_noticed_in_their_file(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error as a whole; the window's counts need not disagree for that."""
    reading, part, task = part_of(job)
    real = parquet.ParquetFile.iter_batches

    def but_one(file: parquet.ParquetFile, *arguments: Any, **more: Any) -> Iterator[pa.RecordBatch]:
        for batch in real(file, *arguments, **more):
            yield batch.slice(1)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", but_one)
    assert why(read_file(reading, task, part)) == "99 rows were read, its footer says 100"


def failing_over(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    """Let reading fail, as nobody has foreseen it, over every file of so many rows."""
    real = parquet.ParquetFile.iter_batches

    def failing(file: parquet.ParquetFile, *arguments: Any, **more: Any) -> Iterator[pa.RecordBatch]:
        if file.metadata.num_rows >= least:
            raise LookupError("never heard of")
        return real(file, *arguments, **more)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", failing)


def test_no_error_over_a_file_ends_the_job(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is, the file is an error as a whole, with one record that says so."""
    reading, part, task = part_of(job)
    failing_over(monkeypatch, 2)
    read = read_file(reading, task, part)
    assert why(read) == "LookupError: never heard of"
    assert read.receipt is not None
    assert (read.rows, read.receipt.rows) == (1, 1)


def test_a_reader_that_fails_over_every_file_writes_none_off(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the fault of the installation: the job ends, and the next one reads them."""
    reading, part, task = part_of(job)
    failing_over(monkeypatch, 0)
    with pytest.raises(LookupError, match="never heard of") as found:
        read_file(reading, task, part)
    assert found.value.__cause__ is not None


@pytest.mark.parametrize("source", _SOUND, ids=lambda source: source["file_format"])
def test_nothing_is_wrong_with_a_sound_file(tmp_path: Path, source: dict[str, Any]) -> None:
    """One record of no values, in each format and with columns of every type."""
    job = Job(tmp_path, None, {"source": source, "expiry": {"by": "never"}, "key": ["k"]})
    reading = reading_of(job)
    path = tmp_path / "sound"
    path.write_bytes(reading.sound_file())
    part = reading.part(0, FilePart(str(path), 0, 0, 0, 0, {}, None).as_now())
    assert part is not None
    assert [batch.num_rows for batch in reading.records(part)] == [1]


def test_a_page_that_asks_for_too_much_is_no_fault_of_the_machine(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged header may give any size; one that the machine could have is its own fault."""
    reading, part, task = part_of(job)
    size = 1 << 60

    def failing(*_: object, **__: object) -> Iterator[pa.RecordBatch]:
        raise pa.ArrowMemoryError(f"malloc of size {size} failed")
        yield

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", failing)
    assert why(read_file(reading, task, part)) == "malloc of size 1152921504606846976 failed"
    size = 1 << 20
    with pytest.raises(MemoryError):
        read_file(reading, task, part)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ESTALE])
def test_a_fault_of_the_machine_is_none_of_a_file(job: Job, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """What fails for a moment writes no file off."""
    reading, part, task = part_of(job)
    real = pa.OSFile

    def failing(path: bytes, *arguments: Any) -> Any:
        if path == os.fsencode(part.path):
            raise OSError(code, os.strerror(code), path)
        return real(path, *arguments)

    monkeypatch.setattr(pa, "OSFile", failing)
    with pytest.raises(OSError, match=os.strerror(code)):
        batch_of(job).records()
    with pytest.raises(OSError, match=os.strerror(code)):
        read_file(reading, task, part)


_PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: bytes(pa.Codec("zstd").compress(data, asbytes=True)),
    ".deflate": zlib.compress,
}


def headers(job: Job, names: str) -> dict[str, Admission | None]:
    """What tasks make of files, by their names; None of one that is read."""
    batch, folder = batch_of(job, names), job.directory / "spool"
    folder.mkdir()
    task = ReadTask(str(folder), 2, record_layout(job.config), None, in_order=False, keeps_latest=False)
    read = [read_file(batch.reading, task, part) for part in batch.records().parts]
    return {
        Path(part.path).name: None if one.fault is None else one.fault.admission
        for part, one in zip(batch.records().parts, read, strict=True)
    }


@pytest.mark.parametrize("suffix", _PACKED)
def test_the_header_of_each_file_decides(tmp_path: Path, suffix: str) -> None:
    """A file of another header is not read."""
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
    found = headers(job, "**/*.csv*")
    odd = {f"{name}.csv{suffix}" for name in "cdfg"}
    assert {name for name, admission in found.items() if admission is Admission.FILE_HEADER} == odd
    assert {name for name, admission in found.items() if admission is None} == found.keys() - odd
    assert len(found) == len(texts)


def test_a_file_without_text_has_no_header(tmp_path: Path) -> None:
    """It has no records either; one whose first line cannot be read has none that can."""
    source = {"file_format": "csv", "schema": "k string", "header": True}
    job = Job(tmp_path, None, {"source": source, "key": ["k"]})
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_bytes(b"\xef\xbb\xbf")
    (tmp_path / "in/b.csv.gz").write_bytes(b"no gzip")
    (tmp_path / "in/c.csv.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "in/d.csv.deflate").write_bytes(b"no zlib")
    unreadable = Admission.FILE_UNREADABLE
    assert headers(job, "*") == {"a.csv": None, "b.csv.gz": unreadable, "c.csv.gz": None, "d.csv.deflate": unreadable}


@pytest.mark.parametrize("when", ["before", "while"])
def test_the_records_of_a_file_that_has_changed(job: Job, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """It is read as it is found, and all of its records are errors; none of what was set aside before counts."""
    reading, part, task = part_of(job)
    path, real = Path(part.path), parquet.ParquetFile.iter_batches

    def change() -> None:
        parquet.write_table(table(7), path)

    def changing(file: parquet.ParquetFile, *arguments: Any, **more: Any) -> Iterator[pa.RecordBatch]:
        found = list(real(file, *arguments, **more))
        if len(found[0]) == part.rows:
            change()
        yield from found

    if when == "before":
        change()
    else:
        monkeypatch.setattr(parquet.ParquetFile, "iter_batches", changing)
    read = read_file(reading, task, part)
    assert read.fault is None
    assert read.receipt is not None
    assert (read.rows, read.receipt.rows) == (7, 7)


def test_a_file_that_changes_again_is_one_error(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one that is empty by then."""
    reading, part, task = part_of(job)
    path = Path(part.path)
    parquet.write_table(table(0), path)
    read = read_file(reading, task, part)
    assert read.fault is not None
    assert read.fault.admission is Admission.FILE_CHANGED
    path.write_bytes(b"torn")
    read = read_file(reading, task, part)
    assert read.fault is not None
    assert read.fault.admission is Admission.FILE_UNREADABLE
    path.unlink()
    read = read_file(reading, task, part)
    assert read.fault is not None
    assert read.fault.admission is Admission.FILE_MISSING
