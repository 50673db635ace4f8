"""A damaged piece comes back byte for byte or not at all, and nothing is lost on the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bucket_store import failpoints
from bucket_store.lineage import history_at
from bucket_store.log.heartbeat import HeartBeat
from bucket_store.pieces import rocksdb_backend
from bucket_store.pieces.piece import PieceRef
from bucket_store.places.local import local_place
from deduper.admin.repair import apply as repair
from deduper.admin.repair import plan as repair_plan
from deduper.admin.repair.plan import QUARANTINE
from deduper.admin.repair.report import Way
from deduper.errors import OwnerAliveError, UsageError
from tests.deduper.published_store import Kind, PublishedStore

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]
TIME = "{{by: event_time, field: t, unit: s, period: 1000s, span: 50s, lookup: {}}}"
ORDERED = "{{by: ordered, field: t, period: {}, span: 10, lookup: {}}}"
CATEGORY = "{by: category, field: t, live_categories: 4}"
KINDS = {
    "plain": Kind(),
    "never": Kind("{by: never}", key="[k, t]"),
    "never, nothing kept": Kind("{by: never}", first_seen=False),
    "event time in seconds": Kind(TIME.format("own_bucket"), digest="secure"),
    "all live": Kind(ORDERED.format(1000, "all_live")),
    "all live, renewed within a window": Kind(ORDERED.format(30, "all_live")),
    "all live, nothing kept": Kind(ORDERED.format(30, "all_live"), first_seen=False),
    "doubles": Kind(ORDERED.format(1000, "all_live"), type="double"),
    "decimals": Kind(ORDERED.format(1000, "own_bucket"), type="decimal(12,0)"),
    "processing time": Kind("{by: processing_time, period: 1h, span: 1m}"),
    "category": Kind(CATEGORY, type="string"),
    "category, nothing kept": Kind(CATEGORY, type="string", first_seen=False),
    "later epoch": Kind(epoch=3),
    "json": Kind(format="json", key="[k, t]"),
    "csv": Kind(format="csv", key="[k, t, v]"),
    "rocksdb": Kind(backend="rocksdb"),
    "positions that begin far from 0": Kind(first_position=1 << 40),
}


def made(tmp_path: Path, kind: Kind = KINDS["plain"], windows: int = 4) -> PublishedStore:
    """A store of this kind."""
    return PublishedStore(tmp_path, kind).make(windows)


def lose_pieces(store: PublishedStore) -> None:
    """Everything in which keys lie, gone."""
    shutil.rmtree(store.config.store.path / "pieces")


def flip(store: PublishedStore, piece: PieceRef, at: int = 100) -> None:
    """One bit of one piece; in a database, of the table that holds it."""
    path = store.config.store.path / piece.file
    if path.is_dir():
        path = next(table for table in sorted(path.glob("*.sst")) if piece.name.encode() in table.read_bytes())
    else:
        at += piece.offset
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    rocksdb_backend._readers.clear()  # a command is a process of its own, which has read nothing yet


def contents(store: PublishedStore) -> dict[tuple[int, int], bytes]:
    """The bytes of every live piece, by shard and window."""
    opened = store.open()
    return {(ref.shard, ref.first_window): opened.pieces.read(ref) for ref in store.live()}


@pytest.mark.parametrize("name", KINDS)
def test_every_piece_is_rebuilt_byte_for_byte(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every kind of store, with all pieces lost at once, those of expired keys too."""
    monkeypatch.setattr(repair_plan, "dead_pieces", lambda *_: ())
    store = made(tmp_path, KINDS[name])
    before, refs = contents(store), store.live()
    assert len(before) >= 6
    lose_pieces(store)
    planned = repair_plan.plan(store.open())
    assert [(item.way, item.why) for item in planned.repairs if item.way is not Way.REBUILD] == []
    assert len(planned.repairs) == len(before)
    done = repair.apply(store.open())
    assert done.is_sound
    assert contents(store) == before
    assert [ref.checksum for ref in store.live()] == [ref.checksum for ref in refs]
    assert repair_plan.plan(store.open()).repairs == ()


@pytest.mark.parametrize("backend", ["file", "rocksdb"])
def test_a_damaged_file_is_left_as_a_whole(backend: str, tmp_path: Path) -> None:
    """One bit of one piece: it is rebuilt, its sound neighbours are copied, and the file lies in the quarantine."""
    store = made(tmp_path, Kind(backend=backend))
    before, refs = contents(store), store.live()
    flip(store, refs[1])
    damaged_file = refs[1].file
    planned = repair_plan.plan(store.open())
    (item,) = planned.repairs
    assert (item.piece, item.way, planned.left_files) == (refs[1], Way.REBUILD, (damaged_file,))
    assert planned.copied == sum(ref.file == damaged_file for ref in refs) - 1 > 0
    assert item.damage.expected != item.damage.found
    assert not planned.is_sound
    assert store.live() == refs, "a plan changes nothing"
    assert repair.apply(store.open()).is_sound
    assert contents(store) == before
    kept = store.config.store.path / QUARANTINE
    (note,) = kept.glob("*.json")
    reported = json.loads(note.read_text())
    assert reported["file"] == damaged_file
    assert [entry["piece"] for entry in reported["damaged"]] == [refs[1].name]
    assert not (store.config.store.path / damaged_file).exists()
    assert note.with_name(note.name.removesuffix(".json")).exists()
    assert all(ref.file != damaged_file for ref in store.live())


def test_a_repaired_piece_can_be_repaired_again(tmp_path: Path) -> None:
    """Its name still says in which epoch and attempt it was made."""
    store = made(tmp_path)
    before = contents(store)
    for _ in range(3):
        lose_pieces(store)
        assert repair.apply(store.open()).is_sound
        assert contents(store) == before


@pytest.mark.parametrize("change", ["row lost", "value changed", "row added"])
def test_outputs_that_are_not_the_windows_prove_nothing(change: str, tmp_path: Path) -> None:
    """A changed, missing or added row gives another checksum, and no piece is put in place."""
    store = made(tmp_path, Kind(format="json"))
    (file, *_) = sorted((tmp_path / "out" / "unique").glob("*-000000000001-*"))
    lines = file.read_text().splitlines()
    row = json.loads(lines[0])
    if change == "row lost":
        lines = lines[1:]
    elif change == "value changed":
        lines[0] = json.dumps({**row, "t": row["t"] + 1})
    else:
        lines.append(json.dumps({**row, "k": "another key"}))
    file.write_text("\n".join(lines) + "\n")
    lose_pieces(store)
    repairs = repair_plan.plan(store.open()).repairs
    failed = [item for item in repairs if item.way is Way.NONE]
    assert {item.piece.first_window for item in failed} == {1}
    assert all("keys" in item.why or "checksum" in item.why for item in failed)
    repair.apply(store.open())
    assert {item.piece for item in failed} <= set(store.live()), "what has no way back stays named"


def test_outputs_that_were_moved_are_found(tmp_path: Path) -> None:
    """A reader takes files away; with --from they serve all the same."""
    store = made(tmp_path)
    archive = tmp_path / "archive" / "2024"
    archive.mkdir(parents=True)
    for file in (tmp_path / "out" / "unique").glob("*-000000000002-*"):
        file.rename(archive / file.name)
    lose_pieces(store)
    before = repair_plan.plan(store.open())
    assert {item.piece.first_window for item in before.repairs if item.way is Way.NONE} == {2}
    assert "no output file" in next(item.why for item in before.repairs if item.way is Way.NONE)
    assert repair.apply(store.open(), more_outputs=[local_place(tmp_path / "archive")]).is_sound


def test_without_the_sources_file_the_order_is_guessed_and_proven(tmp_path: Path) -> None:
    """Two losses at once: the order of the source files follows from their times, and the checksum says if it did."""
    store = made(tmp_path)
    before = contents(store)
    lose_pieces(store)
    for file in (store.config.store.path / "sources").iterdir():
        file.unlink()
    assert repair.apply(store.open()).is_sound
    assert contents(store) == before


def flip_sources(store: PublishedStore, window: int) -> Path:
    """One bit of the list of a window's source files."""
    path = store.config.store.path / "sources" / store.open().log.state.sources[window].name
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    return path


def test_a_list_of_source_files_is_rebuilt(tmp_path: Path) -> None:
    """Lost or damaged, from the names in the outputs and the files themselves; the damaged one is kept."""
    store = made(tmp_path)
    sources = store.config.store.path / "sources"
    before = {path.name: path.read_bytes() for path in sources.iterdir()}
    flip_sources(store, 1)
    (sources / store.open().log.state.sources[3].name).unlink()
    planned = repair_plan.plan(store.open())
    assert [(item.window, item.way) for item in planned.sources] == [(1, Way.REBUILD), (3, Way.REBUILD)]
    assert not planned.is_sound
    assert repair.apply(store.open()).is_sound
    assert {path.name: path.read_bytes() for path in sources.iterdir()} == before
    assert len(list((store.config.store.path / QUARANTINE).glob("*-sources-*"))) == 1


@pytest.mark.parametrize("change", ["touched", "grown", "gone"])
def test_a_list_of_changed_source_files_is_not_made_up(change: str, tmp_path: Path) -> None:
    """The damaged one stays where it is."""
    store = made(tmp_path)
    path = flip_sources(store, 1)
    damaged = path.read_bytes()
    source = tmp_path / "in" / "w1-0.json"
    times = source.stat()
    if change == "gone":
        source.unlink()
    elif change == "grown":
        source.write_text("{}\n" * 31)
        os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    else:
        os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns + 5_000_000_000))
    done = repair.apply(store.open())
    assert [item.way for item in done.sources] == [Way.NONE]
    assert not done.is_sound
    assert path.read_bytes() == damaged


def test_a_list_that_was_put_aside_is_made_in_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the two, the file is missing, which is damage of the same kind."""
    store = made(tmp_path)
    path = flip_sources(store, 1)

    def hit(name: str) -> None:
        if name == "repair.sources":
            raise Killed

    monkeypatch.setattr(failpoints, "hit", hit)
    with pytest.raises(Killed):
        repair.apply(store.open())
    monkeypatch.undo()
    assert not path.exists()
    assert repair.apply(store.open()).is_sound
    assert not list(repair_plan.plan(store.open()).sources)


def test_a_file_with_both_names_loses_the_old_one(tmp_path: Path) -> None:
    """Killed between the two halves of a rename: the damaged file is in the quarantine, and in its old place too."""
    store = made(tmp_path)
    root, ref = store.config.store.path, store.live()[0]
    flip(store, ref)
    damaged = (root / ref.file).read_bytes()
    assert repair.apply(store.open()).is_sound
    (held,) = (
        file for file in (root / QUARANTINE).iterdir() if file.suffix != ".json" and file.read_bytes() == damaged
    )
    (root / ref.file).hardlink_to(held)
    assert repair_plan.plan(store.open()).unfinished == (ref.file,)
    assert repair.apply(store.open()).is_sound
    assert (held.read_bytes(), (root / ref.file).exists()) == (damaged, False)


def test_a_lost_piece_is_forgotten_only_by_name(tmp_path: Path) -> None:
    """It leaves with the count of its keys, no machine's tables count any more, and the others are as they were."""
    store = made(tmp_path)
    before, refs = contents(store), store.live()
    lost = next(ref for ref in refs if ref.first_window == 2 and ref.shard == 1)
    for file in (tmp_path / "out" / "unique").glob("*-000000000002-*"):
        file.unlink()
    flip(store, lost)
    with pytest.raises(UsageError, match="no damaged piece"):
        repair_plan.plan(store.open(), forget=["1"])
    with pytest.raises(UsageError, match="write WINDOW"):
        repair_plan.plan(store.open(), forget=["two"])
    stuck = repair.apply(store.open())
    assert not stuck.is_sound
    assert f"{lost.entries:,} keys" in stuck.consequence
    assert store.live() == refs
    lineage, at = store.open().log.state.lineage, store.open().log.state.next_window
    done = repair.apply(store.open(), forget=["2/1"])
    assert done.is_sound
    assert not {nonce for _, nonce in store.open().log.state.lineage} & {nonce for _, nonce in lineage}
    assert history_at(store.open().log.state.lineage, at) not in (b"", history_at(lineage, at))
    del before[1, 2]
    assert contents(store) == before
    (note,) = (store.config.store.path / QUARANTINE).glob("*.json")
    assert json.loads(note.read_text())["damaged"][0]["way"] == "forget"


def test_what_is_expired_is_dropped_without_a_question(tmp_path: Path) -> None:
    """No key of it counts any more, so nothing is lost with it."""
    store = made(tmp_path, Kind(ORDERED.format(50, "own_bucket")), windows=6)
    first = store.live()[0]
    shutil.rmtree(tmp_path / "out")
    flip(store, first)
    done = repair.apply(store.open())
    assert [(item.piece, item.way) for item in done.repairs] == [(first, Way.DROP)]
    assert done.is_sound
    assert first not in store.live()


def test_a_file_waits_until_all_of_it_has_a_way(tmp_path: Path) -> None:
    """A segment that lost two pieces, one of them for good, stays where it is until the other is decided."""
    store = made(tmp_path)
    refs = [ref for ref in store.live() if ref.shard == 0]
    for ref in refs[:2]:
        flip(store, ref)
    for file in (tmp_path / "out" / "unique").glob(f"*-{refs[0].first_window:012d}-*"):
        file.unlink()
    stuck = repair.apply(store.open())
    assert [item.way for item in stuck.repairs] == [Way.NONE, Way.REBUILD]
    assert len(stuck.waiting) == 2
    assert store.live()[: len(refs)] == refs
    assert repair.apply(store.open(), forget=[f"{refs[0].first_window}/0"]).is_sound
    assert {ref.first_window for ref in store.live() if ref.shard == 0} == {ref.first_window for ref in refs[1:]}


def test_beside_a_running_job_nothing_is_repaired(tmp_path: Path) -> None:
    """A plan is harmless; doing it is refused."""
    store = made(tmp_path)
    lose_pieces(store)
    refs = store.live()
    with HeartBeat(local_place(store.config.store.path), "elsewhere:1", interval_s=0.1):
        assert len(repair_plan.plan(store.open()).repairs) == len(refs)
        with pytest.raises(OwnerAliveError, match="stop it"):
            repair.apply(store.open())
    assert store.live() == refs


class Killed(BaseException):
    """The end of the process; nothing of the product catches it."""


@pytest.mark.parametrize("backend", ["file", "rocksdb"])
@pytest.mark.parametrize(
    "point", ["claimed", "appended", "appended@3", "noted", "recorded", "quarantined", "quarantined@2"]
)
def test_a_repair_that_dies_can_be_run_again(
    point: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it dies, every live piece is a sound one or the damaged one, and the next run finishes it."""
    store, name, nth = broken(tmp_path, Kind(backend=backend)), *point.partition("@")[::2]
    left = int(nth or 1)

    def hit(reached: str) -> None:
        nonlocal left
        left -= reached == f"repair.{name}"
        if left == 0:
            raise Killed

    monkeypatch.setattr(failpoints, "hit", hit)
    with pytest.raises(Killed):
        repair.apply(store.store.open())
    monkeypatch.undo()
    store.check_and_finish(0 if name in ("recorded", "quarantined") else 2)


@pytest.mark.night(but=["recorded"])
@pytest.mark.parametrize("point", ["noted", "recorded"])
def test_a_repair_that_is_killed_can_be_run_again(point: str, tmp_path: Path) -> None:
    """The same for a process that is really killed, before and after the record."""
    store = broken(tmp_path, Kind(backend="rocksdb"))
    command = [sys.executable, "-m", "deduper.cli", "repair", str(store.store.config_file), "--apply"]
    environment = {**os.environ, failpoints.ENVIRONMENT: f"repair.{point}=kill", "PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False).returncode == -9
    store.check_and_finish(0 if point == "recorded" else 2)


@dataclass(frozen=True)
class Broken:
    """A store in which a piece of each shard is damaged, and what it was before."""

    store: PublishedStore
    before: dict[tuple[int, int], bytes]
    refs: list[PieceRef]

    def check_and_finish(self, damaged: int) -> None:
        """So many pieces are damaged; another repair makes all of it good and puts the old files aside."""
        rocksdb_backend._readers.clear()
        assert len(list(repair_plan.find_damage(self.store.open()))) == damaged
        assert repair.apply(self.store.open()).is_sound
        assert contents(self.store) == self.before
        root = self.store.config.store.path
        assert not [ref.file for ref in self.refs if (root / ref.file).exists()]
        in_background = [path for path in (root / QUARANTINE).iterdir() if path.suffix != ".json"]
        assert len(in_background) == len({ref.file for ref in self.refs})


def broken(tmp_path: Path, kind: Kind) -> Broken:
    """One flipped bit in each shard."""
    store = made(tmp_path, kind)
    before, refs = contents(store), store.live()
    for shard in (0, 1):
        flip(store, next(ref for ref in refs if ref.shard == shard))
    return Broken(store, before, refs)


def test_repair_without_a_config_is_refused(tmp_path: Path) -> None:
    """A bare store knows no outputs and no period."""
    store = made(tmp_path)
    from deduper.admin.open_store import open_store

    with pytest.raises(UsageError, match="config"):
        repair.apply(open_store(str(store.config.store.path)))


def test_a_sound_store_is_left_alone(tmp_path: Path) -> None:
    """Not even an epoch is claimed."""
    store = made(tmp_path)
    log = sorted((store.config.store.path / "log").iterdir())
    assert repair.apply(store.open()).is_sound
    assert sorted((store.config.store.path / "log").iterdir()) == log
    assert replace(repair_plan.plan(store.open()), is_applied=True).is_sound
