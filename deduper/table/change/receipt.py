"""What a change would do, and what it has done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deduper.as_json import AsJson
from deduper.table.change.change import Change, Kind
from deduper.table.change.workload import Workload
from deduper.table.formats.protocol import Snapshot
from deduper.table.index.reading import rows_of
from deduper.table.judge import Verdict, rows_by_verdict
from deduper.table.receipt import errors_of
from deduper.table.write.steps import Outcome


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


def change_plan(change: Change, found: Snapshot, work: Workload) -> ChangePlan:
    """The plan of a change, from the footers of the files.

    Raises:
        FileVanishedError: a file of the table is not there.
        TableError: it cannot be read.
    """
    rows = rows_by_verdict(work.verdicts.verdict)
    removed = list(work.removed.values())
    return ChangePlan(
        operation=change.kind,
        version=found.version,
        **_counts(change.kind, rows),
        files=len(removed),
        file_rows=sum(rows_of(change.root, removed)),
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
