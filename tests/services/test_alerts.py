"""Every alert of deploy fires in its incident, and is silent before it and in one that is just not bad enough.

Prometheus' own evaluation over simulated metrics of a job, see `night_series`.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from deduper.service.metrics import JobMetrics
from tests.deduper.service.test_metrics_page import NOW_US, config
from tests.services.night_series import (
    GIB,
    RESTART,
    RULES,
    Incident,
    Series,
    alone,
    firing,
    healthy,
    name,
    with_incident,
)

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed"),
]

DAY = 1440
ALERTS = {
    rule["alert"]: rule
    for group in YAML(typ="safe").load((RULES / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}


def constant(value: float) -> Incident:
    """The same all the time."""
    return lambda *_: value


def away(*_: int) -> None:
    """Not scraped, or not there."""


def since(seconds: float) -> Incident:
    """A Unix time so long before the incident, for ever."""
    return lambda minute, into: 60 * (minute - into) - seconds


def ago(seconds: float) -> Incident:
    """A Unix time that is always so long ago."""
    return lambda minute, _: 60 * minute - seconds


def growing(by_minute: float, begin: float = 0) -> Incident:
    """A number that grows."""
    return lambda _, into: begin + by_minute * into


def starts(every: int) -> Incident:
    """Starts of the process, so many minutes apart."""
    return lambda minute, into: 60 * (minute - into % every)


def store(metric: str, labels: str) -> str:
    """A series with labels."""
    return name(metric, labels)


def leak(by_minute: float) -> dict[str, Incident]:
    """Copies among the sampled keys."""
    return {store("deduper_leak_sampled_records_total", 'kind="lookup"'): growing(by_minute, 10)}


FREE = store("deduper_disk_free_bytes", 'place="unique"')
REFUSED = store("deduper_reasons_total", 'verdict="error",reason="ahead_of_now"')
LOGGED = store("deduper_log_messages_total", 'level="error"')
LAG = "deduper_source_lag_records"
AGE = "deduper_source_lag_seconds"
FILES, FILES_AGE = "deduper_source_pending_files", "deduper_source_pending_seconds"
COMMIT = "deduper_last_commit_timestamp_seconds"


@dataclass(frozen=True)
class Case:
    """An incident that makes an alert fire, together with `others`, and one that is just not bad enough.

    The incident begins at minute 60 and lasts `lasts` minutes. The rules of a long one are evaluated less often.
    """

    bad: Mapping[str, Incident]
    fine: Mapping[str, Incident]
    lasts: int = 60
    every: str = "1m"
    others: tuple[str, ...] = ()


PUBLISHED, UNPUBLISHED = "deduper_published_window", "deduper_unpublished_windows"
NEW_STORE: dict[str, Incident] = {
    "deduper_committed_window": away,
    COMMIT: away,
    PUBLISHED: away,
    UNPUBLISHED: constant(0),
}
CASES: dict[str, Case] = {
    "DeduperDown": Case({"up": constant(0)}, {"up": lambda _, into: float(into != 5)}),
    # A target that is taken out of the configuration: its series end.
    "DeduperTargetGone": Case({"up": away}, {"up": lambda _, into: None if into < 4 else 1.0}, lasts=30),
    "DeduperCrashLoop": Case(
        {"deduper_start_timestamp_seconds": starts(5)}, {"deduper_start_timestamp_seconds": starts(15)}
    ),
    "DeduperFirstCommitNever": Case(
        {**NEW_STORE, "deduper_start_timestamp_seconds": since(0), LAG: constant(100)},
        {**NEW_STORE, "deduper_start_timestamp_seconds": since(0), LAG: constant(0)},
    ),
    "DeduperStandsStill": Case(
        {COMMIT: since(0), LAG: growing(1000, 1), AGE: constant(0)}, {COMMIT: since(0), LAG: constant(0)}
    ),
    "DeduperFilesWait": Case(
        {COMMIT: since(0), LAG: away, AGE: away, FILES: constant(3), FILES_AGE: growing(60)},
        {COMMIT: ago(290), LAG: away, AGE: away, FILES: constant(3), FILES_AGE: constant(290)},
        others=("DeduperStale", "DeduperOftenStale"),
    ),
    "DeduperSourceAway": Case(
        {"deduper_source_away_seconds": growing(60)}, {"deduper_source_away_seconds": constant(290)}
    ),
    "DeduperWindowStuck": Case(
        {"deduper_window_running_seconds": growing(60)}, {"deduper_window_running_seconds": constant(890)}
    ),
    "DeduperNotPublished": Case(
        {UNPUBLISHED: constant(1), PUBLISHED: constant(360)},
        {UNPUBLISHED: constant(1)},
    ),
    "DeduperFallsBehind": Case(
        {LAG: growing(20_000, 5000), AGE: constant(200)},
        {LAG: lambda minute, _: 1_000_000 - 5000 * minute, AGE: constant(200)},
    ),
    "DeduperStale": Case({AGE: constant(400)}, {AGE: constant(290)}, others=("DeduperOftenStale",)),
    "DeduperOftenStale": Case(
        {AGE: lambda _, into: 400 if into % 12 == 0 else 0}, {AGE: lambda _, into: 400 if into == 5 else 0}, lasts=180
    ),
    "DeduperClockAhead": Case(
        {"deduper_watermark_lag_seconds": constant(-1800)}, {"deduper_watermark_lag_seconds": constant(-290)}
    ),
    "DeduperClockStandsStill": Case(
        {"deduper_latest_point_timestamp_seconds": constant(3600)},
        {"deduper_latest_point_timestamp_seconds": lambda minute, _: 3600 + minute // 25},
    ),
    "DeduperPoisonedTimestamps": Case({REFUSED: growing(100, 1000)}, {REFUSED: growing(10, 1000)}),
    "DeduperExpiryNotWorking": Case(
        {"deduper_store_overdue_pieces": growing(1)},
        {"deduper_store_overdue_pieces": lambda _, into: 40 if into % 10 else 0},
    ),
    "DeduperUnaccounted": Case(
        {"deduper_unaccounted_records": constant(1)}, {"deduper_unaccounted_records": constant(0)}
    ),
    "DeduperDiskFillsUp": Case(
        {FREE: growing(-0.05 * GIB, 54 * GIB)}, {FREE: growing(-0.02 * GIB, 54 * GIB)}, lasts=300, every="5m"
    ),
    "DeduperDiskFull": Case({FREE: constant(4.9 * GIB)}, {FREE: constant(5.1 * GIB)}, lasts=400, every="5m"),
    "DeduperMemory": Case(
        {"deduper_memory_available_bytes": constant(0.7 * GIB)},
        {"deduper_memory_available_bytes": lambda _, into: (0.7 if into % 8 else 2) * GIB},
    ),
    "DeduperLeaks": Case(leak(1), leak(0.1), lasts=240, every="5m"),
    "DeduperSourceFilesChanged": Case(
        {"deduper_source_changed_files": constant(1)}, {"deduper_source_changed_files": constant(0)}
    ),
    "DeduperLagUnknown": Case(
        {"deduper_source_lag_timestamp_seconds": since(0)}, {"deduper_source_lag_timestamp_seconds": ago(290)}
    ),
    "DeduperWallClockBack": Case(
        {"deduper_wall_clock_ahead_seconds": constant(3600)}, {"deduper_wall_clock_ahead_seconds": constant(59)}
    ),
    "DeduperLogsErrors": Case({LOGGED: lambda _, into: into // 10}, {LOGGED: constant(0)}),
}


@pytest.fixture(scope="module")
def usual() -> Series:
    """Hours of a healthy job, with a restart."""
    return healthy(480, seed=1)


def cut(series: Series, minutes: int) -> Series:
    """The first of them."""
    return {one: values[:minutes] for one, values in series.items()}


@pytest.mark.night(but=["DeduperStandsStill"])
@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_in_its_incident_alone(alert: str, usual: Series, tmp_path: Path) -> None:
    """Nothing fires before; nothing in the incident that is just fine."""
    case = CASES[alert]
    end = 60 + case.lasts
    before, after = firing(with_incident(cut(usual, end), 60, case.bad), [59, end - 1], tmp_path, case.every)
    assert before == set()
    assert after == {alert, *case.others}
    (fine,) = firing(with_incident(cut(usual, end), 60, case.fine), [end - 1], tmp_path, case.every)
    assert fine == set()


@dataclass(frozen=True)
class Stream:
    """A change of the stream of records from minute `begin` on, given (records of a minute, by reason) in place.

    `good` is one that is not bad enough.
    """

    bad: Callable[[dict[str, float]], None]
    good: Callable[[dict[str, float]], None]
    begin: int = 60
    end: int = 120
    others: tuple[str, ...] = ()


def more(reason: str, of_unique: float) -> Callable[[dict[str, float]], None]:
    """So much of the unique records leaves by another reason."""

    def change(records: dict[str, float]) -> None:
        moved = round(records["unique"] * of_unique)
        records["unique"] -= moved
        records[reason] += moved

    return change


def retries(each: float) -> Callable[[dict[str, float]], None]:
    """So many more copies of each unique record come."""

    def change(records: dict[str, float]) -> None:
        records["earlier_window"] += round(records["unique"] * each)

    return change


def fewer(share: float) -> Callable[[dict[str, float]], None]:
    """So much of the duplicates leaves as unique."""

    def change(records: dict[str, float]) -> None:
        for reason in ("earlier_window", "same_window"):
            moved = round(records[reason] * share)
            records[reason] -= moved
            records["unique"] += moved

    return change


def conflicting(share: float) -> Callable[[dict[str, float]], None]:
    """So many records come under known keys with another payload."""

    def change(records: dict[str, float]) -> None:
        records["conflict"] = round(records["unique"] * share)

    return change


STREAMS = {
    # A counter began again; more retries are none.
    "DeduperConflicts": Stream(conflicting(0.001), retries(0.01)),
    # A producer sends 60 % again; 30 % is not three times as much.
    "DeduperManyDuplicates": Stream(retries(0.6), retries(0.2), begin=DAY + 120, end=DAY + 240),
    # A key column gets a new value each time: almost no copy is found any more.
    "DeduperFewDuplicates": Stream(fewer(0.9), fewer(0.5), begin=DAY + 120, end=DAY + 240),
    "DeduperExpiredShareHigh": Stream(more("older_than_period", 0.2), more("older_than_period", 0.08)),
    "DeduperErrorShareHigh": Stream(more("malformed", 0.1), more("malformed", 0.04)),
    "DeduperAlmostAllErrors": Stream(
        more("malformed", 0.99), more("malformed", 0.01), others=("DeduperErrorShareHigh",)
    ),
}


@pytest.mark.night
@pytest.mark.parametrize("alert", STREAMS)
def test_an_alert_on_the_stream_fires_in_its_incident_alone(alert: str, tmp_path: Path) -> None:
    """Against yesterday's pattern where it compares with yesterday."""
    case = STREAMS[alert]
    every = "5m" if case.end > DAY else "1m"

    def changed(change: Callable[[dict[str, float]], None]) -> Series:
        return healthy(case.end, 3, lambda minute, records: change(records) if minute >= case.begin else None)

    before, after = firing(changed(case.bad), [case.begin - 5, case.end - 1], tmp_path, every)
    assert before == set()
    assert after == {alert, *case.others}
    (good,) = firing(changed(case.good), [case.end - 1], tmp_path, every)
    assert good == set()


@pytest.mark.night
@pytest.mark.parametrize(("times", "fires"), [(2.5, {"DeduperStoreGrows"}), (1.8, set())])
def test_a_store_that_grows_without_more_records(times: float, fires: set[str], tmp_path: Path) -> None:
    """Against yesterday's keys; twice the records explain it."""
    minutes = 2 * DAY + 180
    grown: dict[str, Incident] = {"deduper_store_entries": lambda minute, _: 2e7 * (times if minute > 2 * DAY else 1)}
    series = with_incident(healthy(minutes, 5), 0, grown)
    assert firing(series, [minutes - 180, minutes - 10], tmp_path, "10m") == [set(), fires]


@pytest.mark.night
def test_a_full_disk_is_named_while_the_job_starts_again_and_again(tmp_path: Path) -> None:
    """It answers one minute of three, and says each time that there is no room."""
    loop: dict[str, Incident] = {
        "up": lambda _, into: float(into % 3 == 0),
        "deduper_start_timestamp_seconds": lambda minute, into: None if into % 3 else 60 * minute,
        FREE: lambda _, into: None if into % 3 else 0,
    }
    series = with_incident(healthy(100, seed=9), 60, loop)
    before, after = firing(series, [59, 99], tmp_path)
    assert before == set()
    assert {"DeduperDiskFull", "DeduperCrashLoop"} <= after


@pytest.mark.night
def test_no_alert_fires_on_a_healthy_day(tmp_path: Path) -> None:
    """Two days with their pattern, noise and a restart, looked at every half hour of the second."""
    series = healthy(2 * DAY, seed=7)
    assert firing(series, range(DAY, 2 * DAY, 30), tmp_path, "5m") == [set()] * 48


@pytest.mark.night
def test_no_alert_fires_on_a_new_job(tmp_path: Path) -> None:
    """Its first two hours, around a restart."""
    assert firing(healthy(120, seed=8), range(1, 120), tmp_path) == [set()] * 119
    assert RESTART < 120


def every(minutes: int, lasts: int, value: Callable[[int], float]) -> Incident:
    """For so many minutes of each hour, or other time: the value of the minute in it; else 0."""
    return lambda minute, _: value(minute % minutes) if minute % minutes < lasts else 0


def last(minutes: int, after: int) -> Incident:
    """The Unix time of the last window, of one in so many minutes, which is committed so many minutes into them."""
    return lambda minute, _: 60 * (minute - (minute - after) % minutes)


SELDOM: dict[str, Mapping[str, Incident]] = {
    "a file an hour": {
        COMMIT: last(60, 2),
        FILES: every(60, 2, lambda _: 1),
        FILES_AGE: every(60, 2, lambda at: 60 * at),
    },
    "a file in ten minutes": {
        COMMIT: last(10, 2),
        FILES: every(10, 2, lambda _: 1),
        FILES_AGE: every(10, 2, lambda at: 60 * at),
    },
    "a record an hour": {
        COMMIT: last(60, 1),
        store(LAG, 'topic="t",partition="0"'): every(60, 1, lambda _: 1),
        store(AGE, 'topic="t",partition="0"'): every(60, 1, lambda _: 10),
    },
    "the first file of a new store, after hours": {
        "deduper_start_timestamp_seconds": constant(0),
        FILES: lambda minute, _: float(minute >= 120),
        FILES_AGE: lambda minute, _: max(0.0, 60 * (minute - 120)),
    },
}


@pytest.mark.night(but=["a file an hour"])
@pytest.mark.parametrize("job", SELDOM)
def test_input_that_comes_seldom_is_no_standstill(job: str, tmp_path: Path) -> None:
    """An old last window and something that waits now say nothing: it must have waited throughout."""
    assert firing(alone(124, SELDOM[job]), range(124), tmp_path) == [set()] * 124


FALLING: dict[str, tuple[Mapping[str, Incident], set[str]]] = {
    # Windows are committed all the time, and of a listing less and less is left: only the age shows it.
    "five more files a minute": (
        {COMMIT: ago(30), FILES: lambda minute, _: 600 - 10 * (minute % 60), FILES_AGE: growing(6)},
        {"DeduperFallsBehind", "DeduperStale", "DeduperOftenStale"},
    ),
    "a hundred files an hour, judged within four minutes": (
        {COMMIT: ago(30), FILES: every(60, 4, lambda at: 100 - 25 * at), FILES_AGE: every(60, 4, lambda at: 60 * at)},
        set(),
    ),
    "a backlog that is worked off": (
        {COMMIT: ago(30), FILES: lambda minute, _: 9000 - 40 * minute, FILES_AGE: growing(-60, 12_000)},
        {"DeduperStale", "DeduperOftenStale"},
    ),
}


@pytest.mark.night(but=["five more files a minute"])
@pytest.mark.parametrize("job", FALLING)
def test_a_job_on_files_falls_behind(job: str, tmp_path: Path) -> None:
    """By the age of the oldest file that waits, as by that of the oldest record."""
    series, fires = FALLING[job]
    assert firing(alone(179, series), [178], tmp_path) == [fires]


def test_a_port_that_takes_nothing_is_named_before_the_deadline_and_after_each_restart(tmp_path: Path) -> None:
    """The job ends after ten minutes, and its next start waits for the same publication."""

    def cycle(value: float) -> Incident:
        return lambda minute, _: None if minute % 11 == 10 else value

    series = alone(44, {UNPUBLISHED: cycle(1), PUBLISHED: cycle(360), "up": lambda minute, _: float(minute % 11 != 10)})
    named = [{"DeduperNotPublished"}] * 40
    assert firing(series, range(4, 44), tmp_path) == named


def test_a_publication_may_take_two_minutes(tmp_path: Path) -> None:
    """A large window's, one after another."""
    series = alone(60, {UNPUBLISHED: constant(1), PUBLISHED: lambda minute, _: minute // 2})
    assert firing(series, range(60), tmp_path) == [set()] * 60


def test_the_first_error_of_a_module_fires(tmp_path: Path) -> None:
    """By what a job's page shows before and after, whichever module it is."""
    settings, registry = config(tmp_path), CollectorRegistry()
    metrics = JobMetrics(settings, registry, lambda: NOW_US)
    pages = []
    with metrics.log_counts.attached():
        for line in (logging.DEBUG, logging.WARNING, logging.ERROR):
            logging.getLogger("deduper.sources.kafka.batch").log(line, "records of clicks 0 are lost")
            pages.append(logged(registry))
    assert pages[0].keys() == pages[2].keys()
    old: Incident = constant(-86_400)
    shown = {one: [pages[minute // 10][one] for minute in range(30)] for one in pages[0]}
    series = alone(30, {"deduper_start_timestamp_seconds": old}) | shown
    assert firing(series, [19, 20, 29], tmp_path) == [set(), {"DeduperLogsErrors"}, {"DeduperLogsErrors"}]


def logged(registry: CollectorRegistry) -> dict[str, float]:
    """The series of log lines on a page."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [sample for family in families for sample in family.samples]
    return {
        name(sample.name, ",".join(f'{label}="{value}"' for label, value in sample.labels.items())): sample.value
        for sample in samples
        if sample.name == "deduper_log_messages_total"
    }


def test_an_error_before_the_first_scrape_fires(tmp_path: Path) -> None:
    """It is on the page from the beginning: no increase."""
    series = alone(30, {"deduper_start_timestamp_seconds": constant(0), LOGGED: constant(1)})
    assert firing(series, [1, 14, 16], tmp_path) == [{"DeduperLogsErrors"}, {"DeduperLogsErrors"}, set()]


def test_a_clock_by_processing_time_that_was_ahead_is_no_alarm(tmp_path: Path) -> None:
    """It stays ahead for good, without effect."""

    def ahead(by: str) -> Series:
        info = store("deduper_job_info", f'expiry="{by}",name="clicks",source="kafka",store="00"')
        return alone(20, {info: constant(1), "deduper_watermark_lag_seconds": constant(-34_559_940)})

    assert firing(ahead("event_time"), [19], tmp_path) == [{"DeduperClockAhead"}]
    assert firing(ahead("processing_time"), [19], tmp_path) == [set()]


@pytest.mark.night
def test_a_new_store_grows(tmp_path: Path) -> None:
    """On its second day it has more than twice the keys of the first, and that is no news."""
    unique = store("deduper_records_total", 'verdict="unique"')
    series = alone(3 * DAY, {"deduper_store_entries": growing(1000, 1), unique: growing(1000, 1)})
    assert firing(series, range(0, 3 * DAY, 30), tmp_path, "10m") == [set()] * 144


def test_a_rewound_store_has_no_new_conflicts(tmp_path: Path) -> None:
    """Smaller totals are a reset of counters to Prometheus, and all that they count an increase."""
    conflicts = store("deduper_reasons_total", 'verdict="duplicate",reason="conflict"')
    unique = store("deduper_records_total", 'verdict="unique"')

    def rewound(before: float, after: float) -> Incident:
        return lambda minute, _: before if minute < 20 else after

    totals = {conflicts: rewound(900, 800), REFUSED: rewound(5000, 4000), unique: rewound(10_000, 9000)}
    series = alone(40, {**totals, "deduper_windows_total": rewound(1000, 900)})
    assert firing(series, range(40), tmp_path) == [set()] * 40


def test_every_alert_has_both_cases_and_says_what_to_do() -> None:
    """Severity, how long, summary, description, and its section of the runbook."""
    assert set(ALERTS) == {*CASES, *STREAMS, "DeduperStoreGrows"}
    runbook = (RULES.parent / "docs/runbook.md").read_text(encoding="utf-8")
    for alert, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning"), alert
        assert rule["for"], alert
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, alert
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{alert.lower()}"
        section = runbook.split(f"\n## {alert}\n")[1].split("\n## ")[0]
        for part in ("**Means.**", "**Look.**", "**Do.**"):
            assert part in section, (alert, part)
        look = section.split("**Look.**")[1].split("**Do.**")[0]
        assert re.search(r"`|log|dashboard|Prometheus", look), alert
