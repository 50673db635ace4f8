"""`backup` and `restore`: a copy beside a running job is one state of the store, and a store made of it goes on."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

from bucket_store.errors import CorruptionError, StoreError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.heartbeat import HeartBeat
from bucket_store.log.marks import PUBLISHED_NAME, Published, prepare_published
from bucket_store.log.records import CompactionRecord, DeletionRecord, LogState
from bucket_store.pieces.piece import Entries, PieceRef
from bucket_store.pieces.reader import decode_named
from bucket_store.pieces.store import append_piece
from bucket_store.places.local import LocalNames, local_place
from deduper.admin.move.backup import CopyReport, StoreCopy, backup, restore
from deduper.admin.open_store import OpenStore, open_store, store_url
from deduper.admin.verify.run import verify_store
from deduper.errors import OwnerAliveError, UsageError
from deduper.window import recovery
from tests.deduper.admin.move.test_forget import of_epoch
from tests.deduper.admin.move.test_reshard import KEYS, NOW_US, WINDOWS, entries, made
from tests.deduper.small_service import DriverKilled, armed
from tests.deduper.window.test_state_machine import _die
from tests.faults.crash_disk import Disk, Machine, cut

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


def test_what_an_interrupted_copy_has_left_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have died before its own sync: what is read back may lie in memory alone, and the older copy goes."""
    store = open_store(str(made(tmp_path, "file")))
    url = store_url(f"file:{tmp_path}/copy")
    with armed("copy.piece", 2, _die), contextlib.suppress(DriverKilled):
        backup(store, url).run()
    left = sorted((tmp_path / "copy" / "pieces").rglob("*.piece"))
    synced: list[Path] = []
    sync = LocalNames.sync

    def noted(names: LocalNames, path: PurePosixPath) -> None:
        synced.append(Path(path))
        sync(names, path)

    monkeypatch.setattr(LocalNames, "sync", noted)
    assert backup(store, url).run().pieces_there == len(left) == 2
    recorded = synced.index(tmp_path / "copy" / "log") if tmp_path / "copy" / "log" in synced else len(synced)
    for path in (*left, *(one.parent for one in left), tmp_path / "copy" / "pieces", tmp_path / "copy"):
        assert path in synced[:recorded]
    synced.clear()
    backup(store, url).run()
    assert not set(left) & set(synced), "those that a whole copy names are durable"


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


def job_on(url: str, *, keys: int = 3) -> list[PieceRef]:
    """A job begins on a copy: claims it, appends a piece and commits a window. Gives its live pieces."""
    store = open_store(url)
    epoch = store.log.claim_epoch("job:1", NOW_US)
    digests = np.array([[number + 1, 2 * number] for number in range(keys)], np.uint64)
    old = next(iter(store.log.state.pieces[0]))
    column = np.full(keys, old.max_expiry or 0, np.int64)
    bounds = np.array([0, keys], np.int64)
    entries_of_it = Entries(np.array([old.max_bucket], np.int64), bounds, digests, expiry=column, origin=column)
    window = store.log.state.next_window
    added = append_piece(
        store.pieces,
        entries_of_it,
        store_id=bytes.fromhex(store.log.manifest.store_id),
        shard=0,
        first_window=window,
        last_window=window,
        epoch=epoch,
        attempt=0,
    )
    store.log.place(CompactionRecord((old,), (added,), NOW_US))
    return [ref for refs in store.log.state.pieces.values() for ref in refs]


def with_strays(tmp_path: Path) -> tuple[OpenStore, str]:
    """A store of which an older copy is there, with pieces that the store has no more."""
    config = made(tmp_path, "file")
    url = store_url(f"file:{tmp_path}/copy")
    backup(open_store(str(config)), url).run()
    store = open_store(str(config))
    store.log.claim_epoch("job:1", NOW_US)
    gone = store.log.state.pieces[0][:2]
    store.log.place(DeletionRecord(gone, NOW_US, gone[-1].last_window))
    return store, url


def demand_readable(url: str, refs: list[PieceRef]) -> None:
    """The store there has these pieces, and gives them back."""
    store = open_store(url)
    assert sorted((ref for of in store.log.state.pieces.values() for ref in of), key=str) == sorted(refs, key=str)
    for ref in refs:
        decode_named(ref, store.pieces.read(ref), store.log.manifest.store_id)


def after_the_look(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None], *, nth: int = 1) -> None:
    """Runs an action between a look at the place and what follows from it."""
    demand, looks = StoreCopy._demand_own, [0]

    def patched(copy: StoreCopy, *given: Any, **named: Any) -> None:
        demand(copy, *given, **named)
        looks[0] += 1
        if looks[0] == nth:
            action()

    monkeypatch.setattr(StoreCopy, "_demand_own", patched)


@pytest.mark.parametrize("acts", ["verify", "restore"])
def test_who_reads_a_copy_sees_that_it_was_renewed(tmp_path: Path, acts: str) -> None:
    """Pieces of the copy that was opened are gone: that is no damage."""
    store, url = with_strays(tmp_path)
    begun = open_copy(url)
    again = restore(begun, store_url(f"file:{tmp_path}/new"))
    gone = begun.log.state.pieces[0][:2]
    assert backup(store, url).run().is_executed
    if acts == "verify":
        assert not verify_store(begun).findings
    else:
        assert again.run().is_executed
        assert entries(open_copy(f"file:{tmp_path}/new")) == entries(store)
    assert not set(gone) & set(begun.log.state.pieces[0])


@pytest.mark.parametrize("mark", [None, "of the store", "of another", "ahead"])
def test_a_copy_knows_what_is_published(tmp_path: Path, mark: str | None) -> None:
    """Else a restored store of a query's functions would look for rows that they have used."""
    config = made(tmp_path, "file")
    store = open_store(str(config))
    newest = store.log.state.next_window - 1
    store.log.claim_epoch("job:1", NOW_US)
    if mark is not None:
        store_id = "0" * 32 if mark == "of another" else store.log.manifest.store_id
        window = newest + 5 if mark == "ahead" else newest
        prepare_published(store.log.root / PUBLISHED_NAME, Published(store_id, window, 1)).put()
    url = store_url(f"file:{tmp_path}/copy")
    backup(store, url).run()
    restore(open_copy(url), store_url(f"file:{tmp_path}/new")).run()
    state = open_copy(f"file:{tmp_path}/new").log.state
    is_known = mark in ("of the store", "ahead")
    assert state.published_through == (newest if is_known else store.log.state.published_through)
    assert store.log.state.published_through < newest
    assert state.outputs == ({} if is_known else store.log.state.outputs)


def test_a_job_that_begins_on_a_copy_ends_its_renewal(tmp_path: Path) -> None:
    """The job's record and pieces stay; nothing of the new copy counts."""
    store, url = with_strays(tmp_path)
    copy = backup(store, url)
    live: list[PieceRef] = []
    with armed("copy.proven", 1, lambda: live.extend(job_on(url))), pytest.raises(UsageError, match="a job has run"):
        copy.run()
    demand_readable(url, live)


def test_a_job_that_begins_between_look_and_put_has_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No storage can refuse the put for a record beside it, so it is undone."""
    store, url = with_strays(tmp_path)
    live: list[PieceRef] = []
    after_the_look(monkeypatch, lambda: live.extend(job_on(url)))
    with pytest.raises(UsageError, match="a job has begun"):
        backup(store, url).run()
    demand_readable(url, live)


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_job_that_begins_after_the_record_keeps_its_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_listed: bool
) -> None:
    """Older pieces are left to the job, or those that were listed before it began go."""
    store, url = with_strays(tmp_path)
    live: list[PieceRef] = []
    if is_listed:
        after_the_look(monkeypatch, lambda: live.extend(job_on(url)), nth=2)
        assert backup(store, url).run().is_executed
    else:
        with armed("copy.recorded", 1, lambda: live.extend(job_on(url))):
            assert backup(store, url).run().is_executed
        assert "are not deleted" in caplog.text
    demand_readable(url, live)


def test_of_two_backups_into_one_place_the_later_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one was suspended: its heartbeat stood still."""
    monkeypatch.setattr("deduper.admin.move.backup.owner_lives", lambda _: False)
    store, url = with_strays(tmp_path)
    config = str(tmp_path / "clicks.yaml")
    put = StoreCopy._put_in_place

    def suspended(copy: StoreCopy, base: LogState, published: int) -> bytes:
        monkeypatch.setattr(StoreCopy, "_put_in_place", put)
        gone = store.log.state.pieces[1][:1]
        store.log.place(DeletionRecord(gone, NOW_US, gone[0].last_window))
        assert backup(open_store(config), url).run().is_executed
        return put(copy, base, published)

    monkeypatch.setattr(StoreCopy, "_put_in_place", suspended)
    with pytest.raises(UsageError, match="another backup"):
        backup(open_store(config), url).run()
    assert entries(open_copy(url)) == entries(open_store(config))
    assert not verify_store(open_copy(url)).findings


def test_a_renewal_that_sleeps_before_its_put_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next turn removes what it has prepared."""
    monkeypatch.setattr("deduper.admin.move.backup.owner_lives", lambda _: False)
    store, url = with_strays(tmp_path)
    config = str(tmp_path / "clicks.yaml")
    after_the_look(monkeypatch, lambda: backup(open_store(config), url).run() and None)  # type: ignore[func-returns-value]
    with pytest.raises(UsageError, match="another backup"):
        backup(store, url).run()
    assert entries(open_copy(url)) == entries(open_store(config))


def test_a_place_where_a_heart_beats_is_refused(tmp_path: Path) -> None:
    """A job on the copy, or another backup; and while a copy is made, a start makes no store."""
    store, url = with_strays(tmp_path)
    with HeartBeat(local_place(tmp_path / "copy"), "job:1", interval_s=0.05), pytest.raises(OwnerAliveError):
        backup(store, url).run()
    assert not (tmp_path / "copy" / "heartbeat").exists()
    (tmp_path / "new").mkdir()
    with HeartBeat(local_place(tmp_path / "new"), "restore:1", interval_s=0.05), pytest.raises(OwnerAliveError):
        recovery.opened_log(local_place(tmp_path / "new"), {}, NOW_US)
    assert not (tmp_path / "new" / "log").exists()


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_restore_never_replaces_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_seen: bool) -> None:
    """A start that had looked for one before the restore began has made a store there: it goes on."""
    store, url = with_strays(tmp_path)
    target = tmp_path / "new"
    copy = restore(open_copy(url), store_url(f"file:{target}"))

    def start() -> None:
        with monkeypatch.context() as earlier:
            earlier.setattr("bucket_store.log.commit_log.TURNS", "none-yet")
            CommitLog.create(local_place(target), {"made": "by a start"}, wall_us=NOW_US)

    if is_seen:
        with armed("copy.proven", 1, start), pytest.raises(UsageError, match="move it away"):
            copy.run()
    else:
        after_the_look(monkeypatch, start)
        with pytest.raises(UsageError, match="nothing was replaced"):
            copy.run()
    log = CommitLog.open(local_place(target))
    assert (log.manifest.settings, log.state.next_window) == ({"made": "by a start"}, 0)
    assert store.log.manifest.store_id != log.manifest.store_id


@pytest.mark.parametrize("point", ["copy.piece", "copy.proven", "copy.recorded"])
def test_a_start_makes_no_new_store_where_a_restore_was_cut_short(tmp_path: Path, point: str) -> None:
    """It would know no key. Repeated, the restore ends."""
    store, url = with_strays(tmp_path)
    target = store_url(f"file:{tmp_path}/new")
    with armed(point, 1, _die), contextlib.suppress(DriverKilled):
        restore(open_copy(url), target).run()
    with pytest.raises(StoreError, match="was cut short: repeat it"):
        recovery.opened_log(local_place(tmp_path / "new"), {}, NOW_US)
    restore(open_copy(url), target).run()
    assert open_copy(target).log.manifest == store.log.manifest


def test_a_creation_that_was_cut_short_is_no_place(tmp_path: Path) -> None:
    """It may go on at any moment."""
    store, _ = with_strays(tmp_path)
    CommitLog.create(local_place(tmp_path / "new"), {}, wall_us=NOW_US)
    (tmp_path / "new" / "manifest").unlink()
    with pytest.raises(UsageError, match="cut short"):
        backup(store, store_url(f"file:{tmp_path}/new"))


def test_a_file_of_sources_is_the_stores(tmp_path: Path) -> None:
    """One of its name with other bytes is replaced, one that the store has no more goes, a damaged one is an error."""
    store, url = with_strays(tmp_path)
    first, *_, last = sorted((tmp_path / "copy" / "sources").iterdir())
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    last.write_bytes(whole)
    (left := first.with_name("000000000099-000002-000")).write_bytes(b"of an older copy")
    backup(store, url).run()
    assert (first.read_bytes(), left.exists()) == (whole, False)
    assert not verify_store(open_copy(url)).findings
    (tmp_path / "state" / "sources" / first.name).write_bytes(b"")
    first.unlink()
    with pytest.raises(CorruptionError, match="record states"):
        backup(store, url).run()


def test_a_piece_that_is_not_the_recorded_one_is_not_copied(tmp_path: Path) -> None:
    """Sound, of this store, and of as many bytes: misdirected ones."""
    store = open_store(str(made(tmp_path, "file")))
    file = tmp_path / "state" / store.log.state.pieces[0][0].file
    file.write_bytes(of_epoch(7, file.read_bytes()))
    with pytest.raises(CorruptionError, match="identity of piece"):
        backup(store, store_url(f"file:{tmp_path}/copy")).run()


def test_a_power_cut_while_a_copy_is_renewed_leaves_one_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every moment, and whatever the disk has kept: record 0 is the old one or the new one, whole."""
    disk = Disk()
    machine = Machine(disk)
    root = local_place("/copy", machine)
    root.make_directories()
    store = open_store(str(made(tmp_path, "file")))
    monkeypatch.setattr("deduper.admin.move.backup.open_place", lambda _: root)
    # HeartBeat beats from a thread of its own, and the machine is for one.
    monkeypatch.setattr("deduper.admin.move.backup.HeartBeat", lambda *_: contextlib.nullcontext())
    backup(store, store_url(f"file:{tmp_path}/copy")).run()
    first = root / "log" / "00000000000000000000"
    old = first.read()
    disk.is_kept = True
    backup(store, store_url(f"file:{tmp_path}/copy")).run()
    new = first.read()
    assert old != new
    cuts = [Machine(cut(moment, seed)) for moment in disk.moments for seed in range(6)]
    assert {(local_place("/copy", cut_off) / "log" / first.name).read() for cut_off in cuts} == {old, new}
    assert (local_place("/copy", Machine(cut(disk.moments[-1], 0))) / "log" / first.name).read() == new
