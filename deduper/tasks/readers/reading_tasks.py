"""Spills the records of files that are read without Spark, or reports why Spark has to read a file."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from bucket_store.errors import StoreError
from deduper.core.clock import ClockRules
from deduper.errors import DeduperError
from deduper.tasks.read import ReadReceipt, ReadTask, spill
from deduper.tasks.readers.plain_file import FilePart, NotPlain, UnreadableFile, WindowFile


class PlainReading(Protocol):
    """How files of a kind are read; pickled into the job."""

    def part(self, ordinal: int, file: WindowFile) -> FilePart | None:
        """A file of a window; None when it has no rows.

        Raises:
            NotPlain: Spark has to read it.
            UnreadableFile: no reader can.
        """

    def records(self, part: FilePart, clock: ClockRules | None = None) -> Generator[pa.RecordBatch, None, int]:
        """The records of a file, as reading tasks take them; see `tasks.layout`. Returns their number, counted apart.

        Records that `clock` may refuse have their text.

        Raises:
            NotPlain: Spark has to read it after all.
        """


@dataclass(frozen=True, slots=True)
class FileRead:
    """A file whose records are spilled; no receipt for a file without records. `rows` were counted apart from it."""

    receipt: ReadReceipt | None
    rows: int


class _Counted:
    """The batches of a file; their rows, as the reader has counted them, when all are taken."""

    def __init__(self, records: Generator[pa.RecordBatch, None, int]) -> None:
        self._records = records
        self.rows = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of them, once."""
        self.rows = yield from self._records


def read_file(task: ReadTask, reading: PlainReading, part: FilePart) -> FileRead | str:
    """Spill the records of a file; in place of the receipt, the reason why Spark has to read the file."""
    counted = _Counted(reading.records(part, task.clock))
    try:
        receipt = spill(task, counted.batches())
    except NotPlain as exc:
        return str(exc)
    except UnreadableFile as exc:
        return str(exc)  # it was replaced after its footer was read
    except (StoreError, DeduperError, OSError, MemoryError):
        raise  # over exchange files, or the machine
    except Exception as exc:  # noqa: BLE001 - no file may end the job
        return f"{part.path}: {type(exc).__name__}: {exc}"
    return FileRead(receipt, counted.rows)


def read_files(
    task: ReadTask, reading: PlainReading, parts: Sequence[FilePart], groups: Sequence[Sequence[int]], number: int
) -> list[FileRead | str]:
    """The same of all files of a group, which are named by their numbers."""
    return [read_file(task, reading, parts[place]) for place in groups[number]]
