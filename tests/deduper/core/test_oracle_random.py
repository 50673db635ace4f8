"""Every mode against the oracle on random streams, and what may depend on where a stream is cut."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deduper.core.verdict import CONFLICT_REASONS
from deduper.testing import Answer, Oracle, Row, Settings
from tests import tiers
from tests.deduper.engine import Engine, Memory, Shape, comparable
from tests.deduper.store_memory import StoreMemory
from tests.deduper.streams import MODES, Stream, Window, random_shape, random_stream, with_payloads


def seeds(at_night: int) -> range:
    """Of so many streams, which other nights draw otherwise; a few that are always the same in other tiers."""
    first = 1000 * tiers.seed()
    return range(first, first + at_night) if tiers.is_night() else range(math.ceil(0.15 * at_night))


def run_engine(stream: Stream, shape: Shape, memory: Memory | None = None) -> list[list[list[Answer]]]:
    """The engine's answers, window by window; conservation is checked on the way."""
    engine = Engine(stream.settings, stream.types, shape, memory, floats=stream.floats)
    answers = []
    for window in stream.windows:
        answers.append(engine.judge(window.partitions, window.now_us))
        rows = sum(map(len, window.partitions))
        assert sum(int(outcome.counts.sum()) for outcome in engine.outcomes) == rows
        assert sum(sum(outcome.rows_by_partition.values()) for outcome in engine.outcomes) == rows
        reasons = Counter(reason for part in answers[-1] for _, reason, _ in part if reason)
        assert sum((Counter(outcome.reasons()) for outcome in engine.outcomes), Counter()) == reasons
    return answers


def check(stream: Stream, shape: Shape, memory: Memory | None = None) -> None:
    """Engine and oracle say the same of every row."""
    oracle = Oracle(stream.settings)
    answers = run_engine(stream, shape, memory)
    for number, (window, given_answers) in enumerate(zip(stream.windows, answers, strict=True)):
        expected = comparable(
            oracle.judge(window.partitions, window.now_us), stream.settings, keep_first_seen=shape.keep_first_seen
        )
        for rows, ours, theirs in zip(window.partitions, given_answers, expected, strict=True):
            for position, (row, our, their) in enumerate(zip(rows, ours, theirs, strict=True)):
                assert our == their, (stream.settings, shape, number, position, row)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_random_streams(mode: str) -> None:
    """The same answers as the oracle, whatever the shards, Arrow batches and order of the exchange."""
    for seed in seeds(400):
        try:
            check(random_stream(mode, seed), random_shape(seed))
        except AssertionError as error:
            raise AssertionError(f"{mode}, seed {seed}") from error


def check_through_the_store(stream: Stream, seed: int, root: Path) -> None:
    """`check` with pieces and tables, some of them lost and rebuilt, some without room."""
    shape = random_shape(seed)
    rules = Engine(stream.settings, stream.types, shape, floats=stream.floats).rules
    check(stream, shape, StoreMemory(root, rules, seed))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_random_streams_through_the_store(mode: str, tmp_path: Path) -> None:
    """The same answers through the real store."""
    for seed in seeds(20):
        stream = random_stream(mode, seed)
        try:
            check_through_the_store(stream, seed, tmp_path / str(seed))
        except AssertionError as error:
            raise AssertionError(f"{mode}, seed {seed}") from error


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3])
def test_conflicts_of_random_streams(mode: str, share: float, tmp_path: Path) -> None:
    """The same conflicts as the oracle, in memory and through the real store, whatever the shape."""
    found: Counter[str] = Counter()
    for seed in seeds(100):
        chosen: tuple[Literal["duplicate", "error", "unique"], ...] = ("duplicate", "error", "unique")
        on_conflict = chosen[seed % 3]
        stream = with_payloads(random_stream(mode, seed), seed, share, on_conflict)
        shape = replace(random_shape(seed), conflicts=on_conflict)
        rules = Engine(stream.settings, stream.types, shape, floats=stream.floats).rules
        try:
            check(stream, shape)
            if seed % 5 == 0:
                check(stream, shape, StoreMemory(tmp_path / str(seed), rules, seed))
        except AssertionError as error:
            raise AssertionError(f"{mode}, seed {seed}") from error
        for window in run_engine(stream, shape):
            found.update(reason for part in window for _, reason, _ in part if reason in CONFLICT_REASONS)
    if share == 0.3:
        assert {"conflict", "version", "conflict_refused"} <= found.keys()
    assert bool(found) == (share > 0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["never", "category", "event_time", "ordered", "ordered float"])
def test_batches_do_not_matter_to_versions(mode: str) -> None:
    """One source partition, cut into windows anywhere: ports, and the reasons of versions, are the same."""
    found: set[str] = set()
    for seed in seeds(80):
        stream = random_stream(mode, seed)
        stream = replace(stream, settings=replace(stream.settings, clock="arrival"))
        shape = replace(random_shape(seed), conflicts="unique")
        said = []
        for cut in _cut(with_payloads(stream, seed, 0.5, "unique"), seed, 1):
            rows = [answer for window in run_engine(cut, shape) for part in window for answer in part]
            said.append([(port, port != "duplicate" and reason) for port, reason, _ in rows])
            found.update(reason for _, reason, _ in rows if reason in CONFLICT_REASONS)
        assert said[0] == said[1], f"{mode}, seed {seed}"
    assert {"version", "too_many_versions"} <= found


def test_wide_streams_through_the_store(tmp_path: Path) -> None:
    """Buckets at both ends of int64 in one window."""
    for seed in seeds(100):
        stream = random_stream("ordered", seed)
        if _is_wide(stream):
            check_through_the_store(stream, seed, tmp_path / str(seed))


def _is_wide(stream: Stream) -> bool:
    keys = [row.expiry for window in stream.windows for part in window.partitions for row in part]
    return any(isinstance(key, int | float) and abs(key) > 2**50 for key in keys)


@pytest.mark.parametrize("mode", MODES)
def test_shape_does_not_matter(mode: str) -> None:
    """One stream in two shapes: row for row the same answer, first copies and all."""
    for seed in seeds(60):
        stream = random_stream(mode, seed)
        one = replace(random_shape(seed), keep_first_seen=True)
        other = replace(random_shape(seed + 10**6), keep_first_seen=True)
        assert run_engine(stream, one) == run_engine(stream, other), f"{mode}, seed {seed}"


_EXPIRY = st.one_of(
    st.integers(-15, 40),
    st.sampled_from([None, -(2**63), -(2**63) + 1, 2**63 - 1, 2**63 - 2]),
)
_ROWS = st.lists(st.builds(Row, st.tuples(st.sampled_from(["a", "b", "", None])), _EXPIRY), max_size=12)


@given(
    lookup=st.sampled_from(["own_bucket", "all_live"]),
    clock=st.sampled_from(["arrival", "batch"]),
    jump=st.sampled_from([None, 0, 9, 2**63 - 1]),
    ahead=st.sampled_from([None, 3]),
    period_and_span=st.sampled_from([(1, 1), (10, 10), (10, 3), (2**63 - 1, 7), (2**63 - 1, 2**63 - 1)]),
    windows=st.lists(st.tuples(st.lists(_ROWS, max_size=3), st.integers(0, 30)), max_size=4),
    seed=st.integers(0, 1000),
)
@settings(max_examples=tiers.examples(400), suppress_health_check=list(HealthCheck))
def test_small_streams(
    lookup: str,
    clock: str,
    jump: int | None,
    ahead: int | None,
    period_and_span: tuple[int, int],
    windows: list[tuple[list[list[Row]], int]],
    seed: int,
) -> None:
    """As above for event time, with Hypothesis shrinking whatever it finds; extreme keys and periods included."""
    period, span = period_and_span
    rules = Settings("event_time", period, span, lookup, clock, ahead, jump)
    now_us = 0
    run = []
    for partitions, step in windows:
        now_us += step
        run.append(Window(partitions, now_us))
    check(Stream(rules, False, ["string"], run), random_shape(seed))


def _flat(answers: list[list[list[Answer]]]) -> list[str]:
    return [port for window in answers for part in window for port, _, _ in part]


def _cut(stream: Stream, seed: int, partitions: int) -> tuple[Stream, Stream]:
    """One sequence of rows, whole in one source partition of one window, and cut into windows with that many each."""
    rows = [row for window in stream.windows for part in window.partitions for row in part]
    step = 1 + seed % 7
    pieces = [rows[at : at + step] for at in range(0, len(rows), step)]
    groups = [pieces[at : at + partitions] for at in range(0, len(pieces), partitions)]
    whole = replace(stream, windows=[Window([rows], 0)])
    return whole, replace(stream, windows=[Window(group, 0) for group in groups])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["never", "category", "event_time", "ordered", "ordered float"])
def test_batches_do_not_matter_to_an_arrival_clock(mode: str) -> None:
    """One source partition, cut into windows anywhere: the same ports. (The wall clock stands still here: guards read
    it, and a jump is allowed more time until the clock moves.)"""
    for seed in seeds(80):
        stream = random_stream(mode, seed)
        rules = replace(stream.settings, clock="arrival")
        whole, cut = _cut(replace(stream, settings=rules), seed, 1)
        shape = random_shape(seed)
        assert _flat(run_engine(whole, shape)) == _flat(run_engine(cut, shape)), f"{mode}, seed {seed}"


@pytest.mark.parametrize("mode", ["never", "category"])
def test_source_partitions_do_not_matter_without_a_clock(mode: str) -> None:
    """Without a latest point, how the rows are dealt to source partitions changes nothing either."""
    for seed in seeds(80):
        whole, cut = _cut(random_stream(mode, seed), seed, 3)
        shape = random_shape(seed)
        assert _flat(run_engine(whole, shape)) == _flat(run_engine(cut, shape)), f"{mode}, seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["event_time", "ordered", "ordered float"])
@pytest.mark.parametrize("cut_by", ["windows of a batch clock", "source partitions of an arrival clock"])
def test_where_cuts_matter(mode: str, cut_by: str) -> None:
    """Where a cut does matter, it matters one way: a coarser one knows less of the latest point, so it expires less.

    A batch clock moves between windows only; a source partition does not see its neighbours' clocks. What the coarser
    cut expires, the finer one expires too. (With guards a clock that knows more also allows more: they are off.)
    """
    differing = 0
    for seed in seeds(80):
        stream = random_stream(mode, seed)
        is_batch = cut_by.startswith("windows")
        rules = replace(stream.settings, clock="batch" if is_batch else "arrival", jump=None, ahead=None)
        stream = replace(stream, settings=rules)
        if is_batch:
            coarse, fine = _cut(stream, seed, 1)
        else:
            # Three source partitions a window, against the same rows one after the other in one.
            _, coarse = _cut(stream, seed, 3)
            fine, _ = _cut(stream, seed, 1)
        shape = random_shape(seed)
        pairs = list(zip(_flat(run_engine(coarse, shape)), _flat(run_engine(fine, shape)), strict=True))
        assert not [pair for pair in pairs if pair[0] == "expired" != pair[1]], f"{mode}, seed {seed}"
        differing += any(one != other for one, other in pairs)
    assert differing, "no stream of this test shows the difference"
