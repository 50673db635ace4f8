"""`backup` and `restore`: a copy beside a running job is one state of the store, and a store made of it goes on."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import DeletionRecord
from bucket_store.places.local import local_place
from deduper.admin.move.backup import CopyReport, backup, restore
from deduper.admin.open_store import OpenStore, open_store, store_url
from deduper.admin.verify.run import verify_store
from deduper.errors import UsageError
from tests.deduper.admin.move.test_reshard import KEYS, NOW_US, WINDOWS, entries, made
from tests.deduper.small_service import DriverKilled, armed
from tests.deduper.window.test_state_machine import _die

pytestmark = pytest.mark.slow


def open_copy(url: str) -> OpenStore:
    """The store of a URL."""
    return open_store(url)


@pytest.mark.parametrize(("backend", "kind"), [("file", "file"), ("rocksdb", "rocksdb"), ("file", "rocksdb")])
def test_a_copy_is_a_store_and_a_store_is_made_of_it(tmp_path: Path, backend: str, kind: str) -> None:
    """Same keys, same state; kinds of stores may differ; the restored one is claimed and verified."""
    config = made(tmp_path, backend)
    store = open_store(str(config))
    url = store_url(f"{kind}:{tmp_path}/copy")
    plan = backup(store, url).plan()
    assert (plan.is_executed, plan.keys, plan.pieces_there) == (False, WINDOWS * KEYS, 0)
    assert not (tmp_path / "copy" / "log").exists()
    report = backup(store, url).run()
    assert report.before == report.after
    assert report.after is not None
    assert report.after.count == WINDOWS * KEYS
    assert entries(open_copy(url)) == entries(store)
    assert not verify_store(open_copy(url)).findings
    before, state = entries(store), store.log.state
    shutil.rmtree(tmp_path / "state")
    again = restore(open_copy(url), store.url).run()
    assert again.before == again.after == report.after
    restored = open_store(str(config))
    assert entries(restored) == before
    for name in (
        "next_window",
        "latest_point",
        "totals",
        "extra",
        "outputs",
        "sources",
        "published_through",
        "windows",
    ):
        assert getattr(restored.log.state, name) == getattr(state, name)
    assert restored.log.manifest == store.log.manifest
    restored.log.claim_epoch("next:1", NOW_US)
    assert restored.log.epoch == state.epoch + 1
    assert not verify_store(open_store(str(config))).findings


@pytest.mark.parametrize("point", ["copy.piece", "copy.proven", "copy.recorded"])
@pytest.mark.parametrize("backend", ["file", "rocksdb"])
def test_an_interrupted_copy_is_finished_by_the_next_run(tmp_path: Path, backend: str, point: str) -> None:
    """Pieces that are there are not copied again; before its end the copy is no store."""
    store = open_store(str(made(tmp_path, backend)))
    url = store_url(f"{backend}:{tmp_path}/copy")
    with armed(point, 3 if point == "copy.piece" else 1, _die), contextlib.suppress(DriverKilled):
        backup(store, url).run()
    assert not (tmp_path / "copy" / "manifest").exists()
    report = backup(store, url).run()
    assert report.pieces_there == (3 if point == "copy.piece" else report.pieces)
    assert entries(open_copy(url)) == entries(store)


def test_a_torn_piece_is_copied_again(tmp_path: Path) -> None:
    """An interrupted copy may leave one on a disk without power."""
    store = open_store(str(made(tmp_path, "file")))
    url = store_url(f"file:{tmp_path}/copy")
    with armed("copy.piece", 1, _die), contextlib.suppress(DriverKilled):
        backup(store, url).run()
    piece = next((tmp_path / "copy" / "pieces").rglob("*.piece"))
    data = bytearray(piece.read_bytes())
    data[-1] ^= 1
    piece.write_bytes(data)
    assert backup(store, url).run().pieces_there == 0
    assert entries(open_copy(url)) == entries(store)


def test_a_copy_is_brought_up_to_date(tmp_path: Path) -> None:
    """Only new pieces are copied; those that have left the store leave the copy."""
    config = made(tmp_path, "file")
    url = store_url(f"file:{tmp_path}/copy")
    backup(open_store(str(config)), url).run()
    store = open_store(str(config))
    store.log.claim_epoch("job:1", NOW_US)
    gone = store.log.state.pieces[0][:1]
    store.log.place(DeletionRecord(gone, NOW_US, gone[0].last_window))
    report: CopyReport = backup(store, url).run()
    assert report.pieces_there == report.pieces == 2 * WINDOWS - 1
    assert entries(open_copy(url)) == entries(store)
    assert gone[0].name not in {piece.name for piece in open_copy(url).pieces.pieces()}


def test_what_a_running_job_deletes_is_not_in_the_copy(tmp_path: Path) -> None:
    """The copy begins again with the newer state."""
    config = made(tmp_path, "file")
    url = store_url(f"file:{tmp_path}/copy")

    def job() -> None:
        job = open_store(str(config))
        job.log.claim_epoch("job:1", NOW_US)
        gone = job.log.state.pieces[1]
        job.log.place(DeletionRecord(gone, NOW_US, gone[-1].last_window))
        job.pieces.delete(gone)

    store = open_store(str(config))
    with armed("copy.piece", 2, job):
        report = backup(store, url).run()
    assert report.pieces == WINDOWS
    assert entries(open_copy(url)) == entries(open_store(str(config)))


def test_places_that_are_taken_are_refused(tmp_path: Path) -> None:
    """The store itself, another store, a copy that was run; a restore over a store."""
    config = made(tmp_path, "file")
    (tmp_path / "other").mkdir()
    other = open_store(str(made(tmp_path / "other", "file")))
    store = open_store(str(config))
    url = store_url(f"file:{tmp_path}/copy")
    for place in (store.url, other.url):
        with pytest.raises(UsageError):
            backup(store, place)
    backup(store, url).run()
    with pytest.raises(UsageError, match="move it away"):
        restore(open_copy(url), store.url)
    CommitLog.open(local_place(tmp_path / "copy")).claim_epoch("job:1", NOW_US)
    with pytest.raises(UsageError, match="a job has run"):
        backup(store, url)
    with pytest.raises(UsageError, match="file:copy"):
        store_url("copy")
