"""PURE. What a replay reads, in source order: files, or ranges of offsets of topics. Travels to executors."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from deduper.as_json import AsJson
from deduper.core.clock import ClockRules
from deduper.errors import DeduperError, SourceAwayError
from deduper.tasks.readers.declared import Declared, Noted


@dataclass(frozen=True, slots=True)
class ReplayFile:
    """A file of a replay as it was listed, with its number in source order."""

    number: int
    path: str
    name: str
    digest: bytes
    modified_ms: int
    size_bytes: int

    @property
    def version(self) -> int:
        """As in `BatchPartition`, as those below."""
        return self.modified_ms

    @property
    def start(self) -> int:
        """The first byte."""
        return 0

    @property
    def end(self) -> int:
        """Behind the last byte."""
        return self.size_bytes

    @property
    def slot(self) -> int:
        """Ports of files have no order."""
        return 0


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """The offsets [start, end) of a topic partition, with their number in source order; about `size_bytes` decoded.

    A fetch is given up after `silence_s` without a record.
    """

    number: int
    topic: str
    partition: int
    topic_id: str
    start: int
    end: int
    digest: bytes
    size_bytes: int
    silence_s: float = 10.0

    @property
    def name(self) -> str:
        """The partition."""
        return f"{self.topic}-{self.partition}"

    @property
    def version(self) -> str:
        """As in `BatchPartition`, as that below."""
        return self.topic_id

    @property
    def slot(self) -> int:
        """The partition keeps its order."""
        return self.partition


ReplayInput: TypeAlias = ReplayFile | ReplayRange


@dataclass(frozen=True, slots=True)
class LostOffsets(AsJson):
    """Offsets of a topic partition from `first` on that the brokers have deleted before they were sorted."""

    partition: str
    first: int
    offsets: int


class InputReading(Protocol):
    """How inputs of one kind are read, a `FileReading` or a `TopicReading`; pickled into tasks."""

    @property
    def declared(self) -> Declared:
        """The columns of the source."""

    def part(self, ordinal: int, given: Any) -> Any:
        """The part for an input; None for a file without rows."""

    def records(self, part: Any, clock: ClockRules | None = None) -> Generator[pa.RecordBatch, None, Noted]:
        """The records of a part: see `PartReading`."""


class ReplayInputs(Protocol):
    """The inputs of a source, for a plan that is made."""

    @property
    def noun(self) -> str:
        """One input, for messages."""

    @property
    def ends(self) -> str:
        """See `Plan`. Known after `listed`."""

    def listed(self) -> list[ReplayInput]:
        """Those that the source has now, in source order, by their numbers. Called again after a failure.

        Raises:
            SourceAwayError: see `wait_for`.
            IntegrityError: offsets are gone, and `data_loss` is `fail`.
        """

    @property
    def lost(self) -> tuple[LostOffsets, ...]:
        """Those that the first call of `listed` gave, and the last one does not."""

    def surveyed(self) -> None:
        """Called when all were read once."""

    def require_same(self) -> None:
        """Called when all were read. Raises SourceAwayError if some of them may be others than those that were read."""

    def wait_for(self, failure: SourceAwayError) -> None:
        """Wait until the source can be read. Raises `failure` or another error to end the run."""


class FileMovedError(DeduperError):
    """A file of a replay was changed or removed since it was surveyed, so its order is not known any more.

    The operator: put the file back as it was, and repeat the command; or begin again with another --out.
    """


def moved(name: str, fault: object) -> FileMovedError:
    """The error over a file that is not as it was."""
    return FileMovedError(f"{name}: {fault}: put it back as it was, and repeat the command; or begin again elsewhere")
