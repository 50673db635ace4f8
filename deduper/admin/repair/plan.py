"""Finds the damage of a store, and the repair for each piece and sources file. Changes nothing.

Nothing is guessed: only the bytes that a record names are put in place, by `apply`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from bucket_store.errors import CorruptionError, StoreError
from bucket_store.log.records import SourcesRef
from bucket_store.log.sources_file import read_sources
from bucket_store.pieces.piece import PieceRef, decode_piece
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.admin.open_store import OpenStore
from deduper.admin.repair.rebuild import WindowRebuilder
from deduper.admin.repair.report import Damage, PieceRepair, RepairReport, SourcesRepair, Way
from deduper.admin.storage import inside, is_file
from deduper.errors import UsageError
from deduper.sinks.names import FinalName
from deduper.window.policy import dead_pieces

QUARANTINE = "quarantine"
NOTE = ".json"


def find_damage(store: OpenStore) -> Iterator[Damage]:
    """Every live piece that is missing, or not byte for byte what its record names. Reads all of them."""
    for refs in store.log.state.pieces.values():
        for piece in refs:
            damage = piece_damage(store, piece)
            if damage is not None:
                yield damage


def piece_damage(store: OpenStore, piece: PieceRef) -> Damage | None:
    """The damage of a piece; None when it is sound."""
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


def plan(store: OpenStore, *, more_outputs: Sequence[Place] = (), forget: Sequence[str] = ()) -> RepairReport:
    """The damage and its repair; changes nothing and is safe beside a running job.

    `more_outputs`: directories, besides the unique port's, in which its files are searched. `forget`: damaged
    pieces that may be deleted when they cannot be rebuilt, as `WINDOW`, `FIRST-LAST` or `WINDOW/SHARD`.

    Raises:
        UsageError: `forget` names a piece that is not damaged.
    """
    damages = list(find_damage(store))
    pieces_read = sum(map(len, store.log.state.pieces.values()))
    return _planned(store, damages, pieces_read, more_outputs, _Forgettable(forget, damages))


@dataclass(frozen=True, slots=True)
class Note:
    """A file that is being left: its name in the store, and the note beside its place in the quarantine."""

    file: str
    path: Place

    @property
    def target(self) -> Place:
        """The new place of the file."""
        return self.path.parent / self.path.name.removesuffix(NOTE)


def unfinished(store: OpenStore, fresh: Iterable[Note]) -> list[Note]:
    """Files that a note says were left, that no record names, and that are still in their old place; with `fresh` ones.

    Those are of a repair that was broken off after its record.
    """
    live = {ref.file for refs in store.log.state.pieces.values() for ref in refs}
    notes = {note.path: note for note in fresh}
    folder = store.root / QUARANTINE
    for path in (folder / entry.name for entry in inside(folder) if entry.name.endswith(NOTE)):
        try:
            file = json.loads(path.read())["file"]
        except (ValueError, KeyError, TypeError, OSError):
            continue
        notes.setdefault(path, Note(file, path))
    return [note for note in notes.values() if note.file not in live and (store.root / note.file).exists()]


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
    more_outputs: Sequence[Place],
    forgettable: _Forgettable,
) -> RepairReport:
    rebuilders = Rebuilders(store, more_outputs)
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
        unfinished=tuple(note.file for note in unfinished(store, ())),
        consequence=_consequence(store, repairs),
        sources=tuple(_damaged_sources(store)),
    )


def _damaged_sources(store: OpenStore) -> Iterator[SourcesRepair]:
    for window, ref in store.log.state.sources.items():
        if ref.inline:
            continue  # the log holds them, under the checksums of its records
        try:
            read_sources(store.root, window, ref)
        except (StoreError, OSError) as error:
            if store.log.refresh().sources.get(window) != ref:
                continue  # forgotten meanwhile
            data, why = rebuilt_sources(store, window, ref)
            yield SourcesRepair(window, ref.name, str(error), Way.NONE if data is None else Way.REBUILD, why)


def rebuilt_sources(store: OpenStore, window: int, ref: SourcesRef) -> tuple[bytes | None, str]:
    if store.config is None:
        return None, "the store was named without its config"
    from deduper.admin.repair.rebuild_sources import (
        rebuild_sources,  # pyspark comes with it, which a sound store need not wait for
    )

    return rebuild_sources(store, store.config, window, ref)


def _files_to_leave(repairs: Sequence[PieceRepair]) -> set[str]:
    """The files with damage in which no damaged piece is left open."""
    still_open = {repair.piece.file for repair in repairs if repair.way is Way.NONE}
    return {repair.piece.file for repair in repairs} - still_open


def _consequence(store: OpenStore, repairs: Sequence[PieceRepair]) -> str:
    """The consequence of forgetting the pieces that cannot be rebuilt."""
    lost = [repair for repair in repairs if repair.way in (Way.NONE, Way.FORGET)]
    if not lost:
        return ""
    keys = sum(repair.piece.entries for repair in lost)
    ends = [repair.piece.max_expiry for repair in lost if repair.piece.max_expiry is not None]
    until = ""
    if ends and len(ends) == len(lost) and store.period is not None:
        until = f", while the latest point is below {store.scale.shown(max(ends) + store.period)}"
    return f"forgetting them: up to {keys:,} keys that were seen count as new when they come again{until}"


class Rebuilders:
    """One rebuilder a window: shards of a window share its rows. Only the last one is kept, rows are large."""

    def __init__(self, store: OpenStore, more_outputs: Sequence[Place]) -> None:
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
        sink = None if self._store.config is None else self._store.config.topic_ports.get("unique")
        if sink is None:
            return ""
        return f"the unique rows of window {window} were sent to topic {sink.topic}, and topics are not read back"


def _unique_files(store: OpenStore, more_outputs: Sequence[Place]) -> dict[int, list[Place]]:
    """The unique port's files by window: published, staged and not published yet, or moved elsewhere with their names.

    Of files of one name the first counts, in that order.
    """
    if store.config is None:
        return {}
    found: defaultdict[int, dict[str, Place]] = defaultdict(dict)
    own = store.log.manifest.store_id[:8]

    def take(file: Place, name: str) -> None:
        final = FinalName.of(name)
        if final is not None and final.store == own:
            found[final.window].setdefault(name, file)

    for folder in (port for name, port in store.ports.items() if name == "unique"):
        for entry in inside(folder):
            if not entry.is_directory:
                take(folder / entry.name, entry.name)
    for outputs in store.log.state.outputs.values():
        for output in outputs:
            if output.port == "unique" and is_file(staged := open_place(output.staged)):
                take(staged, PurePosixPath(output.final).name)
    for elsewhere in more_outputs:
        for file in sorted(elsewhere.walk(), key=str):
            take(file, file.name)
    return {window: [files[name] for name in sorted(files)] for window, files in found.items()}
