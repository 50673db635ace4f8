"""`gc`: lists the files that no record of a store names, and deletes them on request.

A file is deleted only if (a) no record names it, (b) its epoch is below the own one, or it has left the log, and (c)
its grace is over. For (b) `--delete` claims an epoch, as a start does: a sleeping owner is fenced and can never name a
deleted file, and a job that starts in the same moment has a higher epoch and writes nothing of a lower one. A store
whose owner lives is only listed: the owner discards its own orphans at its next start.

A start discards most of this too. It leaves temporary files and old records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bucket_store import failpoints
from bucket_store.log.commit_log import DIRECTORY as LOG
from bucket_store.log.copies import warn_of_original
from bucket_store.log.heartbeat import FILE_NAME as HEARTBEAT
from bucket_store.log.state import live_files
from bucket_store.log.wall_clock import is_far_ahead
from bucket_store.pieces.store import StoredPiece
from bucket_store.places.local import local_place
from bucket_store.places.place import Place
from deduper.admin.open_store import OpenStore
from deduper.admin.orphans import Orphan, OrphanKind, bytes_of, entry_of, inside, orphans
from deduper.as_json import AsJson
from deduper.units import counted, format_duration
from deduper.window import exchange_folder
from deduper.window.owner_alive import own_name, owner_lives, owning
from deduper.window.present_clock import present_wall_us
from deduper.window.stale_tables import stale_tables
from deduper.window.table_folder import table_settings

_LEAST_AGE_US = 60_000_000
"""The least grace of a file under a temporary name: its writer is about to rename it."""


@dataclass(frozen=True, slots=True)
class Garbage(AsJson):
    """One orphan. `kept` says why it may not be deleted yet; None when it may. `is_deleted`: it is gone.

    Files of pieces are deleted through the backend, as `piece`; all others by `remove`.
    """

    json_names = ("kind", "path", "size_bytes", "why", "kept", "is_deleted")

    kind: str
    path: str
    size_bytes: int
    why: str
    kept: str | None
    remove: Callable[[], object] | None
    piece: StoredPiece | None = None
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class GcReport(AsJson):
    """The orphans, and whether they were deleted. `is_refused`: deletion was requested beside a running job.

    `unknown`: what may be orphaned and cannot be seen from this machine.
    """

    json_names = ("owner_lives", "is_deleted", "grace", "size_bytes", "bytes_deletable", "garbage", "unknown")

    garbage: tuple[Garbage, ...]
    grace_us: int
    owner_lives: bool
    is_deleting: bool
    unknown: tuple[str, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Deletion was requested and refused."""
        return self.is_deleting and self.owner_lives

    @property
    def is_deleted(self) -> bool:
        """Deletion was requested and done."""
        return self.is_deleting and not self.owner_lives

    @property
    def grace(self) -> str:
        """The grace as people write it."""
        return format_duration(self.grace_us)

    @property
    def size_bytes(self) -> int:
        """Bytes of everything listed."""
        return sum(item.size_bytes for item in self.garbage)

    @property
    def bytes_deletable(self) -> int:
        """Bytes of everything that may go now."""
        return sum(item.size_bytes for item in self.garbage if not item.kept)


def collect(store: OpenStore, *, grace_us: int, delete: bool, now_us: int | None = None) -> GcReport:
    """List files that no record names and, with `delete` and without a living owner, delete those whose grace is over.

    Raises:
        FencedError: a job started meanwhile; the rest is left to it.
        StoreError: a database cannot be listed.
    """
    now_us = time.time_ns() // 1000 if now_us is None else now_us
    lives = owner_lives(store.root)
    unknown = () if store.root.names.scheme == "file" else ("tables and exchange files on other machines",)
    listing = _Listing(store, grace_us, now_us, owner_lives=lives)
    found = tuple(listing.garbage(store.log.state.epoch + 1))
    if not delete or lives or all(item.kept for item in found):
        return GcReport(found, grace_us, lives, delete, unknown)
    owner = own_name()
    warn_of_original(store.log)
    epoch = store.log.claim_epoch(owner, present_wall_us(store.log, now_us))
    failpoints.hit("gc.claimed")
    with owning(store.root, owner, epoch):
        listing.ahead_us = _ahead_us(store.root)
        garbage = tuple(listing.garbage(epoch))
        _delete(store, [item for item in garbage if not item.kept])
    deleted = tuple(replace(item, is_deleted=not item.kept) for item in garbage)
    return GcReport(deleted, grace_us, lives, delete, unknown)


def _ahead_us(root: Place) -> int:
    """How far the clock of the store's files is ahead of this machine's, by a beat that was just written."""
    beat = entry_of(root / HEARTBEAT)
    return 0 if beat is None or root.names.scheme == "file" else beat.modified_us - time.time_ns() // 1000


def _delete(store: OpenStore, going: Sequence[Garbage]) -> None:
    store.log.check_owner()
    # In one call: every file of pieces is opened once.
    store.pieces.delete([item.piece for item in going if item.piece is not None], keep=live_files(store.log.state))
    failpoints.hit("gc.pieces")
    for item in going:
        if item.remove is not None:
            store.log.check_owner()
            item.remove()
            failpoints.hit("gc.deleted")


class _Listing:
    """Lists the garbage of a store, for a list and for a deletion.

    `ahead_us`: by how much the times of the store's files are ahead of `now_us`, as far as it is known.
    """

    ahead_us = 0

    def __init__(self, store: OpenStore, grace_us: int, now_us: int, *, owner_lives: bool) -> None:
        self._store = store
        self._grace_us = grace_us
        self._now_us = now_us
        self._owner_lives = owner_lives

    def garbage(self, own_epoch: int) -> Iterator[Garbage]:
        """Everything, for an owner of this epoch."""
        for orphan in orphans(self._store):
            yield Garbage(
                orphan.kind.value,
                self._shown(orphan),
                orphan.size_bytes,
                orphan.why.removesuffix(", or of a job that is running") if not self._owner_lives else orphan.why,
                self._kept(orphan.modified_us, orphan.epoch, own_epoch, is_name=_is_fleeting(orphan)),
                None if _is_among_pieces(orphan) else lambda place=orphan.path: _remove(place),  # type: ignore[misc]  # mypy cannot infer a default's type
                self._as_piece(orphan),
            )
        yield from self._records()
        yield from self._tables()
        yield from self._exchange_folders()

    def _shown(self, orphan: Orphan) -> str:
        return f"{orphan.path}{'' if orphan.piece is None else f' ({orphan.piece})'}"

    def _kept(self, modified_us: int | None, epoch: int | None, own_epoch: int, *, is_name: bool = False) -> str | None:
        if self._owner_lives:
            return "a job runs on the store"
        if epoch is not None and epoch >= own_epoch:
            return f"it is of epoch {epoch}"
        grace_us = max(self._grace_us, _LEAST_AGE_US) if is_name else self._grace_us
        # A time far ahead is that of a wrong clock, and its grace would never end.
        now_us = self._now_us + self.ahead_us
        if modified_us is None or is_far_ahead(modified_us, now_us):
            return None
        return f"younger than {format_duration(grace_us)}" if modified_us + grace_us > now_us else None

    def _as_piece(self, orphan: Orphan) -> StoredPiece | None:
        if orphan.stored is not None or not _is_among_pieces(orphan):
            return orphan.stored
        # A file without a live piece is deleted as a whole.
        file = str(orphan.path.path.relative_to(self._store.root.path))
        return StoredPiece(file, "", 0, orphan.epoch or 0, -1, 0)

    def _records(self) -> Iterator[Garbage]:
        """Records below a snapshot whose grace is over: no reader starts there any more."""
        log = self._store.log
        folded = log.folded(grace_us=self._grace_us)
        if folded:
            sizes = {entry.name: entry.size for entry in inside(self._store.root / LOG)}
            size = sum(sizes.get(path.name, 0) for path in folded)
            yield Garbage(
                "records",
                f"{folded[0].parent} ({folded[0].name} to {folded[-1].name})",
                size,
                f"{counted(len(folded), 'record')} that a snapshot stands for",
                self._kept(None, None, 0),
                self._delete_folded,
            )

    def _delete_folded(self) -> None:
        self._store.log.delete_folded(grace_us=self._grace_us)

    def _tables(self) -> Iterator[Garbage]:
        if self._store.config is None:
            return
        for tables in stale_tables(self._store.config, self._now_us):
            is_own = tables.store_id == self._store.log.manifest.store_id
            yield Garbage(
                "tables",
                ", ".join(str(path) for path in tables.paths if path.exists()),
                sum(map(_bytes_here, tables.paths)),
                f"{tables.why}{'' if is_own else f', of store {tables.store_id[:8]}'}",
                self._kept(None, None, 0),
                lambda tables=tables: tables.remove(),  # type: ignore[misc]  # as above
            )

    def _exchange_folders(self) -> Iterator[Garbage]:
        """Exchange files of unfinished windows on this machine; the next start of any job takes them."""
        if self._store.config is None:
            return
        settings = table_settings(self._store.config)
        for folder in exchange_folder.abandoned(*exchange_folder.homes(settings.memory_dir, settings.disk_dir)):
            yield Garbage(
                "spool",
                str(folder),
                _bytes_here(folder),
                "exchange files of a window whose process died",
                self._kept(None, None, 0),
                lambda folder=folder: exchange_folder.remove_abandoned(folder),  # type: ignore[misc]  # as above
            )


def _is_among_pieces(orphan: Orphan) -> bool:
    return orphan.piece is not None or orphan.kind is OrphanKind.DATABASE


def _is_fleeting(orphan: Orphan) -> bool:
    return orphan.kind is OrphanKind.TEMPORARY


def _remove(place: Place) -> None:
    entry = entry_of(place)
    if entry is None or not entry.is_directory:
        place.remove()
        return
    with suppress(OSError):  # what is left is listed again
        place.remove_tree()


def _bytes_here(folder: Path) -> int:
    """Bytes of a folder of this machine."""
    place = local_place(folder)
    entry = entry_of(place)
    return 0 if entry is None else bytes_of(place.parent, entry)
