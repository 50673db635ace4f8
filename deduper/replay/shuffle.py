"""The work of a replay before its first window: the survey of the inputs, and one shuffle of records by time.

Both are Spark's, a task for about so many bytes; a few inputs are read in the driver, as small windows are.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F

from bucket_store.places.place import Place
from deduper.errors import IntegrityError
from deduper.replay.inputs import InputReading, ReplayInput
from deduper.replay.keys import KeyRange
from deduper.replay.plan import PlannedSlice
from deduper.replay.slices import Cutting, made_slice
from deduper.replay.survey import Survey, survey
from deduper.spark.dataframes import map_in_arrow
from deduper.spark.hdfs_login import LogsIn
from deduper.spark.session import changed_settings
from deduper.tasks.write import grouped, is_small

_TASK_BYTES = 128 << 20
_BLOBS = {"spark.sql.execution.arrow.maxRecordsPerBatch": "8"}
"""A blob is up to 64 MB, and a batch of binary values at most 2 GB."""

_T = TypeVar("_T")


def surveys_of(
    session: SparkSession, reading: InputReading, bounds: KeyRange, inputs: Sequence[ReplayInput]
) -> list[Survey]:
    """The survey of each input, in their order.

    Raises:
        FileMovedError: a file is not as it was listed.
        SourceAwayError: a range cannot be read now; from a task in Spark's words, see `raised_in_worker`.
    """
    if is_small(sum(one.size_bytes for one in inputs)):
        return [survey(reading, bounds, one) for one in inputs]
    groups = _groups(session, inputs)
    surveying = partial(_each, partial(survey, reading, bounds))
    found = session.sparkContext.parallelize(groups, len(groups)).map(surveying).collect()
    return [one for of_group in found for one in of_group]


def _each(function: Callable[[ReplayInput], _T], inputs: Sequence[ReplayInput]) -> list[_T]:
    return [function(one) for one in inputs]


def _groups(session: SparkSession, inputs: Sequence[ReplayInput]) -> list[list[ReplayInput]]:
    """Inputs for one task each: at least one a core, and of about equal bytes."""
    sizes = [one.size_bytes for one in inputs]
    tasks = max(session.sparkContext.defaultParallelism, sum(sizes) // _TASK_BYTES)
    return [[inputs[number] for number in group] for group in grouped(sizes, min(tasks, len(inputs)))]


def sorted_slices(
    session: SparkSession, cutting: Cutting, inputs: Sequence[ReplayInput], folder: Place, logged_in: LogsIn
) -> dict[int, PlannedSlice]:
    """The slices of these inputs by number, durable in `folder`; those without records are in none.

    Raises:
        FileMovedError: a file is not as it was surveyed.
        SourceAwayError: as `surveys_of`.
        IntegrityError: records were lost on the way.
    """
    if not inputs:
        return {}
    folder.make_directories()
    if is_small(sum(one.size_bytes for one in inputs)):
        cut, made = _sorted_here(cutting, inputs, folder)
    else:
        cut, made = _sorted_by_spark(session, cutting, inputs, folder, logged_in)
    put_in_order = sum(one.rows for one in made.values())
    if cut != put_in_order:
        raise IntegrityError(f"{cut} records were cut by time, and {put_in_order} put in order: repeat the command")
    folder.sync()
    return made


def _sorted_here(cutting: Cutting, inputs: Sequence[ReplayInput], folder: Place) -> tuple[int, dict[int, PlannedSlice]]:
    blobs: dict[int, list[bytes]] = {}
    cut = 0
    for blob in cutting.blobs(inputs):
        blobs.setdefault(blob.slice, []).append(blob.packed)
        cut += blob.rows
    return cut, {number: made_slice(folder, number, of_slice) for number, of_slice in blobs.items()}


def _sorted_by_spark(
    session: SparkSession, cutting: Cutting, inputs: Sequence[ReplayInput], folder: Place, logged_in: LogsIn
) -> tuple[int, dict[int, PlannedSlice]]:
    groups = _groups(session, inputs)
    counted = Observation()
    numbers = session.range(0, len(groups), 1, len(groups))
    blobs = map_in_arrow(numbers, _Cut(cutting, groups), "slice int, rows bigint, packed binary")
    observed = blobs.observe(counted, F.sum("rows").alias("rows"))
    dealt = observed.repartitionById(cutting.cuts.count, F.col("slice")).select("slice", "packed")
    making = logged_in(_Make(folder))
    with changed_settings(session, _BLOBS):
        made = [pickle.loads(row.made) for row in map_in_arrow(dealt, making, "made binary").collect()]
    return int(counted.get["rows"] or 0), dict(made)


class _Cut:
    """The task that cuts a group of inputs; its input is the group's number."""

    def __init__(self, cutting: Cutting, groups: Sequence[Sequence[ReplayInput]]) -> None:
        self._cutting = cutting
        self._groups = groups

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for blob in self._cutting.blobs(self._groups[number]):
                    columns = [
                        pa.array([blob.slice], pa.int32()),
                        pa.array([blob.rows], pa.int64()),
                        pa.array([blob.packed], pa.binary()),
                    ]
                    yield pa.RecordBatch.from_arrays(columns, ["slice", "rows", "packed"])


class _Make:
    """The task that puts a slice together."""

    def __init__(self, folder: Place) -> None:
        self._folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blobs: dict[int, list[bytes]] = {}
        for batch in batches:
            for number, blob in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                blobs.setdefault(number, []).append(blob)
        made = [pickle.dumps((number, made_slice(self._folder, number, blobs[number]))) for number in sorted(blobs)]
        yield pa.RecordBatch.from_arrays([pa.array(made, pa.binary())], ["made"])
