"""Answers of questions beside a writer are of one version: before its commit, or after it, and never of both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from deduper.table.errors import FileVanishedError, TableChangedError
from deduper.table.formats import folder as plain
from deduper.table.formats.folder import FolderTable
from deduper.table.operations.changes import plan_upsert
from deduper.table.operations.questions import filter_exists, read, tag
from deduper.table.operations.upkeep import table_status
from deduper.table.operations.verify import verify
from tests.deduper.table.scene import Place, Row, arrow, dying

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
