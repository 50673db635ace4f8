"""What is judged once stays judged: replays, new checkpoints, drained jobs, workers that die."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bucket_store import failpoints
from bucket_store.commit_log import CommitLog
from bucket_store.errors import SettingsChangedError
from deduper import checkpoint
from deduper.errors import IntegrityError, OwnerAliveError, UsageError
from deduper.file_batch import FileBatches
from tests.spark.harness import PORTS, Job

pytestmark = pytest.mark.spark

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
    state = CommitLog.open(job.config.store.path).state
    return {"outputs": outputs, "totals": state.totals, "pieces": state.pieces, "window": state.next_window}


def forget_last_batches(job: Job, count: int) -> None:
    """As if Spark had died before it noted its last batches as done."""
    commits = (checkpoint.newest(job.config.checkpoint_path) or Path("none")) / "commits"
    for batch in sorted((int(path.name) for path in commits.iterdir() if path.name.isdecimal()), reverse=True)[:count]:
        (commits / str(batch)).unlink()
        (commits / f".{batch}.crc").unlink(missing_ok=True)


def _of_four_windows(new_job: Callable[..., Job], url: str) -> Job:
    return filled(new_job(expiry=EXPIRY, store={"url": url, "shards": 3}, source={"max_files_per_batch": 1}))


@pytest.fixture
def job(new_job: Callable[..., Job]) -> Job:
    """A job of four windows, not run yet. Checkpoints, owners and settings lie above the kinds of store."""
    return _of_four_windows(new_job, "rocksdb:state")


@pytest.fixture(params=["rocksdb:state", "file:state"])
def job_on_each(request: pytest.FixtureRequest, new_job: Callable[..., Job]) -> Job:
    """The same on both kinds of store, for what touches pieces."""
    return _of_four_windows(new_job, request.param)


@pytest.mark.parametrize("batches", [1, 2])
def test_batches_that_spark_forgot_are_not_judged_again(job: Job, batches: int) -> None:
    """The checkpoint's last commits deleted: outputs, counts and store are unchanged, and the stream goes on."""
    job.run()
    before = outcome(job)
    forget_last_batches(job, batches)
    assert job.run().windows == 0
    assert outcome(job) == before
    late = job.add_records([{"k": "new", "t": 120}, {"k": "new", "t": 121}])
    assert job.run().windows == 1
    assert [row["k"] for row in job.rows("unique") if row["_dedup"]["source"] == str(late)] == ["new"]


@pytest.mark.parametrize("committed", [3, 0])
def test_a_list_of_files_that_no_batch_took_makes_no_larger_window(job: Job, committed: int) -> None:
    """A driver that ended between Spark's list of a batch's files and the batch: each file is still a window."""
    if committed:
        job.run(max_batches=committed)

    def dies(*_: object) -> None:
        raise IntegrityError("dead")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileBatches, "batch", dies)
        with pytest.raises(IntegrityError, match="dead"):
            job.run()
    spark = checkpoint.newest(job.config.checkpoint_path)
    assert spark is not None
    assert (spark / "sources" / "0" / str(committed)).exists(), "nothing was listed: the test proves nothing"
    for name in (str(committed), f".{committed}.crc"):
        (spark / "offsets" / name).unlink(missing_ok=True)
    assert job.run().windows == 4 - committed
    assert [progress.rows for progress in job.progress] == [ROWS_A_FILE] * 4


def test_a_drained_job_has_nothing_to_do(job: Job) -> None:
    """Running it again changes nothing."""
    job.run()
    before = outcome(job)
    assert job.run().windows == 0
    assert outcome(job) == before


@pytest.mark.parametrize("damage", ["gone", "torn offsets", "torn source log", "no metadata"])
def test_a_new_checkpoint_skips_what_was_judged(job: Job, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint that is gone or torn: every file is skipped with a message, never all duplicates."""
    job.run()
    before = outcome(job)
    spark = checkpoint.newest(job.config.checkpoint_path)
    assert spark is not None
    if damage == "gone":
        shutil.rmtree(spark)
    else:
        torn = {"torn offsets": "offsets/3", "torn source log": "sources/0/3", "no metadata": "metadata"}[damage]
        (spark / torn).write_text("")
    with caplog.at_level(logging.WARNING):
        assert job.run().windows == 0
    assert "were judged before and are skipped" in caplog.text
    if damage != "gone":
        assert "set aside" in caplog.text
    assert outcome(job) == before


def test_a_checkpoint_ahead_of_the_store_loses_nothing(
    new_job: Callable[..., Job], caplog: pytest.LogCaptureFixture
) -> None:
    """The store and its outputs gone, the checkpoint still there: files that Spark holds for done are judged again."""
    store = {"url": "rocksdb:state", "shards": 3}
    job = filled(new_job(expiry=EXPIRY, store=store, source={"max_files_per_batch": 1}, checkpoint="checkpoint"))
    job.run()
    totals = outcome(job)["totals"]
    shutil.rmtree(job.config.store.path)
    shutil.rmtree(job.directory / "out")
    with caplog.at_level(logging.WARNING):
        assert job.run().windows == 4
    assert "4 files for done that the store has never judged" in caplog.text
    assert outcome(job)["totals"] == totals


def test_a_store_older_than_its_outputs_is_refused(job_on_each: Job) -> None:
    """Put back to a copy: its next windows would be judged against a memory that has a gap."""
    job = job_on_each
    job.run(max_batches=2)
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


def test_a_worker_that_dies_on_its_first_attempt_changes_nothing(
    job_on_each: Job, new_job: Callable[..., Job], tmp_path: Path, session: Any
) -> None:
    """Killed by itself after judging and before its piece: Spark's second attempt gives the same outputs."""
    calm = filled(
        new_job("calm", expiry=EXPIRY, store={"url": "file:state", "shards": 3}, source={"max_files_per_batch": 1})
    )
    calm.run()
    job, killed = job_on_each, tmp_path / "killed"
    sc = session.sparkContext
    sc.environment[failpoints.ENVIRONMENT] = f"judge.piece.before=kill:once={killed}"
    try:
        job.run()
    finally:
        del sc.environment[failpoints.ENVIRONMENT]
    assert killed.exists(), "no worker was killed: the test proves nothing"
    for port in PORTS:
        mine, theirs = ([_plain(row) for row in each.rows(port)] for each in (job, calm))
        assert sorted(mine, key=repr) == sorted(theirs, key=repr)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the directory of its job."""
    dedup = dict(row["_dedup"])
    dedup["source"] = os.path.basename(dedup["source"])  # noqa: PTH119 - a text, not a path that is there
    if dedup.get("first_seen"):
        dedup["first_seen"] = {**dedup["first_seen"], "source": os.path.basename(dedup["first_seen"]["source"])}  # noqa: PTH119
    return {**row, "_dedup": dedup}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"store": {"url": "rocksdb:state", "shards": 2}}, "shards"),
        ({"digest": "secure"}, "digest"),
        ({"key": ["k", "t"]}, "key"),
        ({"expiry": {**EXPIRY, "span": 20}}, "expiry.span"),
        ({"expiry": {"by": "never"}}, "expiry.by"),
        ({"expiry": {**EXPIRY, "lookup": "all_live"}}, "expiry.lookup"),
    ],
)
def test_settings_that_a_store_keeps_are_refused_when_changed(
    new_job: Callable[..., Job], settings: dict[str, Any], named: str
) -> None:
    """Named with both values and what to do, before anything is touched."""
    job = filled(new_job(expiry=EXPIRY, store={"url": "rocksdb:state", "shards": 3}), files=1)
    job.run()
    before = outcome(job)
    job.settings = {**job.settings, **settings}
    with pytest.raises(SettingsChangedError, match=named) as refused:
        job.run()
    assert "Put them back" in str(refused.value)
    job.settings = {"expiry": EXPIRY, "store": {"url": "rocksdb:state", "shards": 3}}
    assert outcome(job) == before
    assert job.run().windows == 0


def test_a_longer_or_shorter_period_is_allowed(job: Job) -> None:
    """The period is no part of what the stored bytes mean."""
    job.run(max_batches=2)
    job.settings = {**job.settings, "expiry": {**EXPIRY, "period": 50}}
    # Not windows: of what Spark had listed before the stop, it may make one batch.
    assert job.run().rows == 2 * ROWS_A_FILE


def test_an_owner_that_lives_is_left_alone(job: Job) -> None:
    """A second start is refused while the owner's heart beats, unless it is told to take over."""
    from bucket_store.heartbeat import HeartBeat

    job.run(max_batches=1)
    with HeartBeat(job.config.store.path, "elsewhere:1", interval_s=0.2):
        with pytest.raises(OwnerAliveError, match="--take-over"):
            job.run()
        assert job.run(take_over=True).rows == 3 * ROWS_A_FILE
