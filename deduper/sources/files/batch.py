"""Batches of files: which files are new, and what a window has of each."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

from bucket_store.log.sources_file import GONE
from deduper.config.files import FilesSource
from deduper.core.verdict import Admission
from deduper.errors import SourceAwayError
from deduper.sources.files.judged import FOLDER
from deduper.sources.files.listing import Listing, looked_at
from deduper.sources.files.seen_folders import SeenFolders
from deduper.sources.files.source_file import (
    ListedFile,
    SourceFile,
    shown,
    stat_files,
)
from deduper.sources.protocol import BatchPartition, Parts
from deduper.tasks.readers.file_parts import FileChanged, FilePart, FileReason
from deduper.tasks.readers.reading_tasks import FileReading, PartRead, RoundedKeys, fault_of, read_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceFileBatch:
    """The files of a window, in source order: modification time, then path. An ordinal is a file's place there.

    `seen` are the folders that the files were listed in. `folder` is the folder of the source that the commit record
    names, if another one than it has now.
    """

    source: FilesSource
    files: tuple[SourceFile, ...]
    reading: FileReading
    seen: SeenFolders = field(default_factory=SeenFolders, compare=False)
    folder: str | None = None
    rounded: RoundedKeys = field(default_factory=RoundedKeys, compare=False)

    @cached_property
    def partitions(self) -> tuple[BatchPartition, ...]:
        return tuple(
            BatchPartition(
                name=file.name,
                digest=file.digest,
                version=GONE if file.admission is Admission.FILE_MISSING else file.modified_ms,
                end=file.size_bytes,
            )
            for file in self.files
        )

    @property
    def is_known_by_digests(self) -> bool:
        return True

    def records(self) -> Parts[FilePart]:
        return Parts(partial(read_file, self.reading), self._parts)

    def as_read(self, found: Sequence[PartRead]) -> SourceFileBatch:
        """The batch with the files that have left as error tuples.

        Raises:
            SourceAwayError: the fault may be that of a file's folder.
        """
        self.rounded.warn(self.reading.declared.columns[number] for part in found for number in part.noted.rounded)
        files = list(self.files)
        for part, read in zip(self._parts, found, strict=True):
            file = files[part.ordinal]
            if read.fault is not None and file.admission is Admission.ADMITTED:
                files[part.ordinal] = self._as_error(file, read.fault)
            if read.noted.cut_off is not None:
                logger.warning("%s is not whole: %s", file.name, shown(read.noted.cut_off))
        left = tuple(files)
        return self if left == self.files else replace(self, files=left)

    def after_failure(self, error: Exception) -> SourceFileBatch:
        raise error  # one over a file is a fault of it

    def confirmed(self, rows: Mapping[int, int]) -> SourceFileBatch:
        del rows  # a file that changed or vanished while it was read has failed in the read itself
        return self

    def extra(self) -> dict[str, Any]:
        return {FOLDER: self.folder or str(self.source.folder)}

    @cached_property
    def _parts(self) -> list[FilePart]:
        """The files for reading tasks, without those that have no rows."""
        parts = (self._part(ordinal, file) for ordinal, file in enumerate(self.files))
        return [part for part in parts if part is not None]

    def _part(self, ordinal: int, file: SourceFile) -> FilePart | None:
        if file.admission is not Admission.ADMITTED:
            return FilePart.with_fault(file, ordinal, FileReason(file.admission, file.problem))
        try:
            return self.reading.part(ordinal, file)
        except FileChanged:
            return FilePart.of(file, ordinal, file.size_bytes, {})  # its task finds that, too
        except Exception as exc:  # noqa: BLE001 - `fault_of` raises what is no fault of the file
            return FilePart.with_fault(file, ordinal, fault_of(exc, self.reading))

    def _as_error(self, file: SourceFile, fault: FileReason) -> SourceFile:
        if fault.admission is not Admission.FILE_MISSING:
            self.seen.require_readable(file.path)
        elif not self.seen.is_gone(file.path):
            raise SourceAwayError(f"{file.path}: it is away now and then")
        admission, text = fault
        logger.warning("%s leaves by the error port as %s: %s", file.name, admission.reason, shown(text))
        return file.as_error(admission, text)


class Known(Protocol):
    """The files that were judged; see `sources.files.judged`."""

    @property
    def folder(self) -> str:
        """The folder of the source for the next commit record. Asked when a batch is made."""

    @property
    def changed(self) -> int:
        """The number of files that were found changed after they were judged. Asked at any time."""

    def new(self, paths: Sequence[str]) -> list[str]:
        """Those of the listed files that were not judged. Called once for each listing, before the next window."""


class FileBatches:
    """The files source of a job: its new files, in windows of `max_files_per_batch`.

    `came_after_s`: all files of the first listing had come after this Unix time. `clock` gives the time.
    """

    def __init__(
        self,
        source: FilesSource,
        known: Known,
        reading: FileReading,
        came_after_s: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source = source
        self._reading = reading
        self.known = known
        self._listing = Listing(source)
        self._rounded = RoundedKeys()
        self._pending: deque[ListedFile] = deque()
        self._unfinished: list[str] = []
        self._passed_over: dict[str, OSError] = {}
        self._clock = clock
        self._came_after_s = self._listed_s = came_after_s

    @property
    def pending(self) -> int:
        """How many files are listed and not yet taken."""
        return len(self._pending)

    @property
    def waiting_since_s(self) -> float | None:
        """When the oldest of them had come, as Unix time; None without one.

        It was changed last then, or was moved into the folder later: after the listing that did not have it.
        """
        if not self._pending:
            return None
        return min(self._listed_s, max(self._came_after_s, self._pending[0].modified_ms / 1000))

    @property
    def unfinished(self) -> int:
        """How many files the last listing has left out for now."""
        return len(self._unfinished)

    @property
    def place(self) -> str:
        """The folder or pattern that is listed."""
        return self._source.path

    @property
    def changed(self) -> int:
        """How many files are known to have changed after they were judged."""
        return self.known.changed

    def list_new(self) -> None:
        """Look for files that were not judged.

        Raises:
            OSError, SourceAwayError: the source cannot be listed; the next listing is one of all files.
        """
        began_s = self._clock()
        try:
            paths = {*self.known.new(self._listing.changed()), *self._unfinished}
            found = looked_at(self._source, paths, self._listing.seen, self._passed_over)
        except (OSError, SourceAwayError):
            self.put_off()
            raise
        self._unfinished = [file.path for file in found.unfinished]
        self._pending = deque(found.finished)
        self._came_after_s, self._listed_s = self._listed_s, began_s

    def put_off(self) -> None:
        """Drop the listing, of which nothing was judged. The next listing is one of all files."""
        self._pending.clear()
        self._listed_s = self._came_after_s
        self._listing.forget()

    def next_batch(self) -> SourceFileBatch | None:
        """The oldest of the listed files, as they are now; None when none are left.

        Records written since the listing are read: none of them was judged.

        Raises:
            SourceAwayError: files cannot be found, and they may not be gone: their folder is away.
        """
        while self._pending:
            count = min(len(self._pending), self._source.max_files_per_batch)
            taken = [self._pending.popleft() for _ in range(count)]
            files = stat_files(taken, self._listing.seen)
            emptied = {file.path for file in files if not file.size_bytes and file.admission is Admission.ADMITTED}
            self._unfinished += emptied
            left = tuple(file for file in files if file.path not in emptied)
            if left:
                return SourceFileBatch(
                    self._source, left, self._reading, self._listing.seen, self.known.folder, self._rounded
                )
        return None
