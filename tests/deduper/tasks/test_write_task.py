"""Ports' files: what one writer has written stays as it is, whoever writes after it."""

from __future__ import annotations

import csv
import errno
import gc
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from pyarrow import parquet

from bucket_store.filesystem import LocalFile, LocalFileSystem
from bucket_store.places.local import LocalNames, local_place
from bucket_store.places.place import Place
from deduper.arrow_columns import arrow_type
from deduper.core.clock import POSITION_BITS
from deduper.core.verdict import REASONS
from deduper.dedup_column import DedupColumn
from deduper.errors import CannotWriteError
from deduper.tasks import exchange
from deduper.tasks.origins import WindowSources
from deduper.tasks.row_files import RowFormats, rows_in
from deduper.tasks.write import WriterReceipt, WriteTask, grouped, write, writers_for
from deduper.text.written import json_blocks
from tests.bucket_store.places.memory_names import MemoryNames
from tests.deduper.small_service import Killed, armed

PORTS = ("unique", "duplicate")
ALL_PORTS = (*PORTS, "expired", "error")
ROWS = 6


@pytest.fixture
def task(tmp_path: Path) -> WriteTask:
    """One reading task's rows of two source partitions, judged by two shards; the third is a duplicate of the first."""
    order = np.array([0, 1, 2, 1 << POSITION_BITS, 1 << POSITION_BITS | 1, 1 << POSITION_BITS | 2])
    columns = {
        "_order": pa.array(order),
        "_raw": pa.nulls(ROWS, pa.string()),
        "_0": pa.array(["a", "b", "a", "c", None, "e"]),
    }
    directory = tmp_path / "spool"
    directory.mkdir()
    records = pa.RecordBatch.from_pydict(columns)
    exchange.write_batches(exchange.rows_file(str(directory), "r"), [records.slice(0, 4), records.slice(4)])
    verdict = np.array([0, 0, 1, 0, 0, 0], np.uint8)
    reason = np.array([-1, -1, REASONS.index("same_window"), -1, -1, -1], np.int8)
    for shard in range(2):
        rows = np.arange(shard, ROWS, 2, dtype=np.int32)
        verdicts = {
            exchange.ROW: pa.array(rows),
            exchange.VERDICT: pa.array(verdict[rows]),
            exchange.REASON: pa.array(reason[rows]),
        }
        exchange.write_batches(exchange.verdicts_file(str(directory), shard), [pa.RecordBatch.from_pydict(verdicts)])
        first = [2] if shard == 0 else []
        copies = exchange.first_copies(
            first,
            window=np.full(len(first), 4),
            origin=np.full(len(first), 0),
            expiry=pa.array([1_000_000] * len(first), pa.int64()),
        )
        exchange.write_batches(exchange.firsts_file(str(directory), shard), [copies])
    (tmp_path / "staging").mkdir()
    return WriteTask(
        directory=str(directory),
        shards=2,
        readers=(("r", ROWS),),
        spilled_bytes=1000,
        groups=((0,),),
        targets=dict.fromkeys(PORTS, local_place(tmp_path / "staging")),
        topics={},
        columns=("k",),
        formats=RowFormats(),
        sources=WindowSources(str(tmp_path), 4, ("one", "two"), (0, 100), {}),
        source_slots=None,
        dedup={port: arrow_type(DedupColumn("timestamp", first_seen=True).of(port).type) for port in ALL_PORTS},
    )


def files(receipt: WriterReceipt) -> dict[str, Path]:
    """The files of a receipt by port."""
    return {file.port: file.place.local for file in receipt.files}


def test_every_row_stands_in_its_port_once(task: WriteTask) -> None:
    """With the source's columns, its place in the source, and its first copy."""
    found = {port: parquet.read_table(file).to_pylist() for port, file in files(write(task, 0)).items()}
    assert [(row["k"], row["_dedup"]["source"], row["_dedup"]["position"]) for row in found["unique"]] == [
        ("a", "one", 0),
        ("b", "one", 1),
        ("c", "two", 100),
        (None, "two", 101),
        ("e", "two", 102),
    ]
    (row,) = found["duplicate"]
    assert row["k"] == "a"
    assert {name: row["_dedup"][name] for name in ("verdict", "reason", "window", "position")} == {
        "verdict": "duplicate",
        "reason": "same_window",
        "window": 4,
        "position": 2,
    }
    first = row["_dedup"]["first_seen"]
    assert (first["window"], first["source"], first["position"], first["expiry"].timestamp()) == (4, "one", 0, 1.0)


def test_a_port_without_rows_has_no_file(task: WriteTask) -> None:
    """Nor has a receipt one."""
    target = task.targets["unique"]
    receipt = write(replace(task, targets={"unique": target, "expired": target}), 0)
    assert files(receipt).keys() == {"unique"}
    assert list(target.local.iterdir()) == list(files(receipt).values())


@pytest.mark.parametrize("moment", ["at the end of the other", "after it"])
def test_a_twin_writes_into_files_of_its_own(task: WriteTask, moment: str) -> None:
    """What the first receipt names is as it was when it was given: it may be synced by now, or published."""
    told: list[tuple[WriterReceipt, dict[Path, tuple[bytes, int, int]]]] = []

    def state(receipt: WriterReceipt) -> dict[Path, tuple[bytes, int, int]]:
        paths = files(receipt).values()
        return {path: (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}

    def write_one() -> None:
        receipt = write(task, 0)
        told.append((receipt, state(receipt)))

    if moment == "after it":
        write_one()
        write_one()
    else:
        with armed("write.done", 1, write_one):
            write_one()
    (first, before), (second, _) = told
    assert not set(files(first).values()) & set(files(second).values())
    assert state(first) == before


def test_a_writer_that_dies_leaves_nothing_that_counts(task: WriteTask) -> None:
    """Its files are whole or torn, and no receipt names them; the next attempt has its own."""

    def die() -> None:
        raise Killed

    with armed("write.done", 1, die), pytest.raises(Killed):
        write(task, 0)
    left = set(task.targets["unique"].local.iterdir())
    assert len(left) == 2
    assert not left & set(files(write(task, 0)).values())


@pytest.mark.parametrize("gone", ["staging", "spool"])
def test_a_writer_of_a_window_that_is_over_brings_nothing_back(task: WriteTask, gone: str, tmp_path: Path) -> None:
    """What was staged is published and discarded, or the attempt has failed: it finds no folder and makes none."""
    (tmp_path / gone).rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        write(task, 0)
    assert not (tmp_path / gone).exists()
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_writer_that_sleeps_over_the_publication_changes_no_port(
    task: WriteTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has opened its file when another one's is renamed into the port and the folder goes; it writes on, nowhere."""
    published: dict[Path, bytes] = {}
    opened = parquet.ParquetWriter

    def open_and_sleep(*arguments: object, **more: object) -> parquet.ParquetWriter:
        writer = opened(*arguments, **more)
        monkeypatch.setattr(parquet, "ParquetWriter", opened)
        for port, file in files(write(task, 0)).items():
            final = file.rename(tmp_path / f"{port}.parquet")
            published[final] = final.read_bytes()
        task.targets["unique"].remove_tree()
        return writer

    monkeypatch.setattr(parquet, "ParquetWriter", open_and_sleep)
    with pytest.raises(FileNotFoundError):  # the other port's file can no longer be made
        write(task, 0)
    assert len(published) == 2
    assert {path: path.read_bytes() for path in published} == published
    assert set(tmp_path.rglob("*.parquet")) == published.keys()


def on(names: object, task: WriteTask) -> WriteTask:
    """The task with its files on another storage, in a folder that is there."""
    target = Place(cast(Any, names), PurePosixPath(task.targets["unique"].path))
    target.make_directories()
    return replace(task, targets=dict.fromkeys(PORTS, target))


class Watched(LocalFileSystem):
    """The machine's file system, which notes when a file is synced, and can spoil what is written."""

    def __init__(self, spoil: Callable[[bytes], bytes] = bytes) -> None:
        self.spoil = spoil
        self.synced: dict[str, bytes] = {}

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> LocalFile:
        """A file that is watched."""
        watched, opened = self, super().open(path, write=write, create=create)

        class File(LocalFile):
            def pwrite(self, data: bytes | memoryview, at: int) -> int:
                return super().pwrite(watched.spoil(bytes(data)), at)

            def sync(self) -> None:
                super().sync()
                watched.synced[path.name] = path.read_bytes()

        return File(opened._fd)


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_receipt_says_what_lies_in_the_files(task: WriteTask, kind: str) -> None:
    """Size, checksum and rows of each, as one who reads the file finds them, on any storage."""
    receipt = write(on(MemoryNames(), task) if kind == "memory" else task, 0)
    assert [file.port for file in receipt.files] == list(PORTS)
    for file in receipt.files:
        data = file.place.read()
        assert (file.size_bytes, file.checksum) == (len(data), xxhash.xxh3_64_intdigest(data))
        assert file.rows == parquet.read_table(pa.BufferReader(data)).num_rows > 0
        assert file.slots == ()


def test_all_of_a_receipts_files_are_synced_whole(task: WriteTask) -> None:
    """The record may name them at once: what is in the file is durable, and nothing comes after."""
    fs = Watched()
    receipt = write(on(LocalNames(fs), task), 0)
    assert fs.synced == {file.place.name: file.place.read() for file in receipt.files}


def test_the_count_of_rows_is_read_back_and_not_remembered(task: WriteTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that the writer passed on, and that no file holds, is missed: the window's counts disagree."""
    written = parquet.ParquetWriter.write_table

    def lose_one(self: Any, table: pa.Table, **more: Any) -> None:
        written(self, table.slice(1), **more)

    monkeypatch.setattr(parquet.ParquetWriter, "write_table", lose_one)
    assert {file.port: file.rows for file in write(task, 0).files} == {"unique": 4, "duplicate": 0}


def test_a_footer_that_did_not_reach_the_disk_is_no_receipt(task: WriteTask) -> None:
    """The rows are counted in the file's own bytes."""
    spoilt = Watched(lambda data: data[:-4] + bytes(4) if data.endswith(b"PAR1") and len(data) > 4 else data)
    with pytest.raises(pa.ArrowInvalid):
        write(on(LocalNames(spoilt), task), 0)


TEXT = {"unique": "json", "duplicate": "csv"}


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_port_of_text_has_a_line_a_row(task: WriteTask, kind: str) -> None:
    """A line end inside quotes of CSV is none; described as it lies there, durable, on any storage."""
    task = replace(task, formats=RowFormats(TEXT), columns=("k\nof two lines",))
    receipt = write(on(MemoryNames(), task) if kind == "memory" else task, 0)
    data = {file.port: file.place.read() for file in receipt.files}
    assert {file.port: (file.rows, file.place.path.suffix) for file in receipt.files} == {
        "unique": (5, ".json"),
        "duplicate": (1, ".csv"),
    }
    for file in receipt.files:
        assert (file.size_bytes, file.checksum) == (
            len(data[file.port]),
            xxhash.xxh3_64_intdigest(data[file.port]),
        )
    rows = [json.loads(line) for line in data["unique"].splitlines()]
    assert [row.get("k\nof two lines") for row in rows] == ["a", "b", "c", None, "e"]
    header, row = csv.reader(io.StringIO(data["duplicate"].decode(), newline=""))
    assert (header, row[0]) == (["k\nof two lines", "_dedup"], "a")
    assert json.loads(row[1])["first_seen"] == {
        "window": 4,
        "source": "one",
        "position": 0,
        "expiry": "1970-01-01T00:00:01.000000Z",
    }


def test_the_rows_of_text_are_counted_in_its_bytes(task: WriteTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that no line holds is missed: the window's counts disagree."""
    monkeypatch.setattr("deduper.tasks.row_files.json_blocks", lambda rows, _: json_blocks(rows.slice(1)))
    assert {file.port: file.rows for file in write(replace(task, formats=RowFormats(TEXT)), 0).files} == {
        "unique": 4,
        "duplicate": 1,
    }


@pytest.mark.parametrize(
    ("block", "rows"), [(b"", 0), (b"a\nb\n", 2), (b'"a\nb",c\n', 1), (b'"a""\n","b"\n"\n\n"\n', 2), (b"a\r\nb", 1)]
)
def test_rows_of_csv_end_outside_quotes(block: bytes, rows: int) -> None:
    """As a reader counts them."""
    assert rows_in(np.frombuffer(block, np.uint8), has_quotes=True) == rows


def test_a_sync_that_fails_fails_the_task(task: WriteTask) -> None:
    """No receipt names a file that may be lost."""

    class Bad(LocalFileSystem):
        def open(self, path: Path, *, write: bool = False, create: bool = False) -> LocalFile:
            class File(LocalFile):
                def sync(self) -> None:
                    raise OSError(5, "sync", str(path))

            return File(super().open(path, write=write, create=create)._fd)

    with pytest.raises(OSError, match="sync"):
        write(on(LocalNames(Bad()), task), 0)


def test_a_full_disk_is_told_with_its_place(task: WriteTask) -> None:
    """Through Arrow, which writes the file: the error says where there is no room."""

    class Full(LocalFileSystem):
        def open(self, path: Path, *, write: bool = False, create: bool = False) -> LocalFile:
            class File(LocalFile):
                def pwrite(self, data: bytes | memoryview, at: int) -> int:
                    raise OSError(errno.ENOSPC, "no room")

            return File(super().open(path, write=write, create=create)._fd)

    gc.collect()  # what earlier tests have left open would be closed at any moment
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CannotWriteError, match=r"staging.*No space left"):
        write(on(LocalNames(Full()), task), 0)
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


def test_a_file_in_memory_is_ended_at_its_bound(task: WriteTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file is created in one call, a port gets several, in the order of the rows by name."""
    monkeypatch.setattr("deduper.tasks.write._HELD_BYTES", 1)
    monkeypatch.setattr("deduper.tasks.write._ROW_GROUP_BYTES", 1)
    receipt = write(on(MemoryNames(), task), 0)
    unique = [file for file in receipt.files if file.port == "unique"]
    assert [file.rows for file in unique] == [3, 2]
    assert unique == sorted(unique, key=lambda file: file.place.name)
    keys = [row for file in unique for row in parquet.read_table(pa.BufferReader(file.place.read()))["k"].to_pylist()]
    assert keys == ["a", "b", "c", None, "e"]


def test_a_creation_whose_answer_was_lost_is_known_again(task: WriteTask) -> None:
    """The name is taken, by this very call: the bytes are ours."""

    class Forgetful(MemoryNames):
        def create(self, path: PurePosixPath, data: bytes, *, failpoint: str = "") -> None:
            super().create(path, data, failpoint=failpoint)
            raise FileExistsError(str(path))

    assert {file.port for file in write(on(Forgetful(), task), 0).files} == set(PORTS)


def test_a_row_that_nobody_judged_is_no_row_of_a_port(task: WriteTask) -> None:
    """A window in which a verdict is missing is never staged."""
    path = exchange.verdicts_file(task.directory, 1)
    batch = exchange.mapped(path).get_batch(0)
    exchange.write_batches(path, [batch.slice(1)])
    with pytest.raises(RuntimeError, match="never judged"):
        write(task, 0)


@pytest.mark.parametrize(
    ("rows", "writers"), [([], 3), ([5], 3), ([0, 0, 0], 2), ([1, 1, 1, 1], 2), ([100, 1, 1, 1], 2), ([1] * 7, 3)]
)
def test_each_reading_task_has_one_writer(rows: list[int], writers: int) -> None:
    """All of them, in order, neighbours together; no writer without any."""
    groups = grouped(rows, writers)
    assert [reader for group in groups for reader in group] == list(range(len(rows)))
    assert all(groups)
    assert len(groups) <= writers


def test_little_is_written_by_one_and_without_a_job(task: WriteTask) -> None:
    """Files and transactions of a window grow with its records, up to one of each port for every shard."""
    assert [writers_for(size << 20, 4) for size in (0, 3, 4, 8, 11, 12, 500)] == [1, 1, 2, 3, 3, 4, 4]
    assert [replace(task, spilled_bytes=size << 20).is_small for size in (0, 3, 4, 500)] == [True, True, False, False]
