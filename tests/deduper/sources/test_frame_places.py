"""The places of a DataFrame's rows by the columns that name them, batch after batch of one partition."""

from __future__ import annotations

import pyarrow as pa
import pytest

from deduper.core.clock import POSITION_BITS
from deduper.sources.frame_places import MOST_PARTITIONS, FramePlaces
from deduper.tasks.layout import ORDER, PARTITION, TOPIC
from deduper.tasks.read import FoundPartition


def records(rows: list[tuple[str | None, int | None]], partition: int) -> pa.RecordBatch:
    """Rows with the source and the number that they name."""
    return pa.RecordBatch.from_pydict(
        {
            "_hi": pa.array(range(len(rows)), pa.int64()),
            TOPIC: pa.array([name for name, _ in rows], pa.string()),
            PARTITION: pa.array([partition] * len(rows), pa.int32()),
            ORDER: pa.array([number for _, number in rows], pa.int64()),
        }
    )


def placed(places: FramePlaces, rows: list[tuple[str | None, int | None]], partition: int = 3) -> list[tuple[int, int]]:
    """Ordinal and position of each."""
    found = places.placed(records(rows, partition))
    assert found.schema.names == ["_hi", ORDER]
    return [(order >> POSITION_BITS, order & (1 << POSITION_BITS) - 1) for order in found.column(ORDER).to_pylist()]


def test_one_source_has_the_ordinal_of_the_partition() -> None:
    """As Kafka's rows mostly come: a partition of a topic in each partition of the DataFrame."""
    places = FramePlaces()
    assert placed(places, [("clicks-0", 70), ("clicks-0", 71)]) == [(3, 70), (3, 71)]
    assert placed(places, [("clicks-0", 75)]) == [(3, 75)]
    assert places.partitions() == (FoundPartition(3, "clicks-0", 76, 3),)


def test_further_sources_have_ordinals_of_their_own() -> None:
    """In the order in which they come, and no other partition has these."""
    places = FramePlaces()
    rows: list[tuple[str | None, int | None]] = [("b", 5), ("a", 9), ("b", 2), ("c", 0)]
    assert placed(places, rows) == [(3, 5), (3 + MOST_PARTITIONS, 9), (3, 2), (3 + 2 * MOST_PARTITIONS, 0)]
    assert placed(places, [("c", 1)]) == [(3 + 2 * MOST_PARTITIONS, 1)]
    assert places.partitions() == (
        FoundPartition(3, "b", 6, 2),
        FoundPartition(3 + MOST_PARTITIONS, "a", 10, 1),
        FoundPartition(3 + 2 * MOST_PARTITIONS, "c", 2, 2),
    )


def test_a_row_that_names_no_place_has_its_number() -> None:
    """In the partition of the DataFrame, all rows counted: no row is lost, and no two have one place."""
    places = FramePlaces()
    rows: list[tuple[str | None, int | None]] = [("a", 0), (None, 7), ("a", None), ("a", -1), ("a", 1 << POSITION_BITS)]
    nowhere = 3 + MOST_PARTITIONS
    assert placed(places, rows) == [(3, 0), (nowhere, 1), (nowhere, 2), (nowhere, 3), (nowhere, 4)]
    assert placed(places, [(None, None)]) == [(nowhere, 5)]
    assert places.partitions() == (FoundPartition(3, "a", 1, 1), FoundPartition(nowhere, None, 6, 5))


def test_edges() -> None:
    """A batch without rows; only nulls; too many partitions."""
    places = FramePlaces()
    assert placed(places, []) == []
    assert places.partitions() == ()
    assert placed(places, [(None, None)]) == [(3, 0)]
    with pytest.raises(ValueError, match="at most 4096 partitions"):
        placed(FramePlaces(), [("a", 1)], partition=MOST_PARTITIONS)
