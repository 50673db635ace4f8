"""`deduper table status --verify` and `rebuild`: an index against its table, wrong in every way, rebuilt meanwhile."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from deduper.cli.main import app
from deduper.table.errors import IndexDamagedError, TableHeldError
from deduper.table.formats.protocol import PRIVATE
from deduper.table.index import exact as indexing
from deduper.table.index import exact as viewing
from deduper.table.index.exact import FORM, IndexState
from deduper.table.index.keys import FileKeys
from deduper.table.operations import verify as verifying
from deduper.table.operations.upkeep import RebuildReceipt, rebuild
from deduper.table.operations.write import locked
from deduper.table.settings import load_config
from tests.deduper.table.scene import Place, Row, arrow, dying, foreign

pytestmark = pytest.mark.slow


def run(place: Place, command: str, *words: str) -> Result:
    """A command in this process."""
    return CliRunner().invoke(app, ["table", command, str(place.root.parent / "load.yaml"), *words])


def verify(place: Place, code: int) -> dict[str, Any]:
    """The answer, which ends with this exit code."""
    done = run(place, "status", "--verify", "--json")
    assert done.exit_code == code, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def figures(found: dict[str, Any]) -> tuple[int, int, int]:
    """(missing, extra, repeated)."""
    return found["missing"], found["extra"], found["repeated"]


def rebuilt(place: Place) -> RebuildReceipt:
    """A rebuild in this process."""
    return rebuild(load_config(place.root.parent / "load.yaml"))


def alter(place: Place, change: Callable[[IndexState], IndexState]) -> None:
    """Another state of the index."""
    folder = place.root / PRIVATE / "index"
    state = FORM.read(folder / "state")
    assert state is not None
    FORM.replace(folder / "state", change(state))


def swap(state: IndexState) -> IndexState:
    """The first two files have each other's numbers."""
    one, two, *rest = state.files
    return replace(state, files=(replace(one, number=two.number), replace(two, number=one.number), *rest))


def test_an_index_that_agrees(place: Place) -> None:
    """After loads, a foreign file, a removal: every key is counted once; what the index lacks is no finding."""
    rows: list[Row] = [(key, "a", key % 3) for key in range(300)]
    place.load(rows)
    place.load([*rows, (300, "b", 0), (None, "b", 0)])
    foreign(place, 1000, 1)
    found = verify(place, 0)
    assert list(found) == [
        *("version", "files", "rows", "keys", "not_compared", "unindexed", "missing", "extra", "repeated"),
        *("found_in", "sound"),
    ]
    assert (found["files"], found["rows"], found["keys"], found["unindexed"]) == (5, 302, 302, 1)
    assert (figures(found), found["found_in"], found["sound"]) == ((0, 0, 0), [], True)
    place.load([(1000, "c", 1)])
    assert verify(place, 0)["unindexed"] == 0
    if place.format == "delta":
        DeltaTable(str(place.root)).delete("d = '1970-01-02'")
        assert verify(place, 0)["keys"] == 201


def test_keys_with_another_file(place: Place) -> None:
    """Of one partition and of two: each entry is missing of its file, and too many of the other."""
    place.load([(1, "a", 0), (2, "a", 0)])
    place.load([(3, "b", 0)])
    place.load([(4, "c", 1)])
    alter(place, swap)
    found = verify(place, 4)
    assert figures(found) == (3, 3, 0)
    assert sorted((one["path"], one["missing"], one["extra"]) for one in found["found_in"]) == sorted(
        [
            (path, *((2, 1) if pq.read_metadata(place.root / path).num_rows == 2 else (1, 2)))
            for path in place.files()[:2]
        ]
    )
    text = [" ".join(line.split()) for line in run(place, "status", "--verify").stdout.splitlines()]
    assert "found 3 keys not in the index: a load would add such rows again" in text
    assert "found 3 entries of no row: a load would take new rows for duplicates" in text
    assert "verdict NOT sound" in text
    alter(place, swap)
    assert figures(verify(place, 0)) == (0, 0, 0)
    alter(place, lambda state: replace(state, files=tuple(reversed(swap(replace(state, files=state.files[1:])).files))))
    found = verify(place, 4)
    assert (figures(found), found["unindexed"]) == ((2, 2, 0), 1)


def test_missing_keys_and_entries_of_no_row(place: Place) -> None:
    """A piece that the state does not name; a file that has lost a row, and its partition's only one."""
    place.load([(1, "a", 0), (2, "a", 0), (3, "a", 1)])
    place.load([(4, "b", 0)])
    alter(place, lambda state: replace(state, pieces=state.pieces[1:]))
    assert figures(verify(place, 4)) == (3, 0, 0)
    shutil.rmtree(place.root / PRIVATE / "index")
    place.load([])
    (path,) = [path for path in place.files() if pq.read_metadata(place.root / path).num_rows == 2]
    pq.write_table(arrow([(2, "a", 0)]).drop_columns(["d"]), place.root / path)
    if place.format == "parquet":
        status = (place.root / path).stat()
        alter(
            place,
            lambda state: replace(
                state,
                files=tuple(
                    replace(file, size=status.st_size, stamp=status.st_mtime_ns) if file.path == path else file
                    for file in state.files
                ),
            ),
        )
    found = verify(place, 4)
    assert figures(found) == (0, 1, 0)
    assert found["found_in"] == [{"path": path, "missing": 0, "extra": 1, "repeated": 0}]


def test_keys_that_the_table_has_twice(place: Place) -> None:
    """Within the scope; exit code 3, since the index is right, before the index has the second file and after."""
    place.load([(1, "a", 0), (2, "a", 0), (1, "a", 1)])
    foreign(place, 1, 0)
    found = verify(place, 3)
    assert (figures(found), found["keys"], found["rows"], found["unindexed"]) == ((0, 0, 1), 3, 4, 1)
    place.load([])
    assert figures(verify(place, 3)) == (0, 0, 1)
    with (place.root.parent / "load.yaml").open("a", encoding="utf-8") as config:
        config.write("scope: global\n")
    found = verify(place, 3)
    assert (figures(found), found["not_compared"]) == ((0, 0, 2), "it is of another key, other types or scope")
    place.load([], scope="global")
    found = verify(place, 3)
    assert (figures(found), found["keys"], found["not_compared"]) == ((0, 0, 2), 2, None)


@pytest.mark.night(but=["delta-partition", "parquet-global"])
@pytest.mark.parametrize("scope", ["partition", "global"])
def test_memory_is_bounded_by_parts(scope: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part has few keys; together they say what one part says, of right and of wrong indexes."""
    with (place.root.parent / "load.yaml").open("a", encoding="utf-8") as config:
        config.write(f"scope: {scope}\n")
    for number in range(3):
        place.load([(key, "a", key % 2) for key in range(number * 500, number * 500 + 500)], scope=scope)
    foreign(place, 3, 1)
    counts: list[int] = []
    add = verifying._Counts.add_repeated

    def counted(self: verifying._Counts, read: FileKeys) -> None:
        counts.append(read.count)
        add(self, read)

    monkeypatch.setattr(verifying._Counts, "add_repeated", counted)
    whole = verify(place, 3)
    alter(place, swap)
    wrong = verify(place, 4)
    assert max(counts) >= 750
    counts.clear()
    monkeypatch.setattr(verifying, "_PART_ROWS", 100)
    assert verify(place, 4) == wrong
    alter(place, swap)
    assert verify(place, 3) == whole
    assert len(counts) > 10
    assert 0 < max(counts) < 200


def test_a_load_beside_a_verification(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges pieces and deletes them: those that are open are still read, and for those that are not the state is."""
    for key in range(7):
        place.load([(key, "a", 0)])
    rows_of = verifying.rows_of

    def loads(*arguments: Any) -> list[int]:
        place.load([(7, "a", 0)])
        place.load([(8, "a", 0)])
        return rows_of(*arguments)

    monkeypatch.setattr(verifying, "rows_of", loads)
    named = {path.name for path in (place.root / PRIVATE / "index/pieces").iterdir()}
    found = verify(place, 0)
    assert (found["keys"], found["unindexed"]) == (7, 0)
    assert not named & {path.name for path in (place.root / PRIVATE / "index/pieces").iterdir()}
    monkeypatch.setattr(verifying, "rows_of", rows_of)
    serving = viewing.serving
    for key in range(10, 15):
        place.load([(key, "a", 0)])

    def late(*arguments: Any) -> Any:
        found = serving(*arguments)
        monkeypatch.setattr(viewing, "serving", serving)
        for key in range(15, 19):
            place.load([(key, "a", 0)])
        return found

    monkeypatch.setattr(viewing, "serving", late)
    assert verify(place, 0)["keys"] == 14


def test_an_upsert_beside_a_verification_by_filters(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that it deletes is of no file any more; one that the state still names is damage."""
    place.index = "bloom"
    place.upsert([(1, "old", 0), (2, "old", 0), (3, "old", 1)])
    rows_of = verifying.rows_of

    def upserts(*arguments: Any) -> list[int]:
        found = rows_of(*arguments)
        monkeypatch.setattr(verifying, "rows_of", rows_of)
        place.upsert([(1, "new", 0), (2, "new", 0), (3, "new", 1)])
        return found

    monkeypatch.setattr(verifying, "rows_of", upserts)
    assert verifying.verify(place.config()).is_sound
    next((place.root / PRIVATE / "bloom/filters").iterdir()).unlink()
    with pytest.raises(IndexDamagedError, match="is gone; delete"):
        verifying.verify(place.config())


def test_what_cannot_be_verified(place: Place) -> None:
    """No table: exit code 2, and nothing is made. A damaged piece: 4. No index, or no state of it: no finding."""
    none = run(place, "status", "--verify")
    assert none.exit_code == 2
    assert "has no table yet" in none.stderr or "there is no such file" in none.stderr or "has no files" in none.stderr
    assert not place.root.exists()
    place.load([(1, "a", 0)])
    (piece,) = (place.root / PRIVATE / "index/pieces").iterdir()
    data = bytearray(piece.read_bytes())
    data[-10] ^= 1
    piece.write_bytes(data)
    damaged = run(place, "status", "--verify")
    assert damaged.exit_code == 4
    assert "the next load builds the index anew" in damaged.stderr
    (place.root.parent / "in").mkdir()
    pq.write_table(arrow([(1, "a", 0)]), place.root.parent / "in/a.parquet")
    (place.root / PRIVATE / "index/state").write_bytes(b"no state")
    assert verify(place, 0)["not_compared"].startswith("its state cannot be read")
    shutil.rmtree(place.root / PRIVATE / "index")
    assert verify(place, 0)["not_compared"] == "there is none"


def test_a_wrong_index_is_rebuilt(place: Place) -> None:
    """Is right, and the next load reads no file; a damaged one too."""
    place.load([(1, "a", 0), (2, "a", 1)])
    place.load([(3, "b", 0)])
    alter(place, swap)
    verify(place, 4)
    done = run(place, "rebuild", "--json")
    assert done.exit_code == 0, done.stderr
    receipt = json.loads(done.stdout)
    assert list(receipt) == ["version", "files", "read_files", "keys", "bytes", "continued", "seconds"]
    assert (receipt["files"], receipt["read_files"], receipt["keys"], receipt["continued"]) == (3, 3, 3, False)
    verify(place, 0)
    for piece in (place.root / PRIVATE / "index/pieces").iterdir():
        piece.write_bytes(b"no piece")
    assert "index 3 keys" in " ".join(run(place, "rebuild").stdout.split())
    verify(place, 0)
    again = place.load([(1, "a", 0), (2, "a", 1), (3, "b", 0)])
    assert (again.found, again.inserted, again.read_files, again.began_anew) == (3, 0, 0, None)


@pytest.mark.parametrize("step", ["index.piece", "index.state", "index.merged", "index.rebuilt"])
def test_an_interrupted_rebuild(step: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the old index as it was, and loads use it; the next rebuild continues, also after loads."""
    rows: list[Row] = [(key, "a", key) for key in range(9)]
    place.load(rows)
    monkeypatch.setattr(indexing, "_PIECE_ROWS", 1)  # a piece a file, and at last a merge
    folder = place.root / PRIVATE / "index"
    before = (folder / "state").read_bytes()
    with dying(step) as died:
        rebuilt(place)
    assert died
    assert (folder / "state").read_bytes() == before
    assert "new index" in run(place, "status").stdout
    verify(place, 0)
    loaded = place.load([*rows, (9, "b", 0)])
    assert (loaded.found, loaded.inserted, loaded.read_files, loaded.began_anew) == (9, 1, 0, None)
    receipt = rebuilt(place)
    read = {"index.piece": 10, "index.state": 9, "index.merged": 1, "index.rebuilt": 1}[step]
    assert (receipt.files, receipt.read_files, receipt.keys, receipt.is_continued) == (10, read, 10, True)
    verify(place, 0)
    state = FORM.read(folder / "state")
    assert state is not None
    assert sorted(os.listdir(folder)) == ["pieces", "state"]  # noqa: PTH208  names alone
    assert {f"pieces/{path.name}" for path in (folder / "pieces").iterdir()} == {ref.file for ref in state.pieces}
    assert place.load([*rows, (9, "b", 0)]).found == 10


def test_a_rebuild_waits_for_loads(place: Place) -> None:
    """And fails clearly when one takes too long."""
    place.load([(1, "a", 0)])
    with locked(place.root, 0.0), pytest.raises(TableHeldError, match="another write or rebuild has held"):
        rebuild(load_config(place.root.parent / "load.yaml"), lock_timeout_s=0.05)


def test_types_of_partitions_without_an_index(place: Place) -> None:
    """A Delta log has them. Folders have not: then the source says, and without one the config's place is named."""
    place.load([(1, "a", 0)])
    shutil.rmtree(place.root / PRIVATE / "index")
    done = run(place, "rebuild")
    if place.format == "parquet":
        assert done.exit_code == 2
        assert "load.yaml:1:16: source.path: " in done.stderr
        (place.root.parent / "in").mkdir()
        pq.write_table(arrow([]), place.root.parent / "in/a.parquet")
        done = run(place, "rebuild")
    assert done.exit_code == 0, done.stderr
    assert place.load([(1, "a", 0)]).read_files == 0
