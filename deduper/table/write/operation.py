"""What the steps of a write ask of its kind: the verdicts on a batch, and what becomes of its rows and the table's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.table.formats.protocol import DataFile, Snapshot
from deduper.table.index.entries import SortedKeys
from deduper.table.index.keys import Int64s
from deduper.table.index.protocol import NO_TARGET, AddedKeys, KeyIndex
from deduper.table.judge import Verdict, rows_by_verdict


class Rewrite(Protocol):
    """Files that a write removes, whose remaining rows it writes again, with rows of the batch among them."""

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""

    @property
    def removed(self) -> Mapping[int, DataFile]:
        """The files by their numbers."""

    @property
    def carried_rows(self) -> int:
        """The rows that `kept` has given."""

    @property
    def replaced_rows(self) -> int:
        """The rows of removed files that `kept` has left out."""

    def placed(self, records: pa.RecordBatch, rows: Int64s) -> tuple[pa.RecordBatch, Int64s]:
        """Rows of the batch, with their row numbers, in the columns of `schema`; and the file that takes each."""

    def added(self) -> AddedKeys:
        """The keys of all rows that were `placed` and that the table did not have."""

    def kept(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of a removed file that stay, in the columns of `schema`. Called once a file, from any thread.

        Raises:
            ConflictError: a file is another one than that of the version.
            TableError: it cannot be read.
        """

    def codec(self, number: int) -> str:
        """The compression of a removed file. Called after `kept` has read it, from any thread."""

    def notes(self, number: int) -> dict[bytes, bytes]:
        """The key-value metadata that its rows need in the new file too. Called as `codec`."""


@dataclass(frozen=True, slots=True)
class Work:
    """A judged batch. `verdict` of each row; `file` the number of the first file with its key, by `paths`.

    Rows of the verdicts `to_table` are written to the table, those of `to_duplicates` to the port of that name, errors
    to theirs. `new`: the keys of all rows for the table, each once, if there is no `rewrite`.
    """

    verdict: NDArray[np.int8]
    file: NDArray[np.signedinteger]
    paths: Mapping[int, str]
    to_table: frozenset[Verdict]
    to_duplicates: frozenset[Verdict]
    new: SortedKeys | None = None
    rewrite: Rewrite | None = None

    def rows(self) -> Counter[int]:
        """The number of rows by verdict."""
        return rows_by_verdict(self.verdict)

    def added(self) -> AddedKeys | None:
        """The keys that are new in the table, once all rows are written; None: the files say which."""
        if self.rewrite is not None:
            return self.rewrite.added()
        return None if self.new is None else AddedKeys(self.new, np.full(self.new.count, NO_TARGET))

    @property
    def removed(self) -> Sequence[DataFile]:
        """The files that the write removes."""
        return () if self.rewrite is None else tuple(self.rewrite.removed.values())


class Operation(Protocol):
    """A kind of write, for one batch."""

    def require_fit(self, before: Snapshot) -> None:
        """Called for each try before anything is written.

        Raises:
            TableUsageError: batch and table do not fit each other.
        """

    def judge(self, index: KeyIndex, before: Snapshot) -> Work:
        """The batch against a version of the table, up to which the index has been brought. Called for each try.

        Raises:
            IndexDamagedError: the index cannot be asked.
        """
