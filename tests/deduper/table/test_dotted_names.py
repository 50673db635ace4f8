"""Columns with a dot in their names: right, or refused before anything is written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from deduper.table.errors import TableUsageError
from deduper.table.operations.changes import load
from tests.deduper.table.scene import Place


@pytest.mark.parametrize("above", [pa.array([1, 2]), pa.array([{"b.c": 1, "b": 2}] * 2)])
@pytest.mark.parametrize("name", ["a.b", "a.b.c"])
@pytest.mark.parametrize("turn", [1, -1])
def test_a_name_that_is_a_part_of_another_is_refused(place: Place, above: pa.Array, name: str, turn: int) -> None:
    """Whichever comes first, and whether the other is a struct or not."""
    rows = pa.table({"k": [1, 2], "a": above, name: [3, 4]})
    rows = rows.select(rows.schema.names[::turn])
    with pytest.raises(TableUsageError, match=rf"column `{name}` is taken for a part of column `a`"):
        load(rows, place.root, key=["k"], table_format=place.format)
    assert not place.root.exists()


@pytest.mark.slow
@pytest.mark.parametrize("index", ["exact", "bloom", "simple"])
def test_a_dot_alone_is_no_matter(place: Place, index: str) -> None:
    """Keys of such a column are found again."""
    rows = pa.table({"a.b": [1, 2], "ab": [{"b": 1}] * 2, "a.": ["x", "y"], ".a": [0.5, 1.0]})
    for new in (2, 0):
        receipt = load(rows, place.root, key=["a.b", "a."], index=index, table_format=place.format)
        assert (receipt.inserted, receipt.found) == (new, 2 - new)
