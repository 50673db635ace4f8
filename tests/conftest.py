"""Which tests run, how processes share them (`-n 3`), and the command that repeats one that failed."""

from __future__ import annotations

import gc
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadScopeScheduling

from bucket_store.places.outages import is_waiting
from tests import notes, parts, tiers
from tests.jvm import start_sessions_soon
from tests.s3_server import s3_server

if TYPE_CHECKING:
    from tests.services.redis_server import RedisServer

_SHARED_BY = {
    "tests/crash/test_kafka_": "kills on Kafka",
    "tests/services/test_hdfs_": "hdfs",
    "tests/services/": "kafka",
    "tests/spark/": "spark",
}
"""Tests that share a session or servers run in one process."""
_NOTHING_TO_CHECK = ("tests/spark/", "tests/services/", "tests/crash/")
"""Folders whose tests all start something."""
ROOT = Path(__file__).parent.parent


class _Shared(LoadScopeScheduling):  # type: ignore[misc]
    """Tests that share a session or servers run in one process; all others are dealt one by one."""

    def _split_scope(self, nodeid: str) -> str:
        return next((shared for begin, shared in _SHARED_BY.items() if nodeid.startswith(begin)), nodeid)


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    """A job or a `Deduper` that a test leaves open would let all later tests of its process wait for storages."""
    was_waiting = is_waiting()  # what a session's fixture has opened
    yield
    assert is_waiting() == was_waiting


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
    return _Shared(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The choice of tests."""
    group = parser.getgroup("tiers")
    group.addoption(
        "--tier",
        choices=tiers.TIERS,
        help="tests and sizes of a tier (tests/tiers.py); without it `check`, or all tests of the files that are named",
    )
    group.addoption("--seed", type=int, help="what draws all that is random; the `night` tier draws it itself")
    group.addoption("--part", type=parts.part, help="1/7 to 7/7: the tests of one part of `make all`")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the tier, unless another process of the run has chosen it, and what it means for properties."""
    start_sessions_soon()
    is_named = config.args_source is pytest.Config.ArgsSource.ARGS
    config.stash[_CHOSEN] = config.option.tier or (tiers.NIGHT if is_named else tiers.CHECK)
    tiers.begin(config.option.tier or (tiers.CHANGE if is_named else tiers.CHECK), config.option.seed)
    notes.begin()
    if hypothesis.settings.get_current_profile_name() != "default":
        return  # mutants have a profile of their own
    is_night = tiers.is_night()
    hypothesis.settings.register_profile(
        "tier",
        max_examples=tiers.examples(200),
        derandomize=not is_night,
        deadline=None,  # an example that takes longer than 0.2 s says nothing on a busy machine
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        print_blob=is_night,
        **({} if is_night else {"database": None}),
    )
    hypothesis.settings.load_profile("tier")
    if is_night:
        config.option.hypothesis_seed = str(tiers.seed())
        return
    # It also tries the constants of all modules that are imported by then: of the tests that ran before.
    providers.HypothesisProvider._local_constants = providers._local_constants  # type: ignore[assignment]


_CHOSEN = pytest.StashKey[str]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that have no test of this tier or part are not even imported."""
    path = collection_path.relative_to(ROOT).as_posix() if collection_path.is_relative_to(ROOT) else ""
    is_of_another_part = config.option.part is not None and parts.part_of(path) != config.option.part
    if path.endswith(".py") and is_of_another_part:
        return True
    return True if config.stash[_CHOSEN] == tiers.CHECK and f"{path}/" in _NOTHING_TO_CHECK else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other tiers and parts; begin with those that share servers."""
    chosen = config.stash[_CHOSEN]
    _check_variants(items)
    left = {item for item in items if not _is_wanted(item, chosen)}
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    # The longest first, so that all else fills what is left.
    first = [*_SHARED_BY, "tests/crash/", "tests/test_static_checks.py"]
    items[:] = sorted((item for item in items if item not in left), key=lambda item: _rank(item.nodeid, first))


def _is_wanted(item: pytest.Item, chosen: str) -> bool:
    marks = {mark.name for mark in item.iter_markers()}
    if "night" in marks and _variant(item) in _kept(item):
        marks.remove("night")
    return tiers.has(chosen, marks)


def _kept(item: pytest.Item) -> list[str]:
    """The variants that a mark `night(but=[…])` leaves to the tier `change`."""
    mark = item.get_closest_marker("night")
    return [] if mark is None else mark.kwargs.get("but", [])


def _variant(item: pytest.Item) -> str:
    return item.name.partition("[")[2].removesuffix("]")


def _check_variants(items: list[pytest.Item]) -> None:
    """A variant that a mark names exists, in each function whose variants are all here.

    The seed of a night may draw others.
    """
    variants: dict[tuple[str, ...], set[str]] = {}
    for item in items:
        if kept := _kept(item):
            variants.setdefault((item.nodeid.partition("[")[0], *kept), set()).add(_variant(item))
    for (function, *kept), found in variants.items() if not tiers.is_night() else ():
        if len(found) > 1 and (gone := [name for name in kept if name not in found]):
            raise pytest.UsageError(f"{function}: its mark `night` names variants that it does not have: {gone}")


def _rank(nodeid: str, first: list[str]) -> int:
    return next((number for number, begin in enumerate(first) if nodeid.startswith(begin)), len(first))


def pytest_collection_finish() -> None:
    """The tests themselves stay to the end: no collection of garbage needs to look at their thousands."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What tests have noted, the seed, and how to see each failure once more."""
    if hasattr(config, "workerinput"):
        return  # what a worker of xdist writes is not shown
    terminalreporter.write_line(f"tier {tiers.tier()}, seed {tiers.seed()}")
    for line in notes.take():
        terminalreporter.write_line(line)
    failed = {report.nodeid for key in ("failed", "error") for report in terminalreporter.stats.get(key, ())}
    if failed:
        terminalreporter.section("to see a failure again")
    for nodeid in sorted(failed):
        # A test that is named has the sizes of `change` by default, whatever its marks.
        chosen = [] if tiers.tier() == tiers.CHANGE else ["--tier", tiers.tier()]
        words = [".venv/bin/python", "-m", "pytest", *chosen, "--seed", f"{tiers.seed()}", nodeid]
        terminalreporter.write_line(shlex.join(words))
