"""A job waits for an HDFS that is away, as it waits for brokers, and goes on exactly where it stood.

docs/how-to/hdfs.md has what ends it, and how long it takes.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hdfs_native import Client

from bucket_store.filesystem import is_temporary
from bucket_store.places.open import open_place
from tests.services.hdfs import Hdfs
from tests.services.hdfs_faults import (
    frozen_datanodes,
    frozen_namenode,
    killed_datanodes,
    killed_namenode,
    safe_mode,
)
from tests.services.hdfs_story import Story, environment, undisturbed

pytestmark = [pytest.mark.services, pytest.mark.timeout(3600), pytest.mark.night]

WINDOWS = 30
_AWAY_S, _LONG_S = 20.0, 100.0
"""Longer than a call may take, and two lines of log; longer than clients of HDFS try by themselves."""
_FIRST_LINE_S, _GOES_ON_S, _STOPS_S = 15.0, 60.0, 30.0


FAULTS = {
    "the NameNode stands still": (frozen_namenode, "answers", _AWAY_S),
    "the NameNode stands still for long": (frozen_namenode, "answers", _LONG_S),
    "the NameNode is killed": (killed_namenode, "answers", _AWAY_S),
    "the DataNodes stand still": (frozen_datanodes, "writes|reads", _AWAY_S),
    "the DataNodes are killed": (killed_datanodes, "writes|reads", _AWAY_S),
    "safe mode": (safe_mode, "takes changes", _AWAY_S),
}


@pytest.fixture(scope="module")
def on_a_disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of the undisturbed job."""
    return undisturbed(tmp_path_factory.mktemp("disk") / "job", WINDOWS)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Callable[..., Story]]:
    """Makes stories on a cluster."""
    made: list[Story] = []

    def make(hdfs: Hdfs, **scene: Any) -> Story:
        made.append(Story.on(hdfs, tmp_path / f"job-{len(made)}", WINDOWS, {}, **scene))
        return made[-1]

    yield make
    for one in made:
        one.clean_up()


def test_a_job_waits_and_goes_on(
    on_a_disk: dict[str, Any], hdfs_pair: Hdfs, story: Callable[..., Story], capsys: pytest.CaptureFixture[str]
) -> None:
    """One process through all of them: a line within seconds, with address and cause, one at the end, all exact."""
    job = story(hdfs_pair, shards=4)
    job.start()
    for name, (fault, missing, away_s) in FAULTS.items():
        told = len(job.scene.output())
        with fault(hdfs_pair):
            began = time.monotonic()
            first_s = _said_after(job, told, rf"waiting for {hdfs_pair.url} for \d+ s \({hdfs_pair.url}/.*HDFS", began)
            time.sleep(max(0.0, began + away_s - time.monotonic()))
            before = _windows(job) if fault is safe_mode else None
        over = time.monotonic()
        before = _windows(job) if before is None else before
        _said_after(job, told, rf"{hdfs_pair.url} (?:{missing}) again after \d+ s: going on", over)
        while _windows(job) <= before:
            assert time.monotonic() - over < _GOES_ON_S, job.scene.output()
            time.sleep(0.1)
        with capsys.disabled():
            print(f"\n{name}: first line after {first_s:.1f} s, next window {time.monotonic() - over:.1f} s after it")
        assert first_s < _FIRST_LINE_S
    job.run_to_the_end()
    assert "gives up after 600 s" in job.scene.output()
    assert "Traceback" not in job.scene.output()
    job.check(on_a_disk)


def test_a_stop_ends_the_wait_and_a_start_waits_too(
    on_a_disk: dict[str, Any], hdfs_pair: Hdfs, story: Callable[..., Story]
) -> None:
    """The stop within seconds, with nothing lost; the start goes on when the NameNode is back."""
    job = story(hdfs_pair, shards=4)
    job.start()
    hdfs_pair.namenode.kill()
    _said_after(job, 0, "waiting for hdfs", time.monotonic())
    began = time.monotonic()
    assert job.driver is not None
    os.kill(job.driver.pid, signal.SIGTERM)
    code = job.driver.wait(_STOPS_S)
    assert code == 0, job.scene.output()
    assert "stopped while waiting for hdfs" in job.scene.output()
    print(f"ended {time.monotonic() - began:.1f} s after the signal")
    told = len(job.scene.output())
    with environment(HADOOP_CONF_DIR=str(hdfs_pair.conf)):
        job.driver = job.scene.start("--once")
    _said_after(job, told, "waiting for hdfs", time.monotonic())
    hdfs_pair.start()
    _said_after(job, told, "answers again after", time.monotonic())
    job.run_to_the_end()
    job.check(on_a_disk)


@pytest.fixture(scope="module")
def large_blocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """Two DataNodes, and blocks of 128 MiB, as clusters have them."""
    settings = {"dfs.blocksize": 128 << 20}
    with Hdfs(tmp_path_factory.mktemp("large"), datanodes=2, early_close=True, settings=settings) as cluster:
        yield cluster


def test_a_dead_datanode_uses_up_no_quota(
    on_a_disk: dict[str, Any], large_blocks: Hdfs, story: Callable[..., Story]
) -> None:
    """Nothing counts beyond the data and the files being written: a job of 10 MiB runs on with a quota of 300 MiB."""
    hdfs = large_blocks
    job = story(hdfs, shards=4)
    folder = open_place(job.scene.store).parent
    hdfs.administer("-setSpaceQuota", "300m", str(folder.path))
    job.start()
    hdfs.datanodes[0].kill()
    most = 0
    client = Client(hdfs.url)
    while not job.has_ended():
        most = max(most, client.get_content_summary(str(folder.path)).space_consumed)
        time.sleep(0.2)
    hdfs.start()
    job.run_to_the_end()
    left = [file for file in folder.walk() if is_temporary(file.name)]
    assert left == []
    print(f"at most {most >> 20} MiB counted")
    assert most < 150 << 20
    job.check(on_a_disk)


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_every_block_is_synced(form: str, hdfs_pair: Hdfs, story: Callable[..., Story]) -> None:
    """Counted at the DataNodes: a power cut loses no committed row, of whatever port."""
    job = story(hdfs_pair, shards=2, error_format=form, form=form)
    before = hdfs_pair.synced_blocks()
    with environment(HADOOP_CONF_DIR=str(hdfs_pair.conf)):
        assert job.scene.run("--max-windows", "10") == 0, job.scene.output()
    written, synced = (now - then for now, then in zip(hdfs_pair.synced_blocks(), before, strict=True))
    assert written > 50
    assert synced == written


def _windows(job: Story) -> int:
    assert not job.has_ended(), job.scene.output()
    return job.windows()


def _said_after(job: Story, told: int, pattern: str, began: float) -> float:
    """Seconds until the job's log says it."""
    while not re.search(pattern, job.scene.output()[told:]):
        assert not job.has_ended(), job.scene.output()
        assert time.monotonic() - began < _GOES_ON_S, job.scene.output()
        time.sleep(0.1)
    return time.monotonic() - began
