"""Partitions are kept together by the time stamps of their records while a job catches up, and only then."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deduper.admin.status import source_lag
from deduper.cli.views.status import _lag
from deduper.kafka.offsets import ENDS, HELD_BACK, End, Held, Offsets, TopicPartition, ends_to_wire, limited
from deduper.sources.kafka import time_order
from deduper.sources.kafka.batch import KafkaBatches
from deduper.sources.kafka.time_order import TimeOrder
from tests.deduper.kafka_configs import BASE, kafka_source, loaded
from tests.deduper.sources.kafka.test_batch import Cluster, Watch

HOUR_MS = 3_600_000
NOW_MS = 450_000 * HOUR_MS
SLACK_US = 2 * HOUR_MS * 1000


@dataclass
class Brokers:
    """Time stamps by partition and offset, and how often they were asked for."""

    logs: dict[TopicPartition, list[int]] = field(default_factory=dict)
    requests: int = 0
    now_s: float = 0.0

    def add(self, partition: int, times: list[int]) -> TopicPartition:
        """Records more."""
        place = TopicPartition("in", partition)
        self.logs.setdefault(place, []).extend(times)
        return place

    def first_offsets(self, times: Mapping[TopicPartition, int]) -> Offsets:
        """As the brokers find them."""
        self.requests += 1
        return {
            place: next((offset for offset, at in enumerate(self.logs[place]) if at >= time), -1)
            for place, time in times.items()
        }

    @property
    def latest(self) -> Offsets:
        """The ends."""
        return {place: len(log) for place, log in self.logs.items()}

    def order(self) -> TimeOrder:
        """The order of a job that reads them."""
        return TimeOrder(
            SLACK_US, self.first_offsets, wall_clock_s=lambda: NOW_MS / 1000, monotonic_s=lambda: self.now_s
        )


def hours(begin: float, end: float, count: int) -> list[int]:
    """Time stamps before now, in hours from `begin` to before `end`."""
    return [int(NOW_MS - HOUR_MS * (begin - (begin - end) * number / count)) for number in range(count)]


def behind(directory: Path, brokers: Brokers, **settings: Any) -> tuple[KafkaBatches, Cluster]:
    """The source of a new job that reads them in the order of time."""
    cluster = Cluster(dict.fromkeys(brokers.logs, 0), brokers.latest, named=frozenset({"in"}))
    cluster.offsets_since = brokers.first_offsets  # type: ignore[attr-defined]
    settings = {"order": "time", "slack": SLACK_US, "topics": ("in",), **settings}
    source = kafka_source(loaded(BASE, directory)).model_copy(update=settings)
    batches = KafkaBatches(source, cast("Any", cluster), None, cast("Any", Watch()))
    batches._order = brokers.order()
    return batches, cluster


@pytest.mark.parametrize("seed", range(20))
def test_no_record_is_read_beyond_the_slack(seed: int) -> None:
    """Of any partitions, each in some disorder: all are read, every window has some, and few questions are asked."""
    draw = random.Random(seed)
    brokers = Brokers()
    for partition in range(draw.randrange(2, 6)):
        begin = draw.choice((5, 48, 100))
        count = draw.choice((1, 30, 400))
        brokers.add(partition, [at + draw.randrange(-600_000, 600_000) for at in hours(begin, 1, count)])
    order = brokers.order()
    nexts, windows = dict.fromkeys(brokers.logs, 0), 0
    most = draw.choice((10, 60))
    while (waiting := sum(brokers.latest.values()) - sum(nexts.values())) > most:
        progress = {place: max(log[: nexts[place] + 1]) for place, log in brokers.logs.items()}
        behind = [progress[place] for place, end in brokers.latest.items() if nexts[place] < end]
        bound = order.bounded(nexts, brokers.latest)
        judged = {place: End("id", offset) for place, offset in nexts.items()}
        ends = limited(judged, Held({"in": "id"}, dict.fromkeys(nexts, 0), brokers.latest), bound, most)
        taken = {place: brokers.logs[place][nexts[place] : ends.get(place, nexts[place])] for place in nexts}
        assert any(taken.values())
        for times in taken.values():
            assert all(at < min(behind) + 2 * HOUR_MS for at in times)
        nexts = {place: nexts[place] + len(times) for place, times in taken.items()}
        windows += 1
        assert waiting > sum(brokers.latest.values()) - sum(nexts.values())
    assert brokers.requests <= 50 + 12 * windows


def test_a_partition_that_is_ahead_is_held_back_until_the_others_have_come() -> None:
    """The full one is read alone; then both go on. A time ahead of the clock holds nobody and is not held."""
    brokers = Brokers()
    full, small = brokers.add(0, hours(48, 10, 380)), brokers.add(1, hours(11, 1, 10))
    poisoned = brokers.add(2, [NOW_MS + 9_000 * HOUR_MS, *hours(48, 47, 5)])
    order = brokers.order()
    bound = order.bounded({full: 0, small: 0, poisoned: 0}, brokers.latest)
    assert order.held_back == (small,)
    assert (bound[small], bound[poisoned]) == (0, 6)
    assert 15 <= bound[full] <= 20  # two hours less the precision
    bound = order.bounded({full: 360, small: 0, poisoned: 6}, brokers.latest)
    assert order.held_back == ()
    assert 375 <= bound[full] <= 380
    assert bound[small] == 1


def test_a_line_says_who_is_held_back_and_by_how_much(caplog: pytest.LogCaptureFixture) -> None:
    """How far it is ahead is the difference of two progresses, each found within a quarter of the slack."""
    brokers = Brokers()
    behind, ahead = brokers.add(0, [NOW_MS - 48 * HOUR_MS] * 5), brokers.add(1, [NOW_MS - 11 * HOUR_MS] * 5)
    with caplog.at_level(logging.INFO, "deduper"):
        brokers.order().bounded({behind: 0, ahead: 0}, brokers.latest)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"source.order: {ahead} is held back, up to 37 h ahead of {behind} at 2021-04-30T23:")


def test_an_idle_partition_holds_the_others_for_ten_seconds() -> None:
    """At the head of the log it is idle still; with a record it may hold again."""
    brokers = Brokers()
    idle, busy = brokers.add(0, hours(48, 40, 8)), brokers.add(1, hours(20, 1, 19))
    order = brokers.order()
    nexts = {idle: 8, busy: 0}
    assert order.bounded(nexts, brokers.latest, [idle])[busy] == 0
    brokers.now_s += time_order.IDLE_S
    assert order.bounded(nexts, brokers.latest, [idle])[busy] > 0
    assert order.held_back == ()
    order.rest(brokers.latest)
    assert order.bounded(nexts, brokers.latest, [idle])[busy] > 0
    brokers.add(0, hours(40, 39, 1))
    order.rest(brokers.latest)
    assert order.bounded({idle: 9, busy: 0}, brokers.latest, [idle])[busy] == 0
    assert order.held_back == (busy,)


def test_a_partition_that_was_at_its_end_has_the_progress_of_what_comes(tmp_path: Path) -> None:
    """A producer is back after an outage with more than is small: it holds no others by what it had before."""
    brokers = Brokers()
    quiet, busy = brokers.add(0, hours(48, 40, 8)), brokers.add(1, hours(47, 10, 3000))
    batches, cluster = behind(tmp_path, brokers, max_offsets_per_batch=100)
    batches.begin(drain=False)
    taken = {quiet: 0, busy: 0}
    while sum(taken.values()) < 3508 and brokers.now_s < 600:
        batch = batches.next_batch()
        brokers.now_s += 5
        if batch is None:
            continue
        for one in batch.ranges:
            taken[one.place] = one.end
        batches.judged(batch)
        if len(brokers.logs[quiet]) == 8 and taken[quiet] == 8 and brokers.now_s > 60:
            brokers.add(0, hours(2, 1, 500))
            cluster.latest = brokers.latest
    assert taken == {quiet: 508, busy: 3000}


def test_a_partition_that_is_ahead_is_held_though_it_is_small() -> None:
    """A window would take all that it has: that makes it hold none, and it is held back itself."""
    brokers = Brokers()
    full, small = brokers.add(0, hours(48, 10, 380)), brokers.add(1, hours(11, 1, 10))
    order = brokers.order()
    for _ in range(3):
        assert order.bounded({full: 0, small: 0}, brokers.latest, [small])[small] == 0
        brokers.now_s += time_order.IDLE_S


def test_where_a_partition_goes_on_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its progress is known from before it had nothing that waits, and is at least that."""
    brokers = Brokers()
    idle, busy = brokers.add(0, hours(48, 40, 8)), brokers.add(1, hours(48, 1, 47))
    order = brokers.order()
    order.bounded({idle: 0, busy: 0}, brokers.latest)
    order.bounded({idle: 8, busy: 0}, brokers.latest)
    brokers.add(0, hours(48, 40, 8))
    begins: list[int] = []
    search = time_order._Search

    def searched(following: int, has_next: bool, low: int, step: int) -> object:
        begins.append(low)
        return search(following, has_next, low, step)

    monkeypatch.setattr(time_order, "_Search", searched)
    order.bounded({idle: 8, busy: 0}, brokers.latest)
    assert len(begins) == 1
    assert begins[0] > 0


def test_a_warning_says_who_holds_the_others_for_long(caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the partition that is behind and its time."""
    brokers = Brokers()
    slow, busy = brokers.add(0, [0] * 50), brokers.add(1, hours(20, 1, 19))
    order = brokers.order()
    for _ in range(4):
        order.bounded({slow: 0, busy: 0}, brokers.latest)
        brokers.now_s += time_order.LONG_S / 2
    (warning,) = (one.getMessage() for one in caplog.records if one.levelname == "WARNING")
    assert warning.startswith("source.order: in-1 is held back for 10 min already, up to")
    assert warning.endswith("ahead of in-0 at 1970-01-01T00:00:00Z")


@pytest.mark.parametrize("time_ms", [-1, 0])
def test_a_few_old_records_again_and_again_hold_no_others(time_ms: int, tmp_path: Path) -> None:
    """Of a producer without a clock: its partition never runs dry, and each window takes all that it has."""
    brokers = Brokers()
    full, small = brokers.add(0, hours(48, 10, 3_000)), brokers.add(1, [time_ms])
    batches, cluster = behind(tmp_path, brokers, max_offsets_per_batch=500)
    batches.begin(drain=False)
    while len(brokers.logs[full]) - batches._ends[full].offset > 500:
        brokers.add(1, [time_ms, time_ms])
        cluster.latest = brokers.latest
        batch = batches.next_batch()
        assert batch is not None
        assert batch.ends[small].offset == len(brokers.logs[small])
        batches.judged(batch)
        brokers.now_s += 1
        assert brokers.now_s < 100


def test_windows_of_a_source_are_bounded_while_it_is_behind(tmp_path: Path) -> None:
    """A commit names the partitions that are held back.

    In a run that drains the source, a partition at its end holds none. Where one window takes all that waits, the
    brokers are asked for no time stamps.
    """
    brokers = Brokers()
    full, small = brokers.add(0, hours(48, 10, 380)), brokers.add(1, hours(11, 1, 10))
    batches, cluster = behind(tmp_path, brokers, max_offsets_per_batch=50)
    batches.begin(drain=True)
    held = []
    while (batch := batches.next_batch()) is not None:
        held.append(batch.extra().get(HELD_BACK))
        batches.judged(batch)
    assert held[0] == [["in", 1]]
    assert held[-1] is None
    assert batches.waiting == 0
    asked = brokers.requests
    cluster.latest = {full: 390, small: 30}
    batches.begin(drain=False)
    assert batches.next_batch() is not None
    assert brokers.requests == asked


def test_status_says_which_partition_is_held_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the last commit."""
    places = [TopicPartition("clicks", 0), TopicPartition("clicks", 1)]
    ends = ends_to_wire({place: End("id", 5) for place in places})
    state = SimpleNamespace(extra={ENDS: ends, HELD_BACK: [["clicks", 1]]})
    brokers = SimpleNamespace(
        places=lambda: places,
        latest_offsets=lambda wanted: dict.fromkeys(wanted, 1505),
        earliest_offsets=lambda _: {},
    )
    monkeypatch.setattr("deduper.kafka.cluster.ClusterOffsets", lambda *_, **__: brokers)
    store = SimpleNamespace(config=loaded(BASE, tmp_path), log=SimpleNamespace(state=state))
    lag = source_lag(cast("Any", store))
    assert lag is not None
    assert [_lag(one) for one in lag.partitions] == [1500, "1,500, held back"]
