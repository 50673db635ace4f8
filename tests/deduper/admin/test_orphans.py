"""What lies about a store is listed, each with what it is, and nothing that is part of the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.marks import Intent, Published, prepare_published, write_intent
from bucket_store.log.records import DeletionRecord
from bucket_store.log.sources_file import write_sources
from bucket_store.pieces.open import open_backend
from bucket_store.places.local import LocalNames, local_place
from bucket_store.places.probe import demand_refusal
from deduper.admin.open_store import OpenStore, open_store
from deduper.admin.orphans import Orphan, OrphanKind, orphans
from deduper.sinks.names import Attempt
from tests.deduper.store_samples import BEGIN_US, HOUR_US, SeenKey, Window, make_store, write_config
from tests.deduper.whole_job import WholeJob

pytestmark = pytest.mark.slow
BUCKET = BEGIN_US // HOUR_US
WINDOWS = [Window([SeenKey((f"u{n}{w}", n), BUCKET, BEGIN_US, n) for n in range(8)], BEGIN_US) for w in range(2)]


@pytest.fixture(params=["file", "rocksdb"])
def config_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A config whose store has two windows of epoch 1, and where epoch 3 is the newest."""
    file = write_config(tmp_path)
    text = file.read_text().replace("file:state", f"{request.param}:state")
    for port in ("unique", "duplicate"):
        text = text.replace(f"{port}: {{format: none}}", f"{port}: {{format: parquet, path: out/{port}}}")
    file.write_text(text)
    config = make_store(file, WINDOWS)
    for port in ("unique", "duplicate"):
        (tmp_path / "out" / port).mkdir(parents=True)
    log = CommitLog.open(local_place(config.store.path))
    log.claim_epoch("later:2", BEGIN_US)
    log.claim_epoch("later:3", BEGIN_US)
    return file


def listed(file: Path) -> list[Orphan]:
    """What lies about the store of a config."""
    return list(orphans(open_store(str(file))))


def add_piece(store: OpenStore, window: int, epoch: int) -> None:
    """A piece that no record names."""
    pieces = open_backend(store.url)
    pieces.append(shard=0, epoch=epoch, name=f"{window:012d}-{epoch:06d}-000-0000-deadbeef", data=b"x" * 100)
    pieces.close()


def test_nothing_of_a_store_is_an_orphan(config_file: Path) -> None:
    """Records, named pieces, named sources: all of it is needed."""
    assert listed(config_file) == []


def test_without_a_config_the_ports_are_not_looked_at(config_file: Path) -> None:
    """They are not known then."""
    store = open_store(str(config_file))
    (config_file.parent / "out/unique/_staging" / Attempt(5, 1, 0).folder).mkdir(parents=True)
    assert [found.kind for found in orphans(store)] == [OrphanKind.STAGING]
    assert orphans(open_store(store.url)) == ()


@pytest.mark.parametrize(
    ("window", "epoch", "is_abandoned"),
    [(0, 1, True), (2, 2, True), (1, 3, True), (2, 3, False), (3, 4, False)],
    ids=["lower epoch", "lower epoch, next window", "committed window", "maybe running", "epoch to come"],
)
def test_epoch_and_window_show_what_a_running_job_may_be_writing(
    config_file: Path, window: int, epoch: int, is_abandoned: bool
) -> None:
    """A piece, a sources file and a staging folder of the same attempt, judged alike."""
    store = open_store(str(config_file))
    add_piece(store, window, epoch)
    write_sources(store.log.root, window=window, epoch=epoch, attempt=7, partitions=[])
    folder = config_file.parent / "out/duplicate/_staging" / Attempt(window, epoch, 7).folder / "_port=duplicate"
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"12345")
    found = {orphan.kind: orphan for orphan in listed(config_file)}
    assert found.keys() == {OrphanKind.PIECE, OrphanKind.SOURCES, OrphanKind.STAGING}
    assert {(orphan.window, orphan.epoch, orphan.is_abandoned) for orphan in found.values()} == {
        (window, epoch, is_abandoned)
    }
    assert found[OrphanKind.PIECE].piece is not None
    assert found[OrphanKind.PIECE].size_bytes == 100
    assert found[OrphanKind.STAGING].size_bytes == 5
    assert all(("running" in orphan.why) != is_abandoned for orphan in found.values())


def test_pieces_that_left_the_store_are_told_from_orphans(config_file: Path) -> None:
    """Their bytes stay for a grace; the record and its time are known."""
    log = CommitLog.open(open_store(str(config_file)).log.root)
    log.claim_epoch("later:4", BEGIN_US)
    piece = log.state.pieces[0][0]
    log.place(DeletionRecord((piece,), BEGIN_US + 5, 0))
    (found,) = listed(config_file)
    assert (found.kind, found.is_abandoned, found.modified_us) == (OrphanKind.RETIRED_PIECE, True, BEGIN_US + 5)
    assert found.piece == piece.name


def test_a_database_without_a_live_piece_is_listed(config_file: Path) -> None:
    """A writer that died in its first piece leaves one in which nothing is whole."""
    store = open_store(str(config_file))
    path = store.root.local / "pieces" / "0000" / "000002-0000.rocksdb"
    path.mkdir()
    (path / "LOG").write_bytes(b"a dead writer")
    (found,) = listed(config_file)
    assert (found.kind, found.path.local, found.size_bytes) == (OrphanKind.DATABASE, path, 13)
    assert (found.epoch, found.is_abandoned) == (2, True)


def test_staged_files_of_a_committed_window_are_needed_until_the_mark(tmp_path: Path) -> None:
    """Its outputs may have to be published from there; those of another attempt never."""
    job = WholeJob(tmp_path).make(2)
    job.log.place(job.judge())
    other = tmp_path / "out" / "unique" / "_staging" / Attempt(2, 1, 9).folder
    other.mkdir(parents=True)
    assert [found.path.local for found in orphans(job.open())] == [other]
    other.rmdir()
    job.mark_at(job.log.root.local / "published", 2)
    found = orphans(job.open())
    assert {path for orphan in found for path in orphan.path.local.rglob("*.*")} == {
        Path(output.staged) for output in job.record(2)[1].outputs
    }
    assert all(orphan.kind is OrphanKind.STAGING and orphan.is_abandoned for orphan in found)


def test_intents_below_the_newest_and_temporary_files(config_file: Path) -> None:
    """The newest intent may be repeated; what was being written under a temporary name means nothing."""
    store = open_store(str(config_file))
    for epoch in (1, 3):
        write_intent(store.log.root, Intent(2, epoch, "q", 0, (), BEGIN_US, None, 0, ""))
    port = config_file.parent / "out/unique"
    prepare_published(local_place(port / "_published"), Published(store.log.manifest.store_id, 1, 2))
    (mark,) = port.glob("._published.000002.*")
    names = [".00000000000000000009.0123456789abcdef.tmp", ".000000000002-000001-000.0123456789abcdef.tmp"]
    (store.root.local / "log" / names[0]).write_bytes(b"half")
    (store.root.local / "sources" / names[1]).write_bytes(b"half")
    found = {orphan.path.name: orphan for orphan in listed(config_file)}
    assert found.keys() == {"000001", *names, mark.name}
    assert found["000001"].kind is OrphanKind.INTENT
    assert [found[name].is_abandoned for name in (names[0], names[1], mark.name)] == [False, True, True]
    assert (found[names[1]].window, found[names[1]].epoch, found[mark.name].epoch) == (2, 1, 2)


def test_a_probe_whose_process_died(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start, or `check`, that was killed while it tried the storage: the file under its name, in the store alone."""
    store = open_store(str(config_file))
    monkeypatch.setattr(LocalNames, "remove", lambda *_: None)
    demand_refusal(store.log.root)
    (store.root.local / "log" / "probe_0123456789abcdef").write_bytes(b"no probe here")
    (orphan,) = listed(config_file)
    assert (orphan.kind, orphan.path.parent, orphan.path.name[:6]) == (OrphanKind.TEMPORARY, store.root, "probe_")
