"""`_dedup.detail` in the outputs of a real job."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from typing import Any

import pytest

from bucket_store.log.commit_log import CommitLog
from bucket_store.places.local import local_place
from deduper.admin.errors.export import export_errors
from deduper.admin.errors.report import WindowRange, errors_report
from deduper.admin.open_store import OpenStore
from tests.spark.harness import Job

pytestmark = pytest.mark.spark

HOURLY = {"by": "event_time", "field": "at", "period": "24h"}
LINES: list[str | bytes] = [
    "nonsense",
    '{"k":"a","t":"1","at":"2024-01-01"}',
    '{"K":"a","t":1,"at":"2024-01-01"}',
    '{"k":"a","t":1}',
    b'{"k":"\xff"}',
    '{"k":"a","t":1,"at":"2999-01-01"}',
    '{"k":"a","t":1,"at":"2024-01-01"}',
]
DETAILS = [
    ("ahead_of_now", "at: more than 1h ahead of the wall clock (max_ahead_of_now)"),
    ("invalid_utf8", "bytes that are not UTF-8"),
    ("malformed", 't: bigint expected, text of 1 character like "9"'),
    ("malformed", "the line is no object"),
    ("null_expiry", "at: no such field"),
    ("null_key", "k: no such field"),
]


@pytest.mark.night(but=["json"])
@pytest.mark.parametrize("port", ["parquet", "json", "csv"])
def test_an_error_says_why(new_job: Callable[..., Job], port: str) -> None:
    """The same words in each format; rows of other ports have no such field."""
    job = new_job(
        source={"schema": "k string, t long, at timestamp"},
        expiry=HOURLY,
        sinks={"error": {"format": port, "path": "out/error"}},
    )
    job.add_file(LINES)
    job.run()
    assert sorted((dedup["reason"], dedup["detail"]) for dedup in _dedups(job, port)) == DETAILS
    report = errors_report(_store(job), WindowRange())
    assert sorted((group.reason, group.detail) for group in report.groups) == DETAILS
    (unique,) = job.rows("unique")
    assert "detail" not in unique["_dedup"]


def _dedups(job: Job, port: str) -> list[dict[str, Any]]:
    if port == "csv":
        files = (job.directory / "out" / "error").glob("*.csv")
        return [json.loads(row["_dedup"]) for file in files for row in csv.DictReader(file.open(newline=""))]
    return [row["_dedup"] for row in job.rows("error")]


def test_a_wrong_name_of_a_column_is_reported(new_job: Callable[..., Job], caplog: pytest.LogCaptureFixture) -> None:
    """By the log, by the summary, and by the window's event; no value of a record is in any."""
    job = new_job(source={"schema": "kay string, t long"}, key="kay")
    job.add_file([json.dumps({"key": "Zq7xW", "t": number}) for number in range(20)])
    summary = job.run()
    cause = "they lack `kay`, but have `key`"
    said = f"100% of 20 rows are errors: 20 null_key (kay: no such field). Likely cause: {cause}. See `deduper errors`"
    assert summary.error_note == said
    assert f"window 0: {said}" in [record.getMessage() for record in caplog.records]
    assert job.progress[0].causes == (cause,)
    assert "Zq7xW" not in caplog.text


@pytest.mark.parametrize("port", ["parquet", "json", "csv"])
def test_exported_errors_are_judged_after_a_mend(new_job: Callable[..., Job], port: str) -> None:
    """From every format of the port; what is exported twice is a duplicate, what fails again an error as it was."""
    sinks = {"error": {"format": port, "path": "out/error"}}
    job = new_job(source={"schema": "k string, t tinyint"}, sinks=sinks)
    job.add_file(['\ufeff{"k":"a","t":1000}', '{"k":"b","t":1}', '{"k":"c","t":"x, \\"y\\""}\r', b'{"k":"\xff"}'])
    job.run()
    job.settings = {**job.settings, "source": {"schema": "k string, t long"}}
    for _ in range(2):
        assert _exported(job, WindowRange(0, 0)) == {"malformed": 2, "invalid_utf8": 1}
    job.run()
    assert sorted((row["k"], row["t"]) for row in job.rows("unique")) == [("a", 1000), ("b", 1)]
    assert [(row["k"], row["t"]) for row in job.rows("duplicate")] == [("a", 1000)]
    again = [dedup for dedup in _dedups(job, port) if "-errors-" in dedup["source"]]
    assert sorted((one["reason"], one["position"]) for one in again) == [
        *[("invalid_utf8", 2)] * 2,
        *[("malformed", 1)] * 2,
    ]
    assert {one["raw"] for one in again if one["reason"] == "malformed"} == {'{"k":"c","t":"x, \\"y\\""}\r'}


@pytest.mark.night
def test_exported_rows_of_parquet_are_judged_after_a_mend(new_job: Callable[..., Job]) -> None:
    """With the columns of the config, times that were INT96 among them."""
    guarded: dict[str, Any] = {**HOURLY, "max_ahead_of_now": "1h"}
    job = new_job(source={"file_format": "parquet", "schema": "k string, at timestamp, n long"}, expiry=guarded)
    assert job.session is not None
    rows = [(f"k{number}", f"{2999 if number % 2 else 2024}-01-01 00:00:00", number) for number in range(6)]
    frame = job.session.createDataFrame(rows, "k string, at string, n long")
    frame.selectExpr("k", "CAST(at AS timestamp) AS at", "n").coalesce(1).write.parquet(str(job.directory / "in"))
    job.run()
    assert [row["k"] for row in job.rows("error")] == ["k1", "k3", "k5"]
    job.settings = {**job.settings, "expiry": {**guarded, "max_ahead_of_now": "off"}}
    assert _exported(job, WindowRange()) == {"ahead_of_now": 3}
    job.run()
    assert sorted((row["k"], row["at"].year, row["n"]) for row in job.rows("unique") if row["at"].year == 2999) == [
        ("k1", 2999, 1),
        ("k3", 2999, 3),
        ("k5", 2999, 5),
    ]
    assert len(job.rows("error")) == 3


def _exported(job: Job, windows: WindowRange) -> dict[str, int]:
    """The rows that were written and moved into the source, by reason."""
    folder = job.directory / "again"
    report = export_errors(_store(job), windows, (), str(folder))
    for file in folder.iterdir():
        file.rename(job.directory / "in" / file.name)
    return report.rows


def _store(job: Job) -> OpenStore:
    return OpenStore(job.config.store.url, job.config, CommitLog.open(local_place(job.config.store.path)), None)  # type: ignore[arg-type]
