"""Live pieces and bytes written over a day of windows of 30 s, by shards and size of a window's pieces.

    python -m tests.bench.bench_compaction [--shards 8,1000] [--kib 100] [--windows 2880] [--most-tasks 64]

The rules are those of the service: which pieces are merged after a window, what is dead, when dead pieces leave. Pieces
have no bytes, and what is chosen after a window is merged before the next one ends.
`written` is in multiples of the new bytes. `--most-tasks 1` is one merge at a time. CPU is that of choosing, a window.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bucket_store.log.records import LogState
from bucket_store.pieces import compaction
from bucket_store.pieces.piece import PieceRef
from deduper.window import policy
from tests.deduper.small_service import BEGIN_US, Trial
from tests.deduper.window.many_shards import SETTINGS, WINDOW_US, NoBytes, made_up


def measure(directory: Path, shards: int, length: int, windows: int) -> str:
    """One line of the table."""
    config = Trial(SETTINGS, shards=shards).config(directory)
    pieces: dict[int, tuple[PieceRef, ...]] = dict.fromkeys(range(shards), ())
    written = rewritten = most = most_tasks = 0
    seconds = 0.0
    for window in range(windows):
        state = LogState(next_window=window + 1, latest_point=BEGIN_US + window * WINDOW_US)
        for shard in pieces:
            pieces[shard] += (made_up(window, shard, length=length),)
        written += shards * length
        most = max(most, *map(len, pieces.values()))
        state = replace(state, pieces=pieces)
        dead = policy.dead_pieces(config, state)
        if len(dead) >= policy.DELETION_BATCH * shards:
            gone = set(dead)
            for shard, of_shard in pieces.items():
                pieces[shard] = tuple(piece for piece in of_shard if piece not in gone)
        began = time.process_time()
        tasks = policy.next_compactions(config, "", state)
        seconds += time.process_time() - began
        most_tasks = max(most_tasks, len(tasks))
        for task, added in zip(tasks, NoBytes().merge(tasks), strict=True):
            assert added is not None
            rewritten += added.length
            gone = set(task.pieces)
            kept = [piece for piece in pieces[added.shard] if piece not in gone]
            pieces[added.shard] = tuple(sorted([*kept, added], key=lambda piece: piece.first_window))
    live = [len(of_shard) for of_shard in pieces.values()]
    figures = (
        f"{length >> 10}",
        f"{sum(live) / shards:.0f}",
        f"{max(live)}",
        f"{most}",
        f"{(written + rewritten) / written:.2f}",
        f"{most_tasks}",
        f"{1e3 * seconds / windows:.1f}",
    )
    return "| " + " | ".join((str(shards), *figures)) + " |"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", default="8,1000")
    parser.add_argument("--kib", default="100")
    parser.add_argument("--windows", type=int, default=2880)
    parser.add_argument("--most-tasks", type=int, default=compaction.MOST_TASKS)
    args = parser.parse_args()
    compaction.MOST_TASKS = args.most_tasks
    print("| shards | KiB a piece | live, mean | most | most ever | written | merges at once | CPU, ms |")
    print("|---|---|---|---|---|---|---|---|")
    for shards in map(int, args.shards.split(",")):
        for kib in map(int, args.kib.split(",")):
            with tempfile.TemporaryDirectory() as directory:
                print(measure(Path(directory), shards, kib << 10, args.windows), flush=True)


if __name__ == "__main__":
    main()
