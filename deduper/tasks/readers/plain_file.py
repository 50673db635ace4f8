"""A file of a window that is read without Spark, and the errors that leave it to another reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from deduper.spark.failures import is_passing
from deduper.tasks.readers.partition_folders import FolderValue


class WindowFile(Protocol):
    """A file of a window as this room sees it; `deduper.sources` lists them."""

    @property
    def path(self) -> str: ...
    @property
    def modified_ms(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


class NotPlain(Exception):
    """Spark has to read the file; the text says why, for the log."""


class UnreadableFile(Exception):
    """A file that is no Parquet, or whose footer contradicts itself, for Spark too; the text says how."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file of a window, as it was listed; `ordinal` is its place there.

    Its records take about `plain_bytes` decoded. `folders` are the values that the names of its folders give to
    columns, by their numbers. `rows` are those that the file itself counts; None where it does not.
    """

    path: str
    ordinal: int
    modified_ms: int
    size_bytes: int
    plain_bytes: int
    folders: Mapping[int, FolderValue]
    rows: int | None

    @classmethod
    def of(
        cls,
        file: WindowFile,
        ordinal: int,
        plain_bytes: int,
        folders: Mapping[int, FolderValue],
        rows: int | None = None,
    ) -> FilePart:
        """The part for a listed file."""
        return cls(file.path, ordinal, file.modified_ms, file.size_bytes, plain_bytes, folders, rows)

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self.path

    def check(self) -> None:
        """Raises NotPlain when it is not the file any more that was listed."""
        with reading(self.path):
            found = Path(self.path).stat()
        if (found.st_mtime_ns // 1_000_000, found.st_size) != (self.modified_ms, self.size_bytes):
            raise NotPlain(f"{self.path}: changed since it was listed")


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Makes Arrow's errors over a file NotPlain, so that Spark decides; faults of the machine stay as they are."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as exc:
        # A damaged page may ask for any amount of memory: failing to get it is no fault of the machine.
        if not isinstance(exc, MemoryError) and is_passing(exc, [path]):
            raise
        raise NotPlain(f"{path}: {exc}") from exc
