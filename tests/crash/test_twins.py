"""Two real processes with the same task of the same window at the same time: both are right, and one counts."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bucket_store.pieces.open import open_backend
from bucket_store.pieces.reader import PieceReader
from bucket_store.tables import mapped
from deduper.tasks import exchange
from deduper.tasks.judge import judge
from deduper.testing import Row, Settings
from tests.crash import ledger
from tests.deduper.small_service import Process, TaskRun, Trial, World, machine_of, said

pytestmark = pytest.mark.crash

WINDOWS, ROUNDS = 6, 4
_forking = multiprocessing.get_context("fork")  # as Spark starts its workers


def judge_beside_the_other(run: TaskRun, meet: Any, answers: Any) -> None:
    """What one of the two processes does, in the spool folder of both: everything from the keys to the receipt."""
    mapped._mapped.clear()
    meet.wait(120)
    try:
        answers.put((judge(run.task, run.view), said(run.task, run.view.shard)))
    except BaseException as exc:
        answers.put(repr(exc))
        raise


def rows_of(rng: random.Random, window: int) -> list[list[Row]]:
    """Two files of keys old and new."""
    return [
        [Row((f"{rng.randrange(40 + 20 * window)}",), 10 * window + rng.randrange(10)) for _ in range(80)] for _ in "ab"
    ]


@pytest.fixture(params=["rocksdb", "file"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A job on each backend."""
    settings = Settings(by="ordered", period=60, span=10, lookup="all_live", clock="batch")
    world = World(tmp_path, Trial(settings, shards=1, backend=request.param))
    with machine_of(world):
        yield world


@pytest.mark.parametrize("lock_timeout_s", [0.0, 5.0])
def test_twins_agree_and_one_counts(world: World, lock_timeout_s: float) -> None:
    """Window after window is judged by its owner, and once more by two processes at once, on its tables and backend."""
    rng = random.Random(ledger.SEED)
    process = Process(world)
    for window in range(WINDOWS):
        process.offer(world.put(rows_of(rng, window)))
        if window < WINDOWS - ROUNDS:
            continue
        run = world.task_runs[-1]
        # A piece of lower epochs only is ever discarded, so theirs go with the next start.
        tables = replace(run.task.tables, lock_timeout_s=lock_timeout_s)
        folder = world.root / f"spool of {window}"
        folder.mkdir()
        for name, keys in run.keys.items():
            Path(exchange.keys_file(str(folder), name)).write_bytes(keys)
        run = replace(run, task=replace(run.task, directory=str(folder), tables=tables))
        meet, answers = _forking.Barrier(2), _forking.Queue()
        twins = [_forking.Process(target=judge_beside_the_other, args=(run, meet, answers)) for _ in range(2)]
        for twin in twins:
            twin.start()
        reported = [answers.get(timeout=200) for _ in twins]
        for twin in twins:
            twin.join(60)
        assert not any(isinstance(answer, str) for answer in reported), reported
        assert [verdicts for _, verdicts in reported] == [run.said, run.said]
        receipts = [receipt for receipt, _ in reported]
        first, second = (replace(receipt, piece=None, table_counters={}, seconds={}) for receipt in receipts)
        assert first == second
        own = [ref for ref in process.log.state.pieces[0] if ref.first_window == run.task.window]
        reader = PieceReader(open_backend(world.config.store.url), process.log.manifest.store_id)
        contents = [
            [entries.digests.tolist() for _, entries in reader.read_all(reader.all_parts([piece]))]
            for piece in (*own, *(receipt.piece for receipt in receipts))
        ]
        assert contents[0] == contents[1] == contents[2]
        names = {(piece.file, piece.name) for piece in (*own, *(receipt.piece for receipt in receipts))}
        assert len(names) == 3, "a twin has written over the other's piece"
    before = [ref.name for ref in process.log.state.pieces[0]]
    Process(world)
    lying = {piece.name for piece in open_backend(world.config.store.url).pieces()}
    assert lying == set(before), "the twins' pieces go with the next start"
