"""Writes deploy/grafana/dashboards/deduper.json: `python scripts/dashboard.py [--check]`.

With `--check` nothing is written, and the exit code is 1 if something would change. A panel is one line here: its kind,
title, queries, unit, thresholds and description. Each asks for the job and the instance that are chosen above it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "deploy/grafana/dashboards/deduper.json"
SOURCE = {"type": "prometheus", "uid": "prometheus"}
HERE = 'job=~"$job",instance=~"$instance"'
GREEN, YELLOW, RED = "green", "#EAB839", "red"
VERDICT_COLORS = {"unique": "green", "duplicate": "blue", "expired": "orange", "error": "red"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel. `queries` are (expression, legend); HERE stands for `$` in `{$}` and `{$,`.

    `steps` are the thresholds from which it is yellow and red. `stacked`: values are drawn on top of each other.
    """

    title: str
    description: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    steps: tuple[float | None, float | None] = (None, None)
    below: bool = False
    stacked: bool = False
    most: float | None = None
    text: str = "auto"


def stat(title: str, description: str, query: str, unit: str = "short", **more: Any) -> Panel:
    """One number."""
    legend = more.pop("legend", "")
    return Panel(
        title, description, ((query, legend),), unit, "stat", more.pop("width", 3), more.pop("height", 4), **more
    )


def quantiles(metric: str, width: str = "$__rate_interval") -> tuple[tuple[str, str], ...]:
    """Quantiles of a histogram over time."""
    rate = f"sum by (le) (rate({metric}_bucket{{$}}[{width}]))"
    return tuple((f"histogram_quantile({share}, {rate})", f"{share:.0%}") for share in (0.5, 0.95, 0.99))


def heatmap(title: str, description: str, metric: str) -> Panel:
    """How many observations fall into each bucket, over time."""
    query = f"sum by (le) (increase({metric}_bucket{{$}}[$__rate_interval]))"
    return Panel(title, description, ((query, "{{le}}"),), "s", "heatmap")


ROWS: dict[str, tuple[Panel, ...]] = {
    "Healthy?": (
        stat("Answers", "Whether Prometheus reaches the job.", "min(up{$})", steps=(None, 1), below=True),
        stat(
            "Alerts",
            "Alerts that fire for this job; docs/runbook.md has a section for each.",
            'count(ALERTS{alertstate="firing",$}) or vector(0)',
            steps=(1, 3),
        ),
        stat(
            "Since the last commit",
            "While input waits, a window is committed every few seconds. Without input this grows, and that is fine.",
            "time() - max(deduper_last_commit_timestamp_seconds{$})",
            "s",
            steps=(300, 600),
        ),
        stat(
            "Oldest input waits",
            "Age of the oldest record in topics; while files wait, time since the last commit. Below 5 min is well.",
            "max(instance:deduper_lag_seconds:max{$})",
            "s",
            steps=(120, 300),
        ),
        stat(
            "Oldest open window",
            "How long the oldest window that is not published has been running.",
            "max(deduper_window_running_seconds{$})",
            "s",
            steps=(300, 900),
        ),
        stat(
            "Errors, last hour",
            "Share of the records that could not be judged.",
            'avg(verdict:deduper_records:share1h{verdict="error",$})',
            "percentunit",
            steps=(0.01, 0.05),
        ),
        stat(
            "Unaccounted records",
            "Records that were read and are in no port. Always 0.",
            "sum(deduper_unaccounted_records{$})",
            steps=(None, 1),
        ),
        stat(
            "Version",
            "The release that runs.",
            "max by (version) (deduper_build_info{$})",
            legend="{{version}}",
            text="name",
        ),
        Panel(
            "Errors by reason",
            "Records a second that leave by the port `error`. One reason for all: the config does not fit the data.",
            (('sum by (reason) (reason:deduper_records:rate5m{verdict="error",$}) > 0', "{{reason}}"),),
            "cps",
        ),
        Panel(
            "Failures",
            "Failures of windows, of questions for the lag, and of the metrics themselves.",
            (("sum by (kind) (increase(deduper_errors_total{$}[5m]))", "{{kind}}"),),
        ),
        Panel(
            "Log lines",
            "Warnings and errors that the job has logged in five minutes; their texts are in the log.",
            (("sum by (level) (increase(deduper_log_messages_total{$}[5m]))", "{{level}}"),),
        ),
    ),
    "Duplicates?": (
        Panel(
            "Shares",
            "Each verdict's share of all records, over five minutes.",
            (("avg by (verdict) (verdict:deduper_records:share5m{$})", "{{verdict}}"),),
            "percentunit",
            stacked=True,
            most=1,
        ),
        Panel(
            "Duplicates for each unique record",
            "Over an hour, and at the same time yesterday. Three times yesterday's, or a third, raises an alert.",
            (
                ("avg(instance:deduper_duplicates_per_unique:ratio1h{$})", "now"),
                ("avg(instance:deduper_duplicates_per_unique:ratio1h_yesterday{$})", "yesterday"),
            ),
        ),
        Panel(
            "Duplicates by reason",
            "same_window: the first copy came in the same window, as a retry does. earlier_window: it was remembered. "
            "conflict: the first copy has another payload, with `fingerprint`; unknown: it has no fingerprint.",
            (('sum by (reason) (reason:deduper_records:rate5m{verdict="duplicate",$})', "{{reason}}"),),
            "cps",
            stacked=True,
        ),
        Panel(
            "Conflicts beside copies",
            "With `fingerprint`: records under a known key with another payload, beside copies with the same one.",
            (
                ('sum(reason:deduper_records:rate5m{reason=~"conflict.*|version|too_many_versions",$})', "conflicts"),
                ('sum(reason:deduper_records:rate5m{reason=~"earlier_window|same_window",$})', "copies"),
                ('sum(reason:deduper_records:rate5m{reason="unknown",$})', "unknown"),
            ),
            "cps",
        ),
        heatmap(
            "Duplicate distance",
            "Distance in event time between a duplicate and its first copy. Retries are near, replays far.",
            "deduper_duplicate_distance_seconds",
        ),
        Panel(
            "Age of first copies",
            "How long ago the window of a duplicate's first copy was. Near the period: a longer one would catch more.",
            (
                *quantiles("deduper_first_copy_age_seconds", "5m"),
                ("max(instance:deduper_first_copy_age_seconds:p95_1h{$})", "95%, 1 h"),
                ("max(instance:deduper_duplicate_distance_seconds:p95_1h{$})", "distance 95%, 1 h"),
            ),
            "s",
        ),
        Panel(
            "Copies that were not found",
            "Estimate of copies that left as unique, or as expired, since the leak meter began; docs/leaks.md.",
            (
                ("sum by (kind) (deduper_leak_estimate_records{$})", "{{kind}}"),
                ("sum by (kind) (deduper_leak_estimate_high_records{$})", "{{kind}}, at most"),
            ),
        ),
    ),
    "Lateness?": (
        Panel(
            "Lateness",
            "How far records are behind the latest point when they come: 50, 95, 99 % of them are below these lines.",
            (
                *quantiles("deduper_lateness_seconds", "5m"),
                ("max(instance:deduper_lateness_seconds:p99_1h{$})", "99%, 1 h"),
                ("max(instance:deduper_lateness_seconds:p50_1h{$})", "50%, 1 h"),
            ),
            "s",
        ),
        heatmap(
            "Lateness, all of it",
            "Records by how late they come. Beyond the period they are expired.",
            "deduper_lateness_seconds",
        ),
        Panel(
            "Latest point behind the clock",
            "Now - the greatest event time. Growing: no new records, or a clock that stands. Below 0: a future time.",
            (("max by (instance) (deduper_watermark_lag_seconds{$})", "{{instance}}"),),
            "s",
        ),
        Panel(
            "Expired by reason",
            "Records a second that came after their period.",
            (('sum by (reason) (reason:deduper_records:rate5m{verdict="expired",$})', "{{reason}}"),),
            "cps",
        ),
        Panel(
            "Timestamps from the future",
            "Records whose time would move the clock too far; they are errors, and move nothing.",
            (
                (
                    'sum by (reason) (increase(deduper_reasons_total{reason=~"ahead_of_now|jump_too_far",$}[15m]))',
                    "{{reason}}",
                ),
            ),
        ),
        stat(
            "Period",
            "How long a key is remembered.",
            "max(deduper_latest_point_timestamp_seconds{$} - deduper_expiry_point_timestamp_seconds{$})",
            "s",
            width=4,
            height=7,
        ),
        stat(
            "Latest point",
            "The greatest event time admitted.",
            "max(deduper_latest_point_timestamp_seconds{$}) * 1000",
            "dateTimeAsIso",
            width=4,
            height=7,
        ),
    ),
    "Throughput?": (
        Panel(
            "Records a second by verdict",
            "What windows have committed, over five minutes.",
            (("sum by (verdict) (verdict:deduper_records:rate5m{$})", "{{verdict}}"),),
            "cps",
            stacked=True,
        ),
        Panel(
            "Records an hour",
            "In the last hour, and at the same time yesterday.",
            (
                ("sum(instance:deduper_records:increase1h{$})", "now"),
                ("sum(instance:deduper_records:increase1h_yesterday{$})", "yesterday"),
            ),
        ),
        Panel(
            "Seconds a window",
            "From its intent until the next one can begin. A record waits for about as long.",
            (*quantiles("deduper_window_seconds"), ("max(instance:deduper_window_seconds:p95_5m{$})", "95%, 5 min")),
            "s",
        ),
        Panel(
            "Records a window",
            "Mean number of records; larger windows cost less for each record, and take longer.",
            (
                (
                    "sum(rate(deduper_window_rows_sum{$}[5m])) / sum(rate(deduper_window_rows_count{$}[5m]))",
                    "records",
                ),
            ),
        ),
        Panel(
            "Where a window's time goes",
            "Seconds of each step in a second of the job; `send` runs beside the next window.",
            (("sum by (phase) (rate(deduper_window_phase_seconds_total{$}[$__rate_interval]))", "{{phase}}"),),
            "s",
            stacked=True,
        ),
        Panel(
            "Work inside the tasks",
            "Seconds of each step in a second, summed over the tasks that run side by side.",
            (("sum by (step) (rate(deduper_task_seconds_total{$}[$__rate_interval]))", "{{step}}"),),
            "s",
            stacked=True,
        ),
    ),
    "Topics?": (
        Panel(
            "Lag in seconds",
            "Age of the oldest record that no committed window has. One partition alone: a hot one.",
            (("max by (topic, partition) (deduper_source_lag_seconds{$})", "{{topic}} {{partition}}"),),
            "s",
            steps=(120, 300),
        ),
        Panel(
            "Lag in records",
            "Offsets that the brokers have and no committed window has judged.",
            (("sum by (topic, partition) (deduper_source_lag_records{$})", "{{topic}} {{partition}}"),),
        ),
        Panel(
            "Judged offsets a second",
            "How fast each partition is read.",
            (("sum by (topic, partition) (rate(deduper_source_judged_offset{$}[5m]))", "{{topic}} {{partition}}"),),
            "cps",
        ),
        Panel(
            "Share of time behind",
            "Part of the last hours in which input waited for more than five minutes. The objective is below 1 %.",
            (("max(instance:deduper_stale:avg1h{$})", "1 h"), ("max(instance:deduper_stale:avg6h{$})", "6 h")),
            "percentunit",
            steps=(0.06, 0.144),
        ),
        Panel(
            "Files",
            "With a source of files: listed and not judged; changed after they were judged.",
            (
                ("sum(deduper_source_pending_files{$})", "waiting"),
                ("sum(deduper_source_changed_files{$})", "changed"),
            ),
        ),
        Panel(
            "Age of the oldest file",
            "With a source of files: how long the oldest one that is listed and not judged has been there.",
            (("max by (instance) (deduper_source_pending_seconds{$})", "{{instance}}"),),
            "s",
            steps=(120, 300),
        ),
        Panel(
            "Brokers' last answer",
            "Seconds since the brokers reported the ends of the source.",
            (("time() - max(deduper_source_lag_timestamp_seconds{$})", "seconds"),),
            "s",
            steps=(60, 300),
        ),
    ),
    "Store?": (
        Panel(
            "Keys",
            "Entries of live pieces, and a day before.",
            (
                ("sum(deduper_store_entries{$})", "now"),
                ("sum(deduper_store_entries{$} offset 1d)", "yesterday"),
            ),
        ),
        Panel(
            "Growth of keys an hour",
            "New keys - expired ones. Around 0 over a day once the period is full.",
            (("sum(deriv(deduper_store_entries{$}[30m])) * 3600", "keys"),),
        ),
        Panel(
            "Bytes of pieces",
            "Live ones, and retired ones that wait for their deletion.",
            (("sum by (state) (deduper_store_bytes{$})", "{{state}}"),),
            "bytes",
            stacked=True,
        ),
        Panel(
            "Free on disk",
            "Share of the disk that is free, for the store and each port of files.",
            (("min by (place) (deduper_disk_free_bytes{$} / deduper_disk_size_bytes{$})", "{{place}}"),),
            "percentunit",
            steps=(0.2, 0.05),
            below=True,
            most=1,
        ),
        Panel(
            "Look-ups that met their table",
            "Others read pieces from disk. Falling: more `store.memory`.",
            (
                (
                    "sum(rate(deduper_table_hits_total{$}[5m]))"
                    " / (sum(rate(deduper_table_hits_total{$}[5m])) + sum(rate(deduper_table_misses_total{$}[5m])))",
                    "hits",
                ),
            ),
            "percentunit",
            most=1,
        ),
        Panel(
            "Pieces",
            "Live and retired ones; overdue ones should have left the store.",
            (
                ("sum by (state) (deduper_store_pieces{$})", "{{state}}"),
                ("sum(deduper_store_overdue_pieces{$})", "overdue"),
            ),
        ),
    ),
    "Runtime?": (
        Panel(
            "Memory by process",
            "Resident bytes. Pages that processes share, such as tables, count in each of them.",
            (
                ("sum by (process) (deduper_resident_memory_bytes{$})", "{{process}}"),
                ("sum(deduper_tables_resident_bytes{$})", "tables"),
            ),
            "bytes",
        ),
        Panel(
            "Available memory",
            "Of the container if it has a limit, else of the machine.",
            (("min(deduper_memory_available_bytes{$} / deduper_memory_limit_bytes{$})", "available"),),
            "percentunit",
            steps=(0.1, 0.05),
            below=True,
            most=1,
        ),
        Panel(
            "CPU of the driver",
            "Cores that the driver's Python uses; Spark's processes are not in it.",
            (("sum(rate(process_cpu_seconds_total{$}[$__rate_interval]))", "cores"),),
        ),
        stat(
            "Started",
            "Since the last start of the process.",
            "time() - max(deduper_start_timestamp_seconds{$})",
            "s",
            width=4,
        ),
        stat(
            "Owners",
            "Epoch: how often the store was claimed, by a start or a command.",
            "max(deduper_epoch{$})",
            width=4,
        ),
        stat(
            "Clock of the machine",
            "How far the store's records are ahead of it.",
            "max(deduper_wall_clock_ahead_seconds{$})",
            "s",
            width=4,
            steps=(1, 60),
        ),
        stat(
            "Job",
            "Its name in the config.",
            "max by (name) (deduper_job_info{$})",
            legend="{{name}}",
            text="name",
            width=4,
        ),
        stat(
            "Spark", "Its version.", "max by (spark) (deduper_build_info{$})", legend="{{spark}}", text="name", width=4
        ),
        stat(
            "Python",
            "Its version.",
            "max by (python) (deduper_build_info{$})",
            legend="{{python}}",
            text="name",
            width=4,
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": place}
        )
        top += 1
        left = height = 0
        for panel in row:
            if left + panel.width > 24:
                left, top, height = 0, top + height, 0
            panels.append(_panel(panel, len(panels) + 1, left, top))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return {
        "uid": "deduper",
        "title": "deduper",
        "tags": ["deduper"],
        "schemaVersion": 39,
        "version": 2,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                _variable("job", "label_values(deduper_build_info, job)"),
                _variable("instance", 'label_values(deduper_build_info{job=~"$job"}, instance)'),
            ]
        },
        "annotations": {
            "list": [
                _annotation("Starts", "changes(deduper_start_timestamp_seconds{$}[2m]) > 0", "orange", "started"),
                _annotation("Owners", "changes(deduper_epoch{$}[2m]) > 0", "purple", "a new owner"),
                _annotation("Alerts", 'ALERTS{alertstate="firing",severity="critical",$}', "red", "{{alertname}}"),
            ]
        },
        "panels": panels,
    }


def _panel(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.most is not None:
        defaults |= {"min": 0, "max": panel.most}
    if panel.steps != (None, None):
        defaults |= {"thresholds": {"mode": "absolute", "steps": _steps(panel)}, "color": {"mode": "thresholds"}}
    options: dict[str, Any] = {}
    if panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": panel.text, "colorMode": "value"}
    elif panel.kind == "heatmap":
        options = {"calculate": False, "yAxis": {"unit": "s"}, "color": {"scheme": "Blues", "mode": "scheme"}}
    else:
        custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 5, "showPoints": "never"}
        custom["axisSoftMin"] = 0
        if panel.stacked:
            custom["stacking"] = {"mode": "normal"}
        if panel.steps != (None, None):
            custom["thresholdsStyle"] = {"mode": "line"}
            defaults["color"] = {"mode": "palette-classic"}
        defaults["custom"] = custom
        options = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    is_by_verdict = any("{{verdict}}" in legend for _, legend in panel.queries)
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": _colors() if is_by_verdict else []},
        "options": options,
        "targets": [
            {
                "refId": "ABCDEF"[at],
                "expr": _here(query),
                "legendFormat": legend,
                "datasource": SOURCE,
                **({"format": "heatmap"} if panel.kind == "heatmap" else {}),
            }
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }


def _steps(panel: Panel) -> list[dict[str, Any]]:
    yellow, red = panel.steps
    if panel.below:
        # Grafana's steps ascend: red up to the lower limit, green from the upper one on.
        steps: list[dict[str, Any]] = [{"color": RED, "value": None}]
        steps += [] if yellow is None else [{"color": YELLOW, "value": red}]
        return [*steps, {"color": GREEN, "value": red if yellow is None else yellow}]
    steps = [{"color": GREEN, "value": None}]
    steps += [] if yellow is None else [{"color": YELLOW, "value": yellow}]
    return [*steps, *([] if red is None else [{"color": RED, "value": red}])]


def _colors() -> list[dict[str, Any]]:
    return [
        {
            "matcher": {"id": "byName", "options": verdict},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }
        for verdict, color in VERDICT_COLORS.items()
    ]


def _here(query: str) -> str:
    return query.replace("{$", "{" + HERE).replace(",$}", f",{HERE}}}")


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _annotation(name: str, query: str, color: str, title: str) -> dict[str, Any]:
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "iconColor": color,
        "expr": _here(query),
        "titleFormat": title,
    }


def main() -> int:
    """Write the file, or compare it."""
    text = json.dumps(dashboard(), indent=1) + "\n"
    if sys.argv[1:] == ["--check"]:
        return int(FILE.read_text(encoding="utf-8") != text)
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
