"""Live pieces, bytes written and bytes stored over a day of windows of 30 s after a full period of a day.

    python -m tests.bench.bench_compaction [--shards 8,1000] [--kib 100] [--windows 2880] [--first 3120]

The rules are those of the service: which pieces are merged after a window, what is dead, when dead pieces leave, and
how long their bytes stay. Pieces have no bytes, and what is chosen after a window is merged before the next one ends.
The `--first` windows fill the period, see the first part of a bucket die, and are not counted. `written` is in
multiples of the new bytes, `stored` the greatest size of the store in multiples of the bytes of its live pieces, `gone`
the longest time from the death of a piece to the end of its bytes. `--most-tasks 1` is one merge at a time. CPU is that
of choosing, a window.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from pathlib import Path

from bucket_store.log.records import LogState
from bucket_store.pieces import compaction
from bucket_store.pieces.piece import PieceRef
from deduper.window import policy
from tests.deduper.small_service import BEGIN_US, Trial
from tests.deduper.window.many_shards import HOUR_US, SETTINGS, WINDOW_US, NoBytes, made_up

GRACE_WINDOWS = policy.DELETION_GRACE_US // WINDOW_US + 1
"""Bytes leave with the first window after the grace."""
PERIOD_US = 24 * HOUR_US


@dataclass(slots=True)
class Figures:
    """What was counted."""

    written: int = 0
    rewritten: int = 0
    most: int = 0
    most_tasks: int = 0
    stored: float = 1.0
    gone_s: float = 0.0
    choosing_s: float = 0.0
    windows: int = 0
    live: tuple[int, ...] = ()

    @property
    def times_written(self) -> float:
        """In multiples of the new bytes."""
        return (self.written + self.rewritten) / self.written


def days(directory: Path, *, shards: int, length: int, first: int, windows: int) -> Figures:
    """So many windows counted after the first ones, a piece of `length` bytes in each shard and window."""
    config = Trial(SETTINGS, shards=shards).config(directory)
    pieces: dict[int, tuple[PieceRef, ...]] = dict.fromkeys(range(shards), ())
    sizes: defaultdict[int, int] = defaultdict(int)  # live bytes by bucket
    retired: deque[tuple[int, int]] = deque()  # window, bytes
    figures = Figures()
    for window in range(first + windows):
        is_counted = window >= first
        latest = BEGIN_US + window * WINDOW_US
        state = LogState(next_window=window + 1, latest_point=latest)
        for shard in pieces:
            pieces[shard] += (made_up(window, shard, length=length),)
        sizes[latest // HOUR_US] += shards * length
        state = replace(state, pieces=pieces)
        dead = policy.dead_pieces(config, state)
        if len(dead) >= policy.DELETION_BATCH * shards or policy.are_many_bytes(dead, state):
            gone = set(dead)
            for shard, of_shard in pieces.items():
                pieces[shard] = tuple(piece for piece in of_shard if piece not in gone)
            retired.append((window, sum(piece.length for piece in dead)))
            if is_counted:
                died_us = min((piece.max_bucket + 1) * HOUR_US for piece in dead) + PERIOD_US
                left_us = latest + GRACE_WINDOWS * WINDOW_US
                figures.gone_s = max(figures.gone_s, (left_us - died_us) / 1e6)
            dead = ()
        while retired and retired[0][0] + GRACE_WINDOWS <= window:
            retired.popleft()
        live_from = policy.live_from_bucket(config, state)
        for bucket in [bucket for bucket in sizes if live_from is not None and bucket < live_from]:
            del sizes[bucket]
        if is_counted:
            live = sum(sizes.values())
            extra = sum(size for _, size in retired) + sum(piece.length for piece in dead)
            figures.stored = max(figures.stored, (live + extra) / live)
            figures.written += shards * length
            figures.windows += 1
            figures.most = max(figures.most, *map(len, pieces.values()))
        began = time.process_time()
        tasks = policy.next_compactions(config, "", replace(state, pieces=pieces))
        took = time.process_time() - began
        merged = 0
        for task in tasks:
            added = NoBytes().merge(task)
            merged += added.length
            gone = set(task.pieces)
            kept = [piece for piece in pieces[added.shard] if piece not in gone]
            pieces[added.shard] = tuple(sorted([*kept, added], key=lambda piece: piece.first_window))
        retired.append((window + 1, merged))
        if is_counted:
            figures.choosing_s += took
            figures.most_tasks = max(figures.most_tasks, len(tasks))
            figures.rewritten += merged
    figures.live = tuple(map(len, pieces.values()))
    return figures


def line(shards: int, length: int, figures: Figures) -> str:
    """One line of the table."""
    cells = (
        f"{shards:,}",
        f"{length >> 10}",
        f"{sum(figures.live) / shards:.0f}",
        f"{figures.most}",
        f"{figures.times_written:.2f}",
        f"{figures.stored:.3f}",
        f"{figures.gone_s:.0f}",
        f"{figures.most_tasks}",
        f"{1e3 * figures.choosing_s / figures.windows:.1f}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", default="8,1000")
    parser.add_argument("--kib", default="100")
    parser.add_argument("--windows", type=int, default=2880)
    parser.add_argument("--first", type=int, default=3120)
    parser.add_argument("--most-tasks", type=int, default=compaction.MOST_TASKS)
    args = parser.parse_args()
    compaction.MOST_TASKS = args.most_tasks
    print("| shards | KiB a piece | live at the end | most | written | stored | gone, s | merges at once | CPU, ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    for shards in map(int, args.shards.split(",")):
        for kib in map(int, args.kib.split(",")):
            with tempfile.TemporaryDirectory() as directory:
                figures = days(Path(directory), shards=shards, length=kib << 10, first=args.first, windows=args.windows)
                print(line(shards, kib << 10, figures), flush=True)


if __name__ == "__main__":
    main()
