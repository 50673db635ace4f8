"""`gc` takes what no record names, and nothing else."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from bucket_store import failpoints
from bucket_store.errors import FencedError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.heartbeat import HeartBeat
from bucket_store.log.marks import Intent, write_intent
from bucket_store.log.records import DeletionRecord
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import decode_piece
from bucket_store.places.local import local_place
from bucket_store.tables import generation
from bucket_store.tables.generation import ShardDirectories, open_generation
from bucket_store.tables.matches import TableLayout
from bucket_store.tables.view import ShardView
from deduper.admin.gc import GcReport, collect
from deduper.admin.verify.run import verify_store
from deduper.sinks.names import Attempt
from deduper.window import table_folder as table_places
from deduper.window.exchange_folder import ExchangeFolders
from deduper.window.policy import fixed_settings
from deduper.window.recovery import open_or_create
from deduper.window.stale_tables import UNUSED_US, StaleTables, note_store, remove_of_gone_stores
from deduper.window.table_folder import table_settings
from tests.deduper.published_store import WALL_US, Kind, PublishedStore

pytestmark = pytest.mark.slow
HOUR_US = 3_600_000_000
LATER_US = time.time_ns() // 1000 + 10 * HOUR_US
"""When everything that a test writes is past the grace."""


@pytest.fixture(autouse=True)
def no_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of other tests, and of this machine's jobs, are none of ours."""
    monkeypatch.setattr(table_places, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()


@pytest.fixture(params=["file", "rocksdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> PublishedStore:
    """A sound store of epoch 2, with one of each kind of orphan."""
    made = PublishedStore(tmp_path, Kind(backend=request.param, epoch=2)).make()
    root = made.config.store.path
    pieces = open_backend(made.config.store.url)
    for epoch in (1, 2):
        pieces.append(shard=0, epoch=epoch, name=f"{99:012d}-{epoch:06d}-000-0000-deadbeef", data=b"x" * 500)
    pieces.close()
    (root / "sources" / f"{99:012d}-000002-000").write_bytes(b"x")
    (root / "log" / ".00000000000000000077.abcdef.tmp").write_bytes(b"x")
    for epoch in (1, 2):
        write_intent(local_place(root), Intent(0, epoch, "q", 0, (), 0, None, 0, ""))
    staged = tmp_path / "out" / "unique" / "_staging" / f"{99:012d}-000002-000"
    staged.mkdir(parents=True)
    (staged / "part-0.parquet").write_bytes(b"x" * 10)
    if request.param == "rocksdb":
        database = next((root / "pieces").glob("*/000002.rocksdb"))
        (database / "x.ingest").write_bytes(b"x")
        shutil.copytree(database, database.with_name("000001-0badcafe.rocksdb.gone-12345678"))
    else:
        (root / "pieces" / "0000" / "000001-0007.gone").write_bytes(b"torn")
    return made


def files(store: PublishedStore) -> set[str]:
    """Every file and folder of the job's directory."""
    return {str(path.relative_to(store.directory)) for path in store.directory.rglob("*")}


def collected(store: PublishedStore, **settings: object) -> GcReport:
    """`gc` with an hour of grace, long after the last writing."""
    return collect(store.open(), **{"grace_us": HOUR_US, "delete": False, "now_us": LATER_US, **settings})  # type: ignore[arg-type]


KINDS = {"piece", "database", "sources", "temporary", "intent", "staging"}


def test_a_list_changes_nothing(store: PublishedStore) -> None:
    """It names one of each kind, with size and reason."""
    before = files(store)
    report = collected(store)
    assert {item.kind for item in report.garbage} == KINDS
    assert all(item.why and item.size_bytes >= 0 and not item.is_deleted for item in report.garbage)
    assert all(not item.kept for item in report.garbage)
    assert files(store) == before


def test_deleting_leaves_the_store_and_nothing_else(store: PublishedStore) -> None:
    """Afterwards there is nothing to list, the pieces are the ones from before, and the newest intent stays."""
    state = store.open().log.state
    whole = {ref: store.open().pieces.read(ref) for refs in state.pieces.values() for ref in refs}
    report = collected(store, delete=True)
    assert {item.kind for item in report.garbage if item.is_deleted} == KINDS
    assert not collected(store).garbage
    assert {ref: store.open().pieces.read(ref) for ref in store.live()} == whole
    left = files(store)
    assert {name for name in left if name.startswith("state/intents/")} == {"state/intents/000002"}
    assert not [name for name in left if "_staging/" in name or name.endswith((".tmp", ".ingest")) or ".gone-" in name]
    assert store.open().log.state.epoch == state.epoch + 1
    assert not [finding for finding in verify_store(store.open()).findings if "piece" in str(finding)]


def test_what_is_young_stays(store: PublishedStore) -> None:
    """The grace is the caller's, but a temporary name is spared for a minute whatever it is."""
    now_us = time.time_ns() // 1000
    before = files(store)
    report = collected(store, delete=True, now_us=now_us)
    young = [item for item in report.garbage if item.kept]
    assert {item.kept for item in young} == {"younger than 1h"}
    assert {item.kind for item in young} == KINDS
    assert files(store) == before, "with nothing to delete not even an epoch is claimed"
    report = collected(store, delete=True, now_us=now_us + 1_000_000, grace_us=0)
    assert {item.kind for item in report.garbage if item.kept} == {"temporary"}


def test_orphans_of_a_clock_far_ahead_go(store: PublishedStore) -> None:
    """Their grace would never end."""
    before_us = time.time_ns() // 1000 - 3 * 86_400_000_000
    report = collected(store, delete=True, now_us=before_us)
    assert {item.kind for item in report.garbage if item.is_deleted} == KINDS
    assert not collected(store).garbage


def test_beside_a_running_job_it_only_lists(store: PublishedStore) -> None:
    """With --delete it says that it was refused."""
    before = files(store)
    with HeartBeat(local_place(store.config.store.path), "elsewhere:1", interval_s=0.1):
        report = collected(store)
        assert report.owner_lives
        assert not report.is_refused
        report = collected(store, delete=True)
        assert report.is_refused
        assert {item.kept for item in report.garbage} == {"a job runs on the store"}
        assert {name for name in files(store) if ".heartbeat." not in name} == before | {"state/heartbeat"}


def test_an_owner_that_slept_can_name_nothing_that_is_gone(store: PublishedStore) -> None:
    """Deleting claims an epoch first: the sleeper's next record is refused."""
    sleeper = CommitLog.open(local_place(store.config.store.path))
    sleeper.claim_epoch("sleeper:1", WALL_US)
    ref = store.live()[0]
    collected(store, delete=True)
    with pytest.raises(FencedError):
        sleeper.place(DeletionRecord((ref,), WALL_US, ref.last_window))


def test_a_job_that_starts_meanwhile_ends_it(store: PublishedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is of the new owner's epoch is none of gc's business."""

    def start(name: str) -> None:
        if name == "gc.pieces":
            open_or_create(store.config, WALL_US).claim_epoch("new:1", WALL_US)

    monkeypatch.setattr(failpoints, "hit", start)
    with pytest.raises(FencedError):
        collected(store, delete=True)
    assert (store.directory / "state" / "intents" / "000001").exists()


@pytest.mark.night(but=["file-4", "rocksdb-2"])
@pytest.mark.parametrize("nth", [1, 2, 4])
def test_broken_off_it_can_be_run_again(store: PublishedStore, nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every deletion the store is whole."""

    class Killed(BaseException):
        pass

    left = nth

    def hit(name: str) -> None:
        nonlocal left
        left -= name == "gc.deleted"
        if left == 0:
            raise Killed

    whole = {ref: store.open().pieces.read(ref) for ref in store.live()}
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hit", hit)
        with pytest.raises(Killed):
            collected(store, delete=True)
    assert {ref: store.open().pieces.read(ref) for ref in store.live()} == whole
    collected(store, delete=True)
    assert not collected(store).garbage


def test_a_file_of_a_live_piece_stays_whatever_is_in_it(tmp_path: Path) -> None:
    """A segment whose frames cannot be read any more looks empty, and is not."""
    store = PublishedStore(tmp_path, Kind()).make()
    refs = [ref for ref in store.live() if ref.shard == 0]
    segment = store.config.store.path / refs[0].file
    data = bytearray(segment.read_bytes())
    for ref in refs:
        data[ref.offset - 20] ^= 1
    segment.write_bytes(data)
    store.open().pieces.append(shard=1, epoch=1, name=f"{99:012d}-000001-000-0001-deadbeef", data=b"x")
    assert [item.is_deleted for item in collected(store, delete=True).garbage] == [True]
    assert [store.open().pieces.read(ref)[:7] for ref in refs] == [b"BSPIECE"] * len(refs)
    for ref in refs:
        for _ in decode_piece(store.open().pieces.read(ref), file=ref.file, offset=ref.offset)[1]:
            pass


def test_retired_pieces_go_when_their_grace_is_past(tmp_path: Path) -> None:
    """A reader that opened the store before may still read their bytes."""
    store = PublishedStore(tmp_path, Kind()).make()
    log = store.open().log
    log.claim_epoch("owner:1", WALL_US)
    gone = store.live()[0]
    log.place(DeletionRecord((gone,), LATER_US - HOUR_US // 2, gone.last_window))
    (item,) = collected(store, delete=True).garbage
    assert (item.kind, item.kept) == ("retired_piece", "younger than 1h")
    (item,) = collected(store, delete=True, grace_us=HOUR_US // 4).garbage
    assert item.is_deleted
    assert gone.name not in {piece.name for piece in store.open().pieces.pieces()}


def test_folded_records_are_listed_and_deleted(tmp_path: Path) -> None:
    """Only those below a snapshot that is past the grace."""
    store = PublishedStore(tmp_path, Kind())
    store.config_file.write_text(_config_text(store))
    log = CommitLog.create(
        local_place(store.config.store.path), fixed_settings(store.config), wall_us=WALL_US, snapshot_every=4
    )
    for number in range(9):
        log.claim_epoch(f"owner:{number}", WALL_US)
    before = log.state
    assert not collected(store).garbage
    for path in sorted((store.config.store.path / "log").iterdir())[:-1]:
        os.utime(path, (1000, 1000))  # the last record is an hour younger
    (item,) = collected(store).garbage
    assert (item.kind, item.kept) == ("records", None)
    assert "8 records" in item.why
    collected(store, delete=True)
    assert not collected(store).garbage
    assert CommitLog.open(local_place(store.config.store.path)).state.epoch == before.epoch + 1


def _config_text(store: PublishedStore) -> str:
    from tests.deduper.published_store import CONFIG

    return CONFIG.format(**{**store.kind.__dict__, "first_seen": "true"})


def test_tables_that_nobody_can_use_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an earlier boot, those unused for a week or dated by a clock far ahead; not those in use or held."""
    store = PublishedStore(tmp_path, Kind()).make()
    tables = table_settings(store.config)
    assert tables.disk_dir == str(tmp_path / "tables")

    def make(store_id: str, *, boot: str | None = None, idle_us: int = 0, hold: bool = False) -> object:
        monkeypatch.setattr(generation, "boot_id", lambda: boot or "this boot")
        directories = ShardDirectories.of(tables.memory_dir, tables.disk_dir, store_id, 0)
        view = ShardView(store_id, store_id, ((0, b"owner"),), 0, 1, (), None, None)
        opened = open_generation(directories, view, TableLayout(False, False, False, False), lock_timeout_s=1)
        last_s = (LATER_US - idle_us) / 1e6
        for path in (opened.disk / "header", *opened.memory.iterdir()):
            os.utime(path, (last_s, last_s))
        if boot is not None:
            shutil.rmtree(opened.memory)
        if not hold:
            opened.close()
        monkeypatch.setattr(generation, "boot_id", lambda: "this boot")
        return opened

    old, idle, held, used, elsewhere, ahead = (f"{letter * 32}-{letter * 8}" for letter in "abcde6")
    early = "0" * 32  # the name has no path in it
    # Another job's, whose headers lie in a folder that we do not know.
    for store_id, idle_us in ((elsewhere, 0), ("f" * 32, UNUSED_US + 1)):
        path = tmp_path / "shm" / "deduper-tables" / store_id / "0000" / "1" / "t0.table"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
        os.utime(path, ((LATER_US - idle_us) / 1e6,) * 2)
    make(old, boot="another")
    make(idle, idle_us=UNUSED_US + 1)
    holder = make(held, idle_us=UNUSED_US + 1, hold=True)
    make(used, idle_us=UNUSED_US - HOUR_US)
    make(ahead, idle_us=-365 * 24 * HOUR_US)
    make(early)
    (tmp_path / "tables" / f"{'7' * 32}-{'7' * 8}").mkdir()  # a job that makes its first ones
    assert {item.why.split(", of store")[1].strip(): item.kept for item in collected(store).garbage} == {
        name[:8]: None for name in (early, old, idle, held, ahead, "f" * 32)
    }
    collected(store, delete=True)
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {held, used, f"{'7' * 32}-{'7' * 8}"}
    assert {path.name for path in (tmp_path / "shm" / "deduper-tables").iterdir()} == {held, used, elsewhere}
    holder.close()  # type: ignore[attr-defined]


def test_tables_of_a_store_that_is_gone_go_at_the_next_start(tmp_path: Path) -> None:
    """Of any job's: they may fill the memory. Not those of a store that is there, or damaged, or whose disk is away."""
    configs, folders = {}, {}
    for name in ("there", "gone", "made again", "damaged", "away"):
        (tmp_path / name).mkdir()
        store = PublishedStore(tmp_path / name, Kind()).make()
        section = store.config.store.model_copy(update={"tables": tmp_path / "tables"})
        configs[name] = config = store.config.model_copy(update={"store": section})
        tables = table_settings(config)
        store_id = store.open().log.manifest.store_id
        note_store(config, store_id)
        folders[name] = generation.table_folder(store_id, config.store.place)
        for home in (tables.memory_dir, tables.disk_dir):
            generation_folder = Path(home) / folders[name] / "0000" / "1"
            generation_folder.mkdir(parents=True)
            (generation_folder / "t0.table").write_bytes(b"x")
            (generation_folder / "lock").touch()
    shutil.rmtree(configs["gone"].store.path)
    shutil.rmtree(tmp_path / "away")
    shutil.rmtree(tmp_path / "made again")
    (tmp_path / "made again").mkdir()
    PublishedStore(tmp_path / "made again", Kind()).make()
    (configs["damaged"].store.path / "manifest").write_bytes(b"torn")
    remove_of_gone_stores(configs["there"])
    remove_of_gone_stores(configs["there"])
    for home in (tables.memory_dir, tables.disk_dir):
        left = {path.name for path in Path(home).iterdir()}
        assert {name for name, folder in folders.items() if folder in left} == {"there", "damaged", "away"}


def test_two_may_delete_the_same_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a store that is gone between two looks is no error; one that fills again stays."""
    tables = StaleTables("a" * 32, tmp_path / "shm", tmp_path / "disk", "")
    for path in tables.paths:
        path.mkdir(parents=True)
    really = Path.rmdir

    def late(path: Path) -> None:
        if path == tables.paths[0]:
            really(path)
        else:
            (path / "0000").mkdir()
        really(path)

    monkeypatch.setattr(Path, "rmdir", late)
    assert tables.remove()
    assert [path.exists() for path in tables.paths] == [False, True]


def test_what_a_dead_process_has_set_aside_goes(tmp_path: Path) -> None:
    """Exchange files, which may be in memory, of whatever store; not those of a process that lives."""
    store = PublishedStore(tmp_path, Kind()).make()
    tables = table_settings(store.config)
    attempt = Attempt(1, 1, 0)
    lives = ExchangeFolders(tables.memory_dir, tables.disk_dir, "a" * 32).make(attempt)
    dead = ExchangeFolders(tables.memory_dir, tables.disk_dir, "b" * 32)
    folder = dead.make(attempt)
    (folder / "1.rows").write_bytes(b"x" * 1000)
    os.close(dead._locks[folder])
    (item,) = collected(store).garbage
    assert (item.kind, item.path, item.size_bytes, item.kept) == ("spool", str(folder), 1000, None)
    collected(store, delete=True)
    assert list(folder.parent.iterdir()) == [lives]
