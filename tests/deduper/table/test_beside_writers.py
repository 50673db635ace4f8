"""Answers of questions beside a writer are of one version: before its commit, or after it, and never of both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from deduper.table.errors import FileVanishedError, TableChangedError
from deduper.table.formats import folder as plain
from deduper.table.formats.delta import DeltaFiles
from deduper.table.formats.folder import FolderTable
from deduper.table.operations.changes import plan_upsert
from deduper.table.operations.questions import filter_exists, read, tag
from deduper.table.operations.rollback import rollback
from deduper.table.operations.upkeep import rebuild, table_status
from deduper.table.operations.verify import verify
from tests.deduper.small_service import armed
from tests.deduper.table.scene import Place, Row, arrow, dying, foreign

pytestmark = pytest.mark.slow

UNITS = [(1, 0), (2, 0), (3, 1), (4, 2)]
MOVES = ("table.4.planned", "table.placed", "table.removed")
"""Failpoints between the moves of files."""


def rows(value: str) -> list[Row]:
    """A row with this value for each unit."""
    return [(key, value, day) for key, day in UNITS]


def answers(place: Place) -> dict[str, Any]:
    """What every question says of `rows`, of a row that the table does not have, and of the whole table."""
    loaded = place.config()
    asked = arrow([*rows(""), (9, "", 0)])
    found = read(asked, loaded)
    checked = verify(loaded)
    assert checked.is_sound
    plan = plan_upsert(asked, loaded)
    return {
        "read": sorted(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True)),
        "filter": filter_exists(asked, loaded).to_pylist(),
        "tag": [(row["action"], len(row["files"] or ())) for row in tag(asked, loaded).to_pylist()],
        "rows": [table_status(loaded).rows, checked.rows, plan.file_rows],
    }


def whole(value: str) -> dict[str, Any]:
    """The answers when all rows have one value."""
    return {
        "read": [(key, value) for key, _ in UNITS],
        "filter": [False] * len(UNITS) + [True],
        "tag": [("update", 1)] * len(UNITS) + [("insert", 0)],
        "rows": [len(UNITS)] * 3,
    }


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("step", MOVES)
def test_files_that_a_write_is_moving_are_of_one_version(step: str, nth: int, tmp_path: Path) -> None:
    """The version before until all new files have their places; from then on the new one."""
    place = Place(tmp_path, "parquet")
    place.upsert(rows("old"))
    with dying(step, nth) as died:
        place.upsert(rows("new"))
    is_old = bool(died) and (step == "table.4.planned" or (step == "table.placed" and nth < len({d for _, d in UNITS})))
    assert answers(place) == whole("old" if is_old else "new")
    place.upsert([])
    assert answers(place) == whole("new")


def test_a_write_that_moves_all_its_files_during_a_listing(tmp_path: Path) -> None:
    """It had no plan before, and was done afterwards: what was listed meanwhile is of two versions, and not taken."""
    place = Place(tmp_path, "parquet")
    place.load([(1, "a", 0)])
    moves, ends = threading.Event(), threading.Event()
    staged, moved = threading.Event(), threading.Event()

    def waits(says: threading.Event, until: threading.Event) -> Callable[[], None]:
        return lambda: (says.set(), until.wait(60))[0]

    real = plain.data_paths

    def in_parts(root: Path) -> list[str]:
        first = [path for path in real(root) if not path.startswith("d=1970-01-01")]
        moves.set()
        assert moved.wait(60)
        return sorted([*first, *(path for path in real(root) if path.startswith("d=1970-01-01"))])

    with armed("table.3.staged", 1, waits(staged, moves)), armed("table.6.published", 1, waits(moved, ends)):
        write = threading.Thread(target=place.load, args=([(2, "b", 0), (3, "b", 1)],))
        write.start()
        assert staged.wait(60)
        looks = iter([in_parts])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plain, "data_paths", lambda root: next(looks, real)(root))  # noqa: PLW0108  each call takes one
            is_new = filter_exists(arrow([(key, "", key // 3) for key in (1, 2, 3)]), place.config())
        ends.set()
        write.join()
    assert is_new.to_pylist() == [False] * 3


def compacted(place: Place) -> None:
    """Another writer puts the rows of its files into one, and removes the files at once."""
    if place.format == "delta":
        DeltaTable(str(place.root)).optimize.compact()
        DeltaTable(str(place.root)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    else:
        old = list((place.root / "d=1970-01-01").glob("foreign-*.parquet"))
        rows = [(int(path.stem.removeprefix("foreign-")), "foreign", 0) for path in old]
        pq.write_table(arrow(rows).drop_columns(["d"]), place.root / "d=1970-01-01/foreign-all.parquet")
        for path in old:
            path.unlink()


@pytest.mark.parametrize("index", ["exact", "bloom", "simple"])
@pytest.mark.parametrize("nth", [1, 2])
def test_files_that_another_writer_removes_while_a_write_reads_them(nth: int, index: str, place: Place) -> None:
    """Before the commit the batch is judged again; afterwards the write is done, and the next one reads its files."""
    place.index = index
    place.load([(1, "a", 0)])
    for key in (2, 3):
        foreign(place, key, 0)
    owner = DeltaFiles if place.format == "delta" else FolderTable
    real, looks = owner.snapshot, []

    def followed(self: Any) -> Any:
        found = real(self)
        looks.append(found)
        if len(looks) == nth:
            compacted(place)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, "snapshot", followed)
        receipt = place.load([(2, "a", 0), (4, "a", 0)])
    assert (receipt.inserted, receipt.found, receipt.tries) == (1, 1, 2 if nth == 1 else 1)
    assert place.load([(key, "b", 0) for key in range(1, 5)]).found == 4
    assert sorted(key for key, _ in {*place.held(), (2, 0), (3, 0)}) == [1, 2, 3, 4]
    assert place.leftovers() == []


def test_files_that_go_before_a_write_enters_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The write is done, and says what the index lacks."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0)])
    real, looks = DeltaFiles.snapshot, []

    def followed(self: Any) -> Any:
        if len(looks) == 1:
            foreign(place, 2, 0)
            foreign(place, 3, 0)
        found = real(self)
        looks.append(found)
        if len(looks) == 2:
            compacted(place)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaFiles, "snapshot", followed)
        assert place.load([(4, "a", 0)]).version == 1
    assert "the write is done; the index lacks it" in caplog.text
    assert place.load([(key, "b", 0) for key in range(1, 5)]).found == 4


def test_files_that_go_during_a_rebuild(place: Place) -> None:
    """It begins again with the files that are there now."""
    place.load([(1, "a", 0)])
    for key in (2, 3):
        foreign(place, key, 0)
    with writing_after(DeltaFiles if place.format == "delta" else FolderTable, "snapshot", lambda: compacted(place), 1):
        assert rebuild(place.config()).keys == 3
    assert verify(place.config()).is_sound


def test_a_receipt_has_the_version_that_its_write_made(tmp_path: Path) -> None:
    """Not that of a foreign commit right after it; so of a rollback."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0)])
    with armed("table.6.published", 1, lambda: foreign(place, 9, 0)):
        assert place.load([(2, "a", 0)]).version == 1
    with armed("table.5.committed", 1, lambda: foreign(place, 8, 0)):
        assert rollback(place.config(), 0).version == 3
    assert DeltaTable(str(place.root)).version() == 4


@contextmanager
def writing_after(owner: Any, name: str, write: Callable[[], object], calls: int) -> Any:
    """The first calls of a function by a question are followed by a write."""
    real, left, is_writing = getattr(owner, name), [calls], [False]

    def followed(*given: Any) -> Any:
        found = real(*given)
        if left[0] and not is_writing[0]:
            left[0], is_writing[0] = left[0] - 1, True
            write()
            is_writing[0] = False
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, followed)
        yield


QUESTIONS: dict[str, Callable[[Place], Any]] = {
    "read": lambda place: sorted(read(arrow(rows("")), place.config())["v"].to_pylist()),
    "filter_exists": lambda place: filter_exists(arrow(rows("")), place.config()).to_pylist(),
    "tag": lambda place: tag(arrow(rows("")), place.config())["action"].to_pylist(),
    "plan_upsert": lambda place: plan_upsert(arrow(rows("")), place.config()).file_rows,
    "verify": lambda place: (verify(place.config()).is_sound, verify(place.config()).rows),
    "status": lambda place: table_status(place.config()).rows,
}
WANTED = {
    "read": ["new"] * 4,
    "filter_exists": [False] * 4,
    "tag": ["update"] * 4,
    "plan_upsert": 4,
    "verify": (True, 4),
    "status": 4,
}


@pytest.mark.parametrize("index", ["exact", "bloom", "simple"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_files_that_go_after_they_were_listed(question: str, index: str, tmp_path: Path) -> None:
    """The question is asked again, of the new version; so it is if they go while they are listed."""
    place = Place(tmp_path, "parquet", index)
    place.upsert(rows("old"))
    (tmp_path / "in").mkdir()
    pq.write_table(arrow(rows("")), tmp_path / "in/a.parquet")  # has the types of the partitions, if no index has
    ask = QUESTIONS[question]
    for owner, name in ((FolderTable, "snapshot"), (plain, "data_paths")):
        with writing_after(owner, name, lambda: place.upsert(rows("new")), calls=3):
            assert ask(place) == WANTED[question]


def test_a_writer_that_is_always_faster(tmp_path: Path) -> None:
    """After some tries the question ends, with an error that says so."""
    place = Place(tmp_path, "parquet", "simple")
    place.upsert(rows("old"))
    for owner, name, match in (
        (FolderTable, "snapshot", "removed files 10 times while they were read; repeat it when they write less"),
        (plain, "data_paths", "came and went while they were listed, 10 times; repeat it when writers rest"),
    ):
        with (
            writing_after(owner, name, lambda: place.upsert(rows("new")), calls=1000),
            pytest.raises(TableChangedError, match=match),
        ):
            read(arrow(rows("")), place.config())


def test_a_file_that_the_log_has_and_nobody_else_is_named(tmp_path: Path) -> None:
    """Asking again would not bring it back."""
    place = Place(tmp_path, "delta")
    place.upsert(rows("old"))
    gone = place.root / place.files()[0]
    gone.unlink()
    with pytest.raises(FileVanishedError, match=gone.name):
        read(arrow(rows("")), place.config())
