"""Whether a job is well, from what it knows; and since when records wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deduper.kafka.offsets import TopicPartition
from deduper.service.metrics import EndTimes
from deduper.service.window_metrics import HealthFacts, complaints

WELL = HealthFacts(
    up_s=10_000, running_s=0, is_committed=False, commit_s=5, brokers_s=3, waits_s=0, free_bytes={"store": 10**12}
)


def reasons(**changes: Any) -> list[str]:
    """The beginnings of what is wrong with a job that is well but for these."""
    return [reason.split(":")[0].split(",")[0] for reason in complaints(replace(WELL, **changes))]


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({"running_s": 900}, []),
        ({"running_s": 900.1}, ["window stuck"]),
        ({"running_s": 600, "is_committed": True}, []),
        ({"running_s": 600.1, "is_committed": True}, ["publishing stuck"]),
        ({"brokers_s": 300}, []),
        ({"brokers_s": 300.1}, ["brokers away"]),
        ({"brokers_s": None}, []),
        ({"away_s": 300}, []),
        ({"away_s": 300.1}, ["source away"]),
        ({"commit_s": 9999}, []),
        ({"commit_s": 900, "waits_s": 9999}, []),
        ({"commit_s": 900.1, "waits_s": 900.1}, ["no progress"]),
        ({"commit_s": 900.1, "waits_s": 900.1, "up_s": 900}, []),
        ({"commit_s": 900.1, "waits_s": 900.1, "running_s": 1}, []),
        ({"commit_s": None, "waits_s": 900.1}, ["no window was ever committed"]),
        ({"commit_s": None, "waits_s": 900.1, "up_s": 900}, []),
        ({"commit_s": None}, []),
        ({"commit_s": 9999, "waits_s": 900}, []),
        ({"commit_s": None, "waits_s": 900}, []),
        ({"free_bytes": {"store": 256 * 2**20}}, []),
        ({"free_bytes": {"store": 256 * 2**20 - 1, "unique": 0}}, ["disk full", "disk full"]),
        ({"running_s": 901, "brokers_s": 301}, ["window stuck", "brokers away"]),
    ],
)
def test_a_limit_is_the_last_good_value(changes: dict[str, Any], wrong: list[str]) -> None:
    """Both sides of each; a start has its time before anything is expected of it."""
    assert reasons(**changes) == wrong


def test_a_job_of_rare_windows_has_the_time_of_three() -> None:
    """A trigger of an hour: that no window was committed for two hours is as it should be."""
    hour = 3600
    for commit_s, up_s in ((3 * hour, 9 * hour), (None, 3 * hour)):
        facts = replace(WELL, waits_s=9 * hour, commit_s=commit_s, up_s=up_s)
        assert list(complaints(facts, hour * 1_000_000)) == []
        later = replace(facts, commit_s=None if commit_s is None else commit_s + 1, up_s=up_s + 1)
        assert len(list(complaints(later, hour * 1_000_000))) == 1


PLACE = TopicPartition("clicks", 0)


def test_a_record_waits_since_the_first_report_beyond_it() -> None:
    """Reports that bring nothing new count for nothing; what is judged is forgotten."""
    times = EndTimes()
    for at_s, end in ((1, 10), (2, 10), (3, 15), (4, 20)):
        times.add(at_s, {PLACE: end}, {PLACE: 5})
    assert [times.waiting_since_s(PLACE, judged) for judged in (5, 9, 10, 14, 15, 19, 20)] == [1, 1, 3, 3, 4, 4, None]
    times.add(5, {PLACE: 21}, {PLACE: 15})
    assert times.waiting_since_s(PLACE, 5) == 4
    assert times.waiting_since_s(TopicPartition("clicks", 1), 0) is None


def test_a_topic_that_was_made_anew_has_no_old_ends() -> None:
    """Its ends begin again at 0."""
    times = EndTimes()
    times.add(1, {PLACE: 100}, {})
    times.add(2, {PLACE: 3}, {})
    assert times.waiting_since_s(PLACE, 0) == 2


def test_reports_of_a_long_outage_are_few() -> None:
    """The oldest stays: its age matters most."""
    times = EndTimes()
    for at_s in range(3_000):
        times.add(at_s, {PLACE: at_s + 1}, {PLACE: 0})
    assert times.waiting_since_s(PLACE, 0) == 0
    assert len(times._ends[PLACE]) < 1000
