"""`filter_exists`: the rows that a load would add, and nothing written."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest

from deduper.config.problems import ConfigError
from deduper.table.errors import IndexDamagedError, SchemaDriftError
from deduper.table.formats.protocol import PRIVATE
from deduper.table.operations.questions import filter_exists
from deduper.table.settings import load_config
from tests.deduper.table.scene import Place, Row, arrow, foreign


def new_rows(place: Place, rows: list[Row] | pa.Table) -> list[bool]:
    """The mask; no file is made or changed."""
    before = {path: path.stat().st_mtime_ns for path in place.root.parent.rglob("*")}
    batch = rows if isinstance(rows, pa.Table) else arrow(rows)
    mask = filter_exists(batch, load_config(place.root.parent / "load.yaml"))
    assert {path: path.stat().st_mtime_ns for path in place.root.parent.rglob("*")} == before
    assert mask.type == pa.bool_()
    assert batch.filter(mask).num_rows == sum(mask.to_pylist())
    found: list[bool] = mask.to_pylist()
    return found


def test_rows_that_are_new(place: Place) -> None:
    """Not in the table, the kept one of repeats, no error; with an index, behind it, and without one."""
    rows: list[Row] = [(1, "a", 0), (1, "b", 0), (1, "c", 1), (None, "d", 0), (2, "e", None), (3, "f", 2)]
    assert new_rows(place, rows) == [True, False, True, False, False, True]
    assert not place.root.exists()
    place.load([(1, "a", 0)])
    assert new_rows(place, rows) == [False, False, True, False, False, True]
    foreign(place, 3, 2)
    foreign(place, 4, 0)
    assert new_rows(place, rows) == [False, False, True, False, False, False]
    assert new_rows(place, [(4, "a", 0), (4, "a", 1), (5, "a", 0)]) == [False, True, True]
    shutil.rmtree(place.root / PRIVATE / "index")
    assert new_rows(place, rows) == [False, False, True, False, False, False]
    assert new_rows(place, []) == []


def test_the_settings_of_the_config(place: Place) -> None:
    """The rule for repeats, the scope; columns that no setting names may be left out."""
    place.load([(1, "a", 0)])
    assert new_rows(place, arrow([(1, "", 0), (1, "", 1), (2, "", 0)]).drop_columns(["v"])) == [False, True, True]
    config = place.root.parent / "load.yaml"
    written = config.read_text(encoding="utf-8")
    config.write_text(f"{written}keep: {{greatest: v}}\n", encoding="utf-8")
    assert new_rows(place, [(2, "a", 0), (2, "c", 0), (2, "b", 0)]) == [False, True, False]
    config.write_text(f"{written}scope: global\nkeep: last\n", encoding="utf-8")
    assert new_rows(place, [(1, "a", 1), (2, "a", 0), (2, "b", 1)]) == [False, False, True]


def test_what_does_not_fit(place: Place) -> None:
    """A setting with its place, a column with its types, a damaged index with its folder."""
    place.load([(1, "a", 0)])
    with pytest.raises(ConfigError, match="there is no column `k`"):
        new_rows(place, arrow([]).drop_columns(["k"]))
    with pytest.raises(SchemaDriftError, match="`k` is string in the batch and bigint in the table"):
        new_rows(place, arrow([(1, "a", 0)]).set_column(0, "k", pa.array(["1"])))
    (piece,) = (place.root / PRIVATE / "index/pieces").iterdir()
    piece.write_bytes(b"no piece")
    with pytest.raises(IndexDamagedError, match="the next load builds the index anew"):
        new_rows(place, [(1, "a", 0)])
    piece.unlink()
    with pytest.raises(IndexDamagedError, match="the next load builds the index anew"):
        new_rows(place, [(1, "a", 0)])
