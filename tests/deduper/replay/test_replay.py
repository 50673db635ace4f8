"""A replay judges as if every record had come in its time, whatever its files are: held against the oracle.

The real job, on a stand-in for a session: of files as small as these, read without Spark, Spark does nothing.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from bucket_store import failpoints
from bucket_store.log.commit_log import CommitLog
from deduper.admin.open_store import OpenStore, open_store
from deduper.admin.verify.run import verify_store
from deduper.config.sections import PORTS
from deduper.errors import IntegrityError, UsageError
from deduper.replay import run as run_module
from deduper.replay.compare import Comparison, compare, plan_comparison
from deduper.replay.inputs import FileMovedError
from deduper.replay.run import plan_replay, replay
from deduper.replay.settings import Asked, replay_config
from deduper.testing import Settings
from tests.deduper.killed_runs import Killed, killing
from tests.deduper.replay.replays import A_DAY, DAY0, EVENTS, Record, days, expected, ports, replayed, without_spark
from tests.spark.harness import Job, read_rows

pytestmark = pytest.mark.slow


@pytest.fixture
def new_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """Makes jobs, each in a directory of its own below the test's."""
    session = without_spark(monkeypatch)

    def make(name: str = "job", **settings: Any) -> Job:
        directory = tmp_path / name
        directory.mkdir()
        return Job(directory, session, settings)

    return make


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """See `killing`."""
    return killing(monkeypatch)


def killed_at(point: str, job: Job, kill: Callable[[str], None]) -> None:
    """A replay of the job dies there; the next one does not."""
    kill(point)
    with pytest.raises(Killed):
        replayed(job)
    kill("")


# The case of the issue: two collectors, four days, one after the other.

SCHEMA = {"schema": "id string, ts timestamp"}


def lines(rows: Iterable[Record]) -> list[str]:
    """As JSON lines."""
    return [json.dumps(row) for row in rows]


def one_after_the_other(job: Job) -> None:
    for collector in "AB":
        for day in range(4):
            job.add_file(lines(days()[collector, day]), f"{collector}-{day}.json")


def in_any_order(job: Job) -> None:
    order = list(days())
    random.Random(5).shuffle(order)
    for collector, day in order:
        job.add_file(lines(days()[collector, day]), f"{collector}-{day}.json")


def one_file_a_collector(job: Job) -> None:
    for collector in "BA":
        rows = [row for day in range(4) for row in days()[collector, day]]
        job.add_file(lines(rows), f"{collector}.json")


def packed(job: Job) -> None:
    one_after_the_other(job)
    for path in sorted((job.directory / "in").iterdir()):
        whole = path.with_suffix(".json.gz")
        whole.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def mixed_parquet(job: Job) -> None:
    rows = [row for of_day in days().values() for row in of_day]
    random.Random(3).shuffle(rows)
    for begin in range(0, len(rows), 250):
        some = rows[begin : begin + 250]
        times = [datetime.fromisoformat(row["ts"]) for row in some]
        job.add_table(pa.table({"id": [row["id"] for row in some], "ts": pa.array(times, pa.timestamp("us", "UTC"))}))


LAYOUTS = [one_after_the_other, in_any_order, one_file_a_collector, packed, mixed_parquet]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_collectors_one_after_the_other_lose_nothing(
    layout: Callable[[Job], None], new_job: Callable[..., Job]
) -> None:
    """95 % unique, 5 % duplicates, none expired, whatever the files are; without a replay many are expired."""
    form = "parquet" if layout is mixed_parquet else "json"
    job = new_job(source={**SCHEMA, "file_format": form}, key="id", expiry=EVENTS)
    layout(job)
    report = replayed(job)
    assert report.is_over
    assert report.judged == {"unique": 8 * A_DAY * 95 // 100, "duplicate": 8 * A_DAY // 20, "expired": 0, "error": 0}
    assert report.windows > 1
    config = replay_config(job.config, Asked(job.directory / "replayed"))
    store = open_store(config.store.url)
    assert not verify_store(OpenStore(store.url, config, store.log, store.pieces)).findings
    assert report.report is not None
    assert "<html" in Path(report.report).read_text("utf-8")
    assert not (job.directory / "replayed" / "unique" / "_replay").exists()


# Random layouts against the oracle.


def random_files(job: Job, seed: int) -> list[tuple[Path, list[Record | str]]]:
    """Files of some tens of records, which overlap and lie in disorder in any way; some records are errors."""
    draw = random.Random(seed)
    records: list[Record | str] = []
    step, strays = draw.choice((1, 20)), draw.choice(((0,), (0, 0, 0, -30, 50, -200)))
    for number in range(draw.randrange(1, 150)):
        t = number // step * step * 3 + draw.choice(strays)
        kind = draw.random()
        if kind < 0.04:
            records.append("{no record")
        elif kind < 0.07:
            records.append({"k": None, "t": t})
        elif kind < 0.1:
            records.append({"k": "x"})
        else:
            records.append({"k": str(draw.randrange(40)), "t": t})
    shape = draw.choice(("sorted", "shuffled", "slightly"))
    if shape == "sorted":
        records.sort(key=lambda one: one.get("t", 0) if isinstance(one, dict) else 0)
    elif shape == "shuffled":
        draw.shuffle(records)
    files = []
    count = draw.randrange(1, 7)
    cuts = sorted(draw.randrange(len(records) + 1) for _ in range(count - 1))
    groups = [records[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(records)], strict=True)]
    draw.shuffle(groups)
    if draw.random() < 0.3:
        groups.append(["{", "[]"])
    for group in groups:
        if group:
            texts = [one if isinstance(one, str) else json.dumps(one) for one in group]
            files.append((job.add_file(texts), group))
    return files


@pytest.mark.night(but=["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"])
@pytest.mark.parametrize("seed", range(40))
def test_a_replay_is_the_oracle_on_the_sorted_log(
    seed: int, new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every verdict and every first copy by its file and row, for any layout, slices, windows and range."""
    for module in ("replay.slices", "tasks.readers.text"):
        monkeypatch.setattr(f"deduper.{module}._BATCH_ROWS", 7)
    draw = random.Random(f"shape {seed}")
    lookup = draw.choice(("all_live", "own_bucket"))
    expiry = {"by": "ordered", "field": "t", "period": 100, "span": 10, "lookup": lookup}
    job = new_job(expiry=expiry, store={"url": "file:state", "shards": 2})
    files = random_files(job, seed)
    first = draw.choice((None, None, 120))
    end = draw.choice((None, None, 300))
    answers = expected(files, lookup, first, end)
    refusal = contextlib.nullcontext() if answers else pytest.raises(UsageError, match="nothing is to be replayed")
    with refusal:
        replayed(
            job,
            slice_bytes=draw.choice((300, 2000, 10**6)),
            window_bytes=draw.choice((1, 3000, 10**6)),
            start=None if first is None else str(first),
            end=None if end is None else str(end),
        )
    assert ports(job) == answers


@pytest.mark.night(but=["1", "3"])
@pytest.mark.parametrize("seed", range(6))
def test_a_comparison_is_two_replays_record_by_record(
    seed: int, new_job: Callable[..., Job], kill: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another key, period and look-up: each record's port by both rules, killed in either half and repeated."""
    expiry = {"by": "ordered", "field": "t", "period": 100, "span": 10, "lookup": "all_live"}
    source = {"schema": "k string, t long, j string"}
    job = new_job(expiry=expiry, store={"url": "file:state", "shards": 2}, source=source)
    files = random_files(job, seed)
    other = Job(
        job.directory,
        job.session,
        {
            "expiry": {**expiry, "period": 40, "lookup": ("all_live", "own_bucket")[seed % 2]},
            "key": ["k", "j"],
            "null_keys": ("error", "allow")[seed % 2],
            "source": source,
        },
    ).config
    asked = Asked(job.directory / "compared")

    def compared() -> Comparison:
        return compare(job.config, other, asked, session=job.session, slice_bytes=300, window_bytes=1)

    here = expected(files, "all_live")
    settings = Settings(
        "ordered",
        period=40,
        span=10,
        lookup=("all_live", "own_bucket")[seed % 2],
        null_keys=("error", "allow")[seed % 2],
    )
    there = expected(files, "", settings=settings, key=("k", "j"))
    for point in ("replay.begun", "window.4.committed", "replay.drained"):
        kill(point)
        with pytest.raises(Killed):
            compared()
    kill("")
    samples: list[int] = []
    sample_of = run_module.sample_of
    monkeypatch.setattr(run_module, "sample_of", lambda *given: samples.append(1) or sample_of(*given))
    found = compared()
    assert found.is_over
    assert len(samples) <= 1, "both plans are from one"
    counts = Counter((here[place][0], there[place][0]) for place in here)
    assert {(cell.here, cell.there): cell.records for cell in found.cells} == counts
    differing = sum(count for (one, two), count in counts.items() if one != two)
    assert sum(one["records"] for one in found.keys) <= differing
    for cell in found.cells:
        for one in cell.samples:
            place = one["source"], one["position"]
            assert (here[place][0], there[place][0]) == (cell.here, cell.there)
    assert not (job.directory / "compared" / "here" / "unique" / "_replay").exists()
    assert compared().cells == found.cells


def test_compared_keys_of_all_types_are_shown(new_job: Callable[..., Job]) -> None:
    """Those that JSON has no value for as texts, and times of any year, where `datetime` has none."""
    expiry = {"by": "ordered", "field": "t", "period": 100, "span": 10, "lookup": "all_live"}
    kinds = [
        "at timestamp",
        "wall timestamp_ntz",
        "day date",
        "price decimal(10,2)",
        "raw binary",
        "x double",
        "b boolean",
    ]
    names = [kind.split()[0] for kind in kinds]
    settings = {"source": {"schema": ", ".join([*kinds, "t long"])}, "key": names, "null_keys": "allow"}
    job = new_job(expiry=expiry, store={"url": "file:state", "shards": 2}, **settings)
    keys: list[list[Any]] = [
        ["2024-01-06T00:00:00Z", "2024-01-06T00:00:00", "2024-01-06", 1.5, "/wA=", "NaN", True],
        ["+20000-01-01T00:00:00Z", "+20000-01-01T00:00:00", "+20000-01-01", -1, "", 0.5, False],
        [None] * len(names),
    ]
    for key in keys:
        row = {name: value for name, value in zip(names, key, strict=True) if value is not None}
        job.add_records([{**row, "t": 1}, {**row, "t": 50}])
    job.add_records([{"b": True, "t": 40}])  # moves the clock
    other = Job(job.directory, job.session, {**job.settings, "expiry": {**expiry, "period": 20}}).config
    found = compare(job.config, other, Asked(job.directory / "compared"), session=job.session)
    shown: list[list[Any]] = [
        ["2024-01-06T00:00:00Z", "2024-01-06T00:00:00", "2024-01-06", "1.50", "0xff00", "nan", True],
        ["568971820800000000us", "568971820800000000us", "+20000-01-01", "-1.00", "0x", 0.5, False],
        [None] * len(names),
    ]
    (moved,) = [cell for cell in found.cells if cell.here != cell.there]
    assert [list(one["key"].values()) for one in moved.samples] == shown
    answer = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert sorted(map(repr, answer["keys"])) == sorted(
        repr({"key": dict(zip(names, key, strict=True)), "records": 1}) for key in shown
    )


def test_a_comparison_without_files_counts_nothing(new_job: Callable[..., Job]) -> None:
    """A user may clear both folders; rows of one side alone are an error."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    one_after_the_other(job)
    asked = Asked(job.directory / "compared")
    for cleared in ("", "here", "there"):
        for path in (job.directory / "compared" / cleared).glob("*/*.parquet") if cleared else ():
            path.unlink()
        refusal = (
            pytest.raises(IntegrityError, match="other records") if cleared == "here" else contextlib.nullcontext()
        )
        with refusal:
            found = compare(job.config, job.config, asked, session=job.session)
            assert sum(cell.records for cell in found.cells) == (0 if cleared else 8 * A_DAY)


def test_rules_over_other_records_are_not_compared(new_job: Callable[..., Job]) -> None:
    """One schema, one order of time: else the same record is another one there."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    one_after_the_other(job)
    others = [
        ({"source": {"schema": "id string, ts timestamp, more int"}, "key": "id", "expiry": EVENTS}, "source.schema"),
        ({"source": SCHEMA, "key": "id", "expiry": {"by": "never"}}, "expiry.by"),
    ]
    for settings, match in others:
        with pytest.raises(UsageError, match=match):
            plan_comparison(job.config, Job(job.directory, job.session, settings).config, Asked(job.directory / "c"))
    with pytest.raises(UsageError, match="in-place"):
        plan_comparison(job.config, job.config, Asked(None))


# What a crash leaves.

POINTS = (
    "start.claimed",
    "replay.surveyed",
    "replay.planned",
    "replay.begun",
    "window.2.judged",
    "window.4.committed@2",
    "window.7.checkpoint@2",
    "replay.drained",
)


@pytest.mark.night
def test_a_replay_that_is_killed_goes_on(new_job: Callable[..., Job], kill: Callable[[str], None]) -> None:
    """Killed between any two steps and repeated: each record leaves once, by the port of a whole run."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    one_after_the_other(job)
    for point in POINTS:
        kill(point)
        with pytest.raises(Killed):
            replayed(job, slice_bytes=2000, window_bytes=1)
    kill("")
    report = replayed(job, slice_bytes=2000, window_bytes=1)
    assert report.is_over
    assert report.judged["unique"] == 8 * A_DAY * 95 // 100
    assert len(ports(job)) == 8 * A_DAY
    again = replayed(job)
    assert (again.is_over, again.windows) == (True, report.windows)


@pytest.mark.parametrize("point", ["window.4.committed", "window.5.published"])
def test_the_last_window_is_published_if_it_dies_before_that(
    point: str, new_job: Callable[..., Job], kill: Callable[[str], None]
) -> None:
    """All is judged then, and the rows of the ports are staged: the same command publishes them. Of two stores too."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    one_after_the_other(job)
    killed_at(point, job, kill)
    report = replayed(job)
    assert (report.is_over, len(ports(job))) == (True, 8 * A_DAY)
    asked = Asked(job.directory / "compared")
    for _ in range(2):
        kill(point)
        with pytest.raises(Killed):
            compare(job.config, job.config, asked, session=job.session)
    kill("")
    found = compare(job.config, job.config, asked, session=job.session)
    assert (found.is_over, sum(cell.records for cell in found.cells)) == (True, 8 * A_DAY)


def test_a_file_that_changes_before_it_is_read_stops_the_replay(
    new_job: Callable[..., Job], kill: Callable[[str], None]
) -> None:
    """Its order is not known any more; put back, it is read. A slice needs no file."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    for day in range(3):
        job.add_file(lines(days()["A", day]), f"A-{day}.json")
    job.add_file(lines(days()["B", 0]), "B-0.json")
    killed_at("replay.begun", job, kill)
    (job.directory / "in" / "B-0.json").unlink()
    last = job.directory / "in" / "A-2.json"
    last.rename(job.directory / "aside")
    with pytest.raises(FileMovedError, match=r"A-2\.json"):
        replayed(job)
    (job.directory / "aside").rename(last)
    assert replayed(job).is_over
    assert len(ports(job)) == 4 * A_DAY


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_file_without_times_that_changes_stops_the_replay(
    is_gone: bool, new_job: Callable[..., Job], kill: Callable[[str], None]
) -> None:
    """It had no place in time, and its new records may have one: they are no errors."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    grows = job.add_file(["service starts"], "log.json")
    job.add_file(lines(days()["A", 0]), "A-0.json")
    killed_at("replay.begun", job, kill)
    grows.rename(job.directory / "aside")
    if not is_gone:
        grows.write_text("".join(f"{line}\n" for line in ["service starts", *lines(days()["A", 1])]))
    for _ in range(2):
        with pytest.raises(FileMovedError, match=r"log\.json"):
            replayed(job)
    (job.directory / "aside").rename(grows)
    assert replayed(job).judged == {"unique": A_DAY, "duplicate": 0, "expired": 0, "error": 1}


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_file_of_columns_that_changes_before_it_is_sorted_stops_the_replay(
    is_gone: bool, new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its footer is read again for the sorting."""
    job = new_job(source={**SCHEMA, "file_format": "parquet"}, key="id", expiry=EVENTS)
    mixed_parquet(job)
    path = sorted((job.directory / "in").iterdir())[0]

    def hit(name: str) -> None:
        if name == "replay.surveyed" and is_gone:
            path.unlink()
        elif name == "replay.surveyed":
            os.utime(path, (1, 1))

    monkeypatch.setattr(failpoints, "hit", hit)
    with pytest.raises(FileMovedError, match=path.name):
        replayed(job)


def test_records_of_the_future_come_last(new_job: Callable[..., Job]) -> None:
    """A poisoned time in each file makes no file one that reaches into the future; the records are errors."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    one_after_the_other(job)
    for path in sorted((job.directory / "in").iterdir()):
        rows = path.read_text().splitlines()
        rows.insert(50, json.dumps({"id": "poison", "ts": "2099-01-01T00:00:00Z"}))
        path.unlink()
        job.add_file(rows, path.name)
    report = replayed(job)
    assert report.judged == {"unique": 8 * A_DAY * 95 // 100, "duplicate": 8 * A_DAY // 20, "expired": 0, "error": 8}
    raw = {row["_dedup"]["raw"] for row in read_rows(job.directory / "replayed" / "error")}
    assert raw == {json.dumps({"id": "poison", "ts": "2099-01-01T00:00:00Z"})}


@pytest.mark.parametrize("is_sorted", [True, False])
def test_records_without_key_and_time_leave_as_errors(new_job: Callable[..., Job], is_sorted: bool) -> None:
    """They go with the record before them, whatever else is wrong; none is lost, and none has a time of its own."""
    source = {"schema": "id string, ts bigint"}
    expiry = {**EVENTS, "unit": "ms"}
    job = new_job(source=source, key="id", expiry=expiry)
    at = int(DAY0.timestamp()) * 1000
    wrong: list[Record] = [{"id": None, "ts": (1 << 63) - 1}, {"id": "x"}, {"id": None}]
    for number in range(2):
        begin = at + number * (86_400_000 if is_sorted else 500)
        rows = [{"id": f"{number}-{one}", "ts": begin + one * 1000} for one in range(40)]
        mixed = [*wrong, *rows[:20], *wrong, *rows[20:], *wrong]
        job.add_file(lines(mixed), f"{number}.json")
    report = replayed(job)
    assert report.judged == {"unique": 80, "duplicate": 0, "expired": 0, "error": 18}
    assert len(ports(job)) == 98


def test_a_range_takes_leading_records_without_time_with_the_first_that_has_one(new_job: Callable[..., Job]) -> None:
    """Not as records of 1970."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    for day in range(2):
        job.add_file(lines([{"id": "no time"}, *days()["A", day]]), f"A-{day}.json")
    report = replayed(job, start="2024-01-07T00:00:00Z")
    assert report.judged == {"unique": A_DAY, "duplicate": 0, "expired": 0, "error": 1}


def test_a_damaged_column_is_one_error(new_job: Callable[..., Job]) -> None:
    """Of Parquet, also a column that the order does not need."""
    job = new_job(source={**SCHEMA, "file_format": "parquet"}, key="id", expiry=EVENTS)
    mixed_parquet(job)
    path = sorted((job.directory / "in").iterdir())[0]
    stat, data = path.stat(), bytearray(path.read_bytes())
    begin = parquet.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
    data[begin : begin + 200] = b"\xff" * 200
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    report = replayed(job)
    assert report.judged["error"] == 1
    assert sum(report.judged.values()) == 8 * A_DAY - 250 + 1


def test_a_file_that_cannot_be_read_is_one_error(new_job: Callable[..., Job]) -> None:
    """As in a job, and the others are judged."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    one_after_the_other(job)
    (job.directory / "in" / "broken.json.gz").write_bytes(b"no gzip at all")
    report = replayed(job)
    assert report.judged["error"] == 1
    assert report.judged["unique"] == 8 * A_DAY * 95 // 100


def test_a_link_in_a_circle_is_passed_over(new_job: Callable[..., Job], caplog: pytest.LogCaptureFixture) -> None:
    """As by a job, with a warning."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    job.add_file(lines(days()["A", 0]), "A-0.json")
    (job.directory / "in" / "loop").symlink_to("loop")
    report = replayed(job)
    assert (report.is_over, report.files, report.judged["unique"]) == (True, 1, A_DAY)
    assert "loop cannot be looked at" in caplog.text


def test_a_file_that_was_cut_off_gives_its_records_in_their_time(new_job: Callable[..., Job]) -> None:
    """Those before the cut, and one error; whether it is sorted or read as it is."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    one_after_the_other(job)
    for name in ("A-3.json", "B-1.json"):  # one that is alone in its time would be read as it is
        path = job.directory / "in" / name
        data = gzip.compress(path.read_bytes(), 0)
        path.with_suffix(".json.gz").write_bytes(data[: len(data) // 2])
        path.unlink()
    (job.directory / "in" / "B-3.json").unlink()
    report = replayed(job)
    assert (report.judged["error"], report.judged["expired"]) == (2, 0)
    by_file = Counter(Path(source).name for source, _ in ports(job))
    assert 40 < by_file["A-3.json.gz"] < 60
    assert 40 < by_file["B-1.json.gz"] < 60


@pytest.mark.parametrize("layout", [one_after_the_other, one_file_a_collector])
def test_payloads_are_compared(new_job: Callable[..., Job], layout: Callable[[Job], None]) -> None:
    """A copy with another payload is a conflict, read as it is or from a slice."""
    job = new_job(
        source={"schema": "id string, ts timestamp, n int"}, key="id", expiry=EVENTS, fingerprint={"columns": ["n"]}
    )
    layout(job)
    paths = sorted((job.directory / "in").iterdir())
    for path in paths:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        is_other = path.name.startswith("B")
        changed = [{**row, "n": number % 20 if is_other else 0} for number, row in enumerate(rows)]
        path.write_text("".join(f"{line}\n" for line in lines(changed)))
    report = replayed(job)
    assert report.judged == {"unique": 8 * A_DAY * 95 // 100, "duplicate": 8 * A_DAY // 20, "expired": 0, "error": 0}
    reasons = Counter(row["_dedup"]["reason"] for row in read_rows(job.directory / "replayed" / "duplicate"))
    conflicts = sum(count for reason, count in reasons.items() if reason.startswith("conflict"))
    assert conflicts == 8 * A_DAY // 40


def test_a_job_goes_on_where_its_replay_ends(new_job: Callable[..., Job], kill: Callable[[str], None]) -> None:
    """Into its own store: refused until the replay is over, then only newer files are judged, against the old keys."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    one_after_the_other(job)
    in_place = Asked(None)
    kill("window.7.checkpoint")
    with pytest.raises(Killed):
        replay(job.config, in_place, session=job.session, slice_bytes=4000, window_bytes=9000)
    with pytest.raises(UsageError, match="replay into this store is not over"):
        job.run()
    kill("")
    assert replay(job.config, in_place, session=job.session, slice_bytes=4000, window_bytes=9000).is_over
    again = {"id": "B-3-99", "ts": (DAY0 + timedelta(days=4)).strftime("%Y-%m-%dT%H:%M:%SZ")}
    new = job.add_file(lines([again, {**again, "id": "new"}]), "C.json")
    report = replay(job.config, in_place, session=job.session)
    assert (report.is_over, report.files_since) == (True, 1)
    summary = job.run()
    assert (summary.unique, summary.duplicate) == (1, 1)
    twin = next(row for row in job.rows("duplicate") if row["_dedup"]["source"] == str(new))
    assert twin["_dedup"]["first_seen"]["source"].endswith("/B-3.json")
    with pytest.raises(UsageError, match="judged in another order; leave out --in-place"):
        plan_replay(job.config, in_place)


def test_a_plan_says_what_comes(new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, bytes, records and places; nothing is written. Two rules over one source are planned from one sample."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    one_after_the_other(job)
    samples: list[int] = []
    sample_of = run_module.sample_of
    monkeypatch.setattr(run_module, "sample_of", lambda *given: samples.append(1) or sample_of(*given))
    both = plan_comparison(job.config, job.config, Asked(job.directory / "replayed"))
    assert both.here.estimate is not None
    assert (both.here.estimate, len(samples)) == (both.there.estimate, 1)
    planned = plan_replay(job.config, Asked(job.directory / "replayed"))
    assert planned.estimate is not None
    assert replace(planned.estimate, core_seconds=0.0) == replace(both.here.estimate, core_seconds=0.0)
    assert planned.files == 8
    assert planned.estimate is not None
    assert planned.estimate.records == 8 * A_DAY
    assert planned.estimate.first == "2024-01-06T00:00:00Z"
    assert not (job.directory / "replayed").exists()
    assert planned.outputs["unique"].endswith("/replayed/unique")


@pytest.mark.parametrize(
    ("settings", "asked", "match"),
    [
        ({"expiry": {"by": "never"}}, {"order": "time"}, "no order of time"),
        ({"expiry": EVENTS}, {"order": "arrival", "start": "2024-01-06T00:00:00Z"}, "--from and --to"),
        ({"expiry": EVENTS}, {"start": "2024-01-07T00:00:00Z", "end": "2024-01-06T00:00:00Z"}, "nothing is between"),
        ({"expiry": EVENTS}, {"start": "yesterday"}, "--from: column ts"),
        ({"expiry": EVENTS}, {}, "nothing is there"),
        ({"expiry": EVENTS}, {"out": None, "end": "2024-01-06T00:00:00Z"}, "takes the whole source"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    settings: dict[str, Any], asked: dict[str, Any], match: str, new_job: Callable[..., Job]
) -> None:
    """Before anything starts, with what to write instead."""
    job = new_job(source=SCHEMA, key="id", **settings)
    (job.directory / "in").mkdir()
    with pytest.raises(UsageError, match=match):
        plan_replay(job.config, Asked(**{"out": job.directory / "replayed", **asked}))


def test_another_range_is_another_replay(new_job: Callable[..., Job], kill: Callable[[str], None]) -> None:
    """One that is under way is continued as it was begun."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    one_after_the_other(job)
    killed_at("window.7.checkpoint", job, kill)
    for _ in ("under way", "over"):
        with pytest.raises(UsageError, match="another range or other rules"):
            replayed(job, start="2024-01-07T00:00:00Z")
        shorter = job.config.model_copy(
            update={"expiry": job.config.expiry.model_copy(update={"period": 3_600_000_000})}
        )
        for act in (plan_replay, partial(replay, session=job.session)):
            with pytest.raises(UsageError, match="another range or other rules"):
                act(shorter, Asked(job.directory / "replayed"))
        assert replayed(job).is_over
        assert plan_replay(job.config, Asked(job.directory / "replayed")).is_over


def test_other_ports_are_another_replay(new_job: Callable[..., Job], kill: Callable[[str], None]) -> None:
    """Its slices have what those of its begin need, and lie beside the first one; put back, it goes on."""
    none = {port: {"format": "none"} for port in PORTS}
    two = {port: {"format": "parquet", "path": f"out/{port}"} for port in ("duplicate", "error")}
    unique = {"unique": {"format": "parquet", "path": "out/unique"}}
    for name, begun in (("without", none), ("two", {**none, **two})):
        job = new_job(name, source=SCHEMA, key="id", expiry=EVENTS, sinks=begun)
        one_after_the_other(job)
        killed_at("replay.begun", job, kill)
        more = Job(job.directory, job.session, {**job.settings, "sinks": {**begun, **unique}})
        for act in (plan_replay, partial(replay, session=job.session)):
            with pytest.raises(UsageError, match=r"replay with other ports .*_replay.*: repeat it as it was"):
                act(more.config, Asked(job.directory / "replayed"))
        assert replayed(job).is_over


def test_a_replay_whose_folder_was_moved_goes_on(new_job: Callable[..., Job], kill: Callable[[str], None]) -> None:
    """Its plan and slices have moved with its ports."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    one_after_the_other(job)
    killed_at("replay.begun", job, kill)
    (job.directory / "replayed").rename(job.directory / "moved")
    for _ in range(2):
        report = replay(job.config, Asked(job.directory / "moved"), session=job.session)
        assert (report.is_over, sum(report.judged.values())) == (True, 8 * A_DAY)


def test_files_of_other_times_have_not_come_since(new_job: Callable[..., Job]) -> None:
    """They were there, and are not part of the replay; a repeated command says the same."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    one_after_the_other(job)
    for _ in range(2):
        report = replayed(job, start="2024-01-07T00:00:00Z")
        assert (report.is_over, report.files, report.files_since) == (True, 8, 0)


def test_a_folder_of_another_order_is_refused(new_job: Callable[..., Job]) -> None:
    """With what to write instead."""
    job = new_job(source=SCHEMA, key="id", expiry=EVENTS)
    one_after_the_other(job)
    assert replayed(job, order="arrival").is_over
    with pytest.raises(UsageError, match="judged in another order; name another --out"):
        replayed(job)


def test_without_time_a_replay_is_in_source_order(new_job: Callable[..., Job]) -> None:
    """`never`: as `run --once`, into a store of its own."""
    job = new_job(source=SCHEMA, key="id", expiry={"by": "never"})
    one_after_the_other(job)
    report = replayed(job)
    assert (report.order, report.is_over) == ("arrival", True)
    assert report.judged["duplicate"] == 8 * A_DAY // 20
    assert CommitLog.open(replay_config(job.config, Asked(job.directory / "replayed")).store.place).state.next_window
