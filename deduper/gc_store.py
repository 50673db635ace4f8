"""`gc`: lists what no record of a store names, and deletes it when told to.

Deleted is only what (a) no record names, (b) is of an epoch below one's own, or has left the log, and (c) is past the
grace. For (b) `--delete` claims an epoch, as a start does: an owner that sleeps is fenced and can never name what is
deleted, and a job that starts in the same moment has a higher epoch and writes nothing of a lower one. A store whose
owner lives is only listed: it discards its own leftovers at its next start.

A start discards most of this too. What it leaves are set-aside checkpoints, temporary files, old records, and what
`repair` has put aside.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from bucket_store import failpoints
from bucket_store.backend import StoredPiece
from bucket_store.heartbeat import HeartBeat
from bucket_store.log_state import live_files
from deduper import spool_places
from deduper.leftovers import Leftover, LeftoverKind, leftovers, modified_us
from deduper.open_store import OpenStore
from deduper.owner_alive import own_name, owner_lives
from deduper.repair_plan import QUARANTINE
from deduper.stale_tables import stale_tables
from deduper.table_places import table_settings
from deduper.terminal import pairs, table
from deduper.units import approximate_size, format_duration

_MOST_SHOWN = 200
_LEAST_AGE_US = 60_000_000
"""Whatever the grace: a file under a temporary name is somebody's who is about to rename it."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """One thing that could go. `kept` says why it may not yet; empty when it may. `is_deleted`: it is gone.

    What lies among pieces is deleted through the backend, as `piece`; everything else by `remove`.
    """

    kind: str
    path: str
    size_bytes: int
    why: str
    kept: str
    remove: Callable[[], object] | None
    piece: StoredPiece | None = None
    is_deleted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`."""
        return {
            "kind": self.kind,
            "path": self.path,
            "bytes": self.size_bytes,
            "why": self.why,
            "kept": self.kept or None,
            "deleted": self.is_deleted,
        }


@dataclass(frozen=True, slots=True)
class GcReport:
    """What lies about, and whether it was deleted. `is_refused`: deletion was asked for beside a running job."""

    garbage: tuple[Garbage, ...]
    grace_us: int
    owner_lives: bool
    is_deleting: bool

    @property
    def is_refused(self) -> bool:
        """Nothing was deleted although it was asked for."""
        return self.is_deleting and self.owner_lives

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`."""
        return {
            "owner_lives": self.owner_lives,
            "deleted": self.is_deleting and not self.owner_lives,
            "grace": format_duration(self.grace_us),
            "bytes": sum(item.size_bytes for item in self.garbage),
            "bytes_deletable": sum(item.size_bytes for item in self.garbage if not item.kept),
            "garbage": [item.to_json() for item in self.garbage],
        }


def collect(
    store: OpenStore, *, grace_us: int, delete: bool, with_quarantine: bool = False, now_us: int | None = None
) -> GcReport:
    """List what no record names and, with `delete` and without a living owner, delete what is past the grace.

    Raises:
        FencedError: a job started meanwhile; what is left is its own business.
        StoreError: a database that cannot be listed: `repair` first.
    """
    now_us = time.time_ns() // 1000 if now_us is None else now_us
    lives = owner_lives(store.root)
    listing = _Listing(store, grace_us, now_us, with_quarantine=with_quarantine, owner_lives=lives)
    found = tuple(listing.garbage(store.log.state.epoch + 1))
    if not delete or lives or all(item.kept for item in found):
        return GcReport(found, grace_us, lives, delete)
    owner = own_name()
    epoch = store.log.claim_epoch(owner, max(now_us, store.log.state.last_wall_us))
    failpoints.hit("gc.claimed")
    with HeartBeat(store.root, owner):
        garbage = tuple(listing.garbage(epoch))
        _delete(store, [item for item in garbage if not item.kept])
    return GcReport(tuple(replace(item, is_deleted=not item.kept) for item in garbage), grace_us, lives, delete)


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
    """Goes through a store; the same for a list and for a deletion."""

    def __init__(
        self, store: OpenStore, grace_us: int, now_us: int, *, with_quarantine: bool, owner_lives: bool
    ) -> None:
        self._store = store
        self._grace_us = grace_us
        self._now_us = now_us
        self._with_quarantine = with_quarantine
        self._owner_lives = owner_lives

    def garbage(self, own_epoch: int) -> Iterator[Garbage]:
        """Everything, for an owner of this epoch."""
        for leftover in leftovers(self._store):
            yield Garbage(
                leftover.kind.value,
                self._shown(leftover),
                leftover.size_bytes,
                leftover.why.removesuffix(", or of a job that is running") if not self._owner_lives else leftover.why,
                self._kept(leftover.modified_us, leftover.epoch, own_epoch, is_name=_is_fleeting(leftover)),
                None if _is_among_pieces(leftover) else lambda path=leftover.path: _remove_path(path),  # type: ignore[misc]  # mypy cannot infer a default's type
                self._as_piece(leftover),
            )
        yield from self._records()
        yield from self._quarantined()
        yield from self._tables()
        yield from self._spools()

    def _shown(self, leftover: Leftover) -> str:
        return f"{leftover.path}{'' if leftover.piece is None else f' ({leftover.piece.name})'}"

    def _kept(self, modified_us: int | None, epoch: int | None, own_epoch: int, *, is_name: bool = False) -> str:
        if self._owner_lives:
            return "a job runs on the store"
        if epoch is not None and epoch >= own_epoch:
            return f"it is of epoch {epoch}"
        grace_us = max(self._grace_us, _LEAST_AGE_US) if is_name else self._grace_us
        if modified_us is not None and modified_us + grace_us > self._now_us:
            return f"younger than {format_duration(grace_us)}"
        return ""

    def _as_piece(self, leftover: Leftover) -> StoredPiece | None:
        if leftover.piece is not None or not _is_among_pieces(leftover):
            return leftover.piece
        # A file without a live piece goes as a whole, whatever is deleted from it.
        file = leftover.path.relative_to(self._store.root).as_posix()
        return StoredPiece(file, "", 0, leftover.epoch or 0, -1, 0)

    def _records(self) -> Iterator[Garbage]:
        """Records below a snapshot that is past the grace: nobody starts to read there any more."""
        log = self._store.log
        folded = log.folded(now_us=self._now_us, grace_us=self._grace_us)
        if folded:
            size = sum(_size(path) for path in folded)
            yield Garbage(
                "records",
                f"{folded[0].parent} ({folded[0].name} to {folded[-1].name})",
                size,
                f"{len(folded):,} records that a snapshot stands for",
                self._kept(None, None, 0),
                self._delete_folded,
            )

    def _delete_folded(self) -> None:
        self._store.log.delete_folded(now_us=self._now_us, grace_us=self._grace_us)

    def _quarantined(self) -> Iterator[Garbage]:
        for path in sorted((self._store.root / QUARANTINE).glob("*")):
            kept = self._kept(modified_us(path), None, 0) if self._with_quarantine else "only with --quarantine"
            yield Garbage(
                QUARANTINE,
                str(path),
                _size(path),
                "damaged, put aside by repair",
                kept,
                lambda path=path: _remove_path(path),  # type: ignore[misc]  # as above
            )

    def _tables(self) -> Iterator[Garbage]:
        if self._store.config is None:
            return
        for tables in stale_tables(self._store.config, self._now_us):
            is_own = tables.store_id == self._store.log.manifest.store_id
            yield Garbage(
                "tables",
                ", ".join(str(path) for path in tables.paths if path.exists()),
                sum(_size(path) for path in tables.paths),
                f"{tables.why}{'' if is_own else f', of store {tables.store_id[:8]}'}",
                self._kept(None, None, 0),
                lambda tables=tables: tables.remove(),  # type: ignore[misc]  # as above
            )

    def _spools(self) -> Iterator[Garbage]:
        """What windows that never ended have set aside on this machine; the next start of any job takes it."""
        if self._store.config is None:
            return
        settings = table_settings(self._store.config)
        for folder in spool_places.abandoned(*spool_places.homes(settings.memory_dir, settings.disk_dir)):
            yield Garbage(
                "spool",
                str(folder),
                _size(folder),
                "a window's records, set aside by a process that died",
                self._kept(None, None, 0),
                lambda folder=folder: spool_places.remove_abandoned(folder),  # type: ignore[misc]  # as above
            )


def _is_among_pieces(leftover: Leftover) -> bool:
    return leftover.piece is not None or leftover.kind is LeftoverKind.SEGMENT


def _is_fleeting(leftover: Leftover) -> bool:
    return leftover.kind is LeftoverKind.TEMPORARY


def _remove_path(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        if not path.is_dir():
            return path.stat().st_size
        return sum(inner.stat().st_size for inner in path.rglob("*") if inner.is_file())
    except OSError:
        return 0


def render(report: GcReport) -> list[RenderableType]:
    """The list and its sum, and what to do next."""
    answers: list[RenderableType] = []
    shown = report.garbage[:_MOST_SHOWN]
    if shown:
        rows = [(item.kind, approximate_size(item.size_bytes), item.path, item.why, _fate(item)) for item in shown]
        answers.append(table(("kind", "size", "where", "why", ""), rows))
    going = [item for item in report.garbage if not item.kept]
    total = sum(item.size_bytes for item in report.garbage)
    answers.append(
        pairs(
            [
                ("lying about", f"{len(report.garbage):,} things, {approximate_size(total)}"),
                ("shown", f"the first {_MOST_SHOWN:,}" if len(report.garbage) > _MOST_SHOWN else None),
                ("verdict", _verdict(report, going)),
            ]
        )
    )
    return answers


def _fate(item: Garbage) -> str:
    if item.is_deleted:
        return "deleted"
    return f"kept: {item.kept}" if item.kept else "can be deleted"


def _verdict(report: GcReport, going: list[Garbage]) -> Text:
    size = approximate_size(sum(item.size_bytes for item in going))
    if report.owner_lives:
        refused = "; nothing was deleted" if report.is_deleting else ""
        return Text(f"a job runs on this store: it discards its own leftovers at its next start{refused}", "yellow")
    if report.is_deleting and going:
        return Text(f"{len(going):,} deleted, {size}", "green")
    if not going:
        return Text(f"nothing to delete (grace {format_duration(report.grace_us)})", "green")
    return Text(f"{len(going):,} can be deleted, {size}: repeat with --delete", "yellow")
