"""Ports' files: what one writer has written stays as it is, whoever writes after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from deduper.core.clock import POSITION_BITS
from deduper.core.verdict import REASONS
from deduper.tasks import exchange
from deduper.tasks.origins import WindowSources
from deduper.tasks.write import WriteReceipt, WriteTask, grouped, port_folder, write, writers_for
from tests.deduper.small_service import Killed, armed

PORTS = ("unique", "duplicate")
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
        copies = {
            exchange.ROW: pa.array(first, pa.int32()),
            exchange.WINDOW: pa.array([4] * len(first), pa.int64()),
            exchange.ORIGIN: pa.array([0] * len(first), pa.int64()),
            exchange.EXPIRY: pa.array([1_000_000] * len(first), pa.int64()),
        }
        exchange.write_batches(exchange.firsts_file(str(directory), shard), [pa.RecordBatch.from_pydict(copies)])
    for port in PORTS:
        port_folder(tmp_path / "staging", port).mkdir(parents=True)
    return WriteTask(
        directory=str(directory),
        target=str(tmp_path / "staging"),
        shards=2,
        readers=(("r", ROWS),),
        spilled_bytes=1000,
        groups=((0,),),
        ports=PORTS,
        topics={},
        columns=("k",),
        codec="snappy",
        sources=WindowSources(str(tmp_path), 4, ("one", "two"), (0, 100), {}),
        source_slots=None,
        keep_first_seen=True,
        expiry_type=pa.timestamp("us", "UTC"),
        expiry_scale=0,
    )


def files(task: WriteTask, receipt: WriteReceipt) -> dict[str, Path]:
    """The files of a receipt by port."""
    return {port: port_folder(task.target, port) / name for port, name in receipt.files.items()}


def test_every_row_stands_in_its_port_once(task: WriteTask) -> None:
    """With the source's columns, its place in the source, and its first copy."""
    found = {port: parquet.read_table(file).to_pylist() for port, file in files(task, write(task, 0)).items()}
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
    receipt = write(replace(task, ports=("unique", "expired")), 0)
    assert receipt.files.keys() == {"unique"}
    assert not list(port_folder(task.target, "duplicate").iterdir())


@pytest.mark.parametrize("moment", ["at the end of the other", "after it"])
def test_a_twin_writes_into_files_of_its_own(task: WriteTask, moment: str) -> None:
    """What the first receipt names is as it was when it was given: it may be synced by now, or published."""
    told: list[tuple[WriteReceipt, dict[Path, tuple[bytes, int, int]]]] = []

    def state(receipt: WriteReceipt) -> dict[Path, tuple[bytes, int, int]]:
        paths = files(task, receipt).values()
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
    assert not set(first.files.values()) & set(second.files.values())
    assert state(first) == before


def test_a_writer_that_dies_leaves_nothing_that_counts(task: WriteTask) -> None:
    """Its files are whole or torn, and no receipt names them; the next attempt has its own."""

    def die() -> None:
        raise Killed

    with armed("write.done", 1, die), pytest.raises(Killed):
        write(task, 0)
    left = {path.name for path in Path(task.target).glob("*/*")}
    assert len(left) == 2
    assert not left & set(write(task, 0).files.values())


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
        for port, file in files(task, write(task, 0)).items():
            final = file.rename(tmp_path / f"{port}.parquet")
            published[final] = final.read_bytes()
        for path in sorted(Path(task.target).rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        return writer

    monkeypatch.setattr(parquet, "ParquetWriter", open_and_sleep)
    with pytest.raises(FileNotFoundError):  # the other port's file can no longer be made
        write(task, 0)
    assert len(published) == 2
    assert {path: path.read_bytes() for path in published} == published
    assert set(tmp_path.rglob("*.parquet")) == published.keys()


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
