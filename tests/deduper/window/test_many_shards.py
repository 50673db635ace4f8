"""What a job with many shards sends to its tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.cloudpickle import dumps

from bucket_store.log.records import CompactionRecord
from bucket_store.maintenance.background_task import OneThread
from bucket_store.pieces import compaction
from deduper.window import policy
from deduper.window.jobs.local import SparkRun
from tests.deduper.window.many_shards import ManyShards

MOST_BYTES = 64 << 10


class Sent:
    """A session and a task pool that only count the bytes that each task is sent."""

    sparkContext = property(lambda self: self)

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._payloads: Sequence[Any] = ()

    def parallelize(self, payloads: Sequence[Any], slices: int) -> Sent:
        """A job with a task a payload."""
        assert slices == len(payloads)
        self._payloads = payloads
        return self

    def map(self, function: Callable[[Any], Any], payloads: Sequence[Any] | None = None) -> Any:
        """Of a job, whose function every task gets; or of a pool."""
        if payloads is not None:
            self.sizes = [len(pickle.dumps((function, payload))) for payload in payloads]
            return []
        self.sizes = [len(dumps(function)) + len(dumps(payload)) for payload in self._payloads]
        return self

    def collect(self) -> list[Any]:
        """No receipts."""
        return []


@pytest.mark.slow
@pytest.mark.parametrize("has_pool", [False, True])
def test_a_task_gets_the_view_of_its_own_shard_alone(tmp_path: Path, has_pool: bool) -> None:
    """At most 64 KiB of a store of 1,000 shards with 50 live pieces each."""
    sent: Any = Sent()
    with closing(ManyShards(tmp_path, shards=1000, pieces=50)) as job:
        job.run()
        assert {len(view.pieces) for view in job.views} == {50}
        assert [view.shard for view in job.views] == list(range(1000))
        run = SparkRun(sent, 2, OneThread(), sent)
        run._is_small = False
        run._pool = sent if has_pool else None
        assert job.task is not None
        run.judge(job.task, job.views)
    assert len(sent.sizes) == 1000
    assert max(sent.sizes) <= MOST_BYTES


def test_pieces_of_many_shards_are_merged_after_each_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many shards at once as one window may begin to merge; one record has them all."""
    monkeypatch.setattr(compaction, "MOST_TASKS", 8)
    shards = 12
    with closing(ManyShards(tmp_path, shards=shards, pieces=compaction.FEWEST_LIVE - 1)) as job:
        begun = job.log.state.next_number
        for _ in range(4):
            job.run()
        bodies = [record.body for record in job.log.records(begun)]
        live = [len(pieces) for pieces in job.log.state.pieces.values()]
    merges = [[piece.shard for piece in body.added] for body in bodies if isinstance(body, CompactionRecord)]
    assert [len(merge) for merge in merges] == [compaction.MOST_TASKS, shards - compaction.MOST_TASKS]
    assert sorted(shard for merge in merges for shard in merge) == list(range(shards))
    assert max(live) < compaction.FEWEST_LIVE


def test_a_window_begins_so_many_bytes_of_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one of them in any case; the shards with the most pieces to merge come first."""
    with closing(ManyShards(tmp_path, shards=3, pieces=compaction.FEWEST_LIVE)) as job:
        state = job.log.state
        more = state.pieces[1][0]
        state.pieces[1] = (*state.pieces[1], replace(more, name="one more"))
        length = compaction.FEWEST_LIVE * more.length
        for most_bytes, shards in (
            (1, [1]),
            (2 * length + more.length, [1, 0]),
            (compaction.MOST_TASKS_BYTES, [1, 0, 2]),
        ):
            monkeypatch.setattr(compaction, "MOST_TASKS_BYTES", most_bytes)
            tasks = policy.next_compactions(job.config, job.log.manifest.store_id, state)
            assert [task.pieces[0].shard for task in tasks] == shards
