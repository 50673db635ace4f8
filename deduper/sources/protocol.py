"""The interface of a kind of source: its batches, and how they are read.

A *source partition* has an order of its own: it is a file, or a range of offsets of a topic partition. A window holds
some of them, in source order; the ordinal of one among them, and the position inside it, are a tuple's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from pyspark.sql import DataFrame, SparkSession

from bucket_store.log.sources_file import SourcePartition
from deduper.errors import SourceAwayError
from deduper.tasks.read import ReadReceipt, ReadTask
from deduper.tasks.readers.reading_tasks import Part, PartRead

_P = TypeVar("_P", bound=Part)


@dataclass(frozen=True, slots=True)
class BatchPartition:
    """A source partition of a batch.

    `digest` is its identity, 16 bytes. Its positions are those from `start` to before `end`: 0 to the bytes of a file,
    or offsets. `version` is as in `SourcePartition`. `slot` is its writer of an ordered port, in every window.
    """

    name: str
    digest: bytes
    version: int | str
    end: int
    start: int = 0
    slot: int = 0

    def judged(self, rows: int) -> SourcePartition:
        """The partition as the store keeps it, of which that many rows were judged."""
        return SourcePartition(
            name=self.name, version=self.version, start=self.start, end=self.end, rows=rows, digest=self.digest
        )


class ReadingRun(Protocol):
    """The ways to read what a batch holds, which the jobs of a window offer to it."""

    @property
    def session(self) -> SparkSession:
        """Makes the tuples for `by_spark`."""

    def plain(
        self, read: Callable[[ReadTask, _P], PartRead], parts: Sequence[_P], task: ReadTask, *, are_all: bool
    ) -> list[PartRead]:
        """Read each part without Spark: in the driver if they are small, else by one task a core.

        `read` is picklable. `are_all`: the window has nothing else, so its other steps may use the same tasks, or none.
        """

    def by_spark(self, tuples: DataFrame, task: ReadTask) -> tuple[list[ReadReceipt], int]:
        """Read one row a record, and one for each source partition that is an error: REC, RAW, ADMISSION, ORDER.

        Gives the receipts, and how many records Spark has counted. If the task has `places`, there may be more rows,
        and it uses ORDER and columns of the source's own.
        """

    def file_on_hosts(self, data: bytes, task: ReadTask) -> AbstractContextManager[Path]:
        """A file of these bytes at one path on all hosts where Spark reads now; removed afterwards, and no secret."""


class SourceBatch(Protocol):
    """The source partitions of one window, and their records. A value: reading it again gives the same tuples."""

    @property
    def partitions(self) -> tuple[BatchPartition, ...]:
        """The source partitions, in source order."""

    @property
    def is_known_by_digests(self) -> bool:
        """Whether the sources files are the only record of judged partitions: the store keeps them until a fold."""

    def read(self, run: ReadingRun, task: ReadTask) -> BatchRead:
        """Spill the records, each by the way that suits it."""

    def after_failure(self, error: Exception) -> Self:
        """The batch to try again with after Spark has failed with this error.

        Raises:
            Exception: `error` itself, when it is not about the input.
        """

    def confirmed(self, rows: Mapping[int, int]) -> Self:
        """After judging, before the commit: the batch itself, if all of it was there until it was read.

        Else the batch to judge instead. `rows` are the rows that were judged of each source partition, by ordinal.
        """

    def extra(self) -> dict[str, Any]:
        """Values of the source for the commit record, by name."""


@dataclass(frozen=True, slots=True)
class BatchRead:
    """A batch that was read; unreadable input is an error tuple. `rows` are the records, counted apart from them."""

    batch: SourceBatch
    receipts: list[ReadReceipt]
    rows: int


class PlannedSource(Protocol):
    """A source whose windows the job plans, by what its store has judged."""

    @property
    def place(self) -> str:
        """The source of the records, for messages."""

    def begin(self, *, drain: bool) -> None:
        """Look at the source, before its first batch. Drained, it ends where it ends now."""

    def next_batch(self) -> SourceBatch | None:
        """The oldest input that was not judged; None when there is none.

        Raises:
            IntegrityError: input is missing between the last judged and this batch.
        """

    def judged(self, batch: SourceBatch) -> None:
        """A batch was committed."""

    def put_off(self, reason: SourceAwayError) -> None:
        """Nothing of the last batch was judged: files could not be found. Raises the reason if it ends the run."""
