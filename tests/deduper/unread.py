"""Files of windows that no task reads, for tests of all else."""

from __future__ import annotations

from collections.abc import Generator
from typing import NoReturn

import pyarrow as pa

from deduper.core.clock import ClockRules
from deduper.tasks.readers.declared import Noted
from deduper.tasks.readers.file_parts import FilePart, WindowFile


class _Unread:
    """See `FileReading`."""

    @property
    def declared(self) -> NoReturn:
        raise NotImplementedError

    def part(self, ordinal: int, file: WindowFile) -> FilePart:
        """The file, of unknown size."""
        return FilePart.of(file, ordinal, 0, {})

    def sound_file(self) -> bytes:
        """Nobody asks."""
        raise NotImplementedError

    def records(self, part: FilePart, clock: ClockRules | None = None) -> Generator[pa.RecordBatch, None, Noted]:
        """Nobody asks."""
        raise NotImplementedError


UNREAD = _Unread()
