"""The commit log on every kind of storage: what it promises on a local disk, it promises there."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bucket_store.errors import FencedError, MaybeCommittedError, NotCommittedError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.marks import Published, prepare_published, read_published
from bucket_store.places.local import local_place
from bucket_store.places.objects import ObjectNames
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from tests.bucket_store.log_samples import commit
from tests.bucket_store.places.memory_names import memory_place
from tests.s3_server import new_prefix

_S3 = pytest.param("s3", marks=pytest.mark.services)


@pytest.fixture(params=["file", "memory", "objects", _S3])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty directory on each kind of storage."""
    if request.param == "file":
        return local_place(tmp_path / "store")
    if request.param == "memory":
        return memory_place() / "store"
    url = f"objects:{tmp_path}/store" if request.param == "objects" else ""
    return open_place(url or new_prefix(request.getfixturevalue("s3_bucket")))


def _owned(root: Place, *, snapshot_every: int = 1000) -> CommitLog:
    log = CommitLog.create(root, {"shards": 2}, wall_us=5, snapshot_every=snapshot_every)
    log.claim_epoch("first", 6)
    return log


def test_what_is_placed_is_read_again(root: Place) -> None:
    """Over snapshots, by a log that was opened before and by one that opens now."""
    log = _owned(root, snapshot_every=4)
    reader = CommitLog.open(root)
    for window in range(9):
        log.place(commit(window))
    assert reader.refresh() == log.state == CommitLog.open(root).state
    assert log.state.next_window == 9


def test_a_new_owner_fences_the_old_one(root: Place) -> None:
    """Whose record is not in the log afterwards."""
    old = _owned(root)
    old.place(commit(0))
    new = CommitLog.open(root)
    assert new.claim_epoch("second", 7) == 2
    with pytest.raises(FencedError):
        old.place(commit(1))
    with pytest.raises(FencedError):
        old.check_owner()
    new.place(commit(1, epoch=2))
    assert CommitLog.open(root).state == new.state


def test_claims_at_once_have_distinct_epochs(root: Place) -> None:
    """Each that is granted; one owner is left, and the others cannot place anything."""
    _owned(root)
    logs = [CommitLog.open(root) for _ in range(6)]

    def claim(log: CommitLog) -> int | None:
        try:
            return log.claim_epoch("racer", 7)
        except (FencedError, NotCommittedError):
            return None

    with ThreadPoolExecutor(6) as pool:
        granted = list(pool.map(claim, logs))
    epochs = [epoch for epoch in granted if epoch is not None]
    assert len(set(epochs)) == len(epochs) > 0
    for log, epoch in zip(logs, granted, strict=True):
        if epoch == max(epochs):
            log.place(commit(0, epoch=epoch))
        elif epoch is not None:
            with pytest.raises(FencedError):
                log.place(commit(0, epoch=epoch))
    assert CommitLog.open(root).state.next_window == 1


def test_a_mark_of_an_old_owner_replaces_no_newer_one(root: Place) -> None:
    """However late it comes."""
    log = _owned(root)
    place = root / "published"
    prepare_published(place, Published(log.manifest.store_id, 0), epoch=1)()
    late = prepare_published(place, Published(log.manifest.store_id, 1), epoch=1)
    place.remove_prepared(below_epoch=2)
    prepare_published(place, Published(log.manifest.store_id, 2), epoch=2)()
    with pytest.raises(FileNotFoundError):
        late()
    assert read_published(place) == Published(log.manifest.store_id, 2)


@pytest.fixture(params=["objects", _S3])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The same in object stores alone."""
    if request.param == "objects":
        return open_place(f"objects:{tmp_path}/store")
    return open_place(new_prefix(request.getfixturevalue("s3_bucket")))


def _lost(before: Callable[..., None] | None) -> Callable[..., None]:
    """A put whose answer does not come; with `before` it has taken place."""

    def create(self: ObjectNames, path: object, data: bytes) -> None:
        if before is not None:
            before(self, path, data)
        raise TimeoutError("no answer")

    return create


def test_a_record_without_an_answer_is_known_by_its_nonce(objects: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was placed: committed. It was not: not committed, and its slot takes the next one."""
    log = _owned(objects)
    monkeypatch.setattr(ObjectNames, "_create", _lost(ObjectNames._create))
    log.place(commit(0))
    monkeypatch.setattr(ObjectNames, "_create", _lost(None))
    with pytest.raises(NotCommittedError):
        log.place(commit(1))
    monkeypatch.undo()
    log.place(commit(1))
    assert CommitLog.open(objects).state == log.state
    assert log.state.next_window == 2


def test_a_record_that_cannot_be_read_back_may_be_committed(objects: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told otherwise."""
    log = _owned(objects)

    def away(*_: object) -> bytes:
        raise TimeoutError("no answer")

    monkeypatch.setattr(ObjectNames, "_create", _lost(ObjectNames._create))
    monkeypatch.setattr(ObjectNames, "read", away)
    with pytest.raises(MaybeCommittedError):
        log.place(commit(0))
    monkeypatch.undo()
    assert CommitLog.open(objects).state.next_window == 1


def test_an_own_record_is_not_taken_for_another_s(objects: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that is sent again finds its own object."""
    log = _owned(objects)
    create = ObjectNames._create

    def twice(self: ObjectNames, path: object, data: bytes) -> None:
        create(self, path, data)  # type: ignore[arg-type]
        create(self, path, data)  # type: ignore[arg-type]

    monkeypatch.setattr(ObjectNames, "_create", twice)
    log.place(commit(0))
    assert log.state.next_window == 1
