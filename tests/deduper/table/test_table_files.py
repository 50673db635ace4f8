"""The files of a plain table and of a source are those that every reader takes: all names that are not hidden."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from deduper.table.batch import source_files
from deduper.table.errors import SettingError, TableError, UnsupportedTableError
from deduper.table.operations.changes import load
from deduper.table.settings import LoadSource
from tests.deduper.table.scene import Place, Row, dying


def _written(path: Path, *keys: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"k": pa.array(keys, pa.int64())}), path)


def _found(root: Path, *keys: int, form: str = "parquet") -> int:
    rows = pa.table({"k": pa.array(keys, pa.int64())})
    return load(rows, root, key=["k"], table_format=form).found


def test_files_need_no_ending(tmp_path: Path) -> None:
    """Keys of Hive's names and of other endings are found, those of hidden files are not; empty files have no rows."""
    root = tmp_path / "table"
    names = ["000000_0", "part-00000", "a.parq", "a.PARQUET", "_a=1", ".b", "_c", "d._COPYING_"]
    for key, name in enumerate(names):
        _written(root / name, key)
    (root / "000001_0").touch()
    assert _found(root, *range(8)) == 5
    files = [str(file) for file in root.iterdir() if file.is_file() and file.name not in names[5:]]
    files.remove(str(root / "000001_0"))
    assert sorted(ds.dataset(files, format="parquet").to_table()["k"].to_pylist()) == [*range(8)]
    assert _found(root, *range(8)) == 8


def test_a_linked_folder_is_read(tmp_path: Path) -> None:
    """Readers follow links."""
    root, other = tmp_path / "table", tmp_path / "other"
    _written(other / "a", 1)
    root.mkdir()
    (root / "k=1").symlink_to(other)
    rows = pa.table({"k": [1], "v": [1]})
    pq.write_table(rows.select(["v"]), other / "a")
    assert load(rows, root, key=["k"], partition_by=["k"], table_format="parquet").found == 1


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    """A text beside the files is an error that says what to do, and a Delta table may begin beside one."""
    root = tmp_path / "table"
    root.mkdir()
    (root / "README").write_text("about this table", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(TableError, match=r"README: .*cannot be read.* begins with `_`"):
            _found(root, 1)
        _written(root / "000000_0", 1)
    with pytest.raises(UnsupportedTableError, match="has Parquet files and no Delta log"):
        _found(root, 1, form="delta")
    (root / "000000_0").unlink()
    assert _found(root, 1, form="delta") == 0


def test_a_source_skips_no_folder_in_silence(tmp_path: Path) -> None:
    """Files in folders below are read by a pattern that names them, and refused otherwise; hidden ones are skipped."""
    for name in ("a", "b/c", "b/d=1/e", "_temporary/0/f", ".g", "b/_SUCCESS"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for pattern in ("", "*", "?"):
        with pytest.raises(SettingError, match=r"b is a folder, and .*b/c in it would not be read"):
            source_files(tmp_path / pattern)
    wanted = [tmp_path / name for name in ("a", "b/c", "b/d=1/e")]
    assert source_files(tmp_path / "**") == source_files(tmp_path / "**" / "*") == wanted
    assert source_files(tmp_path / "_temporary" / "*" / "*") == [tmp_path / "_temporary/0/f"]
    (tmp_path / "empty").mkdir()
    for name in ("b/c", "b/d=1/e"):
        (tmp_path / name).unlink()
    assert source_files(tmp_path) == [tmp_path / "a"]


def test_a_source_with_columns_in_its_folders_is_refused(tmp_path: Path) -> None:
    """Unless the files have the column too; so is a Delta table, whose folder has files of other versions."""
    _written(tmp_path / "in" / "k=1" / "a", 1)
    _written(tmp_path / "in" / "d=1" / "a", 1)
    for pattern, is_right in (("in/k*/*", True), ("in/d=1/*", True), ("in/d*/*", False), ("in/**", False)):
        source = LoadSource(path=tmp_path / pattern)
        if is_right:
            assert source.batch().schema.names == ["k"]
        else:
            with pytest.raises(SettingError, match="the folder `d=1` has the value of a column"):
                source.batch()
    (tmp_path / "in" / "_delta_log").mkdir()
    for pattern in ("in", "in/*", "in/**/*"):
        with pytest.raises(SettingError, match="is a Delta table"):
            source_files(tmp_path / pattern)


@pytest.mark.parametrize("step", ["table.3.staged", "table.4.planned", None])
def test_only_rows_have_the_ending_of_parquet(step: str | None, place: Place) -> None:
    """Staged files have another one: patterns as `**/*.parquet` find the files of the table and of ports."""
    place.upsert([(1, "a", 0), (2, "a", 0), (3, "a", 1)])
    before = place.files()
    rows: list[Row] = [(1, "b", 0), (1, "c", 0), (None, "d", 0), (4, "b", 2)]
    if step is not None:
        with dying(step):
            place.upsert(rows)
    else:
        place.upsert(rows)
    found = sorted(path.relative_to(place.root).as_posix() for path in place.root.rglob("*.parquet"))
    in_ports = [path.parent for port in place.ports.values() for path in port.rglob("*.parquet")]
    if step is not None:
        assert (found, in_ports) == (before, [])
    elif place.format == "parquet":
        assert (found, in_ports) == (place.files(), [*place.ports.values()])
