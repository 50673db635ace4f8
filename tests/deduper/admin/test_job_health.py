"""The verdict that `status` begins with: one case a situation of the night shift, the worst first."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deduper.admin.health import LEAST_FREE_BYTES, Facts, Waiting, health, span

FINE = Facts(
    epoch=3,
    is_running=True,
    left_beat="",
    left_exists=False,
    exit_code=0,
    ended="the last job stopped cleanly",
    windows=20,
    since_window=12.0,
    in_work=None,
    usual=4.0,
    rate=100.0,
    unpublished=(),
    newest={"unique": 890, "duplicate": 100, "error": 10},
    reasons={"malformed": 10, "same_window": 100},
    total={"unique": 8900, "duplicate": 1000, "error": 100},
    ahead=-2.0,
    stands=1.0,
    starts=3,
    waiting=Waiting(0, "offset"),
    differing=(),
    free_bytes=LEAST_FREE_BYTES,
    place="/state",
    broken="",
    leaked=0.001,
)

FINE_LINE = "healthy: the last window began 12 s ago; no offset waits"


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({}, "healthy: the last window began 12 s ago; no offset waits"),
        ({"waiting": Waiting(1, "file")}, "healthy: the last window began 12 s ago; 1 file waits"),
        ({"waiting": Waiting(6000, "offset")}, "healthy: the last window began 12 s ago; 6,000 offsets wait"),
        ({"waiting": None}, "healthy: the last window began 12 s ago"),
        (
            {"windows": 0, "since_window": None, "waiting": Waiting(0, "file")},
            "healthy: running, and no window was committed yet; no file waits",
        ),
        ({"waiting": Waiting(6001, "offset")}, "behind: 6,001 offsets wait, which takes 60 s at this rate"),
        (
            {
                "newest": {"unique": 500, "duplicate": 40, "expired": 400, "error": 60},
                "reasons": {"older_than_period": 400, "ahead_of_now": 50, "malformed": 10},
            },
            "healthy: the last window began 12 s ago; no offset waits; unusual: 6% of the newest rows are errors "
            "(ahead_of_now), 40% of the newest rows are expired (older_than_period)",
        ),
        (
            {"newest": {"unique": 400, "duplicate": 600}},
            "healthy: the last window began 12 s ago; no offset waits; unusual: 60% of the newest rows are duplicates, "
            "10% of all",
        ),
        ({"newest": {"unique": 990, "duplicate": 10}, "total": {"unique": 10_000, "duplicate": 3}}, FINE_LINE),
        (
            {"newest": {"unique": 89, "duplicate": 1, "expired": 10}, "ahead": 300.0, "stands": 300.0},
            FINE_LINE,
        ),
        (
            {"ahead": 600.0, "stands": 301.0},
            FINE_LINE
            + "; unusual: the latest point is 10 min ahead of the clock, event time has stood still for 5 min",
        ),
        ({"waiting": Waiting(90_000, "file")}, "behind: 90,000 files wait, which takes 15 min at this rate"),
        (
            {"in_work": (20, 301.0)},
            "stuck: window 20 has been in work for 5 min, and usually takes 4 s",
        ),
        ({"in_work": (20, 301.0), "usual": 31.0}, "healthy: the last window began 12 s ago; no offset waits"),
        (
            {"unpublished": (18, 19), "since_window": 400.0},
            "stuck: 2 windows (18 to 19) committed and not published for 7 min: an output does not take it",
        ),
        ({"unpublished": (19,)}, "healthy: the last window began 12 s ago; no offset waits"),
        (
            {"waiting": Waiting(7, "offset"), "since_window": 900.0},
            "stuck: 7 offsets wait, and no window has begun for 15 min",
        ),
        ({"since_window": 90_000.0}, "healthy: the last window began 25 h ago; no offset waits"),
        (
            {"waiting": Waiting(None, "offset", "no broker answers")},
            "stuck: what waits is not known: no broker answers",
        ),
        (
            {"newest": {"unique": 9, "error": 11}},
            "needs a person: 55% of the rows of the newest windows are errors, most of them malformed: does the config "
            "fit the data?",
        ),
        (
            {"waiting": Waiting(None, "offset", "t-0 ends at 3, before 9", is_broken=True)},
            "needs a person: t-0 ends at 3, before 9",
        ),
        (
            {"differing": ("key", "store.shards"), "is_running": False},
            "needs a person: the config and the store differ in key, store.shards, which is fixed for the life of a "
            "store; `deduper reshard` changes the shards",
        ),
        ({"free_bytes": LEAST_FREE_BYTES - 1}, "needs a person: 255 MiB are free on /state"),
        (
            {"broken": "sinks.error: /out exists and is not a folder"},
            "needs a person: sinks.error: /out exists and is not a folder",
        ),
        ({"leaked": 0.0214}, FINE_LINE + "; unusual: 2.1% of the records or more are copies that were not found"),
        (
            {"is_running": False, "left_beat": "host:7", "left_exists": True, "waiting": None},
            "not running: the process host:7 exists and does nothing: it is stopped, or its machine swaps; the last "
            "window began 12 s ago",
        ),
        (
            {"is_running": False},
            "not running: the last job stopped cleanly; the last window began 12 s ago; no offset waits",
        ),
        (
            {
                "is_running": False,
                "exit_code": None,
                "ended": "host:7 vanished",
                "unpublished": (19,),
                "waiting": Waiting(None, "file"),
            },
            "not running: host:7 vanished; the last window began 12 s ago; the next start publishes window 19",
        ),
        (
            {"is_running": False, "newest": {"unique": 1, "error": 9}, "starts": 4},
            "not running: the last job stopped cleanly; the last window began 12 s ago; no offset waits; 4 starts in "
            "30 min; unusual: 90% of the newest rows are errors (malformed)",
        ),
        (
            {"is_running": False, "exit_code": 4, "ended": "the last job ended with exit 4: gone"},
            "needs a person: the last job ended with exit 4: gone; the last window began 12 s ago; no offset waits",
        ),
        (
            {"is_running": False, "exit_code": 5, "ended": "the last job ended with exit 5: fenced"},
            "needs a person: the last job ended with exit 5: fenced; the last window began 12 s ago; no offset waits",
        ),
        (
            {"is_running": False, "exit_code": 70, "ended": "the last job ended with exit 70: a bug"},
            "not running: the last job ended with exit 70: a bug; the last window began 12 s ago; no offset waits",
        ),
        ({"is_running": False, "epoch": 0}, "not running: no job has opened this store yet"),
    ],
)
def test_every_situation_has_its_line(facts: dict[str, Any], line: str) -> None:
    """State and reason."""
    assert str(health(replace(FINE, **facts))) == line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h"), (172_800, "2 days"), (10**9, "11,574 days")],
)
def test_times_are_as_people_say_them(seconds: float, text: str) -> None:
    """One unit, rounded."""
    assert span(seconds) == text


# The facts of a store in each incident of the runbook's night that `status` names.
NIGHT: dict[str, dict[str, Any]] = {
    "a producer renames the key column": {"newest": {"error": 9}, "reasons": {"null_key": 9}},
    "a producer's clock is a day ahead": {"newest": {"unique": 7, "error": 3}, "reasons": {"ahead_of_now": 3}},
    "logs of the day before are sent again": {
        "newest": {"unique": 5, "expired": 5},
        "reasons": {"older_than_period": 5},
    },
    "the broker is frozen": {"waiting": Waiting(None, "offset", "the topics of the source: no answer")},
    "the disk of a port fills up": {"free_bytes": 0, "place": "file:///jobs/out/duplicate (sinks.duplicate)"},
    "somebody moves a port's folder away": {
        "broken": "sinks.expired: /jobs/out/expired exists and is not a folder",
    },
    "the driver is killed again and again": {"is_running": False, "left_beat": "host:7", "starts": 5},
    "two supervisors fight over the store": {"starts": 12},
    "the job is stopped and forgotten": {"is_running": False},
    "the driver stands still": {"is_running": False, "left_beat": "host:7", "left_exists": True},
    "event time stands still": {"stands": 700.0},
    "retries carry other timestamps": {"leaked": 0.02},
    "a producer sends 60 % again": {"newest": {"unique": 625, "duplicate": 375}},
    "a producer's clock is ten minutes ahead": {"ahead": 600.0},
}
RUNBOOK = Path(__file__).parents[3] / "docs/runbook.md"


def test_the_runbook_quotes_what_status_says() -> None:
    """Each incident of its night, in the words of today; `…` is for figures and places."""
    rows = [line.strip("| ").split(" | ") for line in RUNBOOK.read_text(encoding="utf-8").splitlines()]
    named = {row[0]: row[3] for row in rows if len(row) == 4 and row[0] in NIGHT}
    assert named.keys() == NIGHT.keys()
    for incident, facts in NIGHT.items():
        quoted = named[incident].partition("`status`: ")[2].partition("; `")[0]
        pattern = ".+".join(map(re.escape, quoted.split("…")))
        line = str(health(replace(FINE, **facts)))
        assert quoted
        assert re.search(pattern, line), f"{incident}: {line}"
