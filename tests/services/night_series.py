"""Metrics of a healthy job, minute by minute, as `promtool test rules` reads them; and incidents in them.

A job reads a topic with two partitions: more by day than by night, more duplicates by night, noise in everything, one
restart in the first hour. Counters of the process begin again with it, those of the store do not.
"""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Series = dict[str, list[float | None]]
"""Values a minute by name and labels; None: not scraped."""
Incident = Callable[[int, int], float | None]
"""Value of a series (minute, minutes since the incident began) while it lasts."""

HERE = 'job="deduper",instance="one:9108"'
RESTART = 20
GIB = 2.0**30
REASONS = {
    "earlier_window": "duplicate",
    "same_window": "duplicate",
    "conflict": "duplicate",
    "older_than_period": "expired",
    "malformed": "error",
    "ahead_of_now": "error",
}
RULES = Path(__file__).parent.parent.parent / "deploy"


def name(metric: str, labels: str = "") -> str:
    """A series of the job."""
    return f"{metric}{{{HERE}{',' if labels else ''}{labels}}}"


def rates(minute: int, chance: random.Random) -> dict[str, float]:
    """Records in a minute, by reason, and the unique ones."""
    day = math.sin(2 * math.pi * (minute % 1440) / 1440)
    records = 60_000 * (0.6 + 0.4 * day) * chance.uniform(0.9, 1.1)
    duplicate = 0.2 - 0.08 * day
    shares = {
        "earlier_window": 0.6 * duplicate,
        "same_window": 0.4 * duplicate,
        "older_than_period": 0.004,
        "malformed": 0.001,
        "ahead_of_now": 0.00001,
    }
    counted = {reason: round(records * share * chance.uniform(0.9, 1.1)) for reason, share in shares.items()}
    return {**counted, "unique": round(records * (1 - sum(shares.values())))}


def healthy(minutes: int, seed: int, change: Callable[[int, dict[str, float]], None] = lambda *_: None) -> Series:
    """The series of so many minutes; `change` may alter the records of a minute."""
    chance = random.Random(seed)
    series: Series = {}

    def add(minute: int, metric: str, value: float, labels: str = "") -> None:
        values = series.setdefault(name(metric, labels), [])
        values += [None] * (minute - len(values))
        values.append(None if minute == RESTART and metric != "up" else value)

    totals = dict.fromkeys([*REASONS, "unique"], 0.0)
    leaked = warned = 0.0
    for minute in range(minutes):
        now_s = 60 * minute
        of_minute = rates(minute, chance)
        change(minute, of_minute)
        for reason, count in of_minute.items():
            totals[reason] += count
        add(minute, "up", 0 if minute == RESTART else 1)
        add(minute, "deduper_start_timestamp_seconds", -86_400 if minute < RESTART else 60 * RESTART)
        add(minute, "deduper_job_info", 1, 'expiry="event_time",name="clicks",source="kafka",store="00"')
        add(minute, "deduper_last_commit_timestamp_seconds", now_s - chance.uniform(1, 20))
        is_sending = chance.randrange(2)
        add(minute, "deduper_windows_total", 6 * minute + 1)
        add(minute, "deduper_committed_window", 6 * minute)
        add(minute, "deduper_published_window", 6 * minute - is_sending)
        add(minute, "deduper_unpublished_windows", is_sending)
        add(minute, "deduper_window_running_seconds", chance.uniform(0, 12))
        add(minute, "deduper_source_lag_timestamp_seconds", now_s - chance.uniform(0, 10))
        for partition in (0, 1):
            place = f'topic="clicks",partition="{partition}"'
            add(minute, "deduper_source_lag_records", round(chance.uniform(0, 5000)), place)
            add(minute, "deduper_source_lag_seconds", chance.choice([0, 10, 20]), place)
        add(minute, "deduper_records_total", totals["unique"], 'verdict="unique"')
        for verdict in ("duplicate", "expired", "error"):
            total = sum(totals[reason] for reason, port in REASONS.items() if port == verdict)
            add(minute, "deduper_records_total", total, f'verdict="{verdict}"')
        for reason, verdict in REASONS.items():
            add(minute, "deduper_reasons_total", totals[reason], f'verdict="{verdict}",reason="{reason}"')
        add(minute, "deduper_latest_point_timestamp_seconds", now_s - chance.uniform(1, 5))
        add(minute, "deduper_watermark_lag_seconds", chance.uniform(1, 5))
        add(minute, "deduper_store_entries", 2e7 * (1 + 0.3 * math.sin(2 * math.pi * minute / 1440)))
        add(minute, "deduper_store_overdue_pieces", 3 if chance.random() < 0.05 else 0)
        add(minute, "deduper_unaccounted_records", 0)
        for place in ("store", "unique"):
            # Pieces come and go: a saw with a tooth an hour.
            add(minute, "deduper_disk_free_bytes", (60 - minute % 60 / 10) * GIB, f'place="{place}"')
            add(minute, "deduper_disk_size_bytes", 100 * GIB, f'place="{place}"')
        add(minute, "deduper_memory_available_bytes", chance.uniform(6, 8) * GIB)
        add(minute, "deduper_memory_limit_bytes", 16 * GIB)
        leaked += chance.random() < 0.02
        add(minute, "deduper_leak_sampled_records_total", leaked, 'kind="lookup"')
        add(minute, "deduper_leak_sample_ratio", 1 / 256)
        add(minute, "deduper_wall_clock_ahead_seconds", 0)
        warned = 0 if minute == RESTART else warned + (chance.random() < 0.02)
        add(minute, "deduper_log_messages_total", warned, 'level="warning"')
        add(minute, "deduper_log_messages_total", 0, 'level="error"')
    return series


def with_incident(series: Series, begin: int, changes: Mapping[str, Incident]) -> Series:
    """The series, with some of them changed from a minute on: by their metric, or by name and labels."""
    minutes = max(len(values) for values in series.values())
    changed = dict(series)
    for which, value in changes.items():
        of_metric = [one for one in series if which in (one, one.split("{")[0])]
        for one in of_metric or [which if "{" in which else name(which)]:
            before: list[float | None] = series[one][:begin] if one in series else [None] * begin
            changed[one] = [*before, *(value(minute, minute - begin) for minute in range(begin, minutes))]
    return changed


def alone(minutes: int, changes: Mapping[str, Incident]) -> Series:
    """Nothing but these, and that the job answers."""
    return with_incident({name("up"): [1.0] * minutes}, 0, changes)


def firing(series: Series, at: Sequence[int], directory: Path, every: str = "1m") -> list[set[str]]:
    """The alerts that fire at each of these minutes, by the rules of deploy and Prometheus' own evaluation.

    Raises:
        AssertionError: promtool failed otherwise.
    """
    question = 'count by (alertname) (ALERTS{alertstate="firing"})'
    test = {
        "rule_files": [str(RULES / "rules/recording.yml"), str(RULES / "alerts.yml")],
        "evaluation_interval": every,
        "group_eval_order": ["deduper-recording", "deduper"],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": one, "values": _written(values)} for one, values in series.items()],
                # Each expects an alert that there is not, so that promtool says which there are.
                "promql_expr_test": [
                    {
                        "expr": question,
                        "eval_time": f"{minute}m",
                        "exp_samples": [{"labels": '{alertname="none"}', "value": 1}],
                    }
                    for minute in at
                ],
            }
        ],
    }
    file = directory / "rules_test.json"
    file.write_text(json.dumps(test), encoding="utf-8")
    command = ["promtool", "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    said = done.stdout + done.stderr
    answers = said.split("    expr: ")[1:]
    assert len(answers) == len(at), said
    assert all(question.split()[0] in answer and "got:" in answer for answer in answers), said
    return [set(re.findall(r'alertname="(\w+)"', answer.split("got:")[1])) for answer in answers]


def _written(values: Sequence[float | None]) -> str:
    # A failed scrape ends a series at once; without the mark the last value would count for five minutes.
    return " ".join("stale" if value is None else repr(float(value)) for value in values)
