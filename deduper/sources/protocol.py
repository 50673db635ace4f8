"""The interface of a kind of source: its batches, and their source partitions and records.

A *source partition* has an order of its own: it is a file, or a range of offsets of a topic partition. A window holds
some of them, in source order; the ordinal of one among them, and the position inside it, are a tuple's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

from pyspark.sql import DataFrame, SparkSession

from bucket_store.log.sources_file import SourcePartition
from deduper.tasks.read import RecordPlaces


class SourceBatch(Protocol):
    """The source partitions of one window, and their records. A value: reading it again gives the same tuples."""

    @property
    def digests(self) -> tuple[bytes, ...]:
        """The identities of the source partitions, 16 bytes each, in source order."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the source partitions, by ordinal."""

    @property
    def starts(self) -> tuple[int, ...]:
        """The first position of each source partition, by ordinal: 0, or a first offset."""

    @property
    def slots(self) -> tuple[int, ...]:
        """The writer of an ordered port for each source partition, by ordinal; the same in every window."""

    @property
    def is_known_by_digests(self) -> bool:
        """Whether the sources files are the only record of judged partitions: the store keeps them until a fold."""

    def partitions(self, rows: Mapping[int, int]) -> tuple[SourcePartition, ...]:
        """The source partitions as the store keeps them; `rows` are the rows that were judged of each, by ordinal."""

    @property
    def places(self) -> RecordPlaces | None:
        """Finds the tuples' places; None where `tuples` gives them."""

    def tuples(self, session: SparkSession) -> DataFrame:
        """One row a record, and one for each source partition that is an error as a whole: REC, RAW, ADMISSION, ORDER.

        With `places` there may be more rows, and `places` uses ORDER and columns of the source's own.
        """

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


class StreamedSource(Protocol):
    """A source that Spark's stream watches. The stream only says when there is something new, and what."""

    def stream(self, session: SparkSession) -> DataFrame:
        """The stream that cuts batches."""

    def batch(self, batch_id: int, frame: DataFrame) -> SourceBatch | None:
        """The part of a batch of Spark's that the store has not judged; None when there is none.

        Raises:
            IntegrityError: input is missing between the last judged and this batch.
        """

    def judged(self, batch: SourceBatch) -> None:
        """A batch was committed."""

    def look(self) -> None:
        """Called repeatedly while the stream runs: logs what it waits for, if it does. Never fails."""

    def is_over(self, failure: Exception) -> bool:
        """Whether the stream that ended with this failure may be started again now; asked again when not.

        Raises:
            Exception: `failure` itself or another, when it is not to be started again.
        """
