"""What calls to an object store cost: `python -m tests.bench.bench_objects [URL]`, of an S3 emulator without a URL.

An emulator on the same machine has no network, no replicas and no limits of rate: its times show what the client and
this code add, and no more. With a URL the objects go below it, and are removed.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from bucket_store.pieces.piece_files import PieceFiles
from bucket_store.places.open import open_place
from tests.s3_server import new_prefix, s3_server

_TIMES = 200


def _row(what: str, call: Callable[[int], object], times: int = _TIMES) -> None:
    taken = []
    for number in range(times):
        begin = time.perf_counter()
        call(number)
        taken.append(1000 * (time.perf_counter() - begin))
    p99 = statistics.quantiles(taken, n=100)[98]
    print(f"| {what} | {statistics.median(taken):.1f} | {p99:.1f} | {max(taken):.1f} |", flush=True)


def main() -> None:
    """Prints a table."""
    with ExitStack() as servers:
        url = sys.argv[1] if len(sys.argv) > 1 else new_prefix(servers.enter_context(s3_server()))
        place = open_place(url)
        pieces = PieceFiles(place)
        print(f"load {os.getloadavg()[0]:.1f}; ms\n\n| | p50 | p99 | max |\n|---|---|---|---|")
        small, large = os.urandom(1024), os.urandom(1 << 20)
        _row("new object of 1 KB, if absent", lambda number: (place / f"log/{number}").create(small))
        _row("replaced, 1 KB", lambda _: (place / "mark").replace(small))
        _row("new object of 1 MiB, if absent", lambda number: (place / f"large/{number}").create(large))
        _row("read of 1 KB", lambda number: (place / f"log/{number}").read())
        _row("range of 4 KB", lambda number: (place / f"large/{number}").read_range(500_000, 4096))
        _row("range of 1 MiB", lambda number: (place / f"large/{number}").read_range(0, 1 << 20))
        _row("look at a name that is there", lambda number: (place / f"log/{number}").exists())
        _row("look at one that is not", lambda number: (place / f"absent/{number}").exists())
        _row(f"list of {_TIMES}", lambda _: (place / "log").entries())
        _row("touch", lambda _: (place / "mark").touch(small))
        data = os.urandom(100 << 10)
        with ThreadPoolExecutor(8) as pool:

            def window(number: int) -> None:
                list(
                    pool.map(
                        lambda shard: pieces.append(shard=shard, epoch=1, name=f"{number}-{shard}", data=data), range(8)
                    )
                )

            _row("pieces of a window: 8 of 100 KB at once", window, 50)
        place.remove_tree()


if __name__ == "__main__":
    main()
