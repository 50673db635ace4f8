"""Spills the records of parts of a source that are read without Spark, or reports why Spark has to read one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

from bucket_store.errors import StoreError
from deduper.core.clock import ClockRules
from deduper.errors import DeduperError
from deduper.tasks.read import ReadReceipt, ReadTask, spill
from deduper.tasks.readers.plain_file import FilePart, NotPlain, UnreadableFile, WindowFile


class Part(Protocol):
    """A part of a source that one task reads whole; pickled into the job."""

    @property
    def name(self) -> str:
        """The part, for messages."""

    @property
    def plain_bytes(self) -> int:
        """About how much its records take, decoded."""


_P = TypeVar("_P", bound=Part)
_Taken = TypeVar("_Taken", bound=Part, contravariant=True)


@dataclass(frozen=True, slots=True)
class PartRead:
    """A part whose records are spilled, or a `refusal`: why Spark has to read it.

    No receipt for a part without records. `rows` were counted apart from the receipt.
    """

    receipt: ReadReceipt | None = None
    rows: int = 0
    refusal: str | None = None


class PartReading(Protocol[_Taken]):
    """How parts of a kind are read; pickled into the job."""

    def records(self, part: _Taken, clock: ClockRules | None = None) -> Generator[pa.RecordBatch, None, int]:
        """The records of a part, as reading tasks take them; see `tasks.layout`. Returns their number, counted apart.

        Records that `clock` may refuse have their text.

        Raises:
            NotPlain: Spark has to read it.
        """


class PlainReading(PartReading[FilePart], Protocol):
    """How files of a kind are read; pickled into the job."""

    def part(self, ordinal: int, file: WindowFile) -> FilePart | None:
        """A file of a window; None when it has no rows.

        Raises:
            NotPlain: Spark has to read it.
            UnreadableFile: no reader can.
        """


class _Counted:
    """The batches of a part; their rows, as the reader has counted them, when all are taken."""

    def __init__(self, records: Generator[pa.RecordBatch, None, int]) -> None:
        self._records = records
        self.rows = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of them, once."""
        self.rows = yield from self._records


def read_part(reading: PartReading[_P], task: ReadTask, part: _P) -> PartRead:
    """Spill the records of a part."""
    counted = _Counted(reading.records(part, task.clock))
    try:
        receipt = spill(task, counted.batches())
    except NotPlain as exc:
        return PartRead(refusal=str(exc))
    except UnreadableFile as exc:
        return PartRead(refusal=str(exc))  # it was replaced after its footer was read
    except (StoreError, DeduperError, OSError, MemoryError):
        raise  # over exchange files, or the machine
    except Exception as exc:  # noqa: BLE001 - no input may end the job
        return PartRead(refusal=f"{part.name}: {type(exc).__name__}: {exc}")
    return PartRead(receipt, counted.rows)


def read_group(
    read: Callable[[ReadTask, _P], PartRead],
    task: ReadTask,
    parts: Sequence[_P],
) -> list[PartRead]:
    """Read all parts of a group."""
    return [read(task, part) for part in parts]
