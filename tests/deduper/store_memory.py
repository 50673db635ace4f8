"""The engine's memory in the real store: pieces in a backend, look-ups through the bucket manager's tables."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import Entries, PieceRef
from bucket_store.pieces.store import append_piece
from bucket_store.tables.generation import table_folder
from bucket_store.tables.manager import ShardTables, TableCounters, TableLayout, TableSettings
from bucket_store.tables.matches import Matches
from bucket_store.tables.view import ShardView
from deduper.config.model import Config
from deduper.core.lookups import JudgeRules
from deduper.window.table_folder import table_settings

_STORE_ID = bytes(range(16))
_ROOM = (0, 4096, 1 << 24)


def table_folders(config: Config, store_id: str) -> list[Path]:
    """The folders with the tables of a job's store alone; all jobs of a machine share the folders above them."""
    settings = table_settings(config)
    folder = table_folder(store_id, config.store.place)
    return [Path(above) / folder for above in sorted({settings.memory_dir, settings.disk_dir})]


class StoreMemory:
    """A store in `root`. Now and then, as `seed` says, all tables are lost, or there is no room for any.

    With `room` the tables have so many bytes in memory and as many on disk, and so have the copies of pieces.
    """

    def __init__(
        self, root: Path, rules: JudgeRules, seed: int, *, scheme: str = "file", room: int | None = None
    ) -> None:
        self._pieces = open_backend(f"{scheme}:{root / 'store'}")
        self._room = room
        self.counters: list[TableCounters] = []
        """Of every opening."""
        self._tables = root / "tables"
        self._layout = TableLayout(
            has_expiry=rules.keeps_expiry,
            float_expiry=rules.float_domain and rules.keeps_expiry,
            has_origin=rules.keep_first_seen,
            one_table=rules.lookup_all_live,
            fingerprints_since=0 if rules.has_fingerprint else None,
        )
        self._draw = random.Random(seed)
        self._live: dict[int, tuple[PieceRef, ...]] = {}
        self._live_from: int | None = None
        self._point: int | float | None = None
        self._next_window = 0

    def find(self, shard: int) -> Callable[[int, Any], Matches]:
        """A look-up for one shard's batch; the tables are opened again for each bucket, as a retried task would."""
        if self._draw.random() < 0.1:
            shutil.rmtree(self._tables, ignore_errors=True)
        settings = TableSettings(
            memory_dir=str(self._tables / "memory"),
            disk_dir=str(self._tables / "disk"),
            memory_bytes=self._draw.choice(_ROOM) if self._room is None else self._room,
            disk_bytes=self._draw.choice(_ROOM) if self._room is None else self._room,
            layout=self._layout,
            piece_cache_bytes=self._room or 0,
        )
        view = ShardView(
            store_id=_STORE_ID.hex(),
            folder="tables",
            lineage=((-1, b"only owner"),),
            shard=shard,
            next_window=self._next_window,
            pieces=self._live.get(shard, ()),
            live_from_bucket=self._live_from,
            expiry_point=self._point,
        )

        def look_up(bucket: int, digests: Any) -> Matches:
            with ShardTables.open(settings, self._pieces, view) as tables:
                found = tables.find(bucket, digests)
                self.counters.append(tables.counters)
                return found

        return look_up

    def commit(
        self, window: int, entries: list[Entries | None], live_from_bucket: int | None, point: int | float | None
    ) -> None:
        """Appends the window's pieces and lets go of those that are wholly dead."""
        for shard, new in enumerate(entries):
            live = self._live.get(shard, ())
            if new is not None:
                piece = append_piece(
                    self._pieces,
                    new,
                    store_id=_STORE_ID,
                    shard=shard,
                    first_window=window,
                    last_window=window,
                    epoch=1,
                    attempt=0,
                )
                live = (*live, piece)
            self._live[shard] = tuple(piece for piece in live if not _is_dead(piece, live_from_bucket, point))
        self._live_from, self._point, self._next_window = live_from_bucket, point, window + 1


def _is_dead(piece: PieceRef, live_from_bucket: int | None, point: int | float | None) -> bool:
    if point is not None:
        return piece.max_expiry is not None and piece.max_expiry <= point
    return live_from_bucket is not None and piece.max_bucket < live_from_bucket
