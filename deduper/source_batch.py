"""What a kind of source must give, so that its records can be judged: batches, and what is in each.

A *source partition* is what has an order of its own: a file, or a range of offsets of a topic partition. A window holds
some of them, in source order; the ordinal of one among them, and the position inside it, are a tuple's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

from pyspark.sql import DataFrame, SparkSession

from bucket_store.sources_file import SourcePartition
from deduper.read_task import RecordPlaces


class SourceBatch(Protocol):
    """The source partitions of one window, and their records. A value: reading it again gives the same tuples."""

    @property
    def digests(self) -> tuple[bytes, ...]:
        """What tells each source partition from all others, 16 bytes each, in source order."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the source partitions, by ordinal."""

    @property
    def starts(self) -> tuple[int, ...]:
        """What the positions in each source partition count from, by ordinal: 0, or a first offset."""

    @property
    def slots(self) -> tuple[int, ...]:
        """Which writer of an ordered port takes each source partition, by ordinal; the same in every window."""

    @property
    def is_known_by_digests(self) -> bool:
        """Whether only the digests say that a source partition was judged: then the store keeps them for ever."""

    def partitions(self, rows: Mapping[int, int]) -> tuple[SourcePartition, ...]:
        """The source partitions as the store keeps them; `rows` are the rows that were judged of each, by ordinal."""

    @property
    def places(self) -> RecordPlaces | None:
        """What finds the tuples' places; None where `tuples` gives them."""

    def tuples(self, session: SparkSession) -> DataFrame:
        """One row a record, and one for each source partition that is an error as a whole: REC, RAW, FATE, ORDER.

        With `places` there may be more rows, and ORDER and columns of the source's own are what those go by.
        """

    def after_failure(self, error: Exception) -> Self:
        """The batch to try again with after Spark has failed with this error.

        Raises:
            Exception: `error` itself, when it is not about what was to be read.
        """

    def confirmed(self, rows: Mapping[int, int]) -> Self:
        """After judging, before the commit: the batch itself, if all of it was there until it was read.

        Else the batch to judge instead. `rows` are the rows that were judged of each source partition, by ordinal.
        """

    def extra(self) -> dict[str, Any]:
        """What the commit record is to hold of the source, by name."""


class BatchSource(Protocol):
    """A source as the job sees it. Spark's stream only says when there is something new, and what."""

    def stream(self, session: SparkSession) -> DataFrame:
        """The stream that cuts batches."""

    def batch(self, batch_id: int, frame: DataFrame) -> SourceBatch | None:
        """What of a batch of Spark's the store has not judged; None when there is nothing.

        Raises:
            IntegrityError: something is missing between what was judged and what comes.
        """

    def judged(self, batch: SourceBatch) -> None:
        """A batch was committed."""

    def look(self) -> None:
        """Called again and again while the stream runs: to say what it waits for, if it does. Never fails."""

    def is_over(self, failure: Exception) -> bool:
        """Whether the stream that ended with this failure may be started again now; asked again when not.

        Raises:
            Exception: `failure` itself or another, when it is not to be started again.
        """
