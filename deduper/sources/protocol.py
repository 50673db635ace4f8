"""The interface of a kind of source: its batches, and how they are read.

A *source partition* has an order of its own: it is a file, or a range of offsets of a topic partition. A window holds
some of them, in source order; the ordinal of one among them, and the position inside it, are a tuple's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

from pyspark.sql import DataFrame

from bucket_store.log.sources_file import SourcePartition
from deduper.errors import SourceAwayError
from deduper.tasks.read import ReadTask, RecordPlaces
from deduper.tasks.readers.reading_tasks import PartRead, SourcePart

_P = TypeVar("_P", bound=SourcePart)


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


def _expect_nothing(_: object) -> None:
    """Files are there."""


@dataclass(frozen=True, slots=True)
class Parts(Generic[_P]):
    """Records that our own readers read, part by part. `read` is pickled into the job.

    `expect` is called before all parts are read one after another here, in this process: it may begin to fetch them.
    """

    read: Callable[[ReadTask, _P], PartRead]
    parts: Sequence[_P]
    expect: Callable[[Sequence[_P]], None] = _expect_nothing


@dataclass(frozen=True, slots=True)
class SparkRows:
    """The rows of a DataFrame, which Spark reads, with the columns that `places` takes.

    `places` is None for rows with the columns of `tasks.layout`, and their source order as ORDER.
    """

    frame: DataFrame
    places: RecordPlaces | None = None


Records: TypeAlias = Parts[Any] | SparkRows
"""The records of a batch, as a window's jobs take them."""


class SourceBatch(Protocol):
    """The source partitions of one window, and their records. A value: reading it again gives the same tuples."""

    @property
    def partitions(self) -> tuple[BatchPartition, ...]:
        """The source partitions, in source order. Those of a DataFrame are known after `as_read`."""

    @property
    def is_known_by_digests(self) -> bool:
        """Whether the sources files are the only record of judged partitions: the store keeps them until a fold."""

    def records(self) -> Records:
        """How the records are read: in parts by our own readers, or by Spark. Called once an attempt; reads nothing."""

    def as_read(self, found: Sequence[PartRead]) -> Self:
        """The batch after its reading, with what that has found; `found` is in the order of the parts.

        Called once an attempt, before the judging.

        Raises:
            SourceAwayError: it can only be read later.
        """

    def after_failure(self, error: Exception) -> Self:
        """The batch for the next attempt, after its reading, or Spark, has failed with this error.

        Raises:
            Exception: `error` itself, when it is not about the input.
        """

    def confirmed(self, rows: Mapping[int, int]) -> Self:
        """The batch itself, if all of it was there until it was read; else the batch to judge in its place.

        Called after the judging, before the commit. `rows` are the judged rows of each source partition, by ordinal.
        """

    def extra(self) -> dict[str, Any]:
        """Values of the source for the commit record, by name. Called in step 4, of the batch that was judged."""


class PlannedSource(Protocol):
    """A source whose windows the job plans, by what its store has judged."""

    @property
    def place(self) -> str:
        """The source of the records, for messages."""

    def begin(self, *, drain: bool) -> None:
        """Look at the source. Called once, before `next_batch`. With `drain`, the source ends where it ends now."""

    def next_batch(self) -> SourceBatch | None:
        """The oldest input that was not judged; None when there is none. Called before each window.

        Raises:
            IntegrityError: input is missing between the last judged and this batch.
        """

    def newest(self, batch: SourceBatch) -> SourceBatch:
        """The batch, perhaps with what has come since it was planned. Called when its window begins, and not always.

        Raises:
            IntegrityError: as `next_batch`.
        """

    def judged(self, batch: SourceBatch) -> None:
        """Called once for each batch that was committed, in their order."""

    def put_off(self, reason: SourceAwayError) -> None:
        """Called when the last batch cannot be read now: nothing of it was judged. Raises `reason` to end the run."""
