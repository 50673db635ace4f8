"""Spills the records of parts of a source. A file that is an error as a whole gives one error tuple."""

from __future__ import annotations

import logging
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa

from bucket_store.errors import StoreError
from deduper.arrow_columns import DeclaredColumn
from deduper.core.clock import POSITION_BITS, ClockRules
from deduper.errors import DeduperError, SourceAwayError
from deduper.tasks.read import ReadReceipt, ReadTask, spill
from deduper.tasks.readers.declared import NOTHING, Declared, Noted
from deduper.tasks.readers.file_parts import FileChanged, FileFault, FilePart, FileReason, UnreadableFile, WindowFile

logger = logging.getLogger(__name__)


class SourcePart(Protocol):
    """A part of a source that one task reads whole; pickled into the job."""

    @property
    def name(self) -> str:
        """The part, for messages. Asked at any time."""

    @property
    def decoded_bytes(self) -> int:
        """About how many bytes its records take, decoded. Asked before any reading, to choose the way of a window."""


_P = TypeVar("_P", bound=SourcePart)
_Taken = TypeVar("_Taken", bound=SourcePart, contravariant=True)


@dataclass(frozen=True, slots=True)
class PartRead:
    """The result of a part: its records are spilled, or `away` says why it can only be read later.

    No receipt for a part without records. `fault`: the part is a file that has left as one error tuple.
    """

    receipt: ReadReceipt | None = None
    noted: Noted = NOTHING
    fault: FileReason | None = None
    away: str | None = None

    @property
    def rows(self) -> int:
        """The records, counted apart from the receipt."""
        return self.noted.rows


def read_by_spark(receipts: Sequence[ReadReceipt], rows: int) -> list[PartRead]:
    """The results of a DataFrame's partitions, and the rows that Spark has counted."""
    return [*(PartRead(receipt) for receipt in receipts), PartRead(noted=Noted(rows))]


def receipts_of(found: Sequence[PartRead]) -> list[ReadReceipt]:
    """The receipts of the parts with records, in source order."""
    receipts = [one.receipt for one in found if one.receipt is not None]
    return sorted(receipts, key=lambda receipt: receipt.first_order)


class PartReading(Protocol[_Taken]):
    """How parts of a kind are read; pickled into the job."""

    @property
    def declared(self) -> Declared:
        """The columns of the source. The same for every part."""

    def records(self, part: _Taken, clock: ClockRules | None = None) -> Generator[pa.RecordBatch, None, Noted]:
        """The records of a part, in source order, with the columns of `tasks.layout`; returns notes about them.

        Called once by each run of a reading task, which takes all batches or ends. Must give equal records in every
        run. Records that `clock` may refuse have their text.

        Raises:
            FileFault: the part is a file that is an error as a whole, perhaps after some of its records.
            SourceAwayError: it can only be read later.
        """


class FileReading(PartReading[FilePart], Protocol):
    """How files of a kind are read; pickled into the job."""

    def part(self, ordinal: int, file: WindowFile) -> FilePart | None:
        """The part for a file of a window; None when it has no rows. Called in the driver, once for each attempt.

        Raises:
            FileFault: it is an error as a whole.
        """

    def sound_file(self) -> bytes:
        """A file with one sound record. Called after a failure: if it fails too, the fault is the machine's."""


class _Counted:
    """The batches of a part; what the reader has noted of them, when all are taken."""

    def __init__(self, records: Generator[pa.RecordBatch, None, Noted]) -> None:
        self._records = records
        self.noted = NOTHING

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of them, once."""
        self.noted = yield from self._records


def read_part(reading: PartReading[_P], task: ReadTask, part: _P) -> PartRead:
    """Spill the records of a part.

    Raises:
        Exception: as `PartReading.records`, but SourceAwayError, which is a value: Spark would run the task again.
    """
    counted = _Counted(reading.records(part, task.clock))
    try:
        return PartRead(spill(task, counted.batches()), counted.noted)
    except SourceAwayError as exc:
        return PartRead(away=str(exc))


def read_file(reading: FileReading, task: ReadTask, part: FilePart, *, takes_changed: bool = True) -> PartRead:
    """Spill the records of a file, or the one error tuple that stands for it.

    `takes_changed`: the records of a file that changed since it was listed are spilled as errors; else it has a fault.
    """
    found = _records_or_fault(reading, task, part, takes_changed) if part.fault is None else part.fault
    if isinstance(found, PartRead):
        return found
    tuples = reading.declared.error_tuple(part.ordinal << POSITION_BITS, found.admission, part.said(found.text))
    return PartRead(spill(task, iter([tuples])), Noted(1), found)


def _records_or_fault(
    reading: FileReading, task: ReadTask, part: FilePart, takes_changed: bool
) -> PartRead | FileReason:
    try:
        try:
            return read_part(reading, task, part)
        except FileChanged:
            if not takes_changed:
                raise
            now = reading.part(part.ordinal, part.as_now())
            if now is None:
                raise  # without rows
            return read_part(reading, task, replace(now, has_changed=True))
    except Exception as exc:  # noqa: BLE001 - `fault_of` raises what is no fault of the file
        return fault_of(exc, reading)


def fault_of(error: Exception, reading: FileReading) -> FileReason:
    """The fault of a file by the error of its reading: no input may end the job.

    Raises:
        Exception: `error`, if its cause is the exchange files, the machine or the installation.
    """
    if isinstance(error, FileFault):
        return FileReason(error.admission, str(error))
    if isinstance(error, (StoreError, DeduperError, OSError, MemoryError, ImportError)):
        raise error
    _require_sound(reading, error)
    return FileReason(UnreadableFile.admission, f"{type(error).__name__}: {error}")


def _require_sound(reading: FileReading, error: Exception) -> None:
    """Raises `error` if a sound file fails too: otherwise every file would become an error for it."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "sound")
            path.write_bytes(reading.sound_file())
            part = reading.part(0, FilePart(str(path), 0, 0, 0, 0, {}, None).as_now())
            if part is not None:
                deque(reading.records(part), 0)
    except Exception as exc:
        raise error from exc


def read_group(
    read: Callable[[ReadTask, _P], PartRead],
    task: ReadTask,
    parts: Sequence[_P],
) -> list[PartRead]:
    """Read the parts of a group up to one that is away: each later part would wait for the same brokers."""
    found: list[PartRead] = []
    for part in parts:
        found.append(read(task, part))
        if found[-1].away is not None:
            break
    return found


class RoundedKeys:
    """Warns about each key column of a job's source, or of a batch of a table, once."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def warn(self, columns: Iterable[DeclaredColumn]) -> None:
        """Warn about the key columns that a reader has found."""
        for column in sorted(columns, key=lambda one: one.name):
            if column.name in self._known:
                continue
            self._known.add(column.name)
            wider = "`decimal(38,18)` or `string`" if column.kind.name == "decimal" else "`string`"
            logger.warning(
                "the key column %s is a %s, and a text of it has more digits, which are rounded: values that differ in "
                "them alone are one key, and all but the first are duplicates; if they are other keys, declare it %s, "
                "in a new store or table",
                column.name,
                column.kind.text,
                wider,
            )
