"""A replay of a topic judges as if every record had come in its time, whatever its partitions are."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from rich.console import Console

from bucket_store.log.commit_log import CommitLog
from bucket_store.places.place import Place
from deduper.admin.open_store import OpenStore, open_store
from deduper.admin.verify.run import verify_store
from deduper.cli.views.replay import render_replay
from deduper.config.kafka.sections import KafkaSource
from deduper.errors import IntegrityError, SourceAwayError, UsageError
from deduper.kafka.errors import BrokerUnavailableError
from deduper.kafka.offsets import End, TopicPartition, judged_ends
from deduper.replay.compare import compare, plan_comparison
from deduper.replay.keys import KeyRange
from deduper.replay.plan import PlannedSlice
from deduper.replay.run import plan_replay, replay
from deduper.replay.settings import Asked, replay_config
from deduper.replay.slices import made_slice
from deduper.replay.topics import ReplayTopics
from deduper.sources.kafka.broker_watch import BrokerWatch
from deduper.sources.kafka.reading import topic_reading
from deduper.testing import Settings
from tests.deduper.killed_runs import Killed, killing
from tests.deduper.replay.replays import A_DAY, DAY0, EVENTS, days, expected, ports, replayed, without_spark
from tests.deduper.replay.topics import TopicJob, Topics, Watch, stand_in
from tests.spark.harness import Job

pytestmark = pytest.mark.slow
ALL = {"unique": 8 * A_DAY * 95 // 100, "duplicate": 8 * A_DAY // 20, "expired": 0, "error": 0}
RANGE = 30
FEW: Any = {"slice_bytes": 16_000, "window_bytes": 30_000}
"""Not many windows."""


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    """None yet. Their ranges are short."""
    monkeypatch.setattr("deduper.replay.topics.RANGE_OFFSETS", RANGE)
    return stand_in(monkeypatch)


@pytest.fixture
def new_job(tmp_path: Path, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TopicJob]:
    """Makes the job on them."""
    del topics
    session = without_spark(monkeypatch)

    def make(**settings: Any) -> TopicJob:
        return TopicJob(tmp_path, session, settings)

    return make


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """See `killing`."""
    return killing(monkeypatch)


def of_events(**source: Any) -> dict[str, Any]:
    """The settings of a job on `uneven` topics."""
    value = {"format": "json", "schema": "id string, ts timestamp"}
    return {"source": {"value": value, "record": {"at": "timestamp"}, **source}, "key": "id", "expiry": EVENTS}


def uneven(topics: Topics, draw: random.Random) -> None:
    """The case of the issue in five partitions, of which one is ten times as full: one collector after the other."""
    for collector in "AB":
        for day in range(4):
            for row in days()[collector, day]:
                partition = draw.choices(range(5), (10, 1, 1, 1, 1))[0]
                at = datetime.fromisoformat(row["ts"]).timestamp()
                topics.add(partition, json.dumps(row).encode(), int(at * 1000))


def test_an_uneven_topic_loses_nothing(topics: Topics, new_job: Callable[..., TopicJob]) -> None:
    """95 % unique, 5 % duplicates, none expired; the store is sound, and knows the end of each partition."""
    uneven(topics, random.Random(0))
    topics.records[TopicPartition("in", 5)] = []
    job = new_job(**of_events())
    report = replayed(job, **FEW)
    assert report.is_over
    assert report.judged == ALL
    assert report.windows > 1
    assert (report.partitions, report.offsets, report.offsets_since) == (5, 8 * A_DAY, None)
    config = replay_config(job.config, Asked(job.directory / "replayed"))
    store = open_store(config.store.url)
    assert not verify_store(OpenStore(store.url, config, store.log, store.pieces)).findings
    ends = {place: End("id", len(records)) for place, records in topics.records.items()}
    assert judged_ends(store.log.state) == ends
    assert report.report is not None
    assert "<html" in Path(report.report).read_text("utf-8")
    assert not (job.directory / "replayed" / "unique" / "_replay").exists()
    assert len(ports(job)) == 8 * A_DAY


def random_topic(topics: Topics, seed: int) -> list[tuple[str, int, list[Any]]]:
    """Partitions in any disorder, with errors and holes: each range with its first offset and records, None a hole."""
    draw = random.Random(seed)
    ranges = []
    for partition in sorted(draw.sample(range(12), draw.randrange(1, 5))):
        records: list[Any] = []
        for number in range(draw.choice((1, 20, RANGE, 100))):
            t = number * draw.choice((1, 3)) + draw.choice((0, 0, 0, -30, 50, -200))
            kind = draw.random()
            if kind < 0.04:
                records.append("{no record")
            elif kind < 0.07:
                records.append({"k": None, "t": t})
            elif kind < 0.1:
                records.append({"k": "x"})
            elif kind < 0.15:
                records.append(None)
            else:
                records.append({"k": str(draw.randrange(40)), "t": t})
        if draw.random() < 0.3:
            records += ["{"] * RANGE  # a range without any expiry key
        for one in records:
            text = one if isinstance(one, str) else json.dumps(one)
            topics.add(partition, None if one is None else text.encode())
            if one is None:
                topics.records[TopicPartition("in", partition)][-1] = None
        for begin in range(0, len(records), RANGE):
            ranges.append((f"in-{partition}", begin, records[begin : begin + RANGE]))
    return ranges


@pytest.mark.parametrize("seed", [3, 5, *(pytest.param(seed, marks=pytest.mark.night) for seed in (0, 1, 2, 4))])
def test_a_replay_of_a_topic_is_the_oracle_on_the_sorted_log(
    seed: int, topics: Topics, new_job: Callable[..., TopicJob]
) -> None:
    """Every verdict and every first copy by its offset, for any partitions, slices, windows and range."""
    draw = random.Random(f"shape {seed}")
    lookup = draw.choice(("all_live", "own_bucket"))
    job = new_job(expiry={"by": "ordered", "field": "t", "period": 100, "span": 10, "lookup": lookup})
    ranges = random_topic(topics, seed)
    first, end = draw.choice((None, None, 20)), draw.choice((None, None, 70))
    there = [(number, [one for one in records if one is not None]) for number, (_, _, records) in enumerate(ranges)]
    offsets = {
        (str(number), row): (name, offset)
        for number, (name, begin, records) in enumerate(ranges)
        for row, offset in enumerate(begin + place for place, one in enumerate(records) if one is not None)
    }
    answers = {
        offsets[place]: (port, None if of is None else offsets[of])
        for place, (port, of) in expected(there, lookup, first, end).items()
    }
    report = replayed(
        job,
        slice_bytes=draw.choice((300, 2000, 10**6)),
        window_bytes=draw.choice((1, 3000, 10**6)),
        start=None if first is None else str(first),
        end=None if end is None else str(end),
    )
    assert report.is_over
    assert ports(job) == answers


@pytest.mark.night
def test_two_rules_are_compared_over_one_reading_of_a_topic(
    topics: Topics, new_job: Callable[..., TopicJob], kill: Callable[[str], None]
) -> None:
    """Each record's port by both, though the brokers have deleted all before the second rule judges."""
    expiry = {"by": "ordered", "field": "t", "period": 100, "span": 10, "lookup": "all_live"}
    shorter = {**expiry, "period": 40}
    job = new_job(expiry=expiry)
    other = new_job(expiry=shorter, key=["k", "t"], null_keys="allow").config
    ranges = random_topic(topics, 0)
    there = [(number, [one for one in records if one is not None]) for number, (_, _, records) in enumerate(ranges)]
    settings = Settings("ordered", period=40, span=10, lookup="all_live", null_keys="allow")
    by_here = expected(there, "all_live")
    by_there = expected(there, "", settings=settings, key=("k", "t"))
    asked = Asked(job.directory / "compared")
    planned = plan_comparison(job.config, other, asked)
    assert planned.here.offsets == planned.there.offsets == sum(len(records) for _, _, records in ranges)
    kill("replay.drained")
    with pytest.raises(Killed):
        compare(job.config, other, asked, session=job.session, **FEW)
    kill("")
    topics.earliest = {place: len(records) for place, records in topics.records.items()}
    again = plan_comparison(job.config, other, asked)
    assert (again.here.is_over, again.there.is_over) == (True, False)
    assert again.here.offsets == again.there.offsets == planned.here.offsets
    found = compare(job.config, other, asked, session=job.session, **FEW)
    assert found.is_over
    counts = Counter((by_here[place][0], by_there[place][0]) for place in by_here)
    assert {(cell.here, cell.there): cell.records for cell in found.cells} == counts
    assert len(counts) > 4, "they differ"
    with pytest.raises(UsageError, match="write `fingerprint: all`"):
        plan_comparison(job.config, new_job(expiry=expiry, fingerprint="value").config, asked)
    with pytest.raises(UsageError, match="both jobs read files, or both read topics"):
        plan_comparison(job.config, Job(job.directory, job.session, {"expiry": expiry}).config, asked)


def test_killed_it_goes_on_though_the_brokers_have_deleted_all(
    topics: Topics, new_job: Callable[..., TopicJob], kill: Callable[[str], None]
) -> None:
    """Before the plan is named it begins again; from there on no record is read once more, and all leave once."""
    uneven(topics, random.Random(1))
    job = new_job(**of_events())
    for point in ("start.claimed", "replay.surveyed", "replay.planned", "replay.begun"):
        kill(point)
        with pytest.raises(Killed):
            replayed(job, window_bytes=12_000)
    topics.earliest = {place: len(records) for place, records in topics.records.items()}
    topics.fetches.clear()
    for point in ("window.2.judged", "window.4.committed", "window.7.checkpoint", "replay.drained"):
        kill(point)
        with pytest.raises(Killed):
            replayed(job, window_bytes=12_000)
    kill("")
    report = replayed(job, window_bytes=12_000)
    assert (report.is_over, report.judged, report.offsets) == (True, ALL, 8 * A_DAY)
    assert len(ports(job)) == 8 * A_DAY
    assert not topics.fetches


def test_the_job_goes_on_where_the_replay_ends(
    topics: Topics, new_job: Callable[..., TopicJob], kill: Callable[[str], None]
) -> None:
    """Refused until the replay is over; then only what has come since is judged, in new partitions too."""
    uneven(topics, random.Random(2))
    topics.records[TopicPartition("in", 5)] = []
    job = new_job(**of_events())
    kill("window.7.checkpoint")
    with pytest.raises(Killed):
        replay(job.config, Asked(None), session=job.session, **FEW)
    state = CommitLog.open(job.config.store.place).state
    assert not judged_ends(state)
    with pytest.raises(UsageError, match="replay into this store is not over"):
        job.run()
    kill("")
    at = DAY0 + timedelta(days=4)
    again = json.dumps({"id": "B-3-99", "ts": at.strftime("%Y-%m-%dT%H:%M:%SZ")}).encode()
    for partition in (0, 5, 6):
        topics.add(partition, again.replace(b"B-3-99", b"B-3-99" if not partition else b"new-%d" % partition))
    assert replay(job.config, Asked(None), session=job.session).is_over
    assert sum(CommitLog.open(job.config.store.place).state.totals.values()) == 8 * A_DAY
    summary = job.run()
    assert (summary.unique, summary.duplicate, summary.expired, summary.error) == (2, 1, 0, 0)
    twin = next(
        row
        for row in job.rows("duplicate")
        if row["_dedup"]["window"] == max(one["_dedup"]["window"] for one in job.rows("duplicate"))
    )
    place = TopicPartition("in", 0)
    assert twin["_dedup"]["source"] == "in-0"
    assert twin["_dedup"]["position"] == len(topics.records[place]) - 1
    first = twin["_dedup"]["first_seen"]
    partition, offset = int(first["source"].removeprefix("in-")), first["position"]
    given = topics.records[TopicPartition("in", partition)][offset]
    assert given is not None
    assert b"B-3-99" in (given[1] or b"")
    with pytest.raises(UsageError, match="judged in another order; leave out --in-place"):
        plan_replay(job.config, Asked(None))


@pytest.mark.night
@pytest.mark.parametrize("fetch", [3, *(pytest.param(fetch, marks=pytest.mark.night) for fetch in (30, 60))])
def test_brokers_that_are_away_for_a_moment_are_waited_for(
    fetch: int, topics: Topics, new_job: Callable[..., TopicJob]
) -> None:
    """While a sample is taken, in the survey, and in the sorting."""
    uneven(topics, random.Random(3))
    job = new_job(**of_events())
    topics.away = [False] * fetch + [True]
    assert replayed(job, **FEW).judged == ALL
    assert not topics.away


def test_each_range_without_any_key_is_a_slice_of_its_own(
    topics: Topics, new_job: Callable[..., TopicJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be one slice, whole in memory. All leave by the error port."""
    uneven(topics, random.Random(3))
    for _ in range(4 * RANGE):
        topics.add(7, b"{")
    job = new_job(**of_events())
    made: list[PlannedSlice] = []

    def keeping(folder: Place, number: int, blobs: Iterable[bytes]) -> PlannedSlice:
        made.append(made_slice(folder, number, blobs))
        return made[-1]

    monkeypatch.setattr("deduper.replay.shuffle.made_slice", keeping)
    report = replayed(job, **FEW)
    assert report.judged == {**ALL, "error": 4 * RANGE}
    keyless = [one for one in made if one.last is None]
    assert [(one.rows, len(one.inputs)) for one in keyless] == [(RANGE, 1)] * 4


@pytest.mark.night
def test_what_is_executed_is_not_estimated(
    topics: Topics, new_job: Callable[..., TopicJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sample for people, and brokers are waited for as the job waits."""
    uneven(topics, random.Random(3))
    job = new_job(**of_events(deadline="20min"))
    deadlines: list[int] = []

    def watch(source: KafkaSource, stop: Event | None) -> Watch:
        deadlines.append(source.deadline)
        return Watch(stop)

    monkeypatch.setattr("deduper.replay.topics.BrokerWatch", watch)
    report = replayed(job, **FEW)
    assert (report.is_over, report.estimate, report.offsets) == (True, None, 8 * A_DAY)
    assert report.bytes > 20 * 8 * A_DAY
    assert deadlines == [1_200_000_000]


@pytest.mark.night(but=["fail"])
@pytest.mark.parametrize("data_loss", ["fail", "continue"])
def test_offsets_that_are_deleted_before_they_are_sorted_are_a_loss(
    data_loss: str, topics: Topics, new_job: Callable[..., TopicJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`data_loss` decides, as in a job; what was planned and not named is nothing."""
    uneven(topics, random.Random(4))
    job = new_job(**of_events(data_loss=data_loss))
    monkeypatch.setattr(
        "bucket_store.failpoints.hit",
        lambda name: topics.earliest.update({TopicPartition("in", 0): 100}) if name == "replay.surveyed" else None,
    )
    if data_loss == "fail":
        with pytest.raises(IntegrityError, match="in-0: 100 offsets"):
            replayed(job, **FEW)
    else:
        report = replayed(job, **FEW)
        assert sum(report.judged.values()) == 8 * A_DAY - 100
        assert report.to_json()["lost"] == [{"partition": "in-0", "first": 0, "offsets": 100}]
        console = Console(file=io.StringIO(), width=200, record=True)
        console.print(*render_replay(report))
        assert "100 offsets of in-0, from 0 to 99: deleted before they were read" in console.export_text()


def test_what_is_not_part_of_a_replay_is_not_lost(
    topics: Topics, new_job: Callable[..., TopicJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets before `--from`, in a range that has later ones."""
    uneven(topics, random.Random(4))
    job = new_job(**{**of_events(data_loss="continue"), "expiry": {**EVENTS, "field": "at"}})
    whole = topics.records[TopicPartition("in", 0)]
    start_ms = 1000 * int(datetime.fromisoformat("2024-01-07T00:00:00+00:00").timestamp())
    late = next(offset for offset, record in enumerate(whole) if record[0] >= start_ms)
    gone = {TopicPartition("in", 0): late - 1}
    monkeypatch.setattr(
        "bucket_store.failpoints.hit", lambda name: topics.earliest.update(gone) if name == "replay.surveyed" else None
    )
    given = Asked(job.directory / "replayed", start="2024-01-07T00:00:00Z")
    report = replay(job.config, given, session=job.session, slice_bytes=16_000)
    assert (report.is_over, report.lost) == (True, ())


@pytest.mark.night
def test_a_plan_that_never_overtakes_the_deletions_is_given_up(
    topics: Topics, new_job: Callable[..., TopicJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `data_loss: continue`: the error says what happens, and what to do."""
    uneven(topics, random.Random(4))
    job = new_job(**of_events(data_loss="continue"))

    def delete(name: str) -> None:
        place = TopicPartition("in", 0)
        if name == "replay.surveyed":
            topics.earliest[place] = topics.earliest.get(place, 0) + 40

    monkeypatch.setattr("bucket_store.failpoints.hit", delete)
    with pytest.raises(UsageError, match="delete its oldest offsets faster than a plan reads them"):
        replayed(job, **FEW)


@pytest.mark.parametrize(
    ("attempt_s", "is_surveyed", "is_given_up"), [(40, False, True), (40, True, False), (80, False, False)]
)
def test_the_deadline_of_brokers_begins_again_as_a_plan_goes_on(
    attempt_s: int,
    is_surveyed: bool,
    is_given_up: bool,
    topics: Topics,
    new_job: Callable[..., TopicJob],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a survey, and when the reading went on for longer than the deadline of 60 s. One moment ends no plan."""
    uneven(topics, random.Random(4))
    now = [0.0]

    def watch(source: KafkaSource, stop: Event | None) -> BrokerWatch:
        return BrokerWatch(source, stop, ask=lambda: None, clock=lambda: now[0], sleep=lambda _: None)

    monkeypatch.setattr("deduper.replay.topics.BrokerWatch", watch)
    config = new_job(**of_events(deadline="60s")).config
    assert isinstance(config.source, KafkaSource)
    reading = topic_reading(config, config.source, bytes(16))
    inputs = ReplayTopics(config, config.source, KeyRange(), reading, clock=lambda: now[0])
    outcome: Any = pytest.raises(BrokerUnavailableError) if is_given_up else nullcontext()
    with outcome:
        for _ in range(4):
            inputs.listed()
            now[0] += attempt_s
            if is_surveyed:
                inputs.surveyed()
            inputs.wait_for(SourceAwayError("in-0: no record in 10 s"))


def test_a_topic_that_was_created_again_meanwhile_is_not_mixed(
    topics: Topics, new_job: Callable[..., TopicJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets of another topic of the name are other records."""
    uneven(topics, random.Random(4))
    job = new_job(**of_events())
    monkeypatch.setattr(
        "bucket_store.failpoints.hit",
        lambda name: topics.ids.update({"in": "2"}) if name == "replay.surveyed" else None,
    )
    with pytest.raises(IntegrityError, match="deleted and recreated"):
        replayed(job, **FEW)


@pytest.mark.night
def test_a_range_of_time_stamps_is_asked_of_the_brokers(
    topics: Topics, new_job: Callable[..., TopicJob], tmp_path: Path
) -> None:
    """Ranges before `--from` are not read, and the result is that of a job whose times the brokers do not know.

    Nor is one without an answer left out unread, if it may have a record of these times.
    """
    uneven(topics, random.Random(5))
    topics.without_times = {TopicPartition("in", 3)}
    found = []
    for number, column in enumerate(("at", "ts")):
        job = new_job(**{**of_events(), "expiry": {**EVENTS, "field": column}})
        given = Asked(job.directory / f"{number}", start="2024-01-07T00:00:00Z", end="2024-01-09T00:00:00Z")
        topics.fetches.clear()
        report = replay(job.config, given, session=job.session)
        assert report.is_over
        found.append((report.judged, len(topics.fetches)))
    (by_stamp, few), (by_records, many) = found
    assert by_stamp == by_records
    assert sum(by_stamp.values()) == 4 * A_DAY
    assert few < many
    job = new_job(**{**of_events(), "expiry": {**EVENTS, "field": "at"}})
    with pytest.raises(UsageError, match="from --from on"):
        plan_replay(job.config, Asked(tmp_path / "late", start="2024-02-01T00:00:00Z"))


def test_a_plan_of_a_topic_changes_nothing(topics: Topics, new_job: Callable[..., TopicJob]) -> None:
    """Offsets, partitions, records and bytes; nothing is written, and nothing is there before the first record."""
    job = new_job(**of_events())
    topics.records[TopicPartition("in", 0)] = []
    with pytest.raises(UsageError, match="nothing is there to be replayed"):
        plan_replay(job.config, Asked(job.directory / "replayed"))
    uneven(topics, random.Random(6))
    planned = plan_replay(job.config, Asked(job.directory / "replayed"))
    assert (planned.partitions, planned.offsets) == (5, 8 * A_DAY)
    assert planned.estimate is not None
    assert planned.estimate.records == 8 * A_DAY
    assert planned.bytes > 20 * 8 * A_DAY
    assert not (job.directory / "replayed").exists()
