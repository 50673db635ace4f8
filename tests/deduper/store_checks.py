"""What must hold of a store's pieces and tables at any moment, looked at from outside, entry by entry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from bucket_store.lineage import history_at
from bucket_store.log.commit_log import CommitLog
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import PieceRef, decode_piece
from bucket_store.tables.generation import _read_header, table_folder
from bucket_store.tables.kernels import ordered_expiry
from bucket_store.tables.table_file import bucket_of, open_table
from deduper.window import policy
from tests.deduper.small_service import World

Entry = tuple[int | None, int | None, int | None]
"""Expiry key (as tables order it), origin, window; None where the store keeps none."""
Keys = dict[tuple[int, int], Entry]


def piece_entries(world: World, log: CommitLog, ref: PieceRef) -> dict[int, Keys]:
    """A piece's entries by bucket; every byte of it is checked on the way."""
    pieces = open_backend(world.config.store.url)
    header, buckets = decode_piece(pieces.read(ref), file=ref.file, offset=ref.offset)
    found: dict[int, Keys] = {}
    for bucket, entries in zip(header.buckets.tolist(), buckets, strict=True):
        count = len(entries.digests)
        expiry = [None] * count if entries.expiry is None else ordered_expiry(entries.expiry).tolist()
        origin = [None] * count if entries.origin is None else entries.origin.tolist()
        window = [ref.first_window] * count if entries.window is None else entries.window.tolist()
        keys = map(tuple, entries.digests.tolist())
        found[bucket] = dict(zip(keys, zip(expiry, origin, window, strict=True), strict=True))
    return found


def check_no_key_twice(world: World, log: CommitLog, points: dict[int, Any]) -> None:
    """No key is remembered twice in its scope.

    `points`: the expiry point after each window. With one scope for all that lives, a key may stand in two windows:
    then the earlier copy was dead when the later one came, or a version that dies later has taken its place.
    """
    one_scope = world.config.lookup == "all_live"
    for refs in log.state.pieces.values():
        copies: defaultdict[tuple[int, int, int], list[Entry]] = defaultdict(list)
        for ref in refs:
            for bucket, keys in piece_entries(world, log, ref).items():
                for (hi, lo), entry in keys.items():
                    copies[0 if one_scope else bucket, hi, lo].append(entry)
        for (bucket, _, _), entries in copies.items():
            assert one_scope or len(entries) == 1, f"a key twice in bucket {bucket}"
            if one_scope and world.config.keeps_versions:
                assert len({entry[0] for entry in entries}) == len(entries), (
                    "a version in place of one that dies with it"
                )
                continue
            # By their own windows: one that was merged may stand before and after a window that was not.
            for before, after in pairwise(sorted(entries, key=_window)):
                point = points[_window(after)]
                assert point is not None, "a key twice, and nothing has expired"
                assert before[0] is not None
                assert before[0] <= _ordered(world, point), "a key twice in the live period"


def _window(entry: Entry) -> int:
    """Of a piece's entry, which always has one."""
    assert entry[2] is not None
    return entry[2]


def check_tables(world: World, log: CommitLog) -> int:
    """Every resident table holds what its pieces say, and nothing else that lives; gives how many were compared."""
    tables = world.tables()
    state, layout = log.state, tables.layout
    point = None
    if layout.one_table:
        point = policy.shard_views(world.config, log.manifest, state)[0].expiry_point
    compared = 0
    for shard, generation in _generations(Path(tables.disk_dir), table_folder(log.manifest.store_id, log.root)):
        header = _read_header(generation)
        if header is None or header.is_dirty or header.boot_id != world.boot_id():
            continue
        at = header.next_window
        if history_at(header.lineage, at) != history_at(state.lineage, at):
            continue  # of windows that were lost when the store was put back
        assert at <= state.next_window, "tables hold a window that is not committed"
        live_from = policy.live_from_bucket(world.config, state)
        dead = set(policy.dead_pieces(world.config, state))
        refs = [ref for ref in state.pieces.get(shard, ()) if ref not in dead and ref.last_window < header.next_window]
        expected = _expected(world, log, refs, one_table=layout.one_table)
        for place in (tables.memory_dir, tables.disk_dir):
            for path in Path(place, generation.relative_to(tables.disk_dir)).glob("t*.table"):
                bucket = bucket_of(path.name)
                assert bucket is not None
                table = open_table(path, layout, header.nonce, bucket)
                if table is None or (not layout.one_table and live_from is not None and bucket < live_from):
                    continue
                held = _held(table)
                assert len(held) == table.keys, f"{path}: {len(held)} keys, says {table.keys}"
                if point is not None:
                    held = {key: entry for key, entry in held.items() if entry[0] > _ordered(world, point)}
                wanted = expected.get(bucket, {})
                if point is not None:
                    wanted = {key: entry for key, entry in wanted.items() if entry[0] > _ordered(world, point)}
                if not layout.has_origin:
                    wanted = {key: (entry[0], None, None) for key, entry in wanted.items()}
                if not layout.has_expiry:
                    wanted = {key: (None, *entry[1:]) for key, entry in wanted.items()}
                assert held == wanted, f"{path}: held {held}, the pieces say {wanted}"
                compared += 1
    return compared


def _generations(disk: Path, folder: str) -> Iterator[tuple[int, Path]]:
    for shard in (disk / folder).glob("*"):
        numbers = [int(path.name) for path in shard.iterdir() if path.name.isdecimal()]
        if numbers:
            yield int(shard.name), shard / str(max(numbers))


def _expected(world: World, log: CommitLog, refs: list[PieceRef], *, one_table: bool) -> dict[int, Keys]:
    expected: dict[int, Keys] = {}
    for ref in refs:
        for bucket, keys in piece_entries(world, log, ref).items():
            table = expected.setdefault(0 if one_table else bucket, {})
            for key, entry in keys.items():
                known = table.get(key)
                if known is None or known[0] is None or entry[0] > known[0]:
                    table[key] = entry
    return expected


def _held(table: Any) -> Keys:
    held: Keys = {}
    for columns in map(table.columns, range(table.slices)):
        for slot in (columns.slots != 0).any(axis=1).nonzero()[0].tolist():
            hi, lo = columns.slots[slot].tolist()
            held[hi, lo] = (
                int(columns.expiry[slot]) if table.layout.has_expiry else None,
                int(columns.origin[slot]) if table.layout.has_origin else None,
                int(columns.window[slot]) if table.layout.has_origin else None,
            )
    return held


def _ordered(world: World, point: int | float) -> int:
    import numpy as np

    if world.config.expiry_key_scale.is_float:
        return int(ordered_expiry(np.array([point], np.float64))[0])
    return int(point)
