"""What a reading task makes of records, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from deduper.core.clock import POSITION_BITS, ClockRules
from deduper.core.verdict import Admission
from deduper.sources.frame_places import FramePlaces
from deduper.tasks import exchange, layout
from deduper.tasks.layout import RecordLayout
from deduper.tasks.read import ReadReceipt, ReadTask, read_function, spill


def test_a_category_may_be_no_text(tmp_path: Path) -> None:
    """Bytes of a Parquet file that are not UTF-8 are a category like any other; two of them are two."""
    invalid = [b"a", b"\xff", b"\xfe", b"\xff", None]
    count = len(invalid)
    text = pa.Array.from_buffers(pa.string(), count, pa.array(invalid, pa.binary()).buffers())
    numbers = pa.array(range(count), pa.int64())
    admission = pa.array([Admission.ADMITTED] * (count - 1) + [Admission.NULL_EXPIRY], pa.int8())
    records = pa.RecordBatch.from_arrays(
        [numbers, numbers, numbers, admission, text, pa.nulls(count, pa.string())],
        ["_hi", "_lo", "_order", "_admission", "_category", "_raw"],
    )
    task = ReadTask(str(tmp_path), 2, RecordLayout.of(pa.string()), clock=None, in_order=False, keeps_latest=False)
    (row,) = read_function(task)(iter([records]))
    receipt: ReadReceipt = pickle.loads(row.column(0)[0].as_py())
    assert receipt.categories == ("a", "\\xff", "\\xfe")
    assert receipt.first_arrivals == (0, 1, 2)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(("latest", "behind"), [(None, 0), (30, 0), (35, 1), (200, 4)])
def test_rows_that_earlier_windows_expire_are_counted(
    tmp_path: Path, latest: int | None, behind: int, in_order: bool
) -> None:
    """And not those that only the records before them in their file expire."""
    clock = ClockRules(False, 10, None, None, now_us=0, latest=latest, quiet_us=0)
    task = ReadTask(
        str(tmp_path), 1, RecordLayout.of(pa.int64()), clock=clock, in_order=in_order, keeps_latest=False, is_time=True
    )
    keys = {name: pa.array([1, 2, 3, 4]) for name in (layout.HI, layout.LO)}
    records = pa.RecordBatch.from_pydict(
        {
            **keys,
            layout.ORDER: pa.array([0, 1, 2, 3]),
            layout.ADMISSION: pa.array([0, 0, 0, 0], pa.int8()),
            layout.EXPIRY: pa.array([40, 50, 25, 45]),
            layout.RAW: pa.nulls(4, pa.string()),
        }
    )
    receipt = spill(task, iter([records]))
    assert receipt is not None
    assert receipt.behind == behind


@pytest.mark.parametrize("numbers", [[70, 71, 72], [5, 4, 9], [1, 1, 1]])
def test_places_of_rows_do_not_move_the_clock(tmp_path: Path, numbers: list[int]) -> None:
    """Rows of a DataFrame are judged as they come: the numbers that name them may go back, and repeat."""
    clock = ClockRules(False, 10, None, None, now_us=0, latest=None, quiet_us=0)
    task = ReadTask(
        str(tmp_path), 1, RecordLayout.of(pa.int64()), clock, in_order=True, keeps_latest=False, places=FramePlaces()
    )
    batches = [
        pa.RecordBatch.from_pydict(
            {
                **{name: pa.array([1, 2, 3]) for name in (layout.HI, layout.LO)},
                layout.ORDER: pa.array(numbers),
                layout.TOPIC: pa.array(["a", "b", "a"]),
                layout.PARTITION: pa.array([4, 4, 4], pa.int32()),
                layout.ADMISSION: pa.array([0, 0, 0], pa.int8()),
                layout.EXPIRY: pa.array([first, first + 30, first]),
                layout.RAW: pa.nulls(3, pa.string()),
            }
        )
        for first in (1, 61)
    ]
    (row,) = read_function(task)(iter(batches))
    receipt: ReadReceipt = pickle.loads(row.column(0)[0].as_py())
    keys = exchange.mapped(exchange.keys_file(str(tmp_path), receipt.name)).get_batch(0)
    rows = sorted(keys.to_pylist(), key=lambda row: row[exchange.ROW])
    old = int(Admission.OLDER_THAN_PERIOD)
    assert [row[exchange.ADMISSION] for row in rows] == [0, 0, old, 0, 0, old]
    assert [row[exchange.ORDER] for row in rows] == [4 << POSITION_BITS | number for number in range(6)]
    places = [source << POSITION_BITS | number for source, number in zip([0, 1, 0], numbers, strict=True)]
    assert [row[exchange.PLACE] for row in rows] == places * 2
    assert [one.name for one in receipt.partitions] == ["a", "b"]
    assert receipt.first_order == 4 << POSITION_BITS


def test_the_clock_before_each_tuple_goes_with_it(tmp_path: Path) -> None:
    """None before the first one that was admitted: 0 would be a time like any other, and make what is old expired."""
    clock = ClockRules(False, 10, None, None, now_us=0, latest=None, quiet_us=0)
    task = ReadTask(str(tmp_path), 1, RecordLayout.of(pa.int64()), clock=clock, in_order=True, keeps_latest=True)
    expiry = pa.array([3, 7, 5, 9], pa.int64())
    admission = pa.array([Admission.NULL_KEY, Admission.ADMITTED, Admission.ADMITTED, Admission.ADMITTED], pa.int8())
    numbers = pa.array(range(4), pa.int64())
    records = pa.RecordBatch.from_arrays(
        [numbers, numbers, numbers, admission, expiry, pa.nulls(4, pa.string())],
        ["_hi", "_lo", "_order", "_admission", "_expiry", "_raw"],
    )
    (row,) = read_function(task)(iter([records.slice(0, 2), records.slice(2)]))
    receipt: ReadReceipt = pickle.loads(row.column(0)[0].as_py())
    keys = exchange.mapped(exchange.keys_file(str(tmp_path), receipt.name)).get_batch(0)
    assert keys.column(exchange.LATEST).to_pylist() == [None, None, 7, 7]
