"""Both ways of an index to Spark's workers: the file that they map, and what is broadcast."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from deduper.ranges.aggregate.aggregates import Own, parse_aggregate
from deduper.ranges.aggregate.cells import Ids
from deduper.ranges.aggregate.range_index import Events, RangeIndex, Ranges
from deduper.ranges.batch.workers import Mapped, Sent

SEED = 20_261_127
TEXTS = ("count", "sum(value)", "variance(value)", "top_k(value, 2)", "list(value)", "set(name)", "max(name)")


def ids(numbers: Any) -> Ids:
    return Ids(np.asarray(numbers, np.int64), np.zeros(len(numbers), np.int64))


def index_of(rows: int) -> RangeIndex:
    """Of some ranges, with texts, nulls and functions of one's own."""
    draw = np.random.default_rng(SEED)
    start = draw.integers(0, 50, rows)
    values = pa.array(draw.integers(-9, 9, rows), mask=draw.random(rows) < 0.2)
    names = pa.array([None if one % 5 == 0 else f"n{one}" for one in range(rows)], pa.string())
    ranges = Ranges(
        ids(draw.integers(0, 3, rows)),
        pa.array(start),
        pa.array(start + draw.integers(0, 30, rows)),
        {"value": values, "name": names},
    )
    own = Own("value", 0, lambda state, _: state + 1, lambda state, _: state - 1, lambda state: state, "bigint")
    aggregates = {**{text: parse_aggregate(text) for text in TEXTS}, "own": own}
    return RangeIndex(ranges, "[]", aggregates, {"own": pa.int64()})


def answers_of(index: Any) -> list[Any]:
    events = Events(ids(np.arange(400) % 4), pa.array(np.arange(400) % 90), {})
    return [[column.to_pylist() for column in columns] for _, columns in index.answers(events)]


def mapped(index: RangeIndex, folder: Path) -> Any:
    file = Mapped.of(index, str(folder))
    assert file.value is file.value
    return cloudpickle.loads(cloudpickle.dumps(Mapped(file.path, file.rest, file.sizes))).value


def sent(index: RangeIndex, _: Path) -> Any:
    return pickle.loads(pickle.dumps(Sent(index), 5))


@pytest.mark.parametrize("rows", [0, 1, 60])
@pytest.mark.parametrize("way", [mapped, sent])
def test_an_index_arrives_whole(way: Callable[[RangeIndex, Path], Any], rows: int, tmp_path: Path) -> None:
    """Its answers are those at the driver; a mapped one's arrays lie in the file, aligned."""
    index = index_of(rows)
    arrived = way(index, tmp_path)
    assert answers_of(arrived) == answers_of(index), SEED
    times = arrived._timeline.times
    assert times.flags.writeable or not rows
    assert times.ctypes.data % 8 == 0
