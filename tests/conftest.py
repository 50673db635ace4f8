"""Which tests run, how they are divided between processes (`-n 2`), and the last lines of one that killed something."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.crash import ledger
from tests.java import start_sessions_soon
from tests.s3_server import s3_server

if TYPE_CHECKING:
    from tests.services.redis_server import RedisServer

_START_PROCESSES = ("tests/spark/", "tests/services/", "tests/crash/")
_ON_HDFS = "tests/services/test_hdfs_"
_NOT_SLOW = " and not slow"
_LEDGER = "ledger"
_HEAVY = {"spark": 1, "services": 1, "faults": 1, "crash": 2}
"""Marks of tests that start processes; a story of kills takes minutes, so it is drawn half as often."""
_SHARE, _SEED, _ALL = "TESTS_SHARE", "TESTS_SEED", "CRASH_ALL"
_told: list[str] = []

# An example that takes longer than 0.2 s is a failure by default, and on a busy machine any of them may. A run that has
# chosen its own profile (mutants have one) keeps it.
if hypothesis.settings.get_current_profile_name() == "default":
    hypothesis.settings.register_profile(
        "busy machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("busy machine")


class _Divided(LoadScopeScheduling):  # type: ignore[misc]
    """What starts a JVM or a service runs folder by folder in one process, as it shares sessions and brokers.

    What needs HDFS shares no server with the other services, so it may run beside them. All else fills what is left.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_ON_HDFS):
            return "hdfs"
        return next((folder for folder in _START_PROCESSES if nodeid.startswith(folder)), nodeid)


@pytest.fixture(scope="session")
def s3_bucket() -> Iterator[str]:
    """The URL of a bucket of an S3 emulator. Tests that ask for it are marked `services`."""
    with s3_server() as bucket:
        yield bucket


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that persists nothing. Tests that ask for it are marked `services`."""
    from tests.services.redis_server import RedisServer  # its client need not be installed for others

    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """In place of xdist's own; its `loadgroup` goes by a suffix of test ids, which pytest 9 does not keep."""
    return _Divided(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """The slow ones run too where files or folders are named without a selection of markers."""
    start_sessions_soon()
    # Of the first process, so that those it starts draw the same.
    os.environ.setdefault(_SEED, str(random.randrange(10_000)))
    is_named = config.args_source is pytest.Config.ArgsSource.ARGS and not hasattr(config, "workerinput")
    if is_named and config.option.markexpr in config.getini("addopts"):
        config.option.markexpr = config.option.markexpr.removesuffix(_NOT_SLOW)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In one process the stories of kills come last; of several processes, one begins them before the short tests.

    Of a test marked `turns(n)`, n variants are taken, as TESTS_SEED draws them; all if they are named, or with
    CRASH_ALL. With TESTS_SHARE=n, one in n of the tests that start processes is taken; of those that kill them, one in
    2n.
    """
    if not os.environ.get(_ALL):
        _take_turns(config, items)
    share = int(os.environ.get(_SHARE, "1"))
    if share > 1:
        draw = random.Random(os.environ.get(_SEED))
        left = {item for item in items if draw.random() >= 1 / _one_in(share, item)}
        config.hook.pytest_deselected(items=sorted(left, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in left]
    is_last = not hasattr(config, "workerinput")
    items.sort(key=lambda item: (item.get_closest_marker("crash") is not None) is is_last)


def _take_turns(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the variants whose turn it is not."""
    variants: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("turns")
        if mark is not None and not any("[" in argument for argument in config.args):
            variants.setdefault((item.nodeid.partition("[")[0], mark.args[0]), []).append(item)
    left: set[pytest.Item] = set()
    for (function, taken), of_one in variants.items():
        draw = random.Random(f"{function} {os.environ[_SEED]}")
        left.update(draw.sample(of_one, max(0, len(of_one) - taken)))
    config.hook.pytest_deselected(items=sorted(left, key=lambda item: item.nodeid))
    items[:] = [item for item in items if item not in left]


def _one_in(share: int, item: pytest.Item) -> int:
    """Of how many tests like this one, one is taken."""
    return max((share * weight for mark, weight in _HEAVY.items() if item.get_closest_marker(mark)), default=1)


def pytest_collection_finish() -> None:
    """The tests themselves stay to the end: no collection of garbage needs to look at their thousands."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The process that has killed says so to the one that prints."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_LEDGER] = ledger.summary()


def pytest_testnodedown(node: Any) -> None:
    """What the process that has killed said; one that died before its end said nothing."""
    _told.extend(getattr(node, "workeroutput", {}).get(_LEDGER, ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Kills by victim, the seed that repeats them, the seconds of recovery; the tests that a slow machine left out."""
    terminalreporter.write_line(f"{_SEED}={os.environ[_SEED]} drew the variants of tests that take turns.")
    if int(os.environ.get(_SHARE, "1")) > 1:
        terminalreporter.write_line(
            f"{_SHARE}={os.environ[_SHARE]} {_SEED}={os.environ.get(_SEED)}: this machine is slow, so only one in "
            f"{os.environ[_SHARE]} of the tests that start Spark or services was taken, and of those that kill one in "
            f"{2 * int(os.environ[_SHARE])}; {_SHARE}=1 takes all"
        )
    for line in (*_told, *ledger.summary()):
        terminalreporter.write_line(line)
