"""The files of a plain table and of a source are those that every reader takes: all names that are not hidden."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from deduper.table.batch import source_files
from deduper.table.errors import SettingError, TableError, TableUsageError, UnsupportedTableError
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


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another disk."""
    places = [Path("/dev/shm"), Path("/tmp"), Path("/var/tmp"), Path.cwd()]
    disk = tmp_path.stat().st_dev
    found = [place for place in places if place.is_dir() and place.stat().st_dev != disk]
    if not found:
        pytest.skip("this machine has one disk")
    with tempfile.TemporaryDirectory(dir=found[0]) as folder:
        yield Path(folder)


def _linked(folder: Path, other: Path) -> None:
    """The folder lies elsewhere from now on, behind a link."""
    shutil.move(folder, other / folder.name)
    folder.symlink_to(other / folder.name)


@pytest.mark.slow
@pytest.mark.parametrize("linked", ["d=1970-01-02", "_deduper"])
def test_a_folder_on_another_disk_is_refused_before_the_commit(linked: str, place: Place, elsewhere: Path) -> None:
    """Files are renamed to their places, which no disk does to another; the message names the link, nothing is left."""
    place.load([(1, "a", 0), (2, "a", 1)])
    _linked(place.root / linked, elsewhere)
    before = sorted(path for path in place.root.rglob("*") if "_deduper" not in path.parts)
    for _ in range(2):
        with pytest.raises(TableUsageError, match=f"{linked}: is a link to .*, on another disk than .*; move"):
            place.load([(3, "a", 0), (4, "a", 1), (1, "b", 0)])
    assert place.leftovers() == []
    assert sorted(path for path in place.root.rglob("*") if "_deduper" not in path.parts) == before
    if linked != "_deduper":
        assert place.load([(5, "a", 0)]).inserted == 1
    (place.root / linked).unlink()
    shutil.move(elsewhere / linked, place.root / linked)
    assert place.load([(3, "a", 0), (4, "a", 1), (5, "a", 0), (1, "b", 0)]).errors == {}
    assert place.held() == [(1, 0), (2, 1), (3, 0), (4, 1), (5, 0)]


@pytest.mark.slow
def test_a_folder_that_is_moved_before_a_dead_write_is_completed(tmp_path: Path, elsewhere: Path) -> None:
    """None of its files is moved until the folder is back."""
    place = Place(tmp_path, "parquet")
    place.load([(1, "a", 0), (2, "a", 1)])
    with dying("table.4.planned"):
        place.load([(3, "a", 0), (4, "a", 1)])
    _linked(place.root / "d=1970-01-02", elsewhere)
    with pytest.raises(TableUsageError, match="d=1970-01-02: is a link to"):
        place.load([])
    assert len(list((place.root / "d=1970-01-01").iterdir())) == 1
    (place.root / "d=1970-01-02").unlink()
    shutil.move(elsewhere / "d=1970-01-02", place.root)
    assert place.load([]).completed == 1
    assert place.held() == [(1, 0), (2, 1), (3, 0), (4, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d=1970-01-02", "d=1970-01-01/x"])
def test_a_link_to_nothing_is_named(name: str, place: Place) -> None:
    """Where a folder is needed, and where a folder table would read it; without a log it is no Parquet."""
    (place.root / "d=1970-01-01").mkdir(parents=True)
    (place.root / name).symlink_to("nothing")
    if place.format == "delta" and name.endswith("x"):
        assert place.load([(1, "a", 0), (2, "a", 1)]).inserted == 2
        return
    with pytest.raises(TableError, match=f"{name}: is a link to nothing, which is not there"):
        place.load([(1, "a", 0), (2, "a", 1)])
    (place.root / name).unlink()
    assert place.leftovers() == []
    assert place.load([(1, "a", 0), (2, "a", 1)]).inserted == 2


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
