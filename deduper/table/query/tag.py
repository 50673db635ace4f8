"""What an upsert would do with each row of a batch, with nothing written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from deduper.table.index.protocol import VersionKeys
from deduper.table.judge import Verdict, judge_changes
from deduper.table.query.present import Question, of_one_version, question_of
from deduper.table.settings import LoadedLoad

_CHUNK_ROWS = 1 << 20
_ACTION = {Verdict.NEW: "insert", Verdict.IN_TABLE: "update"}


def tag(rows: Any, loaded: LoadedLoad) -> pa.Table:
    """For each row of `rows`, in their order, what an upsert of them would do now:

        action   string        `insert`, `update`; null for a row that an upsert leaves out
        reason   string        why it does: `same_load` (a repeat within the rows), `null_key`, `null_partition`,
                               `bad_partition`; else null
        files    list<string>  of an update the files that hold its key, relative to the table's folder: one, unless
                               another writer has added the key again; else null

    The different `files` are all that a MERGE of these rows has to touch. Arguments, promises and errors are those of
    `filter_exists`.
    """
    question = question_of(rows, loaded)
    return of_one_version(question.table, lambda found: _tags(question, question.keys(found)))


def _tags(question: Question, keys: VersionKeys) -> pa.Table:
    verdicts = judge_changes(question.batch, question.columns, question.keep, keys, question.columns.all)
    codes = pa.array(verdicts.verdict)
    return pa.table(
        {
            "action": _named(codes, {int(code): name for code, name in _ACTION.items()}),
            "reason": _named(codes, {int(code): code.reason for code in Verdict if code not in _ACTION}),
            "files": _files(verdicts.row, [keys.files[number].path for number in verdicts.file.tolist()], len(codes)),
        }
    )


def _named(codes: pa.Array, names: dict[int, str]) -> pa.Array:
    """The name of each code, null for one that has none."""
    places = pa.compute.index_in(codes, pa.array(list(names), codes.type))
    return pa.array(list(names.values()), pa.string()).take(places)


def _files(row: np.ndarray, path: list[str], rows: int) -> pa.ChunkedArray:
    """The paths of each row in a list, null for none; `row` ascends. In chunks: all paths may take more than 2 GiB."""
    count = np.bincount(row, minlength=rows)
    ends = np.concatenate(([0], np.cumsum(count)))
    chunks = []
    for begin in range(0, rows, _CHUNK_ROWS):
        edges = ends[begin : begin + _CHUNK_ROWS + 1]
        paths = pa.array(path[edges[0] : edges[-1]], pa.string())
        is_none = pa.array(count[begin : begin + _CHUNK_ROWS] == 0)
        chunks.append(pa.ListArray.from_arrays(pa.array(edges - edges[0], pa.int32()), paths, mask=is_none))
    return pa.chunked_array(chunks, pa.list_(pa.string()))
