"""Which standing task takes over what jobs have read."""

from __future__ import annotations

import pytest

from deduper.spark.placing import Executor
from deduper.tasks.executors.steps import Left
from deduper.tasks.read import ReadReceipt
from deduper.tasks.readers.reading_tasks import PartRead
from deduper.window.jobs.hand_over import taken_over
from deduper.window.jobs.window_sizes import MOST_BYTES, WindowSizes

FIRST, SECOND = Executor("0", "a"), Executor("1", "a")
TASKS = [(FIRST, "a:10"), (SECOND, "a:20"), (FIRST, "a:10")]


def left(name: str, ran_on: str, directory: str = "/records", size: int = 10) -> Left:
    """What a reading task of this name has left."""
    part = PartRead(ReadReceipt(name=name, rows=1, first_order=0))
    return Left(directory, (part,), (hash(name),), key_bytes=size, ran_on=ran_on)


def test_each_task_takes_what_its_executor_has_read() -> None:
    """Tasks of one executor share it, about as much each; one without any takes nothing."""
    lefts = [left(name, "a:10") for name in "pqrs"]
    taken = taken_over([*lefts, Left(ran_on="a:30")], TASKS)
    assert [place for place, _ in taken] == [FIRST, FIRST]
    assert [[receipt.name for receipt in one.receipts] for _, one in taken] == [["p", "q"], ["r", "s"]]
    assert [one.checksums for _, one in taken] == [(hash("p"), hash("q")), (hash("r"), hash("s"))]
    assert [one.key_bytes for _, one in taken] == [20, 20]


def test_several_executors() -> None:
    """Each has its own, in its own directory."""
    taken = taken_over([left("p", "a:20", "/disk"), left("q", "a:10")], TASKS)
    assert {(place, one.directory) for place, one in taken} == {(SECOND, "/disk"), (FIRST, "/records")}


@pytest.mark.parametrize(
    "lefts",
    [
        [left("p", "a:10"), left("q", "a:30")],
        [left("p", "a:10"), left("q", "a:10", "/disk")],
        [Left(ran_on="a:10")],
        [],
    ],
    ids=["an executor is gone", "two directories", "no record", "nothing read"],
)
def test_nothing_is_taken_over(lefts: list[Left]) -> None:
    """Unless all of it is."""
    assert taken_over(lefts, TASKS) == []


def test_no_task_has_begun() -> None:
    """Nobody takes anything."""
    assert taken_over([left("p", "a:10")], []) == []


@pytest.mark.parametrize(
    ("key_bytes", "readers", "fit"),
    [(MOST_BYTES, 1, True), (MOST_BYTES + 1, 1, False), (1, 1024, True), (1, 1025, False), (0, 0, False)],
)
def test_keys_that_the_driver_may_hold(key_bytes: int, readers: int, fit: bool) -> None:
    """Up to 192 MB, in up to 4,096 blobs; no task begins for a window without rows."""
    assert WindowSizes(shards=4).keys_fit_driver(key_bytes, readers) is fit
