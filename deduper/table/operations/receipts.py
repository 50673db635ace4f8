"""What a change would do, and what a write has done, for programs and for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deduper.as_json import AsJson
from deduper.table.formats.protocol import Snapshot
from deduper.table.index.protocol import ABSENT
from deduper.table.index.reading import rows_of
from deduper.table.operations.judge import Kind, Verdict
from deduper.table.operations.rewriting import Workload

_MOST_FILES = 20


@dataclass(frozen=True, slots=True)
class FoundFile(AsJson):
    """A file of the table, and the rows of the batch whose keys lie in it first."""

    path: str
    rows: int


@dataclass(frozen=True, slots=True)
class WriteReceipt(AsJson):
    """A load, an upsert or a delete that is done; `load` is its name.

    `rows` of the batch = `inserted` + `updated` + `deleted` + `found` + `absent` + `repeats` + all `errors`. A load
    leaves out the rows that are `found` in the table, a delete those that are `absent` there. `found_in` are the files
    with the most rows found.

    The table has `files` more and `removed_files` fewer, of `removed_bytes`; of the rows of removed files
    `carried_rows` are in the new ones, and `removed_rows` were replaced or deleted. `version` is the table's
    afterwards, -1 without a table.

    `read_files` were read to bring the index up to the table before judging; `began_anew` says why it had to be built.
    `completed` earlier writes had died after their commit. `tries`: how often the batch was judged.
    """

    operation: str
    load: str
    version: int
    rows: int
    inserted: int
    updated: int
    deleted: int
    found: int
    absent: int
    repeats: int
    errors: Mapping[str, int]
    found_in: tuple[FoundFile, ...]
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


@dataclass(frozen=True, slots=True)
class ChangePlan(AsJson):
    """What an upsert or a delete of the table's `version` would do; -1 without a table.

    Counts of the batch as in `WriteReceipt`. `files`, of `file_rows` and `size_bytes`, would be read and written again;
    `filled_files` of them take new rows of their partitions.
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


def change_plan(root: Path, found: Snapshot, work: Workload) -> ChangePlan:
    """The plan of a change, from the footers of the files.

    Raises:
        FileVanishedError: a file of the table is not there.
        TableError: it cannot be read.
    """
    removed = list(work.removed.values())
    counts = counts_of(work)
    del counts["found"]
    return ChangePlan(
        operation=work.kind,
        version=found.version,
        **counts,
        files=len(removed),
        file_rows=sum(rows_of(root, removed)),
        size_bytes=sum(file.size for file in removed),
        filled_files=len(work.filled),
    )


def counts_of(work: Workload) -> dict[str, Any]:
    """The counts of the batch, as `WriteReceipt` has them."""
    rows = work.rows()
    new: dict[Kind, str] = {"load": "inserted", "upsert": "inserted", "delete": "absent"}
    in_table: dict[Kind, str] = {"load": "found", "upsert": "updated", "delete": "deleted"}
    return {
        **dict.fromkeys(("inserted", "updated", "deleted", "found", "absent"), 0),
        "rows": rows.total(),
        new[work.kind]: rows[Verdict.NEW],
        in_table[work.kind]: rows[Verdict.IN_TABLE],
        "repeats": rows[Verdict.SAME_LOAD],
        "errors": {verdict.reason: rows[verdict] for verdict in Verdict if verdict.is_error and rows[verdict]},
    }


def found_in(work: Workload) -> tuple[FoundFile, ...]:
    """The files with the most rows found."""
    first = work.verdicts.first
    number, count = np.unique(first[first != ABSENT], return_counts=True)
    most = Counter(dict(zip(number.tolist(), count.tolist(), strict=True))).most_common(_MOST_FILES)
    return tuple(FoundFile(work.files[one].path, rows) for one, rows in most)
