"""A key over which reading fails, in any process."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from deduper.core.clock import ClockRules
from deduper.sources import open as open_source
from deduper.sources.declared_columns import file_reading
from deduper.tasks.layout import parsed
from deduper.tasks.readers.declared import Declared, Noted
from deduper.tasks.readers.file_parts import FilePart, WindowFile
from deduper.tasks.readers.reading_tasks import FileReading


@dataclass
class Poisoned:
    """Reads files, but fails over the key `poison`."""

    reading: FileReading
    fault: Exception

    @property
    def declared(self) -> Declared:
        return self.reading.declared

    def part(self, ordinal: int, file: WindowFile) -> FilePart | None:
        return self.reading.part(ordinal, file)

    def sound_file(self) -> bytes:
        return self.reading.sound_file()

    def records(self, part: FilePart, clock: ClockRules | None = None) -> Generator[pa.RecordBatch, None, Noted]:
        records = self.reading.records(part, clock)
        while True:
            try:
                batch = next(records)
            except StopIteration as stopped:
                noted: Noted = stopped.value
                return noted
            if "poison" in batch.column(parsed(0)).to_pylist():
                raise self.fault
            yield batch


def poisoned(patch: pytest.MonkeyPatch, fault: Exception) -> None:
    """Let reading fail over the key `poison`."""
    patch.setattr(open_source, "file_reading", lambda *arguments: Poisoned(file_reading(*arguments), fault))
