"""What lies about a store and its ports without being part of it: a listing that opens nothing for writing.

Every crash leaves some, and none of it does harm: no record names it, so no reader ever meets it. `verify` counts it,
`gc` deletes it, and a start discards what lower epochs have left.

| kind | what |
|---|---|
| `piece` | a piece that no record names: of a broken, repeated or running attempt |
| `retired_piece` | a piece that a record let go of; its bytes go when the grace is past |
| `segment` | a file or database of pieces in which no piece is live |
| `sources` | a sources file that no record names |
| `staging` | the folder of an attempt whose window is published, or was never committed with it |
| `intent` | an intent below the newest one: its epoch will judge nothing more |
| `temporary` | a file that was being written under a temporary name |
| `checkpoint` | a checkpoint of Spark's that was set aside, or of an earlier epoch |

What a job that runs is just writing looks the same, so the epoch and the window decide: `is_abandoned` is true only for
what no present owner will come back to.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from bucket_store import sources_file
from bucket_store.backend import StoredPiece
from bucket_store.durable import is_temporary
from bucket_store.log_values import LogState
from bucket_store.marks import INTENTS_DIRECTORY, PUBLISHED_NAME, read_intents, read_published
from deduper.open_store import OpenStore
from deduper.output_names import STAGING, Attempt, file_sinks, staging_homes


class LeftoverKind(StrEnum):
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
class Leftover:
    """One thing that is no part of the store.

    `path` is the file or folder; of a piece the one that holds it, and `piece` says where in it: a piece is deleted
    through the backend, never by its path. `window` and `epoch` are None where nothing tells them. `modified_us` is the
    time of the last writing, None when the thing is gone again. `is_abandoned`: no owner of now or later comes back to
    it; False for what a running job may be writing, and for a temporary file, of which only its age can tell.
    """

    kind: LeftoverKind
    path: Path
    size_bytes: int
    why: str
    is_abandoned: bool
    window: int | None = None
    epoch: int | None = None
    modified_us: int | None = None
    piece: StoredPiece | None = None

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`."""
        return {
            "kind": self.kind.value,
            "path": str(self.path),
            "piece": None if self.piece is None else self.piece.name,
            "bytes": self.size_bytes,
            "window": self.window,
            "epoch": self.epoch,
            "modified_us": self.modified_us,
            "abandoned": self.is_abandoned,
            "why": self.why,
        }


def leftovers(store: OpenStore) -> tuple[Leftover, ...]:
    """Everything that lies about, sorted by kind and path. Safe beside a running job; changes nothing.

    Without the job's config (`store.config` is None) the ports and the checkpoint are not known: what lies there is
    missing.

    Raises:
        StoreError: a database that cannot be read at all, or a log that is damaged.
    """
    # Names first, the log after: what a commit names meanwhile is named when we look.
    pieces = list(store.pieces.pieces())
    found = [*_sources(store.root), *_staging(store), *_intents(store.root), *_temporary(store), *_checkpoints(store)]
    state = store.log.refresh()
    kept = [leftover for leftover in found if not _is_needed(store, state, leftover)]
    kept += _pieces(store, state, pieces)
    kept += _segments(store, state, {piece.file for piece in pieces})
    judged = [_judged(leftover, state) for leftover in kept]
    return tuple(sorted(judged, key=lambda leftover: (leftover.kind, str(leftover.path), leftover.why)))


_PIECE_NAME = re.compile(r"(\d{12,})-(\d{6,})-(\d{3,})-(\d{4,})-[0-9a-f]{8}")
_SEGMENT_EPOCH = re.compile(r"(\d{6,})[-.]")
_TEMPORARY_SOURCES = re.compile(r"\.(\d{12,})-(\d{6,})-\d{3,}\.")
_TEMPORARY_MARK = re.compile(r"\.\w+\.(\d{6,})\.\w+\.tmp")


def _judged(leftover: Leftover, state: LogState) -> Leftover:
    """With what the epoch and the window say of it."""
    is_abandoned = leftover.is_abandoned or (
        leftover.epoch is not None
        and (
            leftover.epoch < state.epoch
            or (leftover.epoch == state.epoch and leftover.window is not None and leftover.window < state.next_window)
        )
    )
    return Leftover(
        leftover.kind,
        leftover.path,
        leftover.size_bytes,
        leftover.why if is_abandoned else f"{leftover.why}, or of a job that is running",
        is_abandoned,
        leftover.window,
        leftover.epoch,
        leftover.modified_us,
        leftover.piece,
    )


def _is_needed(store: OpenStore, state: LogState, leftover: Leftover) -> bool:
    """Whether a record names it after all."""
    if leftover.kind is LeftoverKind.SOURCES:
        return leftover.path.name in {ref.name for ref in state.sources.values()}
    if leftover.kind is LeftoverKind.STAGING and leftover.window in state.outputs:
        mark = read_published(store.root / PUBLISHED_NAME)
        is_out = mark is not None and mark.window >= leftover.window
        folders = {Path(output.staged).parts for output in state.outputs[leftover.window]}
        return not is_out and any(leftover.path.name in parts for parts in folders)
    return False


def _pieces(store: OpenStore, state: LogState, lying: list[StoredPiece]) -> Iterator[Leftover]:
    named = {(ref.file, ref.name) for refs in state.pieces.values() for ref in refs}
    retired = {(gone.ref.file, gone.ref.name): gone for gone in state.retired}
    for piece in lying:
        if (piece.file, piece.name) in named:
            continue
        tried = _PIECE_NAME.fullmatch(piece.name)
        gone = retired.get((piece.file, piece.name))
        path = store.root / piece.file
        yield Leftover(
            LeftoverKind.PIECE if gone is None else LeftoverKind.RETIRED_PIECE,
            path,
            piece.length,
            "no record names it" if gone is None else f"left the store in record {gone.at_number}",
            is_abandoned=gone is not None,
            window=None if tried is None else int(tried[1]),
            epoch=piece.epoch,
            modified_us=modified_us(path) if gone is None else gone.wall_us,
            piece=piece,
        )


def _segments(store: OpenStore, state: LogState, with_pieces: set[str]) -> Iterator[Leftover]:
    """Files and databases of pieces without a live one, and what their making or deleting left behind."""
    named = {ref.file for refs in state.pieces.values() for ref in refs}
    for path in sorted((store.root / "pieces").glob("*/*")):
        file = path.relative_to(store.root).as_posix()
        if file in with_pieces or file in named:
            continue
        epoch = _SEGMENT_EPOCH.match(path.name)
        if epoch is not None:
            yield Leftover(
                LeftoverKind.SEGMENT,
                path,
                _size(path),
                "no piece in it is live",
                is_abandoned=False,
                epoch=int(epoch[1]),
                modified_us=modified_us(path),
            )
    for path in sorted((store.root / "pieces").glob("*/*.rocksdb/*.ingest")):
        epoch = _SEGMENT_EPOCH.match(path.parent.name)
        yield Leftover(
            LeftoverKind.TEMPORARY,
            path,
            _size(path),
            "a table that was not ingested",
            is_abandoned=False,
            epoch=None if epoch is None else int(epoch[1]),
            modified_us=modified_us(path),
        )


def _sources(root: Path) -> Iterator[Leftover]:
    for path in _entries(root / sources_file.DIRECTORY):
        tried = Attempt.of_folder(path.name)
        if tried is not None:
            yield Leftover(
                LeftoverKind.SOURCES,
                path,
                _size(path),
                "no record names it",
                is_abandoned=False,
                window=tried.window,
                epoch=tried.epoch,
                modified_us=modified_us(path),
            )


def _staging(store: OpenStore) -> Iterator[Leftover]:
    homes = [store.root] if store.config is None else staging_homes(store.config)
    for home in homes:
        for path in _entries(home / STAGING):
            tried = Attempt.of_folder(path.name)
            if tried is not None:
                yield Leftover(
                    LeftoverKind.STAGING,
                    path,
                    _size(path),
                    "what it holds was published, or is of an attempt that no record names",
                    is_abandoned=False,
                    window=tried.window,
                    epoch=tried.epoch,
                    modified_us=modified_us(path),
                )


def _intents(root: Path) -> Iterator[Leftover]:
    """The newest intent is what the next start may repeat; those below it are spent."""
    newest = max((intent.epoch for intent in read_intents(root)), default=0)
    for path in _entries(root / INTENTS_DIRECTORY):
        if path.name.isascii() and path.name.isdigit() and int(path.name) < newest:
            yield Leftover(
                LeftoverKind.INTENT,
                path,
                _size(path),
                f"epoch {newest} has an intent of its own",
                is_abandoned=True,
                epoch=int(path.name),
                modified_us=modified_us(path),
            )


def _temporary(store: OpenStore) -> Iterator[Leftover]:
    root = store.root
    directories = [root, root / "log", root / sources_file.DIRECTORY, root / INTENTS_DIRECTORY]
    if store.config is not None:
        directories += sorted({sink.path for sink in file_sinks(store.config).values()})
    for directory in directories:
        for path in _entries(directory):
            if is_temporary(path.name):
                tried = _TEMPORARY_SOURCES.match(path.name)
                mark = _TEMPORARY_MARK.fullmatch(path.name)
                epoch = tried[2] if tried is not None else mark[1] if mark is not None else None
                yield Leftover(
                    LeftoverKind.TEMPORARY,
                    path,
                    _size(path),
                    "its writing was cut short",
                    is_abandoned=False,
                    window=None if tried is None else int(tried[1]),
                    epoch=None if epoch is None else int(epoch),
                    modified_us=modified_us(path),
                )


def _checkpoints(store: OpenStore) -> Iterator[Leftover]:
    """Those that were set aside, and those of epochs below the newest that has one: each epoch has its own folder."""
    if store.config is None:
        return
    root = store.config.checkpoint_path
    inside = _entries(root)
    newest = max((int(path.name) for path in inside if path.name.isdecimal()), default=0)
    for path in [*_entries(root.parent), *inside]:
        is_aside = ".set-aside-" in path.name and (path.parent == root or path.name.startswith(f"{root.name}."))
        is_earlier = path.parent == root and path.name.isdecimal() and int(path.name) < newest
        if is_aside or is_earlier:
            yield Leftover(
                LeftoverKind.CHECKPOINT,
                path,
                _size(path),
                "a start could not trust it" if is_aside else f"epoch {newest} has a checkpoint of its own",
                is_abandoned=is_aside,
                epoch=int(path.name) if is_earlier else None,
                modified_us=modified_us(path),
            )


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; what goes away meanwhile counts nothing."""
    total = 0
    with contextlib.suppress(FileNotFoundError):
        if not path.is_dir():
            return path.stat().st_size
        for inner in path.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if inner.is_file():
                    total += inner.stat().st_size
    return total


def modified_us(path: Path) -> int | None:
    """When a path was last written, µs since the epoch; None when it is gone."""
    try:
        return path.stat().st_mtime_ns // 1000
    except FileNotFoundError:
        return None
