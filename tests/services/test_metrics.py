"""A real Prometheus scrapes a real job on a real broker, and answers what a dashboard asks."""

from __future__ import annotations

import json
import math
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from ruamel.yaml import YAML

from deduper.service.job import run
from deduper.tasks import write as write_task
from deduper.window.progress import BatchProgress
from tests.ports import free_port
from tests.services.draw_dashboard import filled
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob, records, settings
from tests.services.kafka_traffic import send
from tests.services.prometheus import RULES, Prometheus, lint

pytestmark = [pytest.mark.services, pytest.mark.spark]

ROWS, FIRST = 500, 300
RANGE = "1h"
"""Of rates: all of the test. A shorter one is over before a busy machine has answered a hundred queries."""
DASHBOARD = Path(__file__).parent.parent.parent / "deploy/grafana/dashboards/deduper.json"
# What a dashboard may show, and what it must show after the two windows of this test.
PANELS: dict[str, Callable[[float], bool]] = {
    "sum(deduper_records_total)": lambda rows: rows == ROWS,
    f"sum(rate(deduper_records_total[{RANGE}]))": lambda rate: 0 < rate < ROWS,
    'sum(deduper_reasons_total{verdict="error"}) - sum(deduper_records_total{verdict="error"})': lambda gap: gap == 0,
    'deduper_reasons_total{reason="tombstone"}': lambda rows: rows > 0,
    f"histogram_quantile(0.95, sum by (le) (rate(deduper_window_seconds_bucket[{RANGE}])))": lambda seconds: (
        seconds > 0
    ),
    "sum(deduper_window_phase_seconds_total{phase!='send'}) / sum(deduper_window_seconds_sum)": lambda share: (
        0.8 < share <= 1.001
    ),
    f"sum(rate(deduper_task_seconds_total[{RANGE}]))": lambda seconds: seconds > 0,
    "deduper_windows_total": lambda windows: windows == 2,
    "deduper_committed_window - deduper_published_window": lambda behind: behind == 0,
    "time() - deduper_last_commit_timestamp_seconds": lambda seconds: -1 < seconds < 60,
    "deduper_latest_point_timestamp_seconds": lambda point: point == (ROWS - 1) // 4,
    "deduper_latest_point_timestamp_seconds - deduper_expiry_point_timestamp_seconds": lambda period: period == 100,
    "deduper_watermark_lag_seconds - time()": lambda lag: -(ROWS // 4) - 30 < lag < 0,
    "sum(deduper_source_lag_records)": lambda lag: lag == 0,
    "sum(deduper_source_judged_offset)": lambda offsets: offsets == ROWS,
    "deduper_store_entries": lambda keys: keys > 0,
    'deduper_store_bytes{state="live"}': lambda size: size > 0,
    "deduper_tables_resident_bytes": lambda size: size > 0,
    "deduper_table_hits_total / (deduper_table_hits_total + deduper_table_misses_total)": lambda share: 0 < share <= 1,
    "deduper_epoch": lambda epoch: epoch == 1,
    'deduper_resident_memory_bytes{process="driver"}': lambda size: size > 10e6,
    'deduper_resident_memory_bytes{process="jvm"}': lambda size: size > 100e6,
    'deduper_resident_memory_bytes{process="workers"}': lambda size: size > 10e6,
    "process_resident_memory_bytes": lambda size: size > 10e6,
    "sum(deduper_errors_total)": lambda failures: failures == 0,
    "deduper_build_info": lambda one: one == 1,
    'deduper_job_info{name="test",source="kafka",expiry="event_time"}': lambda one: one == 1,
}


MAY_BE_EMPTY = re.compile(
    # Yesterday's; a source of files; what is there in trouble alone; a second start.
    r"yesterday|offset 1d|source_(pending|changed)_|ALERTS|changes\(|deduper_leak_"
)


def expressions(part: object) -> Iterator[str]:
    """Every query of a part of a dashboard."""
    if isinstance(part, dict):
        if "expr" in part:
            yield part["expr"]
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from expressions(inner)


@pytest.mark.night
def test_prometheus_sees_every_window_and_answers_a_dashboard(
    broker: Broker,
    session: SparkSession,
    new_topic: Callable[..., str],
    topics: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counters equal what was judged, lag what was not; every panel has something to show; its linter is content."""
    source = new_topic("in", partitions=2)
    send(broker.plain(), source, records(ROWS))
    port = free_port()
    expiry = {"by": "event_time", "field": "t", "unit": "s", "period": "100s", "span": "10s"}
    monkeypatch.setattr(write_task, "_WRITER_BYTES", 1)  # the driver judges small windows: no workers to be seen
    more: dict[str, Any] = {"metrics": {"port": port}, "expiry": expiry, "trigger": "100ms"}
    sections = settings(broker, source, topics, **more)
    sections["source"]["max_offsets_per_batch"] = FIRST
    job = KafkaJob(tmp_path, session, sections)
    pages: list[bytes] = []
    wrong: dict[str, object] = {}

    def look(progress: BatchProgress) -> None:
        """Between two windows, on the job's own thread: what is asked here is what the window left."""
        judged = progress.rows if progress.window == 0 else ROWS
        prometheus.wait_for("sum(deduper_records_total)", judged)
        prometheus.wait_for("sum(deduper_source_lag_records)", ROWS - judged)
        for verdict in ("unique", "duplicate", "expired", "error"):
            counted = prometheus.one(f'deduper_records_total{{verdict="{verdict}"}}')
            if progress.window == 0 and counted != getattr(progress, verdict):
                wrong[verdict] = counted
        pages.append(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read())
        if progress.window == 0:
            return
        for expression, holds in PANELS.items():
            until = time.monotonic() + 10  # rates want a second scrape
            while (value := prometheus.one(expression)) is None or not holds(value):
                if time.monotonic() > until:
                    wrong[expression] = value
                    break
                time.sleep(0.2)
        for expression in expressions(json.loads(DASHBOARD.read_text(encoding="utf-8"))):
            until = time.monotonic() + 10
            # An expression that Prometheus refuses is an error of its answer.
            while not (found := prometheus.query(filled(expression, RANGE))) or any(
                math.isnan(value) for _, value in found
            ):
                if MAY_BE_EMPTY.search(expression):
                    break
                if time.monotonic() > until:
                    wrong[expression] = found
                    break
                time.sleep(0.2)
        for rules in RULES:
            for rule in YAML(typ="safe").load(rules.read_text(encoding="utf-8"))["groups"][0]["rules"]:
                prometheus.query(rule["expr"])
        firing = prometheus.query('ALERTS{alertstate="firing"}')
        if firing:
            wrong["alerts"] = firing

    with Prometheus(tmp_path / "prometheus", f"127.0.0.1:{port}") as prometheus:
        summary = run(job.config, once=False, max_windows=2, take_over=False, on_progress=look, session=session)
    assert summary.rows == ROWS
    assert not wrong
    assert lint(pages[-1]) == ""
