"""What can happen to an HDFS under a job, and a drill of them: one job, many faults, every port exact at the end.

    python -m tests.services.hdfs_faults [--faults 47] [--seed 1] [--directory DIR]

The job has its store and ports on a NameNode and two DataNodes, two replicas, blocks of 128 MiB. Each fault begins at a
random moment between two windows, and the next one when the job has committed a window after it. A job that ends is
started again after ten seconds, as the systemd unit does. Printed per fault: seconds to the first line of the log that
names it, seconds from its end to the next window, how the job ended, and by how much the most that a quota counts
exceeds the data in its replicas.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hdfs_native import Client

from bucket_store.places.open import open_place
from tests.crash.scene import DEADLINE_S, end
from tests.services.hdfs import Hdfs
from tests.services.hdfs_story import Story, undisturbed

_WINDOWS_A_FAULT = 12
_SHARDS = 4
_FREE_S, _AWAY_S, _LONG_S = 3.0, 20.0, 100.0
_RESTART_S = 10.0
_NAMED = re.compile(r"waiting for hdfs|[Qq]uota")


@contextmanager
def frozen_namenode(hdfs: Hdfs) -> Iterator[None]:
    """It stands still: connections stay open, nothing is answered."""
    hdfs.namenode.freeze()
    yield
    hdfs.namenode.thaw()


@contextmanager
def killed_namenode(hdfs: Hdfs) -> Iterator[None]:
    """It is killed, and started again."""
    hdfs.namenode.kill()
    yield
    hdfs.start()


@contextmanager
def frozen_datanodes(hdfs: Hdfs) -> Iterator[None]:
    """All stand still."""
    for server in hdfs.datanodes:
        server.freeze()
    yield
    hdfs.thaw()


@contextmanager
def killed_datanodes(hdfs: Hdfs) -> Iterator[None]:
    """All are killed, and started again."""
    for server in hdfs.datanodes:
        server.kill()
    yield
    hdfs.start()


@contextmanager
def frozen_datanode(hdfs: Hdfs) -> Iterator[None]:
    """One stands still."""
    hdfs.datanodes[0].freeze()
    yield
    hdfs.thaw()


@contextmanager
def killed_datanode(hdfs: Hdfs) -> Iterator[None]:
    """One is killed, and started again."""
    hdfs.datanodes[1].kill()
    yield
    hdfs.start()


@contextmanager
def safe_mode(hdfs: Hdfs) -> Iterator[None]:
    """The NameNode takes no changes."""
    hdfs.administer("-safemode", "enter")
    yield
    hdfs.administer("-safemode", "leave")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A fault, how often it is in forty-seven, and whether the job must say a word about it or may end by it."""

    name: str
    weight: int
    away_s: float = _AWAY_S
    fault: Callable[[Hdfs], contextlib.AbstractContextManager[None]] | None = None
    quota: str = ""
    is_named: bool = True


_KINDS = (
    _Kind("driver killed", 10, 0.0, is_named=False),
    _Kind("NameNode frozen 20 s", 4, fault=frozen_namenode),
    _Kind("NameNode frozen 100 s", 2, _LONG_S, frozen_namenode),
    _Kind("NameNode killed 20 s", 5, fault=killed_namenode),
    _Kind("one DataNode killed 20 s", 5, fault=killed_datanode, is_named=False),
    _Kind("one DataNode frozen 20 s", 3, fault=frozen_datanode, is_named=False),
    _Kind("all DataNodes killed 20 s", 5, fault=killed_datanodes),
    _Kind("all DataNodes frozen 20 s", 4, fault=frozen_datanodes),
    _Kind("safe mode 20 s", 4, fault=safe_mode),
    _Kind("a DataNode killed under a quota of 300 MiB more", 1, fault=killed_datanode, quota="room", is_named=False),
    _Kind("the space quota reached, a DataNode killed", 2, fault=killed_datanode, quota="space"),
    _Kind("the name quota reached, a DataNode killed", 2, fault=killed_datanode, quota="names"),
)


@dataclass
class _Row:
    """What one fault did. Seconds are None where nothing was said."""

    kind: str
    first_line_s: float | None
    next_window_s: float
    ended: list[int]
    beyond_data: int


@dataclass
class _Drill:
    """One job under all of them."""

    hdfs: Hdfs
    job: Story
    draw: random.Random
    rows: list[_Row] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    _ended: list[int] = field(default_factory=list)
    _beyond: int = 0

    def under(self, kind: _Kind) -> None:
        """One fault, to the next window after it."""
        time.sleep(self.draw.uniform(0.0, _FREE_S))
        told, self._ended, self._beyond = len(self.job.scene.output()), [], 0
        began = time.monotonic()
        first_line_s: float | None = None
        with contextlib.ExitStack() as faults:
            if kind.quota:
                faults.enter_context(self._quota(kind.quota))
            if kind.fault is None:
                assert self.job.driver is not None
                end(self.job.driver)
            else:
                faults.enter_context(kind.fault(self.hdfs))
            while time.monotonic() < began + kind.away_s:
                if first_line_s is None and _NAMED.search(self.job.scene.output()[told:]):
                    first_line_s = time.monotonic() - began
                self._start_again()
                time.sleep(0.05)
        over, before = time.monotonic(), self.job.windows()
        while self.job.windows() <= before:
            assert time.monotonic() < over + DEADLINE_S, f"{kind.name}: it hangs\n{self.job.scene.output()}"
            self._start_again()
            time.sleep(0.05)
        row = _Row(kind.name, first_line_s, time.monotonic() - over, self._ended, self._beyond)
        self.rows.append(row)
        print(f"{len(self.rows):2} {row}", flush=True)
        if first_line_s is None and kind.is_named:
            self.silent.append(kind.name)
            print(f"nothing is said about it\n{self.job.scene.output()[told:]}", flush=True)

    def watch(self, over: threading.Event) -> None:
        """How much the quota counts beyond the data, as often as the NameNode says so."""
        folder = open_place(self.job.scene.store).parent.path
        while not over.wait(0.5):
            with contextlib.suppress(Exception):  # the NameNode is away as often as not
                summary = Client(self.hdfs.url).get_content_summary(str(folder))
                self._beyond = max(self._beyond, summary.space_consumed - 2 * summary.length)

    def _start_again(self) -> None:
        if self.job.has_ended():
            assert self.job.driver is not None
            code = self.job.driver.returncode
            assert code != 0, f"the input is too short for so many faults\n{self.job.scene.output()}"
            self._ended.append(code)
            end(self.job.driver)
            time.sleep(_RESTART_S)
            self.job.launch()

    @contextmanager
    def _quota(self, kind: str) -> Iterator[None]:
        folder = open_place(self.job.scene.store).parent.path
        summary = Client(self.hdfs.url).get_content_summary(str(folder))
        if kind == "names":
            self.hdfs.administer("-setQuota", str(summary.file_count + summary.directory_count + 20), str(folder))
        else:
            room = (300 if kind == "room" else 1) << 20
            self.hdfs.administer("-setSpaceQuota", str(summary.space_consumed + room), str(folder))
        yield
        self.hdfs.administer("-clrQuota" if kind == "names" else "-clrSpaceQuota", str(folder))


def _drawn(count: int, only: str, draw: random.Random) -> list[_Kind]:
    kinds = [kind for kind in _KINDS if re.search(only, kind.name) for _ in range(kind.weight)]
    draw.shuffle(kinds)
    return [kinds[number % len(kinds)] for number in range(count)]


def _table(rows: list[_Row]) -> str:
    """A row a kind: how often, least to greatest."""
    lines = [
        "| fault | times | first line, s | next window after its end, s | the job ended with | quota beyond the data |",
        "|---|---|---|---|---|---|",
    ]
    for kind in _KINDS:
        of_kind = [row for row in rows if row.kind == kind.name]
        if of_kind:
            first = _spread([row.first_line_s for row in of_kind if row.first_line_s is not None])
            ended = Counter(code for row in of_kind for code in row.ended)
            ends = ", ".join(f"{code}: {count} x" for code, count in sorted(ended.items()))
            lines.append(
                f"| {kind.name} | {len(of_kind)} | {first} | {_spread([row.next_window_s for row in of_kind])} | "
                f"{ends or '-'} | {max(row.beyond_data for row in of_kind) >> 20} MiB |"
            )
    return "\n".join(lines)


def _spread(seconds: list[float]) -> str:
    return f"{min(seconds):.1f}, {statistics.median(seconds):.1f}, {max(seconds):.1f}" if seconds else "-"


def _run(hdfs: Hdfs, directory: Path, faults: int, only: str, seed: int) -> str:
    windows = _WINDOWS_A_FAULT * faults
    wanted = undisturbed(directory / "disk", windows)
    job = Story.on(hdfs, directory / "job", windows, {}, shards=_SHARDS)
    over = threading.Event()
    try:
        job.start()
        drill = _Drill(hdfs, job, random.Random(seed))
        threading.Thread(target=drill.watch, args=(over,), daemon=True).start()
        for kind in _drawn(faults, only, drill.draw):
            drill.under(kind)
        job.run_to_the_end()
        job.check(wanted)
        assert not drill.silent, f"nothing was said about {drill.silent}\n{_table(drill.rows)}"
        return _table(drill.rows)
    finally:
        over.set()
        job.clean_up()


def main() -> None:
    """Run the drill, and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=47)
    parser.add_argument("--only", default="", help="a pattern of names: `DataNodes frozen`")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as made:
        directory = Path(made)
        large = {"dfs.blocksize": 128 << 20}
        with Hdfs(directory / "hdfs", datanodes=2, early_close=True, settings=large) as hdfs:
            print(_run(hdfs, directory, arguments.faults, arguments.only, arguments.seed))
    print("every port is as in a job that nothing disturbed")


if __name__ == "__main__":
    main()
