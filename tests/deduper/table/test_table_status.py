"""`deduper table status`: the table, its index as it stands beside it, and loads that have died; nothing is changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from deduper.cli.main import app
from deduper.table.formats.protocol import PRIVATE
from deduper.table.index.persistent import PersistentKind
from deduper.table.index.protocol import Condition
from deduper.table.operations.upkeep import table_status
from tests.deduper.table.scene import CONFIG, Place, dying, foreign

pytestmark = pytest.mark.slow


def status(place: Place) -> dict[str, Any]:
    """The answer; it changes no file, and waits for no lock."""
    before = {path: path.stat().st_mtime_ns for path in place.root.parent.rglob("*")}
    done = CliRunner().invoke(app, ["table", "status", str(place.root.parent / "load.yaml"), "--json"])
    assert done.exit_code == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in place.root.parent.rglob("*")} == before
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def text(place: Place) -> list[str]:
    """The answer for people."""
    done = CliRunner().invoke(app, ["table", "status", str(place.root.parent / "load.yaml")])
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def test_no_table_yet(place: Place) -> None:
    """Is no error, and nothing is made."""
    found = status(place)
    assert (found["version"], found["rows"], found["files"], found["pending"]) == (-1, 0, 0, [])
    assert (found["index"]["state"], found["index"]["bytes_a_key"]) == ("absent", None)
    assert text(place) == [
        f"table none yet in {place.root}",
        "index absent: the next load builds the index from the table",
    ]
    assert not place.root.exists()


def test_a_table_and_its_index(place: Place) -> None:
    """Rows and files, keys and bytes as they are on the disk; a foreign file makes the index one file late."""
    place.load([(number, "a", number % 2) for number in range(1000)])
    found = status(place)
    assert list(found) == ["path", "version", "rows", "files", "index", "rebuilding", "pending"]
    size = sum(path.stat().st_size for path in (place.root / PRIVATE / "index").rglob("*") if path.is_file())
    index = {"state": "present", "why": None, "added": 0, "removed": 0, "pieces": 1, "keys": 1000, "bytes": size}
    assert found == {
        "path": str(place.root),
        "version": 0,
        "rows": 1000,
        "files": 2,
        "index": {**index, "bytes_a_key": size / 1000},
        "rebuilding": None,
        "pending": [],
    }
    assert text(place)[:2] == [
        "table version 0, 1,000 rows in 2 files",
        "index present: it has every file of the table, and no others",
    ]
    foreign(place, 5000, 0)
    found = status(place)
    assert (found["rows"], found["index"]["state"], found["index"]["added"]) == (1001, "behind", 1)
    assert "index behind: it lacks 1 file, which the next load reads" in text(place)
    place.load([])
    assert status(place)["index"]["state"] == "present"


def test_removed_files(place: Place) -> None:
    """Are still in the index, which is ahead; with a file that it lacks as well, it is behind."""
    place.load([(1, "a", 0), (2, "a", 1)])
    if place.format == "delta":
        DeltaTable(str(place.root)).delete("d = '1970-01-02'")
    else:
        (place.root / place.files()[1]).unlink()
    index = status(place)["index"]
    assert (index["state"], index["added"], index["removed"], index["keys"]) == ("ahead", 0, 1, 2)
    assert "index ahead: it has 1 file that the table has no more; their keys do not count" in text(place)
    foreign(place, 3, 0)
    index = status(place)["index"]
    assert (index["state"], index["added"], index["removed"]) == ("behind", 1, 1)


def test_an_index_that_does_not_serve(place: Place) -> None:
    """Of another key, with a piece gone, with a state that cannot be read, gone: each says what comes next."""
    place.load([(1, "a", 0)])
    config = place.root.parent / "load.yaml"
    written = config.read_text(encoding="utf-8")
    for other in (written.replace("key: k", "key: [k, v]"), f"{written}scope: global\n"):
        config.write_text(other, encoding="utf-8")
        assert status(place)["index"]["state"] == "other_key"
    assert "index other key: it is of another key or scope, and the next load builds it anew" in text(place)
    config.write_text(written, encoding="utf-8")
    (piece,) = (place.root / PRIVATE / "index/pieces").iterdir()
    piece.write_bytes(piece.read_bytes()[:-1])
    assert status(place)["index"]["state"] == "damaged"
    piece.unlink()
    index = status(place)["index"]
    assert index["state"] == "damaged"
    assert str(piece) in index["why"]
    (place.root / PRIVATE / "index/state").write_bytes(b"no state")
    assert status(place)["index"]["state"] == "unreadable"
    shutil.rmtree(place.root / PRIVATE / "index")
    assert status(place)["index"]["state"] == "absent"


def test_a_merge_beside_the_question(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that a write has deleted meanwhile is no damage."""
    for key in range(7):
        place.load([(key, "a", 0)])
    real = PersistentKind._checked

    def merged(*given: Any) -> Any:
        monkeypatch.setattr(PersistentKind, "_checked", real)
        place.load([(7, "a", 0)])
        place.load([(8, "a", 0)])
        return real(*given)

    monkeypatch.setattr(PersistentKind, "_checked", merged)
    found = table_status(place.config()).index
    assert (found.state, found.why, found.keys) == (Condition.AHEAD, None, 9)


def test_the_first_load_of_a_table(place: Place) -> None:
    """Its files have their places before the table has a log, and are no others'."""
    with dying("table.5.placed" if place.format == "delta" else "table.placed"):
        place.load([(1, "a", 0)])
    found = status(place)
    assert (found["version"], found["pending"][0]["rows"]) == (0 if place.format == "parquet" else -1, 1)


def test_loads_that_have_died(place: Place) -> None:
    """Before their plan, and after it, with the rows that they have for the table."""
    with dying("table.3.staged"):
        place.load([(1, "a", 0)])
    (pending,) = status(place)["pending"]
    assert (pending["planned"], pending["files"], pending["rows"]) == (False, 0, 0)
    with dying("table.4.planned"):
        place.load([(1, "a", 0), (2, "a", 1), (1, "b", 0)])
    (pending,) = status(place)["pending"]
    assert list(pending) == ["load", "planned", "files", "rows", "removed_files"]
    assert (pending["planned"], pending["files"], pending["rows"]) == (True, 2, 2)
    assert [line for line in text(place) if line.startswith("pending")] == [
        f"pending load {pending['load']}, planned, 2 new rows in 2 files: "
        "it runs, or has died and the next load completes or removes it"
    ]
    place.load([(1, "a", 0)])
    assert status(place)["pending"] == []
    with dying("table.4.planned"):
        place.upsert([(1, "b", 0)])
    (pending,) = status(place)["pending"]
    assert (pending["files"], pending["rows"], pending["removed_files"]) == (1, 1, 1)
    line = f"pending load {pending['load']}, planned, 1 row in 1 file in the place of 1 file: "
    assert any(found.startswith(line) for found in text(place))


def test_rows_without_statistics(tmp_path: Path) -> None:
    """A log need not have them; then the footers say."""
    place = Place(tmp_path, "delta")
    (tmp_path / "load.yaml").write_text(CONFIG.replace("FORMAT", "delta"), encoding="utf-8")
    place.load([(1, "a", 0), (2, "a", 0)])
    log = place.root / "_delta_log/00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    log.write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")
    assert pa.table(DeltaTable(str(place.root)).get_add_actions())["num_records"].to_pylist() == [None]
    assert status(place)["rows"] == 2 == pq.read_metadata(place.root / place.files()[0]).num_rows
