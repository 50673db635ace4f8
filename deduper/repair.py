"""Damaged pieces and sources files, and the way back: rebuilt and proven, or let go of when told to.

A damaged piece stops the job with exit code 4. `plan` finds all of them and says for each what can be done; `apply`
does it. Nothing is guessed: a piece is either the bytes that its record names, or it is not put in place.

What is damaged is not only a piece but a file: a segment or database that has lost bytes is not written to again. It is
left as a whole, once there is a way for every damaged piece in it: rebuilt pieces and copies of the sound ones go into
files of a new epoch, and the old one moves to `<store>/quarantine/`, with a note beside it. The steps of `apply`:

a  claim an epoch, as a start does: from here on no older owner can commit anything
b  append rebuilt and copied pieces under new names; until a record names them they are remains of an attempt
c  write the note of every file that is to be left
d  one collation record: the new pieces take the place of the old ones
e  a deletion record for pieces that hold only dead keys, and for those that the caller named to be forgotten
f  move the files that were left into the quarantine; for forgotten pieces remove this machine's tables, which know them
g  put sources files that could be made again in place of the damaged ones, which go into the quarantine too

Broken off at any step, the store is whole, and `apply` can be run again: before d nothing has changed, after it the
rest is finished by the notes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from bucket_store import failpoints
from bucket_store.durable import LOCAL, make_directories, place_new
from bucket_store.errors import CorruptionError, StoreError
from bucket_store.heartbeat import HeartBeat
from bucket_store.log_values import CollationRecord, DeletionRecord, SourcesRef
from bucket_store.piece import PieceRef, decode_piece, piece_name
from bucket_store.sources_file import DIRECTORY as SOURCES
from bucket_store.sources_file import read_sources
from deduper.config import Config
from deduper.errors import OwnerAliveError, UsageError
from deduper.judging import dead_pieces
from deduper.open_store import OpenStore
from deduper.output_names import FinalName, file_sinks, topic_sinks
from deduper.owner_alive import own_name, owner_lives
from deduper.rebuild import WindowRebuilder
from deduper.table_places import table_settings
from deduper.units import format_time

logger = logging.getLogger(__name__)

QUARANTINE = "quarantine"
_NOTE = ".json"


class Way(StrEnum):
    """What is done with a piece."""

    REBUILD = "rebuild"
    """Made again from the outputs, the same bytes."""
    DROP = "drop"
    """All its keys are expired: it leaves the store as it would have done anyway."""
    FORGET = "forget"
    """The caller has named it: it leaves the store, and its keys with it."""
    NONE = "none"
    """Nothing can be done without a decision."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A live piece that is not what its record names. `offset` counts from the beginning of `piece.file`."""

    piece: PieceRef
    what: str
    offset: int
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class PieceRepair:
    """A damaged piece, the way back, and why this one."""

    damage: Damage
    way: Way
    why: str

    @property
    def piece(self) -> PieceRef:
        """The piece that is damaged."""
        return self.damage.piece

    @property
    def label(self) -> str:
        """How `--forget` names it."""
        return f"{self.piece.first_window}/{self.piece.shard}"


@dataclass(frozen=True, slots=True)
class SourcesRepair:
    """A window's sources file that is missing or damaged, and whether it can be made again."""

    window: int
    name: str
    error: str
    way: Way
    why: str


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What is damaged and what is, or was, done about it. `left_files` are those that move into the quarantine."""

    is_applied: bool
    pieces_read: int
    repairs: tuple[PieceRepair, ...]
    left_files: tuple[str, ...]
    copied: int
    unfinished: tuple[str, ...]
    consequence: str
    sources: tuple[SourcesRepair, ...]

    @property
    def waiting(self) -> tuple[PieceRepair, ...]:
        """Those that nothing is done for: without a way, or in one file with such a one."""
        return tuple(repair for repair in self.repairs if repair.piece.file not in self.left_files)

    @property
    def is_sound(self) -> bool:
        """Nothing is damaged, or nothing is any more."""
        if self.is_applied:
            return not self.waiting and all(item.way is Way.REBUILD for item in self.sources)
        return not self.repairs and not self.unfinished and not self.sources

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`."""
        return {
            "sound": self.is_sound,
            "applied": self.is_applied,
            "pieces": self.pieces_read,
            "damaged": [
                {**damage_json(repair), "done": self.is_applied and repair not in self.waiting}
                for repair in self.repairs
            ],
            "left_files": list(self.left_files),
            "copied_pieces": self.copied,
            "unfinished": list(self.unfinished),
            "consequence": self.consequence,
            "sources": [
                {
                    "window": item.window,
                    "file": f"{SOURCES}/{item.name}",
                    "what": item.error,
                    "way": item.way.value,
                    "why": item.why,
                    "done": self.is_applied and item.way is Way.REBUILD,
                }
                for item in self.sources
            ],
        }


def find_damage(store: OpenStore) -> Iterator[Damage]:
    """Every live piece that is missing, or not byte for byte what its record names. Reads all of them."""
    for refs in store.log.state.pieces.values():
        for piece in refs:
            damage = piece_damage(store, piece)
            if damage is not None:
                yield damage


def piece_damage(store: OpenStore, piece: PieceRef) -> Damage | None:
    """What is wrong with a piece; None when nothing is."""
    try:
        data = store.pieces.read(piece)
        header, buckets = decode_piece(data, file=piece.file, offset=piece.offset)
        for _ in buckets:
            pass
        found = header.to_ref(file=piece.file, name=piece.name, offset=piece.offset)
        if found != piece or header.store_id.hex() != store.log.manifest.store_id:
            return Damage(piece, "another piece lies there", piece.offset, repr(piece), repr(found))
    except CorruptionError as error:
        return Damage(piece, error.what, error.offset, str(error.expected), str(error.found))
    except (StoreError, OSError) as error:
        return Damage(piece, "cannot be read", piece.offset, f"{piece.length} bytes", str(error))
    return None


def plan(store: OpenStore, *, more_outputs: Sequence[Path] = (), forget: Sequence[str] = ()) -> RepairReport:
    """What is damaged and what would be done about it; changes nothing and is safe beside a running job.

    `more_outputs`: directories, besides the unique port's, in which its files are looked for. `forget`: damaged
    pieces that may be let go of when they cannot be rebuilt, as `WINDOW`, `FIRST-LAST` or `WINDOW/SHARD`.

    Raises:
        UsageError: `forget` names a piece that is not damaged.
    """
    damages = list(find_damage(store))
    pieces_read = sum(map(len, store.log.state.pieces.values()))
    return _planned(store, damages, pieces_read, more_outputs, _Forgettable(forget, damages))


def apply(
    store: OpenStore, *, more_outputs: Sequence[Path] = (), forget: Sequence[str] = (), now_us: int | None = None
) -> RepairReport:
    """Repair what can be; see the steps at the top. The report says what was done.

    Raises:
        OwnerAliveError: a job runs on the store.
        UsageError: the store was opened without its config, or `forget` names a piece that is not damaged.
        FencedError: a job has taken the store meanwhile; what was recorded before stays.
    """
    if store.config is None:
        raise UsageError("repair changes the store, and needs the job's config file for that")
    if owner_lives(store.root):
        raise OwnerAliveError(f"{store.root}: a job runs on this store; stop it, then repair")
    before = plan(store, more_outputs=more_outputs, forget=forget)
    can_mend = any(item.way is Way.REBUILD for item in before.sources)
    if not before.left_files and not before.unfinished and not can_mend:
        return replace(before, is_applied=True)
    owner = own_name()
    wall_us = max(time.time_ns() // 1000 if now_us is None else now_us, store.log.state.last_wall_us)
    epoch = store.log.claim_epoch(owner, wall_us)
    logger.info("%s: repairing as epoch %d", store.root, epoch)
    failpoints.hit("repair.claimed")
    with HeartBeat(store.root, owner):
        return _Applying(store, store.config, epoch, wall_us, more_outputs).run(before)


class _Forgettable:
    """Which pieces the caller has named to be forgotten: (first window, last window, shard or None for all)."""

    def __init__(self, named: Sequence[str], damages: Sequence[Damage]) -> None:
        self._named = [self._parsed(text) for text in named]
        for name, text in zip(self._named, named, strict=True):
            if not any(self._is(name, damage.piece) for damage in damages):
                raise UsageError(f"--forget {text}: no damaged piece is called so; only what is lost can be forgotten")

    def __contains__(self, piece: PieceRef) -> bool:
        return any(self._is(name, piece) for name in self._named)

    @staticmethod
    def _parsed(text: str) -> tuple[int, int, int | None]:
        parts = _FORGET.fullmatch(text)
        if parts is None:
            raise UsageError(f"--forget {text}: write WINDOW, FIRST-LAST, or WINDOW/SHARD")
        first = int(parts["first"])
        return first, int(parts["last"] or first), None if parts["shard"] is None else int(parts["shard"])

    @staticmethod
    def _is(name: tuple[int, int, int | None], piece: PieceRef) -> bool:
        first, last, shard = name
        return first <= piece.first_window <= last and shard in (None, piece.shard)


_FORGET = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+))?(?:/(?P<shard>\d+))?")


def _planned(
    store: OpenStore,
    damages: Sequence[Damage],
    pieces_read: int,
    more_outputs: Sequence[Path],
    forgettable: _Forgettable,
) -> RepairReport:
    rebuilders = _Rebuilders(store, more_outputs)
    dead = set() if store.config is None else set(dead_pieces(store.config, store.log.state))
    repairs = []
    for damage in sorted(damages, key=lambda damage: (damage.piece.first_window, damage.piece.shard)):
        if damage.piece in dead:
            repairs.append(PieceRepair(damage, Way.DROP, "all its keys are expired"))
            continue
        rebuilt = rebuilders.of(damage.piece).rebuild(damage.piece)
        if rebuilt.data is not None:
            repairs.append(PieceRepair(damage, Way.REBUILD, rebuilt.why))
        elif damage.piece in forgettable:
            repairs.append(PieceRepair(damage, Way.FORGET, rebuilt.why))
        else:
            repairs.append(PieceRepair(damage, Way.NONE, rebuilt.why))
    left = _files_to_leave(repairs)
    live = [ref for refs in store.log.state.pieces.values() for ref in refs]
    damaged = {repair.piece for repair in repairs}
    return RepairReport(
        is_applied=False,
        pieces_read=pieces_read,
        repairs=tuple(repairs),
        left_files=tuple(sorted(left)),
        copied=sum(ref.file in left and ref not in damaged for ref in live),
        unfinished=tuple(note.file for note in _unfinished(store, ())),
        consequence=_consequence(store, repairs),
        sources=tuple(_damaged_sources(store)),
    )


def _damaged_sources(store: OpenStore) -> Iterator[SourcesRepair]:
    for window, ref in store.log.state.sources.items():
        try:
            read_sources(store.root, window, ref)
        except (StoreError, OSError) as error:
            data, why = _made_again(store, window, ref)
            yield SourcesRepair(window, ref.name, str(error), Way.NONE if data is None else Way.REBUILD, why)


def _made_again(store: OpenStore, window: int, ref: SourcesRef) -> tuple[bytes | None, str]:
    if store.config is None:
        return None, "the store was named without its config"
    from deduper.rebuild_sources import rebuild_sources  # pyspark comes with it, which a sound store need not wait for

    return rebuild_sources(store, store.config, window, ref)


def _files_to_leave(repairs: Sequence[PieceRepair]) -> set[str]:
    """The files with damage in which no damaged piece is left open."""
    still_open = {repair.piece.file for repair in repairs if repair.way is Way.NONE}
    return {repair.piece.file for repair in repairs} - still_open


def _consequence(store: OpenStore, repairs: Sequence[PieceRepair]) -> str:
    """What it means to forget what cannot be rebuilt."""
    lost = [repair for repair in repairs if repair.way in (Way.NONE, Way.FORGET)]
    if not lost:
        return ""
    keys = sum(repair.piece.entries for repair in lost)
    ends = [repair.piece.max_expiry for repair in lost if repair.piece.max_expiry is not None]
    until = ""
    if ends and len(ends) == len(lost) and store.period is not None:
        until = f", while the latest point is below {store.scale.shown(max(ends) + store.period)}"
    return f"forgetting them: up to {keys:,} keys that were seen count as new when they come again{until}"


class _Rebuilders:
    """One rebuilder a window: shards of a window share its rows. Only the last one is kept, rows are large."""

    def __init__(self, store: OpenStore, more_outputs: Sequence[Path]) -> None:
        self._store = store
        self._files = _unique_files(store, more_outputs)
        self._last: tuple[int, WindowRebuilder] | None = None

    def of(self, piece: PieceRef) -> WindowRebuilder:
        """The rebuilder of a piece's window."""
        window = piece.first_window
        if self._last is None or self._last[0] != window:
            self._last = (
                window,
                WindowRebuilder(self._store, window, self._files.get(window, ()), self._without(window)),
            )
        return self._last[1]

    def _without(self, window: int) -> str:
        """Why there may be no file of a window's unique rows; empty when nothing is known."""
        sink = None if self._store.config is None else topic_sinks(self._store.config).get("unique")
        if sink is None:
            return ""
        return f"the unique rows of window {window} were sent to topic {sink.topic}, and topics are not read back"


def _unique_files(store: OpenStore, more_outputs: Sequence[Path]) -> dict[int, list[Path]]:
    """The unique port's files by window: published, staged and not published yet, or moved elsewhere with their names.

    Of files of one name the first counts, in that order.
    """
    if store.config is None:
        return {}
    found: defaultdict[int, dict[str, Path]] = defaultdict(dict)
    sink = file_sinks(store.config).get("unique")
    own = store.log.manifest.store_id[:8]

    def take(path: Path, name: str) -> None:
        final = FinalName.of(name)
        if final is not None and final.store == own and path.is_file():
            found[final.window].setdefault(name, path)

    if sink is not None and sink.path.is_dir():
        for path in sorted(sink.path.iterdir()):
            take(path, path.name)
    for outputs in store.log.state.outputs.values():
        for output in outputs:
            if output.port == "unique":
                take(Path(output.staged), Path(output.final).name)
    for directory in more_outputs:
        for path in sorted(directory.rglob("*")):
            take(path, path.name)
    return {window: [files[name] for name in sorted(files)] for window, files in found.items()}


@dataclass(frozen=True, slots=True)
class _Note:
    """A file that is being left: its name in the store, and the note beside its place in the quarantine."""

    file: str
    path: Path

    @property
    def target(self) -> Path:
        """Where the file goes."""
        return self.path.with_name(self.path.name.removesuffix(_NOTE))


class _Applying:
    """Steps b to f of one repair."""

    def __init__(
        self, store: OpenStore, config: Config, epoch: int, wall_us: int, more_outputs: Sequence[Path]
    ) -> None:
        self._store = store
        self._config = config
        self._epoch = epoch
        self._wall_us = wall_us
        self._rebuilders = _Rebuilders(store, more_outputs)

    def run(self, before: RepairReport) -> RepairReport:
        store = self._store
        live = {ref for refs in store.log.state.pieces.values() for ref in refs}
        left = set(before.left_files)
        # An owner that was still at work when we looked may have let go of some.
        repairs = [repair for repair in before.repairs if repair.piece.file in left and repair.piece in live]
        added: dict[PieceRef, PieceRef] = {}
        for repair in repairs:
            if repair.way is Way.REBUILD:
                rebuilt = self._rebuilders.of(repair.piece).rebuild(repair.piece)
                if rebuilt.data is None:
                    raise UsageError(f"piece {repair.piece.name}: the outputs changed meanwhile: {rebuilt.why}")
                added[repair.piece] = self._append(repair.piece, rebuilt.data)
        damaged = {repair.piece for repair in repairs}
        sound = [ref for ref in live if ref.file in left and ref not in damaged]
        for ref in sorted(sound, key=lambda ref: ref.name):
            data = store.pieces.read(ref)
            for _ in decode_piece(data, file=ref.file, offset=ref.offset)[1]:
                pass
            added[ref] = self._append(ref, data)
        notes = [self._note(file, repairs, added) for file in sorted(left)]
        failpoints.hit("repair.noted")
        if added:
            merged = tuple(sorted(added, key=lambda ref: (ref.shard, ref.first_window)))
            store.log.place(
                CollationRecord(merged=merged, added=tuple(added[ref] for ref in merged), wall_us=self._wall_us)
            )
            failpoints.hit("repair.recorded")
        leaving = tuple(repair.piece for repair in repairs if repair.way in (Way.DROP, Way.FORGET))
        if leaving:
            through = max(piece.last_window for piece in leaving)
            store.log.place(DeletionRecord(pieces=leaving, wall_us=self._wall_us, through_window=through))
            failpoints.hit("repair.forgotten")
        forgotten = [repair.piece for repair in repairs if repair.way is Way.FORGET]
        for piece in forgotten:
            logger.warning(
                "piece %s (window %d, shard %d) is forgotten: up to %d keys count as new when they come again",
                piece.name,
                piece.first_window,
                piece.shard,
                piece.entries,
            )
        if forgotten:
            self._remove_tables()
        for note in _unfinished(store, notes):
            self._move(note)
        for item in before.sources:
            if item.way is Way.REBUILD:
                self._mend_sources(item)
        return replace(before, is_applied=True, copied=len(sound))

    def _append(self, piece: PieceRef, data: bytes) -> PieceRef:
        """The same piece under a new name; the epoch of its making stays in the name, for the next repair."""
        window, made_in, attempt, shard, _ = piece.name.split("-")
        name = piece_name(window=int(window), epoch=int(made_in), attempt=int(attempt), shard=int(shard))
        location = self._store.pieces.append(shard=piece.shard, epoch=self._epoch, name=name, data=data)
        failpoints.hit("repair.appended")
        return replace(piece, file=location.file, name=name, offset=location.offset)

    def _note(self, file: str, repairs: Sequence[PieceRepair], added: dict[PieceRef, PieceRef]) -> _Note:
        """Step c for one file."""
        directory = self._store.root / QUARANTINE
        make_directories(LOCAL, directory)
        shard, _, base = file.removeprefix("pieces/").partition("/")
        note = _Note(file, directory / f"{self._epoch:06d}-{shard}-{base}{_NOTE}")
        damaged = [repair for repair in repairs if repair.piece.file == file]
        text = {
            "file": file,
            "store": self._store.log.manifest.store_id,
            "left_at": format_time(self._wall_us),
            "epoch": self._epoch,
            "damaged": [
                {**damage_json(repair), "now_in": added[repair.piece].file if repair.piece in added else None}
                for repair in damaged
            ],
            "copied": [ref.name for ref in added if ref.file == file and ref not in {r.piece for r in damaged}],
        }
        place_new(LOCAL, note.path, json.dumps(text, indent=2).encode() + b"\n")
        return note

    def _move(self, note: _Note) -> None:
        """Step f for one file: a rename, so that not a byte of it is read or changed."""
        source = self._store.root / note.file
        self._store.log.check_owner()
        with contextlib.suppress(FileNotFoundError):  # it was lost as a whole
            source.rename(note.target)
            LOCAL.fsync_dir(source.parent)
            LOCAL.fsync_dir(note.target.parent)
        failpoints.hit("repair.quarantined")

    def _mend_sources(self, item: SourcesRepair) -> None:
        """Step g for one file. Broken off in between the file is missing, which is damage of the same kind."""
        ref = self._store.log.state.sources[item.window]
        data, why = _made_again(self._store, item.window, ref)
        if data is None:
            raise UsageError(f"sources of window {item.window}: the source changed meanwhile: {why}")
        directory = self._store.root / QUARANTINE
        make_directories(LOCAL, directory)
        make_directories(LOCAL, self._store.root / SOURCES)
        path = self._store.root / SOURCES / item.name
        self._store.log.check_owner()
        with contextlib.suppress(FileNotFoundError):
            path.rename(directory / f"{self._epoch:06d}-{SOURCES}-{item.name}")
            LOCAL.fsync_dir(directory)
        failpoints.hit("repair.sources")
        place_new(LOCAL, path, data)

    def _remove_tables(self) -> None:
        """They still hold what was forgotten: whether a key is known would depend on the machine that is asked."""
        tables = table_settings(self._config)
        for directory in {tables.memory_dir, tables.disk_dir}:
            shutil.rmtree(Path(directory, self._store.log.manifest.store_id), ignore_errors=True)


def _unfinished(store: OpenStore, fresh: Iterable[_Note]) -> list[_Note]:
    """Files that a note says were left, that no record names, and that still lie in their old place; with `fresh` ones.

    Those are of a repair that was broken off after its record.
    """
    live = {ref.file for refs in store.log.state.pieces.values() for ref in refs}
    notes = {note.path: note for note in fresh}
    for path in sorted((store.root / QUARANTINE).glob(f"*{_NOTE}")):
        try:
            file = json.loads(path.read_bytes())["file"]
        except (ValueError, KeyError, TypeError, OSError):
            continue
        notes.setdefault(path, _Note(file, path))
    return [
        note
        for note in notes.values()
        if note.file not in live and (store.root / note.file).exists() and not note.target.exists()
    ]


def damage_json(repair: PieceRepair) -> dict[str, Any]:
    """Stable keys for `--json` and for the notes."""
    piece, damage = repair.piece, repair.damage
    return {
        "piece": piece.name,
        "file": piece.file,
        "window": piece.first_window,
        "last_window": piece.last_window,
        "shard": piece.shard,
        "keys": piece.entries,
        "bytes": piece.length,
        "buckets": [piece.min_bucket, piece.max_bucket],
        "what": damage.what,
        "offset": damage.offset,
        "expected": damage.expected,
        "found": damage.found,
        "way": repair.way.value,
        "why": repair.why,
    }
