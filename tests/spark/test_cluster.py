"""The real job on several executors: what the oracle says, whatever executor dies; shards stay where they are."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from bucket_store.log.commit_log import CommitLog
from bucket_store.places.local import local_place
from deduper.tasks import exchange
from deduper.testing import Oracle
from deduper.window.jobs.cluster import ClusterRun
from deduper.window.table_folder import table_room
from tests.deduper.engine import comparable
from tests.deduper.streams import random_shape, random_stream
from tests.spark.cluster import Cluster, cluster_of, executors, run_job
from tests.spark.harness import PORTS, Job
from tests.spark.test_job_oracle import (
    add_json,
    expiry_section,
    given_answers,
    records,
    regular,
    schema,
    table,
    wall_clock,
)

pytestmark = [pytest.mark.spark, pytest.mark.night, pytest.mark.timeout(1800)]

SHARDS = 8
STEPS = ("read", "judge", "write")
KILLS = [*((step, 3) for step in STEPS), ("judge", 1), ("write", 1)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two executors."""
    with cluster_of("local-cluster[2,1,1024]", tmp_path_factory.mktemp("two") / "session") as cluster:
        yield cluster


def job_in(directory: Path, **settings: Any) -> Job:
    directory.mkdir(exist_ok=True)
    return Job(directory, None, settings)


def check_stream(cluster: Cluster, directory: Path, mode: str, kind: str, seed: int, jobs: int) -> None:
    """The answers of a random stream, row for row, as `test_job_oracle` checks them on one machine."""
    stream, files_a_window = regular(random_stream(mode, seed), seed)
    shape = random_shape(seed)
    job = job_in(
        directory,
        source={"file_format": kind, "schema": schema(stream), "max_files_per_batch": files_a_window},
        key=[f"k{number}" for number in range(len(stream.types))],
        null_keys=stream.settings.null_keys,
        digest="secure" if shape.secure else "fast",
        expiry=expiry_section(stream),
        store={"url": "file:state", "shards": shape.shards, "first_seen": shape.keep_first_seen},
    )
    for part in (part for window in stream.windows for part in window.partitions):
        if kind == "json":
            add_json(job, records(stream, part))
        else:
            job.add_table(table(stream, part))
    times = [window.now_us for window in stream.windows]
    assert times
    assert set(cluster.call(run_stream, job, stream, jobs)) == {jobs}
    oracle = Oracle(stream.settings)
    expected = [
        comparable(
            oracle.judge(window.partitions, window.now_us), stream.settings, keep_first_seen=shape.keep_first_seen
        )
        for window in stream.windows
    ]
    assert given_answers(job, kind, stream, shape) == expected, (mode, seed, stream.settings, shape)


def run_stream(session: SparkSession, job: Job, stream: Any, jobs: int) -> list[int]:
    took: list[int] = run_job(session, job, jobs=jobs, clock=wall_clock(stream))["jobs"]
    return took


@pytest.mark.night
@pytest.mark.parametrize(
    ("mode", "kind", "seed", "jobs"),
    [
        ("event_time", "parquet", 1, 1),
        ("event_time", "parquet", 1, 3),
        ("category", "parquet", 2, 1),
        ("category", "parquet", 2, 3),
        ("processing_time", "parquet", 0, 1),
        ("ordered", "json", 8, 3),
    ],
)
def test_two_executors_say_what_the_oracle_says(
    mode: str, kind: str, seed: int, jobs: int, two: Cluster, tmp_path: Path
) -> None:
    """Port, reason and first copy of every row, by one job a window and by three."""
    check_stream(two, tmp_path / "job", mode, kind, seed, jobs)


def numbered(job: Job, windows: int, rows: int, first: int = 0) -> Counter[str]:
    """Two files a window of keys that repeat; how often each key is there."""
    often: Counter[str] = Counter()
    for number in range(2 * first, 2 * (first + windows)):
        keys = [f"k{key}" for key in np.random.default_rng(number).integers(0, 40 * rows, rows)]
        often.update(keys)
        job.add_table(pa.table({"k": keys, "t": pa.array(range(rows), pa.int64())}))
    return often


def store_of(directory: Path, **source: Any) -> Job:
    source = {"file_format": "parquet", "max_files_per_batch": 2, **source}
    return job_in(directory, source=source, store={"url": "file:state", "shards": SHARDS})


def check_counts(job: Job, often: Counter[str]) -> None:
    """Every record left once; of each key the first is unique, and all others are duplicates."""
    assert Counter(row["k"] for row in job.rows("unique")) == Counter(dict.fromkeys(often, 1))
    assert Counter(row["k"] for row in job.rows("duplicate")) == often - Counter(dict.fromkeys(often, 1))
    places = [(row["_dedup"]["source"], row["_dedup"]["position"]) for port in PORTS for row in job.rows(port)]
    assert len(set(places)) == len(places) == often.total()


def stayed_put(places: list[dict[int, str]]) -> list[int]:
    """How many shards were judged where they were in the window before, for each window but the first."""
    return [sum(one[shard] == other[shard] for shard in one) for one, other in pairwise(places)]


@pytest.mark.parametrize("jobs", [1, 3])
def test_shards_stay_put(jobs: int, two: Cluster, tmp_path: Path) -> None:
    """8 of 8 over 20 windows; after an executor was killed they are where they stay within 3 windows."""
    job = store_of(tmp_path / "job")
    two.call(executors, at_least=2)
    often = numbered(job, 21, 50)
    ran = two.call(run_job, job, jobs=jobs)
    assert set(ran["jobs"]) == {jobs}
    places = ran["ran_on"]
    assert [set(where) for where in places] == [set(range(SHARDS))] * 21
    stayed = stayed_put(places)
    assert stayed == [SHARDS] * 20
    assert Counter(Counter(places[-1].values()).values()) == {SHARDS // 2: 2}
    often += numbered(job, 5, 50, first=21)
    ran = two.call(run_job, job, ("", "write"), jobs=jobs)
    assert ran["killed"] == 1
    check_counts(job, often)
    places = ran["ran_on"]
    changes = [number for number, stayed_there in enumerate(stayed_put(places)) if stayed_there < SHARDS]
    print(f"windows after which shards moved: {changes}")
    # A new executor takes some windows to come; from then on the shards are spread over both, and stay.
    two.call(executors, at_least=2)
    often += numbered(job, 6, 50, first=26)
    places = two.call(run_job, job, jobs=jobs)["ran_on"]
    stayed = stayed_put(places)
    print(f"shards that stayed once there were two executors again: {stayed}")
    assert stayed[2:] == [SHARDS] * 3
    check_counts(job, often)


@pytest.mark.parametrize(("step", "jobs"), KILLS)
def test_an_executor_that_is_killed_loses_no_row(step: str, jobs: int, two: Cluster, tmp_path: Path) -> None:
    """Before each step of a window; before writing, the records and verdicts of three jobs are lost with it."""
    job = store_of(tmp_path / "job")
    often = numbered(job, 3, 500)
    ran = two.call(run_job, job, ("", step), jobs=jobs)
    assert ran["killed"] == 1
    assert ran["windows"] == 3
    assert ran["jobs"] == [jobs] * 3
    check_counts(job, often)


def run_without_rows(session: SparkSession, job: Job) -> int:
    """Run a job; in its second window the records are removed before they are written, once."""
    attempts = 0
    write = ClusterRun.write

    def writing(run: ClusterRun, task: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 2:
            for left in run._left:
                for receipt in left.receipts:
                    Path(exchange.rows_file(left.directory, receipt.name)).unlink()
        return write(run, task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClusterRun, "write", writing)
        run_job(session, job, jobs=3)
    return attempts


def test_rows_that_are_gone_are_judged_again(two: Cluster, tmp_path: Path) -> None:
    """On hosts whose executors live; no row leaves twice, and the job leaves no folder behind."""
    job = store_of(tmp_path / "job")
    often = numbered(job, 2, 500)
    assert two.call(run_without_rows, job) == 3
    check_counts(job, often)
    settings = table_room(job.config).here()
    store_id = CommitLog.open(local_place(job.config.store.path)).manifest.store_id
    assert not [
        *Path(settings.memory_dir).glob(f"records/{store_id}*"),
        *Path(settings.disk_dir).glob(f"records/{store_id}*"),
    ]


def test_windows_of_all_sizes_follow_each_other(two: Cluster, tmp_path: Path) -> None:
    """A file that is small on its disk and large in memory is read again by jobs."""
    job = store_of(tmp_path / "job", max_files_per_batch=1)
    few = ["a", "b", "c"] * 100_000
    keys = [["a", "d"], few, ["e"], few, ["f"] * 2, ["g"]]
    for some in keys:
        job.add_table(pa.table({"k": some, "t": pa.array([7] * len(some), pa.int64())}))
    ran = two.call(run_job, job)
    assert ran["jobs"] == [1, 3, 1, 3, 1, 1]
    assert {len(where) for where in ran["ran_on"]} == {SHARDS}
    often = Counter(key for some in keys for key in some)
    settings = table_room(job.config).here()
    store_id = CommitLog.open(local_place(job.config.store.path)).manifest.store_id
    assert not list(Path(settings.memory_dir).glob(f"records/{store_id}*"))
    assert sum(1 for _ in job.rows("duplicate")) == often.total() - len(often)
    assert {row["k"] for row in job.rows("unique")} == set(often)


def test_a_file_that_no_reader_can_read(two: Cluster, tmp_path: Path) -> None:
    """It is one error tuple; the records of the other file of its window leave once."""
    job = store_of(tmp_path / "job")
    often = numbered(job, 1, 100)
    whole = sorted(Path(job.config.source.path).glob("*.parquet"))
    kept = parquet.read_table(whole[0])
    data = bytearray(whole[1].read_bytes())
    data[4:60] = bytes(56)
    times = whole[1].stat()
    whole[1].write_bytes(data)
    os.utime(whole[1], ns=(times.st_atime_ns, times.st_mtime_ns))
    assert two.call(run_job, job)["jobs"] == [1]
    assert [row["_dedup"]["reason"] for row in job.rows("error")] == ["file_unreadable"]
    assert often.total() == 200
    assert sum(1 for port in ("unique", "duplicate") for _ in job.rows(port)) == kept.num_rows


def test_ports_of_text_are_written_by_executors(two: Cluster, tmp_path: Path) -> None:
    """By the tasks that write Parquet, without a job of their own."""
    store = {"url": "file:state", "shards": SHARDS}
    sinks = {port: {"format": "json", "path": f"out/{port}"} for port in PORTS}
    job = job_in(
        tmp_path / "job", source={"max_files_per_batch": 2, "file_format": "parquet"}, store=store, sinks=sinks
    )
    often = numbered(job, 3, 2000)
    two.call(run_job, job, jobs=3)
    check_counts(job, often)


def test_three_executors_say_what_the_oracle_says(tmp_path: Path) -> None:
    """More executors than cores."""
    with cluster_of("local-cluster[3,1,1024]", tmp_path / "session") as three:
        check_stream(three, tmp_path / "small", "event_time", "parquet", 4, 1)
        check_stream(three, tmp_path / "large", "category", "json", 8, 3)
