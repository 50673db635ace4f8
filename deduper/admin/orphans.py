"""Orphans: files in a store and its ports that are no part of it. The listing opens nothing for writing.

Every crash leaves some, and none of it does harm: no record names it, so no reader ever reads it. `verify` counts it,
`gc` deletes it, and a start discards what lower epochs have left.

| kind | what |
|---|---|
| `piece` | a piece that no record names: of a broken, repeated or running attempt |
| `retired_piece` | a piece that a record released; its bytes are deleted after the grace |
| `database` | a database of pieces in which no piece is live, or a file of another kind in its place |
| `sources` | a sources file that no record names |
| `staging` | the folder of an attempt whose window is published, or was never committed with it |
| `intent` | an intent below the newest one: its epoch will judge nothing more |
| `temporary` | a file that was being written under a temporary name, or a probe of the storage |

Files that a running job is writing look the same, so the epoch and the window decide: `is_abandoned` is true only for
files that no present owner will use again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import PurePosixPath

from bucket_store.filesystem import is_temporary
from bucket_store.log import sources_file
from bucket_store.log.marks import INTENTS_DIRECTORY, PUBLISHED_NAME, read_intents, read_published
from bucket_store.log.records import LogState
from bucket_store.log.sources_archive import files_of
from bucket_store.pieces.store import StoredPiece
from bucket_store.places.place import Entry, Place
from bucket_store.places.probe import is_probe
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.sinks.names import STAGING, Attempt
from deduper.window.leftovers import store_folders


def inside(folder: Place) -> list[Entry]:
    """What is in a folder, by name; nothing when it is absent, or when a file has its name."""
    with suppress(NotADirectoryError):
        return folder.entries()
    return []


def bytes_of(folder: Place, entry: Entry) -> int:
    """Bytes of an entry of a folder: a file's, or those of all files below; what cannot be listed counts nothing."""
    if not entry.is_directory:
        return entry.size
    below = folder / entry.name
    with suppress(OSError):
        return sum(bytes_of(below, inner) for inner in below.entries())
    return 0


def entry_of(place: Place) -> Entry | None:
    """The entry of a file or a folder; None when it is gone."""
    try:
        return place.stat()
    except FileNotFoundError:
        return None


def is_file(place: Place) -> bool:
    """Whether a file has this name now."""
    try:
        return not place.stat().is_directory
    except (FileNotFoundError, NotADirectoryError):
        return False


class OrphanKind(StrEnum):
    """See the table at the top."""

    PIECE = "piece"
    RETIRED_PIECE = "retired_piece"
    DATABASE = "database"
    SOURCES = "sources"
    STAGING = "staging"
    INTENT = "intent"
    TEMPORARY = "temporary"


@dataclass(frozen=True, slots=True)
class Orphan(AsJson):
    """One thing that is no part of the store.

    `path` is the file or folder; of a piece the one that holds it, and `stored` says where in it: a piece is deleted
    through the backend, never by its path. `window` and `epoch` are None where they are unknown. `modified_us` is the
    time of the last writing, None when the thing is gone again. `is_abandoned`: no owner of now or later comes back to
    it; False for what a running job may be writing, and for a temporary file, of which only the age counts.
    """

    json_names = (*("kind", "path", "piece", "size_bytes", "window", "epoch", "modified_us", "is_abandoned", "why"),)

    kind: OrphanKind
    path: Place
    size_bytes: int
    why: str
    is_abandoned: bool
    window: int | None = None
    epoch: int | None = None
    modified_us: int | None = None
    stored: StoredPiece | None = None

    @property
    def piece(self) -> str | None:
        """The piece's name."""
        return None if self.stored is None else self.stored.name


def orphans(store: OpenStore) -> tuple[Orphan, ...]:
    """All orphans, sorted by kind and path. Safe beside a running job; changes nothing.

    Without the job's config (`store.config` is None) the ports are not known: what is there is left out.

    Raises:
        StoreError: a database that cannot be read at all, or a log that is damaged.
    """
    # Names first, the log after: what a commit names meanwhile is named in the log then.
    pieces = list(store.pieces.pieces())
    found = [*_sources(store.root), *_staging(store), *_intents(store), *_temporary(store)]
    state = store.log.refresh()
    kept = [orphan for orphan in found if not _is_needed(store, state, orphan)]
    kept += _pieces(store, state, pieces)
    kept += _databases(store, state, {piece.file for piece in pieces})
    judged = [_judged(orphan, state) for orphan in kept]
    return tuple(sorted(judged, key=lambda orphan: (orphan.kind, str(orphan.path), orphan.why)))


_PIECES = "pieces"
_PIECE_NAME = re.compile(r"(\d{12,})-(\d{6,})-(\d{3,})-(\d{4,})-[0-9a-f]{8}")
_DATABASE_EPOCH = re.compile(r"(\d{6,})[-.]")
_TEMPORARY_MARK = re.compile(r"\.\w+\.(\d{6,})\.\w+\.tmp")


def _judged(orphan: Orphan, state: LogState) -> Orphan:
    """With the verdict of the epoch and the window."""
    is_abandoned = orphan.is_abandoned or (
        orphan.epoch is not None
        and (
            orphan.epoch < state.epoch
            or (orphan.epoch == state.epoch and orphan.window is not None and orphan.window < state.next_window)
        )
    )
    why = orphan.why if is_abandoned else f"{orphan.why}, or of a job that is running"
    return replace(orphan, why=why, is_abandoned=is_abandoned)


def _orphan(
    kind: OrphanKind,
    folder: Place,
    entry: Entry,
    why: str,
    *,
    window: int | None = None,
    epoch: int | None = None,
    is_abandoned: bool = False,
) -> Orphan:
    size_bytes = bytes_of(folder, entry)
    return Orphan(kind, folder / entry.name, size_bytes, why, is_abandoned, window, epoch, entry.modified_us)


def _is_needed(store: OpenStore, state: LogState, orphan: Orphan) -> bool:
    """Whether a record names it after all."""
    if orphan.kind is OrphanKind.SOURCES:
        return orphan.path.name in {path.name for path in files_of(state)}
    if orphan.kind is OrphanKind.STAGING and orphan.window in state.outputs:
        mark = read_published(store.root / PUBLISHED_NAME)
        is_out = mark is not None and mark.window >= orphan.window
        folders = {PurePosixPath(output.staged).parts for output in state.outputs[orphan.window]}
        return not is_out and any(orphan.path.name in parts for parts in folders)
    return False


def _pieces(store: OpenStore, state: LogState, stored: list[StoredPiece]) -> Iterator[Orphan]:
    named = {(ref.file, ref.name) for refs in state.pieces.values() for ref in refs}
    retired = {(gone.ref.file, gone.ref.name): gone for gone in state.retired}
    files = {f"{_PIECES}/{folder.name}/{entry.name}": entry for folder, entry in _files_of_pieces(store)}
    for piece in stored:
        if (piece.file, piece.name) in named:
            continue
        tried = _PIECE_NAME.fullmatch(piece.name)
        gone = retired.get((piece.file, piece.name))
        entry = files.get(piece.file)
        yield Orphan(
            OrphanKind.PIECE if gone is None else OrphanKind.RETIRED_PIECE,
            store.root / piece.file,
            piece.length,
            "no record names it" if gone is None else f"left the store in record {gone.at_number}",
            is_abandoned=gone is not None,
            window=None if tried is None else int(tried[1]),
            epoch=piece.epoch,
            modified_us=gone.wall_us if gone is not None else entry.modified_us if entry is not None else None,
            stored=piece,
        )


def _databases(store: OpenStore, state: LogState, with_pieces: set[str]) -> Iterator[Orphan]:
    """Files and databases of pieces without a live one, and what their making or deleting left behind."""
    named = {ref.file for refs in state.pieces.values() for ref in refs}
    for folder, entry in _files_of_pieces(store):
        epoch = _DATABASE_EPOCH.match(entry.name)
        number = None if epoch is None else int(epoch[1])
        file = f"{_PIECES}/{folder.name}/{entry.name}"
        if number is not None and file not in with_pieces and file not in named:
            yield _orphan(OrphanKind.DATABASE, folder, entry, "no piece in it is live", epoch=number)
        for inner in inside(folder / entry.name) if entry.name.endswith(".rocksdb") else ():
            if inner.name.endswith(".ingest"):
                why = "a table that was not ingested"
                yield _orphan(OrphanKind.TEMPORARY, folder / entry.name, inner, why, epoch=number)


def _files_of_pieces(store: OpenStore) -> Iterator[tuple[Place, Entry]]:
    """Files and databases of pieces, each with the folder of its shard."""
    for shard in inside(store.root / _PIECES):
        folder = store.root / _PIECES / shard.name
        for entry in inside(folder):
            yield folder, entry


def _sources(root: Place) -> Iterator[Orphan]:
    for folder in (root / sources_file.DIRECTORY, root / sources_file.FOLDED_DIRECTORY):
        for entry in inside(folder):
            tried = sources_file.TRY.fullmatch(entry.name)
            if tried is not None and not is_temporary(entry.name):
                window, epoch = int(tried["window"]), int(tried["epoch"])
                yield _orphan(OrphanKind.SOURCES, folder, entry, "no record names it", window=window, epoch=epoch)


def _staging(store: OpenStore) -> Iterator[Orphan]:
    for home in store.staging_homes:
        for entry in inside(home / STAGING):
            tried = Attempt.of_folder(entry.name)
            if tried is not None:
                yield _orphan(
                    OrphanKind.STAGING,
                    home / STAGING,
                    entry,
                    "what it holds was published, or is of an attempt that no record names",
                    window=tried.window,
                    epoch=tried.epoch,
                )


def _intents(store: OpenStore) -> Iterator[Orphan]:
    """The newest intent is what the next start may repeat; those below it are spent."""
    newest = max((intent.epoch for intent in read_intents(store.root)), default=0)
    folder = store.root / INTENTS_DIRECTORY
    for entry in inside(folder):
        if entry.name.isascii() and entry.name.isdigit() and int(entry.name) < newest:
            why = f"epoch {newest} has an intent of its own"
            yield _orphan(OrphanKind.INTENT, folder, entry, why, is_abandoned=True, epoch=int(entry.name))


def _temporary(store: OpenStore) -> Iterator[Orphan]:
    root = store.root
    folders = store_folders(root)
    folders += {str(port): port for port in store.ports.values()}.values()
    for folder in folders:
        for entry in inside(folder):
            if is_temporary(entry.name) or (folder == root and is_probe(entry.name)):
                tried = sources_file.TRY.fullmatch(entry.name)
                mark = _TEMPORARY_MARK.fullmatch(entry.name)
                epoch = tried["epoch"] if tried is not None else mark[1] if mark is not None else None
                yield _orphan(
                    OrphanKind.TEMPORARY,
                    folder,
                    entry,
                    "its writing was cut short",
                    window=None if tried is None else int(tried["window"]),
                    epoch=None if epoch is None else int(epoch),
                )
