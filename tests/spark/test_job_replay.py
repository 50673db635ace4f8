"""What is judged once stays judged: replays, new checkpoints, drained jobs, workers that die."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bucket_store import failpoints
from bucket_store.errors import SettingsChangedError
from bucket_store.log.commit_log import CommitLog
from bucket_store.places.local import local_place
from deduper.errors import IntegrityError, OwnerAliveError, UsageError
from deduper.window.jobs import local as window_jobs
from tests.spark.harness import PORTS, Job

pytestmark = [pytest.mark.spark, pytest.mark.query]

EXPIRY = {"by": "ordered", "field": "t", "period": 100, "span": 10}
ROWS_A_FILE = 63


def filled(job: Job, files: int = 4) -> Job:
    """Files with repeats inside each and across all of them, late tuples and errors."""
    for number in range(files):
        records: list[dict[str, Any]] = [{"k": f"{key % 40}", "t": number * 30 + key % 7} for key in range(60)]
        records += [{"k": "late", "t": number * 30 - 200}, {"k": None, "t": 0}, {"k": "", "t": number * 30}]
        job.add_records(records)
    return job


def outcome(job: Job) -> dict[str, Any]:
    """Everything that must not change: published bytes by name, the store's counts and its live pieces."""
    outputs = {
        str(path.relative_to(job.directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for port in PORTS
        for path in (job.directory / "out" / port).iterdir()
        if path.is_file() and not path.name.startswith((".", "_"))
    }
    state = CommitLog.open(local_place(job.config.store.path)).state
    return {"outputs": outputs, "totals": state.totals, "pieces": state.pieces, "window": state.next_window}


def _of_four_windows(new_job: Callable[..., Job], url: str) -> Job:
    return filled(new_job(expiry=EXPIRY, store={"url": url, "shards": 3}, source={"max_files_per_batch": 1}))


@pytest.fixture
def job(new_job: Callable[..., Job]) -> Job:
    """A job of four windows, not run yet. Checkpoints, owners and settings lie above the kinds of store."""
    return _of_four_windows(new_job, "rocksdb:state")


@pytest.fixture(params=[pytest.param("rocksdb:state", marks=pytest.mark.night), "file:state"])
def job_on_each(request: pytest.FixtureRequest, new_job: Callable[..., Job]) -> Job:
    """The same on both kinds of store, for what touches pieces."""
    return _of_four_windows(new_job, request.param)


def test_a_drained_job_goes_on_with_what_is_new_and_with_nothing_else(job: Job) -> None:
    """Nothing is judged again, and without a new file running it again changes nothing."""
    job.run()
    before = outcome(job)
    assert job.run().windows == 0
    assert outcome(job) == before
    late = job.add_records([{"k": "new", "t": 120}, {"k": "new", "t": 121}])
    assert job.run().windows == 1
    assert [row["k"] for row in job.rows("unique") if row["_dedup"]["source"] == str(late)] == ["new"]


def test_a_store_that_is_lost_with_its_outputs_loses_nothing(new_job: Callable[..., Job]) -> None:
    """All files are judged again."""
    job = filled(new_job(expiry=EXPIRY, store={"url": "rocksdb:state", "shards": 3}, source={"max_files_per_batch": 1}))
    job.run()
    totals = outcome(job)["totals"]
    shutil.rmtree(job.config.store.path)
    shutil.rmtree(job.directory / "out")
    assert job.run().windows == 4
    assert outcome(job)["totals"] == totals


@pytest.mark.night(but=["the job's"])
@pytest.mark.parametrize("folder", ["the job's", "the source's"])
def test_a_job_whose_folder_was_moved_goes_on(job: Job, folder: str) -> None:
    """What was judged is known under its new path, and what is new is read."""
    job.run()
    totals = outcome(job)["totals"]
    if folder == "the job's":
        moved = job.directory.with_name("moved")
        job.directory.rename(moved)
        job.directory = moved
    else:
        (job.directory / "in").rename(job.directory / "in2")
        job.settings = {**job.settings, "source": {**job.settings["source"], "path": "in2"}}
    assert job.run().windows == 0
    assert outcome(job)["totals"] == totals
    if folder == "the job's":
        job.add_records([{"k": "new", "t": 120}])
        assert job.run().windows == 1


def test_a_store_older_than_its_outputs_is_refused(job_on_each: Job) -> None:
    """Put back to a copy: its next windows would be judged against a memory that has a gap."""
    job = job_on_each
    job.run(max_windows=2)
    copy = job.directory / "copy"
    shutil.copytree(job.config.store.path, copy)
    job.run()
    shutil.rmtree(job.config.store.path)
    copy.rename(job.config.store.path)
    with pytest.raises(IntegrityError, match="older copy"):
        job.run()


def test_ports_of_another_store_are_refused(job: Job) -> None:
    """A new store judges everything again: not into ports that hold it already."""
    job.run()
    shutil.rmtree(job.config.store.path)
    with pytest.raises(UsageError, match="outputs of another store"):
        job.run()


@pytest.mark.night
def test_a_worker_that_dies_on_its_first_attempt_changes_nothing(
    job_on_each: Job, new_job: Callable[..., Job], tmp_path: Path, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed by itself after judging and before its piece: Spark's second attempt gives the same outputs."""
    monkeypatch.setattr(window_jobs, "is_small", lambda _: False)  # small windows have no workers
    undisturbed = filled(
        new_job(
            "undisturbed", expiry=EXPIRY, store={"url": "file:state", "shards": 3}, source={"max_files_per_batch": 1}
        )
    )
    undisturbed.run()
    job, killed = job_on_each, tmp_path / "killed"
    sc = session.sparkContext
    sc.environment[failpoints.ENVIRONMENT] = f"judge.piece.before=kill:once={killed}"
    try:
        job.run()
    finally:
        del sc.environment[failpoints.ENVIRONMENT]
    assert killed.exists(), "no worker was killed: the test proves nothing"
    for port in PORTS:
        mine, theirs = ([_plain(row) for row in each.rows(port)] for each in (job, undisturbed))
        assert sorted(mine, key=repr) == sorted(theirs, key=repr)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the directory of its job."""
    dedup = dict(row["_dedup"])
    dedup["source"] = os.path.basename(dedup["source"])  # noqa: PTH119 - a text, not a path that is there
    if dedup.get("first_seen"):
        dedup["first_seen"] = {**dedup["first_seen"], "source": os.path.basename(dedup["first_seen"]["source"])}  # noqa: PTH119
    return {**row, "_dedup": dedup}


def test_settings_that_a_store_keeps_are_refused_when_changed(new_job: Callable[..., Job]) -> None:
    """Named with both values and what to do, before anything is touched."""
    job = filled(new_job(expiry=EXPIRY, store={"url": "rocksdb:state", "shards": 3}), files=1)
    job.run()
    before, kept = outcome(job), job.settings
    changes: dict[str, dict[str, Any]] = {
        "shards": {"store": {"url": "rocksdb:state", "shards": 2}},
        "digest": {"digest": "secure"},
        "key": {"key": ["k", "t"]},
        "expiry.span": {"expiry": {**EXPIRY, "span": 20}},
        "expiry.by": {"expiry": {"by": "never"}},
        "expiry.lookup": {"expiry": {**EXPIRY, "lookup": "all_live"}},
    }
    for named, settings in changes.items():
        job.settings = {**kept, **settings}
        with pytest.raises(SettingsChangedError, match=named) as refused:
            job.run()
        assert "put them back" in str(refused.value), named
        job.settings = kept
        assert outcome(job) == before, named
    assert job.run().windows == 0


def test_a_longer_or_shorter_period_is_allowed(job: Job) -> None:
    """The period is no part of what the stored bytes mean."""
    job.run(max_windows=2)
    job.settings = {**job.settings, "expiry": {**EXPIRY, "period": 50}}
    # Not windows: of what Spark had listed before the stop, it may make one batch.
    assert job.run().rows == 2 * ROWS_A_FILE


def test_an_owner_that_lives_is_left_alone(job: Job) -> None:
    """A second start is refused while the owner's heart beats, unless it is told to take over."""
    from bucket_store.log.heartbeat import HeartBeat

    job.run(max_windows=1)
    with HeartBeat(local_place(job.config.store.path), "elsewhere:1", interval_s=0.2):
        with pytest.raises(OwnerAliveError, match="--take-over"):
            job.run()
        assert job.run(take_over=True).rows == 3 * ROWS_A_FILE
