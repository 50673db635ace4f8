"""The rows of a batch that a load would add, with nothing written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from deduper.table.judge import Verdict, judge
from deduper.table.query.present import of_one_version, question_of
from deduper.table.settings import LoadedLoad


def filter_exists(rows: Any, loaded: LoadedLoad) -> pa.BooleanArray:
    """Whether each row is new: True for those that a load of these rows would add now. Nothing is written.

    `rows`: as for `load`, of `loaded` the table, the key and `keep` count; columns that are in none of them need not be
    there. False are rows whose key the table has, repeats within `rows`, and errors. The mask is for `rows.filter`.

    It takes no lock, so it holds for the version at hand alone. The keys of files that the index lacks are read into
    memory: without an index all of the table.

    Raises:
        ConfigError: a setting does not fit the columns.
        TableUsageError: the columns are not those of the table.
        TableChangedError: other writers removed files each time while they were read.
        TableError: the table or its index cannot be read.
    """
    question = question_of(rows, loaded)
    verdicts = of_one_version(
        question.table, lambda found: judge(question.batch, question.columns, question.keep, question.keys(found))
    )
    return pa.array(verdicts.verdict == Verdict.NEW)
