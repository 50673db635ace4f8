"""Exchange files of a window: whole, for their owner only, and gone with its process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from deduper.sinks.names import Attempt
from deduper.tasks import exchange
from deduper.window import exchange_folder as spool_places
from deduper.window.exchange_folder import ExchangeFolders, abandoned

STORE = "5" * 32
ATTEMPT = Attempt(3, 2, 0)


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """How much is free, as the file system says it."""
    free = SimpleNamespace(free=1 << 40)
    monkeypatch.setattr(spool_places.shutil, "disk_usage", lambda place: free)
    return free


def places_in(root: Path, store_id: str = STORE) -> ExchangeFolders:
    """The places of an owner."""
    return ExchangeFolders(str(root / "memory"), str(root / "disk"), store_id)


def batch(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"row": pa.array(values, pa.int64())})


def test_a_file_that_is_mapped_is_never_written_into(tmp_path: Path) -> None:
    """A twin that comes late replaces it; who reads the first one reads on, and finds nothing else in the folder."""
    path = str(tmp_path / "00000.verdicts")
    exchange.write_batches(path, [batch(*range(1000)), batch()])
    file, inode = exchange.mapped(path), Path(path).stat().st_ino
    exchange.write_batches(path, [batch(7)])
    assert Path(path).stat().st_ino != inode, "it was written into: what was mapped is gone"
    assert file.get_batch(0).column(0).to_pylist() == list(range(1000))
    assert file.get_batch(1).num_rows == 0
    assert exchange.mapped(path).get_batch(0).column(0).to_pylist() == [7]
    assert os.listdir(tmp_path) == ["00000.verdicts"]  # noqa: PTH208


def test_a_file_stays_mapped_as_long_as_it_is_used_and_keeps_nothing_open(tmp_path: Path) -> None:
    """A task of a window with thousands of source partitions has all their keys at hand, and a limit of open files."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    columns = []
    for number in range(50):
        path = tmp_path / f"{number}.keys"
        exchange.write_batches(str(path), [batch(number, number + 1)])
        columns.append(exchange.mapped(str(path)).get_batch(0).column(0).to_numpy())
        path.unlink()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert [column.tolist() for column in columns] == [[number, number + 1] for number in range(50)]


def test_an_attempt_has_a_folder_that_nobody_else_looks_into(tmp_path: Path) -> None:
    """The same attempt again has another: a store that was put back to a copy counts its epochs again."""
    places = places_in(tmp_path)
    folders = [places.make(ATTEMPT), places.make(ATTEMPT), places_in(tmp_path).make(ATTEMPT)]
    assert len(set(folders)) == 3
    for folder in folders:
        assert folder.parent == tmp_path / "memory" / "spool"
        assert folder.name.startswith(f"{STORE}-{ATTEMPT.folder}-")
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_what_a_dead_process_has_left_goes_with_the_next_start(tmp_path: Path) -> None:
    """Of any store, in memory and on the disk; while the process lives, nobody touches it."""
    code = (
        "import sys, time\n"
        "from deduper.window.exchange_folder import ExchangeFolders\nfrom deduper.sinks.names import Attempt\n"
        f"places = ExchangeFolders({str(tmp_path / 'memory')!r}, {str(tmp_path / 'disk')!r}, 'e' * 32)\n"
        "for memory_is_full in (False, True):\n"
        "    places._is_memory_full = memory_is_full\n"
        "    (places.make(Attempt(0, 1, 0)) / '1.rows').write_bytes(b'x')\n"
        "print('made', flush=True)\ntime.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        left = sorted(tmp_path.glob("*/spool/*"))
        assert [folder.parent.parent.name for folder in left] == ["disk", "memory"]
        places = places_in(tmp_path)
        places.discard_abandoned()
        assert sorted(tmp_path.glob("*/spool/*/*.rows")) == [folder / "1.rows" for folder in left]
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        own = places.make(ATTEMPT)
        assert sorted(abandoned(tmp_path / "memory" / "spool", tmp_path / "disk" / "spool")) == left
        places_in(tmp_path).discard_abandoned()
        assert list(tmp_path.glob("*/spool/*")) == [own]
    finally:
        process.kill()
        process.wait()


def test_a_folder_that_a_start_takes_for_a_dead_ones_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its making and its locking anybody may look."""
    make, made = spool_places.tempfile.mkdtemp, []

    def looked_at(**arguments: object) -> str:
        made.append(make(**arguments))  # type: ignore[call-overload]
        if len(made) == 1:
            places_in(tmp_path).discard_abandoned()
        return made[-1]

    monkeypatch.setattr(spool_places.tempfile, "mkdtemp", looked_at)
    folder = places_in(tmp_path).make(ATTEMPT)
    assert len(made) == 2
    assert list(folder.parent.iterdir()) == [folder]
    assert not list(abandoned(folder.parent))


def test_a_task_that_still_writes_does_not_keep_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark ends a job when one of its tasks fails; the others notice later."""
    places = places_in(tmp_path)
    folder = places.make(ATTEMPT)
    (folder / "1.rows").write_bytes(b"x")
    rmdir = os.rmdir

    def after_another_file(*arguments: object, **more: object) -> None:
        monkeypatch.setattr(os, "rmdir", rmdir)
        (folder / "1.keys").write_bytes(b"x")
        rmdir(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rmdir", after_another_file)
    places.remove(folder)
    assert os.rmdir is rmdir, "nobody wrote"
    assert not folder.exists()
    with pytest.raises(FileNotFoundError):
        exchange.write_batches(str(folder / "00000.verdicts"), [batch(1)])
    assert not folder.exists(), "it has come back"


def test_a_folder_that_somebody_removed_is_no_failure(tmp_path: Path) -> None:
    """The failure that ended the attempt is told, not this one."""
    places = places_in(tmp_path)
    folder = places.make(ATTEMPT)
    shutil.rmtree(folder)
    places.remove(folder)
    assert places.make(ATTEMPT).is_dir()


def test_the_disk_is_taken_where_memory_has_no_room(tmp_path: Path, room: SimpleNamespace) -> None:
    """Twice the greatest spool so far must fit, and half a GiB at least."""
    places = places_in(tmp_path)
    room.free = 512 << 20
    assert places.make(ATTEMPT).is_relative_to(tmp_path / "disk")
    room.free += 1
    folder = places.make(ATTEMPT)
    assert folder.is_relative_to(tmp_path / "memory")
    with (folder / "1.rows").open("wb") as file:
        file.truncate(300 << 20)
    places.remove(folder)
    assert places.make(ATTEMPT).is_relative_to(tmp_path / "disk")
    room.free = (600 << 20) + 4096
    assert places.make(ATTEMPT).is_relative_to(tmp_path / "memory")


def test_the_disk_is_taken_where_memory_cannot_be_used(tmp_path: Path) -> None:
    """Whatever stands in the way, another user's directory or none left; on the disk it is a failure."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "spool").touch()
    places = places_in(tmp_path)
    assert [places.make(ATTEMPT).parent, places.make(ATTEMPT).parent] == [tmp_path / "disk" / "spool"] * 2
    (tmp_path / "nowhere").touch()
    with pytest.raises(OSError, match=r"exists|Not a directory"):
        ExchangeFolders(str(tmp_path / "memory"), str(tmp_path / "nowhere"), STORE).make(ATTEMPT)


def test_memory_that_was_full_once_is_not_tried_again(tmp_path: Path) -> None:
    """Nor is the disk asked for twice."""
    places = places_in(tmp_path)
    assert places.was_full(places.make(ATTEMPT))
    on_disk = places.make(ATTEMPT)
    assert on_disk.is_relative_to(tmp_path / "disk")
    assert not places.was_full(on_disk)
    one_place = ExchangeFolders(str(tmp_path / "disk"), str(tmp_path / "disk"), STORE)
    assert not one_place.was_full(one_place.make(ATTEMPT))


def spilled(folder: Path, name: str, count: int) -> tuple[int, int]:
    """What a reading task does, in short: the inodes of its files."""
    records, keys = exchange.rows_file(str(folder), name), exchange.keys_file(str(folder), name)
    with exchange.writing(records, batch().schema) as file:
        file.write_batch(batch(*range(count)))
    exchange.write_batches(keys, [batch(*range(count, 2 * count)), batch(count)])
    assert exchange.mapped(records).read_all().column(0).to_pylist() == list(range(count))
    assert exchange.mapped(keys).get_batch(0).column(0).to_pylist() == list(range(count, 2 * count))
    assert exchange.mapped(keys).get_batch(1).column(0).to_pylist() == [count]
    return Path(records).stat().st_ino, Path(keys).stat().st_ino


@pytest.mark.parametrize("count", [1, 1000, 100_000])
def test_the_next_attempt_writes_over_what_the_last_one_has_left(tmp_path: Path, count: int) -> None:
    """Less, as much or more; by the tasks that there are, each over files of its kind. What is not needed goes.

    Nor is a file written over that a task may still have open, a lost one's that no receipt names.
    """
    places = places_in(tmp_path)
    folder = places.make(ATTEMPT)
    before = [spilled(folder, name, 1000) for name in ("1a", "2b")]
    lost = (folder / "0e.rows").open("wb")
    exchange.write_batches(str(folder / "00000.verdicts"), [batch(1)])
    places.leave(folder, ["1a", "2b"])
    folder = places.make(ATTEMPT)
    assert list(folder.parent.iterdir()) == [folder]
    names = ("3c",) if count == 1 else ("3c", "4d", "5e")
    after = [spilled(folder, name, count) for name in names]
    with lost:
        assert os.fstat(lost.fileno()).st_nlink == 0
    assert len({records for records, _ in before} & {records for records, _ in after}) == min(2, len(names))
    assert len({keys for _, keys in before} & {keys for _, keys in after}) == min(2, len(names))
    new = tmp_path / "new"
    new.mkdir()
    spilled(new, "3c", count)
    assert (new / "3c.rows").read_bytes() == (folder / "3c.rows").read_bytes()
    assert (new / "3c.keys").read_bytes() == (folder / "3c.keys").read_bytes()
    places.leave(folder, names)
    folder = places.make(ATTEMPT)
    assert len(list(folder.glob("left-rows/*"))) == len(list(folder.glob("left-keys/*"))) == len(names)
    places.leave(folder, [])
    places.close()
    places.close()
    assert not list(folder.parent.iterdir())


def test_a_file_looks_at_one_that_is_left_and_at_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 10,000 files has 40,000 of these, and took hours when each looked at all."""
    places = places_in(tmp_path)
    folder = places.make(ATTEMPT)
    for number in range(20):
        spilled(folder, f"{number}", 1)
    places.leave(folder, [f"{number}" for number in range(20)])
    folder = places.make(ATTEMPT)
    looked_at = []
    scandir = os.scandir

    @contextlib.contextmanager
    def counting(path: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scandir(path) as found:
            yield (looked_at.append(entry.name) or entry for entry in found)  # type: ignore[func-returns-value]

    monkeypatch.setattr(exchange.os, "scandir", counting)
    for number in range(20):
        spilled(folder, f"{number}", 1)
    assert len(looked_at) == 40
    monkeypatch.undo()
    places.leave(folder, [])
    places.close()


def test_nothing_is_left_on_the_disk(tmp_path: Path, room: SimpleNamespace) -> None:
    """Whose memory is given back; nor is any kept when the disk is taken instead."""
    places = places_in(tmp_path)
    left = places.make(ATTEMPT)
    spilled(left, "1a", 1000)
    places.leave(left, ["1a"])
    room.free = 1 << 20
    folder = places.make(ATTEMPT)
    assert folder.is_relative_to(tmp_path / "disk")
    assert not left.exists()
    places.leave(folder, [])
    assert not folder.exists()


def test_what_is_left_counts_as_free(tmp_path: Path, room: SimpleNamespace) -> None:
    """It is written over."""
    places = places_in(tmp_path)
    folder = places.make(ATTEMPT)
    with (folder / "1.rows").open("wb") as file:
        file.truncate(400 << 20)
    places.leave(folder, ["1"])
    room.free = (400 << 20) + 4096
    assert places.make(ATTEMPT).is_relative_to(tmp_path / "memory")


def test_much_is_not_left(tmp_path: Path) -> None:
    """A window that caught up with a day would take its memory until the next one."""
    places = places_in(tmp_path)
    for size, is_left in (((512 << 20) - 4096, True), ((512 << 20) + 1, False)):
        folder = places.make(ATTEMPT)
        with (folder / "1.rows").open("wb") as file:
            file.truncate(size)
        places.leave(folder, ["1"])
        assert folder.exists() == is_left


def test_what_was_left_and_is_gone_is_no_failure(tmp_path: Path) -> None:
    """It is recreated, where it was."""
    places = places_in(tmp_path)
    folder = places.make(ATTEMPT)
    spilled(folder, "1a", 10)
    places.leave(folder, ["1a"])
    shutil.rmtree(folder)
    for _ in range(2):
        folder = places.make(ATTEMPT)
        assert folder.is_relative_to(tmp_path / "memory")
        spilled(folder, "2b", 10)
