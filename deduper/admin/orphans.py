"""Orphans: files in a store and its ports that are no part of it. The listing opens nothing for writing.

Every crash leaves some, and none of it does harm: no record names it, so no reader ever reads it. `verify` counts it,
`gc` deletes it, and a start discards what lower epochs have left.

| kind | what |
|---|---|
| `piece` | a piece that no record names: of a broken, repeated or running attempt |
| `retired_piece` | a piece that a record released; its bytes are deleted after the grace |
| `segment` | a file or database of pieces in which no piece is live |
| `sources` | a sources file that no record names |
| `staging` | the folder of an attempt whose window is published, or was never committed with it |
| `intent` | an intent below the newest one: its epoch will judge nothing more |
| `temporary` | a file that was being written under a temporary name |
| `checkpoint` | a checkpoint of Spark that was moved away, or of an earlier epoch |

Files that a running job is writing look the same, so the epoch and the window decide: `is_abandoned` is true only for
files that no present owner will use again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from bucket_store.filesystem import is_temporary
from bucket_store.log import sources_file
from bucket_store.log.marks import INTENTS_DIRECTORY, PUBLISHED_NAME, read_intents, read_published
from bucket_store.log.records import LogState
from bucket_store.log.sources_archive import files_of
from bucket_store.pieces.store import StoredPiece
from bucket_store.places.local import local_place
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.sinks.names import STAGING, Attempt, staging_homes


class OrphanKind(StrEnum):
    """See the table at the top."""

    PIECE = "piece"
    RETIRED_PIECE = "retired_piece"
    SEGMENT = "segment"
    SOURCES = "sources"
    STAGING = "staging"
    INTENT = "intent"
    TEMPORARY = "temporary"
    CHECKPOINT = "checkpoint"


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
    path: Path
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

    Without the job's config (`store.config` is None) the ports and the checkpoint are not known: what is there is
    left out.

    Raises:
        StoreError: a database that cannot be read at all, or a log that is damaged.
    """
    # Names first, the log after: what a commit names meanwhile is named in the log then.
    pieces = list(store.pieces.pieces())
    found = [*_sources(store.root), *_staging(store), *_intents(store.root), *_temporary(store), *_checkpoints(store)]
    state = store.log.refresh()
    kept = [orphan for orphan in found if not _is_needed(store, state, orphan)]
    kept += _pieces(store, state, pieces)
    kept += _segments(store, state, {piece.file for piece in pieces})
    judged = [_judged(orphan, state) for orphan in kept]
    return tuple(sorted(judged, key=lambda orphan: (orphan.kind, str(orphan.path), orphan.why)))


_PIECE_NAME = re.compile(r"(\d{12,})-(\d{6,})-(\d{3,})-(\d{4,})-[0-9a-f]{8}")
_SEGMENT_EPOCH = re.compile(r"(\d{6,})[-.]")
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
    path: Path,
    why: str,
    *,
    window: int | None = None,
    epoch: int | None = None,
    is_abandoned: bool = False,
) -> Orphan:
    return Orphan(kind, path, bytes_of(path), why, is_abandoned, window, epoch, modified_us(path))


def _is_needed(store: OpenStore, state: LogState, orphan: Orphan) -> bool:
    """Whether a record names it after all."""
    if orphan.kind is OrphanKind.SOURCES:
        return orphan.path.name in {path.name for path in files_of(state)}
    if orphan.kind is OrphanKind.STAGING and orphan.window in state.outputs:
        mark = read_published(store.log.root / PUBLISHED_NAME)
        is_out = mark is not None and mark.window >= orphan.window
        folders = {Path(output.staged).parts for output in state.outputs[orphan.window]}
        return not is_out and any(orphan.path.name in parts for parts in folders)
    return False


def _pieces(store: OpenStore, state: LogState, stored: list[StoredPiece]) -> Iterator[Orphan]:
    named = {(ref.file, ref.name) for refs in state.pieces.values() for ref in refs}
    retired = {(gone.ref.file, gone.ref.name): gone for gone in state.retired}
    for piece in stored:
        if (piece.file, piece.name) in named:
            continue
        tried = _PIECE_NAME.fullmatch(piece.name)
        gone = retired.get((piece.file, piece.name))
        path = store.root / piece.file
        yield Orphan(
            OrphanKind.PIECE if gone is None else OrphanKind.RETIRED_PIECE,
            path,
            piece.length,
            "no record names it" if gone is None else f"left the store in record {gone.at_number}",
            is_abandoned=gone is not None,
            window=None if tried is None else int(tried[1]),
            epoch=piece.epoch,
            modified_us=modified_us(path) if gone is None else gone.wall_us,
            stored=piece,
        )


def _segments(store: OpenStore, state: LogState, with_pieces: set[str]) -> Iterator[Orphan]:
    """Files and databases of pieces without a live one, and what their making or deleting left behind."""
    named = {ref.file for refs in state.pieces.values() for ref in refs}
    for path in sorted((store.root / "pieces").glob("*/*")):
        file = path.relative_to(store.root).as_posix()
        if file in with_pieces or file in named:
            continue
        epoch = _SEGMENT_EPOCH.match(path.name)
        if epoch is not None:
            yield _orphan(OrphanKind.SEGMENT, path, "no piece in it is live", epoch=int(epoch[1]))
    for path in sorted((store.root / "pieces").glob("*/*.rocksdb/*.ingest")):
        epoch = _SEGMENT_EPOCH.match(path.parent.name)
        yield _orphan(
            OrphanKind.TEMPORARY, path, "a table that was not ingested", epoch=None if epoch is None else int(epoch[1])
        )


def _sources(root: Path) -> Iterator[Orphan]:
    for path in (*_entries(root / sources_file.DIRECTORY), *_entries(root / sources_file.FOLDED_DIRECTORY)):
        tried = sources_file.TRY.fullmatch(path.name)
        if tried is not None and not is_temporary(path.name):
            yield _orphan(
                OrphanKind.SOURCES, path, "no record names it", window=int(tried["window"]), epoch=int(tried["epoch"])
            )


def _staging(store: OpenStore) -> Iterator[Orphan]:
    homes = [store.root] if store.config is None else [home.local for home in staging_homes(store.config)]
    for home in homes:
        for path in _entries(home / STAGING):
            tried = Attempt.of_folder(path.name)
            if tried is not None:
                yield _orphan(
                    OrphanKind.STAGING,
                    path,
                    "what it holds was published, or is of an attempt that no record names",
                    window=tried.window,
                    epoch=tried.epoch,
                )


def _intents(root: Path) -> Iterator[Orphan]:
    """The newest intent is what the next start may repeat; those below it are spent."""
    newest = max((intent.epoch for intent in read_intents(local_place(root))), default=0)
    for path in _entries(root / INTENTS_DIRECTORY):
        if path.name.isascii() and path.name.isdigit() and int(path.name) < newest:
            yield _orphan(
                OrphanKind.INTENT,
                path,
                f"epoch {newest} has an intent of its own",
                is_abandoned=True,
                epoch=int(path.name),
            )


def _temporary(store: OpenStore) -> Iterator[Orphan]:
    root = store.root
    directories = [root, root / "log", root / INTENTS_DIRECTORY]
    directories += [root / sources_file.DIRECTORY, root / sources_file.FOLDED_DIRECTORY]
    if store.config is not None:
        directories += sorted({sink.path for sink in store.config.file_ports.values()})
    for directory in directories:
        for path in _entries(directory):
            if is_temporary(path.name):
                tried = sources_file.TRY.fullmatch(path.name)
                mark = _TEMPORARY_MARK.fullmatch(path.name)
                epoch = tried["epoch"] if tried is not None else mark[1] if mark is not None else None
                yield _orphan(
                    OrphanKind.TEMPORARY,
                    path,
                    "its writing was cut short",
                    window=None if tried is None else int(tried["window"]),
                    epoch=None if epoch is None else int(epoch),
                )


def _checkpoints(store: OpenStore) -> Iterator[Orphan]:
    """Those that were moved away, and those of epochs below the newest that has one: each epoch has its own folder."""
    if store.config is None:
        return
    root = store.config.checkpoint_path
    inside = _entries(root)
    newest = max((int(path.name) for path in inside if path.name.isdecimal()), default=0)
    for path in [*_entries(root.parent), *inside]:
        is_aside = ".set-aside-" in path.name and (path.parent == root or path.name.startswith(f"{root.name}."))
        is_earlier = path.parent == root and path.name.isdecimal() and int(path.name) < newest
        if is_aside or is_earlier:
            yield _orphan(
                OrphanKind.CHECKPOINT,
                path,
                "a start could not trust it" if is_aside else f"epoch {newest} has a checkpoint of its own",
                is_abandoned=is_aside,
                epoch=int(path.name) if is_earlier else None,
            )


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def bytes_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; a file that is gone or cannot be read counts nothing."""
    total = 0
    with contextlib.suppress(OSError):
        if not path.is_dir():
            return path.stat().st_size
        for inner in path.rglob("*"):
            with contextlib.suppress(OSError):
                if inner.is_file():
                    total += inner.stat().st_size
    return total


def modified_us(path: Path) -> int | None:
    """When a path was last written, µs since the epoch; None when it is gone."""
    try:
        return path.stat().st_mtime_ns // 1000
    except FileNotFoundError:
        return None
