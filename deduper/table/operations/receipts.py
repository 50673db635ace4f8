"""What a change would do, and what a load or a change has done, for programs and for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from deduper.as_json import AsJson
from deduper.table.formats.protocol import Snapshot
from deduper.table.index.protocol import ABSENT
from deduper.table.index.reading import rows_of
from deduper.table.operations.judge import Verdict, rows_by_verdict
from deduper.table.operations.rewriting import Workload
from deduper.table.operations.write import Outcome

_MOST_FILES = 20

Kind = Literal["upsert", "delete"]


@dataclass(frozen=True, slots=True)
class FoundFile(AsJson):
    """A file of the table, and the rows of the batch whose keys lie in it first."""

    path: str
    rows: int


@dataclass(frozen=True, slots=True)
class LoadReceipt(AsJson):
    """A load. `rows` = `new` + `repeats` + `found` + all `errors`.

    `version` is the table's version afterwards, -1 without a table. `found_in` are the files with the most rows found.
    `read_files` were read to bring the index up to the table before judging; `began_anew` says why it had to be built.
    `completed` earlier loads had died after their commit. `tries`: how often the batch was judged.
    """

    load: str
    version: int
    rows: int
    new: int
    repeats: int
    found: int
    errors: Mapping[str, int]
    found_in: tuple[FoundFile, ...]
    files: int
    read_files: int
    began_anew: str | None
    completed: int
    tries: int
    seconds: float


def load_receipt(outcome: Outcome) -> LoadReceipt:
    """The receipt of a load that is done."""
    work = outcome.work
    rows = work.rows()
    number, count = np.unique(work.file[work.file != ABSENT], return_counts=True)
    found = Counter(dict(zip(number.tolist(), count.tolist(), strict=True)))
    return LoadReceipt(
        load=outcome.load,
        version=outcome.version,
        rows=len(work.verdict),
        new=rows[Verdict.NEW],
        repeats=rows[Verdict.SAME_LOAD],
        found=rows[Verdict.IN_TABLE],
        errors=errors_of(rows),
        found_in=_found_files(found, work.paths),
        files=len(outcome.files),
        read_files=outcome.read_files,
        began_anew=outcome.began_anew,
        completed=outcome.completed,
        tries=outcome.tries,
        seconds=outcome.seconds,
    )


def errors_of(rows: Counter[int]) -> dict[str, int]:
    """The errors by their reasons, of numbers of rows by verdict."""
    return {verdict.reason: rows[verdict] for verdict in Verdict if verdict.is_error and rows[verdict]}


def _found_files(found: Counter[int], paths: Mapping[int, str]) -> tuple[FoundFile, ...]:
    """The files with the most rows found, of numbers of rows by file number."""
    most = sorted(found.items(), key=lambda one: (-one[1], one[0]))[:_MOST_FILES]
    return tuple(FoundFile(paths[number], rows) for number, rows in most)


@dataclass(frozen=True, slots=True)
class ChangePlan(AsJson):
    """What a change of the table's `version` would do; -1 without a table.

    `rows` of the batch = `inserted` + `updated` + `deleted` + `absent` + `repeats` + all `errors`. `files`, of
    `file_rows` and `size_bytes`, would be read and written again; `filled_files` of them take new rows of their
    partitions.
    """

    operation: str
    version: int
    rows: int
    inserted: int
    updated: int
    deleted: int
    absent: int
    repeats: int
    errors: Mapping[str, int]
    files: int
    file_rows: int
    size_bytes: int
    filled_files: int


@dataclass(frozen=True, slots=True)
class ChangeReceipt(AsJson):
    """A change that is done. Counts of the batch as in `ChangePlan`; the others as in `LoadReceipt`.

    The table has `files` more and `removed_files` fewer, of `removed_bytes`; of the rows of removed files
    `carried_rows` are in the new ones, and `removed_rows` were replaced or deleted.
    """

    operation: str
    load: str
    version: int
    rows: int
    inserted: int
    updated: int
    deleted: int
    absent: int
    repeats: int
    errors: Mapping[str, int]
    files: int
    removed_files: int
    removed_bytes: int
    removed_rows: int
    carried_rows: int
    read_files: int
    began_anew: str | None
    completed: int
    tries: int
    seconds: float


def change_plan(kind: Kind, root: Path, found: Snapshot, work: Workload) -> ChangePlan:
    """The plan of a change, from the footers of the files.

    Raises:
        FileVanishedError: a file of the table is not there.
        TableError: it cannot be read.
    """
    rows = rows_by_verdict(work.verdicts.verdict)
    removed = list(work.removed.values())
    return ChangePlan(
        operation=kind,
        version=found.version,
        **_counts(kind, rows),
        files=len(removed),
        file_rows=sum(rows_of(root, removed)),
        size_bytes=sum(file.size for file in removed),
        filled_files=len(work.filled),
    )


def change_receipt(kind: Kind, outcome: Outcome) -> ChangeReceipt:
    """The receipt of a change that is done."""
    work = outcome.work
    return ChangeReceipt(
        operation=kind,
        load=outcome.load,
        version=outcome.version,
        **_counts(kind, work.rows()),
        files=len(outcome.files),
        removed_files=len(work.removed),
        removed_bytes=sum(file.size for file in work.removed),
        removed_rows=0 if work.rewrite is None else work.rewrite.replaced_rows,
        carried_rows=0 if work.rewrite is None else work.rewrite.carried_rows,
        read_files=outcome.read_files,
        began_anew=outcome.began_anew,
        completed=outcome.completed,
        tries=outcome.tries,
        seconds=outcome.seconds,
    )


def _counts(kind: Kind, rows: Counter[int]) -> dict[str, Any]:
    is_upsert = kind == "upsert"
    return {
        "rows": rows.total(),
        "inserted": rows[Verdict.NEW] if is_upsert else 0,
        "updated": rows[Verdict.IN_TABLE] if is_upsert else 0,
        "deleted": 0 if is_upsert else rows[Verdict.IN_TABLE],
        "absent": 0 if is_upsert else rows[Verdict.NEW],
        "repeats": rows[Verdict.SAME_LOAD],
        "errors": errors_of(rows),
    }
