"""What a load has done, for programs and for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from deduper.as_json import AsJson
from deduper.table.index.protocol import ABSENT
from deduper.table.judge import Verdict
from deduper.table.write.steps import Outcome

_MOST_FILES = 20


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
