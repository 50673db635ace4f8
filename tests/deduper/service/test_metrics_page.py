"""What a job's page says, and that nothing it does can harm the job."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.last_end import LastEnd, write_end
from bucket_store.log.leak_sample import write_leak_sample
from bucket_store.log.records import CommitRecord, LogState, OutputFile
from bucket_store.pieces.piece import PieceRef
from bucket_store.places.local import local_place
from deduper.config.model import Config
from deduper.core.statistics import SpanCounts, Statistics
from deduper.core.verdict import DUPLICATE_REASONS, PORT_OF_REASON, VERSION_REASON, Admission
from deduper.errors import DeduperError
from deduper.kafka.offsets import ENDS, End, Ends, Offsets, TopicPartition, ends_to_wire
from deduper.leaks.figures import figures_of
from deduper.leaks.meter import LeakMeter, LeakSettings, sample_of
from deduper.leaks.sample import SampledRecords
from deduper.service import job, lag_watch, metrics, process_memory, window_metrics
from deduper.service.metrics import JobMetrics
from deduper.service.process_memory import resident_bytes, summed_by_process
from deduper.service.window_metrics import FAILURES, SECONDS_BOUNDS, serving_metrics
from deduper.window.policy import DELETION_BATCH, STATISTICS, fixed_settings
from deduper.window.progress import BatchProgress
from tests.ports import free_port

NOW_US = 2_000_000_000_000_000
HOUR_US = 3_600_000_000
PLACES = [TopicPartition("clicks", 0), TopicPartition("clicks", 1)]
PROGRESS = BatchProgress(
    window=0,
    batch_id=0,
    rows=100,
    unique=60,
    duplicate=30,
    expired=4,
    error=6,
    seconds=2.0,
    rows_per_second=50.0,
    phases={"intent": 0.25, "judge": 1.5, "task.read": 0.5},
    tables={"resident_tables": 3, "resident_bytes": 4096, "hits": 7, "misses": 2},
)


def config(directory: Path, **sections: Any) -> Config:
    """A job from a topic; `sections` over it."""
    return Config.model_validate(
        {
            "name": "clicks",
            "source": {
                "format": "kafka",
                "bootstrap_servers": "127.0.0.1:1",
                "topics": ["clicks"],
                "value": {"format": "json", "schema": "k string, ts timestamp"},
                "options": {"librdkafka.sasl.password": "hidden-1", "kafka.ssl.key.password": "hidden-2"},
            },
            "key": "k",
            "expiry": {"by": "event_time", "field": "ts", "period": "24h"},
            "store": {"url": "file:state", "shards": 2},
            "sinks": {port: {"format": "none"} for port in ("unique", "duplicate", "expired", "error")},
            "metrics": {"port": free_port()},
            **sections,
        },
        context={"base_dir": directory},
    )


def ends(*offsets: int) -> Ends:
    """How far the partitions were judged."""
    return {place: End("id", offset) for place, offset in zip(PLACES, offsets, strict=False)}


def committed(log: CommitLog, judged: Ends | None = None) -> CommitRecord:
    """A record of 100 rows, with one piece."""
    piece = PieceRef(0, "f", "p", 0, 1000, 1, 0, 0, 60, 0, 0, NOW_US - HOUR_US)
    return CommitRecord(
        window=log.state.next_window,
        epoch=log.state.epoch,
        attempt=0,
        query_id="q",
        batch_id=0,
        wall_us=NOW_US,
        settings_hash="",
        latest_point=NOW_US - HOUR_US,
        latest_moved_us=NOW_US,
        counts={"unique": 60, "duplicate": 30, "expired": 4, "error": 6},
        reasons={"earlier_window": 20, "same_window": 10, "older_than_period": 4, "malformed": 5, "tombstone": 1},
        pieces=(replace(piece, first_window=log.state.next_window, last_window=log.state.next_window),),
        outputs=(),
        buckets=(0,),
        timestamp=NOW_US - HOUR_US,
        sources=None,
        extra={} if judged is None else {ENDS: ends_to_wire(judged)},
    )


def owned_log(settings: Config) -> CommitLog:
    """A store's log, with an owner."""
    log = CommitLog.create(local_place(settings.store.path), fixed_settings(settings), wall_us=NOW_US)
    log.claim_epoch("test", NOW_US)
    return log


def opened(directory: Path, registry: CollectorRegistry) -> tuple[CommitLog, JobMetrics]:
    """A new store, and what is told of it."""
    settings = config(directory)
    log = owned_log(settings)
    reported = JobMetrics(settings, registry, lambda: NOW_US)
    reported.opened(log)
    return log, reported


def page(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of the page by name and labels; the page must be one that Prometheus reads."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [sample for family in families for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples), "a sample stands there twice"
    return found


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """One sample; None when it is not there."""
    return page(registry).get((name, frozenset(labels.items())))


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry of the test's own."""
    return CollectorRegistry()


def test_the_end_of_the_owner_before_is_on_the_page(tmp_path: Path) -> None:
    """Its exit code; -1 if it was killed."""
    settings = config(tmp_path)
    log = owned_log(settings)
    write_end(log.root, LastEnd(1, "host:1", 3, "no topic", NOW_US))
    for expected in (3, -1):
        log.claim_epoch("host:2", NOW_US)
        one = CollectorRegistry()
        JobMetrics(settings, one, lambda: NOW_US).opened(log)
        assert value(one, "deduper_last_exit_code") == expected


def test_what_the_store_has_is_told_from_the_log(tmp_path: Path, registry: CollectorRegistry) -> None:
    """Counters are the store's own totals: a new process goes on where the last one died."""
    settings = config(tmp_path)
    log = owned_log(settings)
    log.place(committed(log, ends(10, 20)))
    for _ in range(2):
        one = CollectorRegistry()
        reported = JobMetrics(settings, one, lambda: NOW_US)
        reported.opened(log)
        assert value(one, "deduper_records_total", verdict="unique") == 60
        assert value(one, "deduper_reasons_total", verdict="error", reason="malformed") == 5
        assert value(one, "deduper_reasons_total", verdict="duplicate", reason="same_window") == 10
        assert value(one, "deduper_reasons_total", verdict="error", reason="null_key") == 0
        assert value(one, "deduper_windows_total") == 1
        assert value(one, "deduper_store_entries") == 60
        assert value(one, "deduper_store_bytes", state="live") == 1000
        assert value(one, "deduper_store_pieces", state="retired") == 0
        assert value(one, "deduper_epoch") == 1
        assert value(one, "deduper_last_exit_code") is None, "nobody was before"
        assert value(one, "deduper_committed_window") == value(one, "deduper_published_window") == 0
        assert value(one, "deduper_last_commit_timestamp_seconds") == NOW_US / 1e6
        assert value(one, "deduper_source_judged_offset", topic="clicks", partition="1") == 20
        assert value(one, "deduper_window_seconds_count") == 0


@pytest.mark.parametrize(("machine_us", "ahead_s"), [(NOW_US - 2_500_000, 2.5), (NOW_US, 0), (NOW_US + 1, 0)])
def test_a_wall_clock_of_the_store_ahead_of_the_machine_shows(
    machine_us: int, ahead_s: float, tmp_path: Path, registry: CollectorRegistry
) -> None:
    """As long as the store's stands still and waits for the machine's."""
    settings = config(tmp_path)
    reported = JobMetrics(settings, registry, lambda: machine_us)
    reported.opened(owned_log(settings))
    assert value(registry, "deduper_wall_clock_ahead_seconds") == ahead_s


def test_reasons_are_a_closed_set() -> None:
    """Every admission, all kinds of duplicates, and versions have their line from the first scrape on."""
    assert set(PORT_OF_REASON) == {
        admission.reason for admission in Admission if admission is not Admission.ADMITTED
    } | {*DUPLICATE_REASONS, VERSION_REASON}
    assert set(PORT_OF_REASON.values()) == {"unique", "duplicate", "expired", "error"}


def test_a_window_that_is_committed_and_not_published_shows(tmp_path: Path, registry: CollectorRegistry) -> None:
    """While the brokers of a port are down, the two numbers stand apart."""
    log, reported = opened(tmp_path, registry)
    assert value(registry, "deduper_published_window") is None
    log.place(committed(log))
    assert (value(registry, "deduper_committed_window"), value(registry, "deduper_published_window")) == (0, None)
    reported.window_ended(PROGRESS)
    assert value(registry, "deduper_published_window") == 0
    log.place(committed(log))
    assert (value(registry, "deduper_committed_window"), value(registry, "deduper_published_window")) == (1, 0)


def test_windows_are_told_when_they_end(tmp_path: Path, registry: CollectorRegistry) -> None:
    """Sums over windows, the last window's rate, and how long the one at hand has been running."""
    seconds = 100.0
    settings = config(tmp_path)
    reported = JobMetrics(settings, registry, lambda: NOW_US, lambda: seconds)
    reported.opened(owned_log(settings))
    assert value(registry, "deduper_rows_per_second") is None
    with reported.window():
        seconds = 107.5
        assert value(registry, "deduper_window_running_seconds") == 7.5
    assert value(registry, "deduper_window_running_seconds") == 7.5, "it is committed, not published"
    reported.window_ended(PROGRESS)
    assert value(registry, "deduper_window_running_seconds") == 0
    reported.window_ended(replace(PROGRESS, window=1, seconds=0.1, rows_per_second=1000.0))
    assert value(registry, "deduper_window_phase_seconds_total", phase="judge") == 3.0
    assert value(registry, "deduper_window_phase_seconds_total", phase="publish") == 0
    assert value(registry, "deduper_task_seconds_total", step="read") == 1.0
    assert value(registry, "deduper_rows_per_second") == 1000.0
    assert value(registry, "deduper_table_hits_total") == 14
    assert value(registry, "deduper_tables_resident_bytes") == 4096
    assert value(registry, "deduper_window_seconds_count") == 2
    assert value(registry, "deduper_window_seconds_sum") == 2.1
    assert value(registry, "deduper_window_rows_sum") == 200


def test_a_window_runs_until_it_is_published(tmp_path: Path, registry: CollectorRegistry) -> None:
    """Beside the next one: the oldest counts, so a publication that hangs shows. One that fails leaves the others."""
    seconds = 100.0
    reported = JobMetrics(config(tmp_path), registry, lambda: NOW_US, lambda: seconds)
    with reported.window():
        pass
    seconds = 110.0
    with pytest.raises(RuntimeError), reported.window():
        raise RuntimeError
    with reported.window():
        seconds = 112.0
        assert value(registry, "deduper_window_running_seconds") == 12
        reported.window_ended(PROGRESS)
        assert value(registry, "deduper_window_running_seconds") == 2
    assert value(registry, "deduper_last_commit_timestamp_seconds") == NOW_US / 1e6
    reported.window_ended(replace(PROGRESS, window=1))
    assert value(registry, "deduper_window_running_seconds") == 0


def test_a_window_that_fails_is_at_hand_no_more(tmp_path: Path, registry: CollectorRegistry) -> None:
    """Else an alert would count on for ever."""
    reported = JobMetrics(config(tmp_path), registry, lambda: NOW_US)
    with pytest.raises(RuntimeError), reported.window():
        raise RuntimeError
    reported.failed("window")
    assert value(registry, "deduper_window_running_seconds") == 0
    assert value(registry, "deduper_errors_total", kind="window") == 1
    assert value(registry, "deduper_last_error_timestamp_seconds", kind="window") == NOW_US / 1e6
    assert value(registry, "deduper_last_error_timestamp_seconds", kind="source_lag") is None


def test_an_observation_on_a_bound_counts_below_it(tmp_path: Path, registry: CollectorRegistry) -> None:
    """As Prometheus means `le`; both sides of the edge, and beyond the last one. Bounds keep their spelling."""
    told = JobMetrics(config(tmp_path), registry, lambda: NOW_US)
    for seconds, rows in ((0.1, 10**6), (0.1000001, 10**6 + 1), (0.25, 0), (301.0, 10**8)):
        told.window_ended(replace(PROGRESS, seconds=seconds, rows=rows))
    assert [value(registry, "deduper_window_seconds_bucket", le=le) for le in ("0.1", "0.25", "300.0", "+Inf")] == [
        *(1, 3, 3, 4)
    ]
    assert [value(registry, "deduper_window_rows_bucket", le=le) for le in ("1000000.0", "10000000.0", "+Inf")] == [
        *(2, 3, 4)
    ]
    assert not [name for name, _ in page(registry) if name.endswith("_created")]
    assert sorted(SECONDS_BOUNDS) == list(SECONDS_BOUNDS)


def test_estimates_of_the_leak_meter_show(tmp_path: Path, registry: CollectorRegistry) -> None:
    """From the store's file at the start, then with every window; absent while nothing was measured."""
    settings = config(tmp_path)
    log = owned_log(settings)
    shown = JobMetrics(settings, registry, lambda: NOW_US)
    shown.opened(log)
    assert "deduper_leak" not in generate_latest(registry).decode()
    meter = LeakMeter.new(LeakSettings(8, 16, False, 40, 80, (40.0,)))
    for window, expiry in enumerate((0, 39)):
        records = SampledRecords(
            np.array([5], np.uint64), np.array([expiry]), np.zeros(1, np.int64), np.zeros(1, np.uint8)
        )
        meter.add(records, None if not window else 0, 100)
    about = {"next_window": 2, "first_window": 0, "since_us": NOW_US, "missed_windows": 3}
    leaks = figures_of(meter, **about)
    write_leak_sample(log.root, sample_of(meter, store_id=log.manifest.store_id, **about))
    again = CollectorRegistry()
    JobMetrics(settings, again, lambda: NOW_US).opened(log)
    shown.window_ended(replace(PROGRESS, leaks=leaks))
    for page in (again, registry):
        assert page.get_sample_value("deduper_leak_estimate_records", {"kind": "lookup"}) == 256
        low = page.get_sample_value("deduper_leak_estimate_low_records", {"kind": "lookup"})
        high = page.get_sample_value("deduper_leak_estimate_high_records", {"kind": "lookup"})
        assert low is not None
        assert high is not None
        assert 0 < low < 256 < high < 1600
        assert page.get_sample_value("deduper_leak_sampled_records_total", {"kind": "lookup"}) == 1
        assert page.get_sample_value("deduper_leak_sampled_records_total", {"kind": "expired"}) == 0
        assert page.get_sample_value("deduper_leak_seen_records_total") == 2
        assert page.get_sample_value("deduper_leak_sample_ratio") == 1 / 256
        assert page.get_sample_value("deduper_leak_sample_keys") == 1
        assert page.get_sample_value("deduper_leak_missed_windows") == 3


@pytest.mark.parametrize(
    ("expiry", "is_time"),
    [
        ({"by": "event_time", "field": "ts", "period": "24h"}, True),
        ({"by": "ordered", "field": "n", "period": 10, "span": 1}, False),
        ({"by": "never"}, False),
    ],
)
def test_points_are_times_or_absent(
    expiry: dict[str, Any], is_time: bool, tmp_path: Path, registry: CollectorRegistry
) -> None:
    """A number that orders records is no moment, and has no lag behind the clock."""
    source = {"format": "files", "path": "in", "file_format": "json", "schema": "k string, ts timestamp, n long"}
    settings = config(tmp_path, expiry=expiry, source=source)
    log = owned_log(settings)
    reported = JobMetrics(settings, registry, lambda: NOW_US + 5_000_000)
    reported.opened(log)
    assert value(registry, "deduper_watermark_lag_seconds") is None
    log.place(committed(log))
    latest_s = (NOW_US - HOUR_US) / 1e6
    wanted = (latest_s, latest_s - 86400, 3605.0) if is_time else (None, None, None)
    assert (
        value(registry, "deduper_latest_point_timestamp_seconds"),
        value(registry, "deduper_expiry_point_timestamp_seconds"),
        value(registry, "deduper_watermark_lag_seconds"),
    ) == wanted


def test_lag_is_what_the_brokers_hold_and_no_window_has(tmp_path: Path, registry: CollectorRegistry) -> None:
    """By partition; never below zero; without a partition of which the brokers know nothing."""
    log, reported = opened(tmp_path, registry)
    reported.source_ends({PLACES[0]: 15})
    assert value(registry, "deduper_source_lag_records", topic="clicks", partition="0") is None
    log.place(committed(log, ends(10, 20)))
    assert value(registry, "deduper_source_lag_records", topic="clicks", partition="0") == 5
    assert value(registry, "deduper_source_lag_records", topic="clicks", partition="1") is None
    assert value(registry, "deduper_source_lag_timestamp_seconds") == NOW_US / 1e6
    log.place(committed(log, ends(30, 40)))
    assert value(registry, "deduper_source_lag_records", topic="clicks", partition="0") == 0


def test_nothing_of_the_metrics_stops_the_job(
    tmp_path: Path, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """What breaks is said once, counted, and the rest of the page holds."""
    settings = config(tmp_path)

    def clock() -> int:
        raise OSError("no clock")

    reported = JobMetrics(settings, registry, clock)
    log = owned_log(settings)
    log.place(committed(log, ends(10, 20)))
    with caplog.at_level(logging.WARNING):
        reported.opened(log)
        with reported.window():
            pass
        reported.window_ended(PROGRESS)
        reported.source_ends({PLACES[0]: 15})
        reported.failed("window")
        reported.opened(SimpleNamespace(state=None))  # type: ignore[arg-type]
        assert value(registry, "deduper_records_total", verdict="unique") == 60
        assert value(registry, "deduper_watermark_lag_seconds") is None
        assert value(registry, "deduper_window_seconds_count") == 1
    assert len(caplog.records) == 1
    assert "the job continues" in caplog.text
    assert (value(registry, "deduper_errors_total", kind="metrics") or 0) >= 5
    assert set(FAILURES) == {dict(labels)["kind"] for name, labels in page(registry) if name == "deduper_errors_total"}


def test_no_secret_and_no_setting_is_a_label(tmp_path: Path) -> None:
    """The endpoint has no authentication."""
    settings = config(tmp_path)
    log = owned_log(settings)
    log.place(committed(log, ends(10, 20)))
    with serving_metrics(settings, settings.metrics, lambda: NOW_US, JobMetrics) as reported:  # type: ignore[arg-type]
        reported.opened(log)
        text = scraped(settings)
    assert "hidden" not in text
    assert "127.0.0.1" not in text
    assert str(tmp_path) not in text
    assert log.manifest.salt.hex() not in text
    assert "process_resident_memory_bytes" in text


@pytest.mark.slow
def test_the_page_ends_with_the_job(tmp_path: Path) -> None:
    """Its port is free again at once."""
    settings = config(tmp_path)
    for _ in range(3):
        with serving_metrics(settings, settings.metrics, lambda: NOW_US, JobMetrics):  # type: ignore[arg-type]
            assert "deduper_build_info" in scraped(settings)
        with pytest.raises(OSError, match="refused"):
            scraped(settings)


@pytest.mark.slow
def test_a_port_that_is_taken_ends_the_job_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No store is made or claimed, no Spark is started, and the message says what to do."""
    source = {"format": "files", "path": "in", "file_format": "json", "schema": "k string, ts timestamp"}
    settings = config(tmp_path, source=source)
    (tmp_path / "in").mkdir()
    assert settings.metrics is not None
    monkeypatch.setattr(job, "start_session", lambda *_: pytest.fail("Spark was started"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", settings.metrics.port))
        taken.listen()
        with pytest.raises(DeduperError) as caught:
            job.run(settings, once=True, max_windows=None, take_over=False, on_progress=lambda _: None)
    assert str(caught.value) == (
        f"metrics: 127.0.0.1:{settings.metrics.port} cannot be listened on: Address already in use; set `metrics.port` "
        "to a free port (another job may have this one), `metrics.host` to an address of this machine, or leave the "
        "section out"
    )
    assert not settings.store.path.exists()


@pytest.mark.slow
def test_a_start_shows_what_it_publishes_before_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that takes nothing keeps the start in the recovery, for as long as `source.deadline`."""
    source = {"format": "files", "path": "in", "file_format": "json", "schema": "k string, ts timestamp"}
    settings = config(tmp_path, source=source)
    (tmp_path / "in").mkdir()
    log = owned_log(settings)
    log.place(replace(committed(log), outputs=(OutputFile("unique", "staged/f", "out/f", 1, 1, 1),)))
    pages = []

    def recover(*_: object) -> None:
        pages.append(scraped(settings))
        raise DeduperError("the port takes nothing")

    monkeypatch.setattr(job, "recover", recover)
    with pytest.raises(DeduperError, match="takes nothing"):
        job.run(settings, once=True, max_windows=None, take_over=True, on_progress=lambda _: None)
    assert "deduper_unpublished_windows 1.0" in pages[0]
    assert "deduper_committed_window 0.0" in pages[0]


class _Brokers:
    """Brokers that answer, or never do."""

    def __init__(self, *, answer: bool) -> None:
        self.asked = threading.Event()
        self.let_go = threading.Event()
        self._answer = answer

    def __call__(self, source: object) -> _Brokers:
        return self

    def latest_offsets(self, places: Iterator[TopicPartition]) -> Offsets:
        """All ends are 50."""
        self.asked.set()
        if not self._answer:
            self.let_go.wait(30)
            raise TimeoutError
        return dict.fromkeys(places, 50)


@pytest.mark.parametrize("answer", [True, False])
def test_nobody_waits_for_brokers(
    answer: bool, tmp_path: Path, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With brokers that never answer, neither a window's end nor the job's takes time, and the page says no lag."""
    brokers = _Brokers(answer=answer)
    monkeypatch.setattr(lag_watch, "ClusterOffsets", brokers)
    monkeypatch.setattr(lag_watch, "_END_S", 0.05)
    settings = config(tmp_path)
    log = owned_log(settings)
    log.place(committed(log, ends(10, 20)))
    reported = JobMetrics(settings, registry, lambda: NOW_US)
    reported.opened(log)
    with lag_watch.watched_source(settings.source, reported, log) as watch:  # type: ignore[arg-type]
        assert brokers.asked.wait(10)
        began = time.monotonic()
        for _ in range(100):
            watch.soon()
        assert time.monotonic() - began < 5
        until = time.monotonic() + 10
        while answer and value(registry, "deduper_source_lag_records", topic="clicks", partition="0") != 40:
            assert time.monotonic() < until
            time.sleep(0.01)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert (value(registry, "deduper_source_lag_timestamp_seconds") is None) == (not answer)
    assert watch.waiting() == (70 if answer else None)
    brokers.let_go.set()


def test_memory_is_told_by_what_holds_it() -> None:
    """A process has some, and so has what it has started; a JVM and workers there are none here."""
    # A process of its own: this one may have started anything.
    child = "print('up', flush=True); input()"
    code = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {child!r}]))"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as alone:
        assert alone.stdout is not None
        assert alone.stdout.readline() == b"up\n"  # before, it is not yet a Python
        found = resident_bytes(alone.pid)
        alone.communicate(b"\n")
    assert alone.returncode == 0
    assert found["driver"] > 1_000_000
    assert found["maintenance"] > 1_000_000
    assert (found["jvm"], found["workers"]) == (0, 0)
    assert summed_by_process(lambda process: process.pid)["driver"] == os.getpid()
    assert resident_bytes(driver=2**30) == {"driver": 0, "maintenance": 0, "jvm": 0, "workers": 0}
    assert resident_bytes(os.getppid())["driver"] > 0


def test_what_is_counted_is_in_the_log_s_state(tmp_path: Path, registry: CollectorRegistry) -> None:
    """A store without a window has a page too: zeros, and nothing that there is no value for."""
    settings = config(tmp_path)
    reported = JobMetrics(settings, registry, lambda: NOW_US)
    before = {name for name, _ in page(registry)}
    assert "deduper_build_info" in before
    assert "deduper_records_total" not in before
    log = owned_log(settings)
    assert log.state.next_window == LogState().next_window == 0
    reported.opened(log)
    assert value(registry, "deduper_records_total", verdict="unique") == 0
    assert value(registry, "deduper_committed_window") is None
    assert metrics.PHASES[0] == "intent"


def test_statistics_are_histograms_of_the_store(tmp_path: Path, registry: CollectorRegistry) -> None:
    """Sums over all windows, from the newest record: a restart goes on with them. None of numbers that are no times."""
    spans = SpanCounts.of([(0, 5), (20e6, 2)])
    counted = Statistics(lateness=spans, distance=spans, age=spans).to_wire()
    settings = config(tmp_path)
    log = owned_log(settings)
    log.place(replace(committed(log), extra={STATISTICS: counted}))
    for name in ("deduper_lateness_seconds", "deduper_duplicate_distance_seconds", "deduper_first_copy_age_seconds"):
        one = CollectorRegistry()
        JobMetrics(settings, one, lambda: NOW_US).opened(log)
        buckets = [value(one, f"{name}_bucket", le=le) for le in ("0.0", "15.0", "60.0", "+Inf")]
        assert buckets == [5, 5, 7, 7]
        assert (value(one, f"{name}_sum"), value(one, f"{name}_count")) == (40, 7)
    source = {"format": "files", "path": "in", "file_format": "json", "schema": "k string, n long"}
    settings = config(tmp_path, expiry={"by": "never"}, source=source)
    JobMetrics(settings, registry, lambda: NOW_US).opened(log)
    assert value(registry, "deduper_lateness_seconds_count") is None
    assert value(registry, "deduper_duplicate_distance_seconds_count") is None
    assert value(registry, "deduper_first_copy_age_seconds_count") == 7


def test_the_age_of_what_waits_in_a_topic(tmp_path: Path, registry: CollectorRegistry) -> None:
    """From the first report of an end beyond what is judged; 0 when all is judged."""
    now_us = NOW_US
    settings = config(tmp_path)
    log = owned_log(settings)
    log.place(committed(log, ends(10, 20)))
    reported = JobMetrics(settings, registry, lambda: now_us)
    reported.opened(log)
    for offset in (10, 15, 18):
        reported.source_ends({PLACES[0]: offset, PLACES[1]: 20})
        now_us += 10_000_000
    assert value(registry, "deduper_source_lag_seconds", topic="clicks", partition="0") == 20
    assert value(registry, "deduper_source_lag_seconds", topic="clicks", partition="1") == 0
    log.place(committed(log, ends(15, 20)))
    assert value(registry, "deduper_source_lag_seconds", topic="clicks", partition="0") == 10
    log.place(committed(log, ends(18, 20)))
    assert value(registry, "deduper_source_lag_seconds", topic="clicks", partition="0") == 0


def test_lag_before_the_first_window(tmp_path: Path, registry: CollectorRegistry) -> None:
    """All that the source has from where the first window begins."""
    settings = config(tmp_path)
    reported = JobMetrics(settings, registry, lambda: NOW_US)
    reported.opened(owned_log(settings))
    reported.source_begins({PLACES[0]: 3})
    reported.source_ends({PLACES[0]: 10})
    assert value(registry, "deduper_source_lag_records", topic="clicks", partition="0") == 7


def test_records_that_no_port_has_show(tmp_path: Path, registry: CollectorRegistry) -> None:
    """0 as long as the ports have what was read."""
    reported = JobMetrics(config(tmp_path), registry, lambda: NOW_US)
    reported.window_ended(PROGRESS)
    assert value(registry, "deduper_unaccounted_records") == 0
    reported.window_ended(replace(PROGRESS, window=1, rows=103))
    reported.window_ended(replace(PROGRESS, window=2))
    assert value(registry, "deduper_unaccounted_records") == 3


def test_windows_that_are_not_out_are_counted(tmp_path: Path, registry: CollectorRegistry) -> None:
    """From the first one on."""
    log, reported = opened(tmp_path, registry)
    assert value(registry, "deduper_unpublished_windows") == 0
    log.place(committed(log))
    assert value(registry, "deduper_unpublished_windows") == 1
    reported.window_ended(PROGRESS)
    assert value(registry, "deduper_unpublished_windows") == 0


def test_dead_pieces_that_nobody_removes_show(tmp_path: Path, registry: CollectorRegistry) -> None:
    """Fewer than one deletion takes may lie there."""
    log, _ = opened(tmp_path, registry)
    batch = DELETION_BATCH * config(tmp_path).store.shards
    for _ in range(batch - 1):
        log.place(committed(log))
    log.place(replace(committed(log), pieces=()))  # in bucket 0 all are long dead
    assert value(registry, "deduper_store_overdue_pieces") == 0
    log.place(committed(log))
    assert value(registry, "deduper_store_overdue_pieces") == 1


def test_room_on_disks_by_place(tmp_path: Path, registry: CollectorRegistry) -> None:
    """Of the store and of ports of files, before their folders are there too."""
    sinks = {port: {"format": "none"} for port in ("duplicate", "expired", "error")}
    settings = config(tmp_path, sinks={**sinks, "unique": {"format": "parquet", "path": "out/unique"}})
    JobMetrics(settings, registry, lambda: NOW_US)
    for place in ("store", "unique"):
        free, size = (value(registry, f"deduper_disk_{what}_bytes", place=place) for what in ("free", "size"))
        assert free is not None
        assert size is not None
        assert 0 < free < size
    assert value(registry, "deduper_disk_free_bytes", place="error") is None


def test_memory_of_a_container_or_the_machine(
    tmp_path: Path, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's limit counts, and what it has used but for cached files; without one the machine's."""
    monkeypatch.setattr(process_memory, "_CGROUP", tmp_path)
    JobMetrics(config(tmp_path), registry, lambda: NOW_US)
    machine = value(registry, "deduper_memory_limit_bytes")
    assert machine == psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 200\n")
    assert value(registry, "deduper_memory_limit_bytes") == machine
    (tmp_path / "memory.max").write_text("1000\n")
    assert value(registry, "deduper_memory_limit_bytes") == 1000
    assert value(registry, "deduper_memory_available_bytes") == 500


def test_logged_warnings_are_counted(tmp_path: Path) -> None:
    """By level, each from 0 on, while the job runs, and not their texts."""
    settings = config(tmp_path)
    with serving_metrics(settings, settings.metrics, lambda: NOW_US, JobMetrics):  # type: ignore[arg-type]
        before = scraped(settings)
        logging.getLogger("deduper.window.attempt").warning("a %s", "secret")
        logging.getLogger("deduper.window.attempt").info("nothing")
        logging.getLogger("bucket_store.x").critical("bad")
        text = scraped(settings)
    logging.getLogger("deduper.window.attempt").warning("after it")
    for level in ("warning", "error"):
        assert f'deduper_log_messages_total{{level="{level}"}} 0.0' in before
        assert f'deduper_log_messages_total{{level="{level}"}} 1.0' in text
    assert "secret" not in text


def test_openmetrics_is_given_to_those_who_ask_for_it(tmp_path: Path) -> None:
    """By content negotiation, in a form that its reader takes; the text form to all others."""
    settings = config(tmp_path)
    log = owned_log(settings)
    log.place(replace(committed(log, ends(10, 20)), extra={STATISTICS: Statistics().to_wire()}))
    with serving_metrics(settings, settings.metrics, lambda: NOW_US, JobMetrics) as reported:  # type: ignore[arg-type]
        reported.opened(log)
        reported.window_ended(PROGRESS)
        kind, text = answered(settings, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
        plain, _ = answered(settings, "/metrics")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    names = {family.name for family in openmetrics_families(text)}
    assert {"deduper_records", "deduper_lateness_seconds", "deduper_window_seconds"} <= names
    assert plain.startswith("text/plain")


def test_health_is_an_answer_in_one_line(tmp_path: Path) -> None:
    """503 with the reasons, 200 without; the process is alive in both cases."""
    now_us, seconds = NOW_US, 0.0
    settings = config(tmp_path)
    log = owned_log(settings)
    with serving_metrics(settings, settings.metrics, lambda: now_us, JobMetrics) as reported:  # type: ignore[arg-type]
        reported.opened(log)
        reported._seconds = lambda: reported._started + seconds
        seconds = 301.0
        assert answered(settings, "/healthz")[1] == "ok\n", "nothing is asked yet"
        reported.source_watched()
        seconds = 602.0
        with pytest.raises(urllib.error.HTTPError) as caught:
            answered(settings, "/healthz")
        assert caught.value.code == 503
        assert caught.value.read() == b"brokers away: they have not reported the source's ends for 301 s\n"
        assert answered(settings, "/livez")[1] == "ok\n"
        reported.source_ends({PLACES[0]: 10})
        assert answered(settings, "/healthz")[1] == "ok\n"


def test_a_folder_that_is_away_is_on_the_page_and_no_health(tmp_path: Path) -> None:
    """From the first listing that fails on, until one that does not."""
    source = {"format": "files", "path": "in", "file_format": "json", "schema": "k string, ts timestamp, n long"}
    seconds = 0.0
    registry = CollectorRegistry()
    reported = JobMetrics(config(tmp_path, source=source), registry, lambda: NOW_US, lambda: seconds)

    def away_s() -> float:
        return page(registry)["deduper_source_away_seconds", frozenset()]

    reported.source_files(pending=0, since_s=None, changed=0)
    seconds = 1000.0
    for _ in range(2):
        reported.source_away()
        seconds += 200.5
    assert away_s() == 401
    assert reported.health() == ["source away: its files cannot be listed for 401 s"]
    reported.source_files(pending=0, since_s=None, changed=0)
    assert reported.health() == []
    assert away_s() == 0


def test_the_age_of_the_oldest_file_that_waits(tmp_path: Path, registry: CollectorRegistry) -> None:
    """At the scrape; 0 without one, and for one of the future."""
    source = {"format": "files", "path": "in", "file_format": "json", "schema": "k string, ts timestamp, n long"}
    now_us = NOW_US
    reported = JobMetrics(config(tmp_path, source=source), registry, lambda: now_us)
    for since_s, age_s in ((NOW_US / 1e6 - 90, 90), (None, 0), (NOW_US / 1e6 + 90, 0)):
        reported.source_files(pending=0 if since_s is None else 1, since_s=since_s, changed=0)
        assert value(registry, "deduper_source_pending_seconds") == age_s
    reported.source_files(pending=1, since_s=NOW_US / 1e6, changed=0)
    now_us += 5_000_000
    assert value(registry, "deduper_source_pending_seconds") == 5


def test_a_start_shows_the_window_that_it_publishes(tmp_path: Path, registry: CollectorRegistry) -> None:
    """Before it has: a port that takes nothing keeps the start there, and the page is all that says so."""
    seconds = 0.0
    settings = config(tmp_path)
    log = owned_log(settings)
    for window in range(3):
        outputs = (OutputFile("unique", "staged/f", "out/f", 1, 1, 1),) if window == 2 else ()
        log.place(replace(committed(log, ends(10 * window)), outputs=outputs))
    reported = JobMetrics(settings, registry, lambda: NOW_US, lambda: seconds)
    reported.recovering(log)
    seconds = 601.0
    shown = ("deduper_committed_window", "deduper_published_window", "deduper_unpublished_windows")
    assert [value(registry, name) for name in shown] == [2, 1, 1]
    assert value(registry, "deduper_window_running_seconds") == 601
    assert value(registry, "deduper_last_commit_timestamp_seconds") == NOW_US / 1e6
    assert reported.health() == ["publishing stuck: a committed window has not been published for 601 s"]
    reported.opened(log)
    assert [value(registry, name) for name in shown] == [2, 2, 0]
    assert value(registry, "deduper_window_running_seconds") == 0
    assert reported.health() == []


def test_health_knows_what_the_job_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A committed window that is not published, records that wait, a window at hand."""
    monkeypatch.setattr(window_metrics, "LEAST_FREE_BYTES", 1)
    now_us, seconds = NOW_US, 0.0
    settings = config(tmp_path, metrics={"port": free_port()})
    log = owned_log(settings)
    reported = JobMetrics(settings, CollectorRegistry(), lambda: now_us, lambda: seconds)
    reported.opened(log)
    reported.source_ends({PLACES[0]: 10})
    with reported.window():
        log.place(committed(log, ends(10)))
        seconds = 901.0
    assert reported.health() == ["publishing stuck: a committed window has not been published for 901 s"]
    reported.window_ended(PROGRESS)
    assert reported.health() == []
    now_us += 901_000_000
    reported.source_ends({PLACES[0]: 12})
    assert reported.health() == [], "a record has come just now"
    now_us += 901_000_000
    assert reported.health() == ["no progress: no window was committed for 1802 s, and input waits"]
    with reported.window():
        seconds += 1
        assert reported.health() == []
        seconds += 900
        assert reported.health() == ["window stuck: one has been running for 901 s"]


def answered(settings: Config, path: str, **headers: str) -> tuple[str, str]:
    """The kind of an answer, and its text."""
    assert settings.metrics is not None
    asked = urllib.request.Request(f"http://127.0.0.1:{settings.metrics.port}{path}", headers=headers)
    with urllib.request.urlopen(asked, timeout=5) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def scraped(settings: Config) -> str:
    """The page, as Prometheus gets it."""
    assert settings.metrics is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{settings.metrics.port}/metrics", timeout=5) as answer:
        return bytes(answer.read()).decode()
