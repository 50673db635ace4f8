"""Batches of files: which files are new, and which reader reads each.

`sources.files.unreadable` finds the files that cannot be read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from bucket_store.log.sources_file import GONE
from deduper.config.files import FilesSource
from deduper.core.verdict import Admission
from deduper.errors import SourceAwayError
from deduper.sources.files.file_ways import file_ways
from deduper.sources.files.judged import FOLDER
from deduper.sources.files.listing import Listing
from deduper.sources.files.seen_folders import is_of_entry
from deduper.sources.files.source_file import (
    ListedFile,
    SourceFile,
    shown,
    source_order,
    stat,
    stat_files,
)
from deduper.sources.files.unreadable import read_apart
from deduper.sources.files.window_files import WindowFiles
from deduper.sources.protocol import BatchPartition, BatchRead, ReadingRun
from deduper.tasks.read import ReadReceipt, ReadTask
from deduper.tasks.readers.reading_tasks import PlainReading, read_part

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileBatch(WindowFiles):
    """The files of a window, which read themselves.

    `folder` is the folder of the source that the commit record names, if another one than it has now. `reading` reads
    plain files; None where Spark reads all.
    """

    folder: str | None = None
    reading: PlainReading | None = None

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

    def read(self, run: ReadingRun, task: ReadTask) -> BatchRead:
        """Each file by the reader that suits it; error tuples last, when all of them are known."""
        ways = file_ways(self, self.reading)
        batch = self.with_errors(Admission.FILE_UNREADABLE, ways.unreadable)
        batch = batch.with_errors(Admission.FILE_HEADER, ways.misheaded)
        receipts, rows, by_spark = [], 0, dict(ways.by_spark)
        if self.reading is not None:
            are_all_plain = not ways.by_spark and not batch.errors
            found = run.plain(partial(read_part, self.reading), ways.parts, task, are_all=are_all_plain)
            for part, of_part in zip(ways.parts, found, strict=True):
                if of_part.refusal is not None:
                    by_spark[part.ordinal] = of_part.refusal
                receipts += [] if of_part.receipt is None else [of_part.receipt]
                rows += of_part.rows
            if by_spark:
                logger.info(
                    "%d of %d files are read by Spark: %s", len(by_spark), len(self.files), min(by_spark.items())[1]
                )

        def read(files: WindowFiles, ordinals: Sequence[int]) -> tuple[list[ReadReceipt], int]:
            return run.by_spark(files.tuples(run.session, ordinals), task)

        file_on_hosts = partial(run.file_on_hosts, task=task)
        batch, results = read_apart(batch, sorted(by_spark), file_on_hosts, read)
        if batch.errors:
            results.append(read(batch, batch.errors))
        for more, counted in results:
            receipts += more
            rows += counted
        return BatchRead(batch, receipts, rows)

    def after_failure(self, error: Exception) -> FileBatch:
        raise error  # one over a file has come no further than `sources.files.unreadable`

    def confirmed(self, rows: Mapping[int, int]) -> FileBatch:
        del rows  # a file that changed or vanished while it was read has failed in the read itself
        return self

    def extra(self) -> dict[str, Any]:
        return {FOLDER: self.folder or str(self.source.folder)}


class Known(Protocol):
    """The files that were judged; see `sources.files.judged`."""

    @property
    def folder(self) -> str:
        """The folder of the source that the next commit is to name."""

    @property
    def changed(self) -> int:
        """How many files were found to have changed after they were judged."""

    def new(self, paths: Sequence[str]) -> list[str]:
        """Those of the listed files that were not judged."""


class FileBatches:
    """The files source of a job: its new files, in windows of `max_files_per_batch`. `reading`: see `FileBatch`."""

    def __init__(
        self, source: FilesSource, known: Known, reading: PlainReading | None = None, expiry: str | None = None
    ) -> None:
        """`expiry`: the column of the expiry key."""
        self._source = source
        self._expiry = expiry
        self._reading = reading
        self.known = known
        self._listing = Listing(source)
        self._pending: deque[ListedFile] = deque()
        self._empty: list[str] = []
        self._passed_over: set[str] = set()

    @property
    def pending(self) -> int:
        """How many files are listed and not yet taken."""
        return len(self._pending)

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
        try:
            paths = {*self.known.new(self._listing.changed()), *self._empty}
            found = [file for path in paths if (file := self._looked_at(path)) is not None]
        except (OSError, SourceAwayError):
            self.put_off()
            raise
        # An empty file has no records yet. Were it judged, what its writer adds would never be read.
        self._empty = [file.path for file in found if not file.size_bytes]
        self._pending = deque(sorted((file for file in found if file.size_bytes), key=source_order))

    def put_off(self) -> None:
        """What was listed is of no use: nothing of it was judged. The next listing is one of all files."""
        self._pending.clear()
        self._listing.forget()

    def next_batch(self) -> FileBatch | None:
        """The oldest of the listed files, as they are now; None when none are left.

        Records written since the listing are read: none of them was judged.

        Raises:
            SourceAwayError: files cannot be found, and it cannot be told whether they are gone.
        """
        while self._pending:
            count = min(len(self._pending), self._source.max_files_per_batch)
            taken = [self._pending.popleft() for _ in range(count)]
            files = stat_files(taken, self._listing.seen)
            emptied = {file.path for file in files if not file.size_bytes and file.admission is Admission.ADMITTED}
            self._empty += emptied
            left = tuple(_refused(file, self._source) for file in files if file.path not in emptied)
            if left:
                return FileBatch(self._source, left, self._listing.seen, self._expiry, self.known.folder, self._reading)
        return None

    def _looked_at(self, path: str) -> ListedFile | None:
        """A listed file; None for one that is gone, or cannot be looked at for a reason of its own.

        Raises:
            OSError, SourceAwayError: the reason is not the file's own.
        """
        try:
            found = stat(path)
        except OSError as exc:
            self._listing.seen.require(path)
            if not is_of_entry(exc):
                raise
            if path not in self._passed_over:
                self._passed_over.add(path)
                logger.warning(
                    "%s cannot be looked at: %s: it is passed over until it can be; it does not count as judged",
                    shown(path),
                    exc.strerror,
                )
            return None
        if found is None:
            self._listing.seen.require(path)
        self._passed_over.discard(path)
        return found


_CUT_IN_SILENCE = (".snappy", ".lz4")
_LEAST_BZ2_BYTES = 14


def _refused(file: SourceFile, source: FilesSource) -> SourceFile:
    """The file, as an error when Spark would read a part of it without a word, were it cut off."""
    if not source.is_text or file.admission is not Admission.ADMITTED:
        return file
    suffix = Path(file.path).suffix.lower()
    if suffix in _CUT_IN_SILENCE:
        problem = f"where a {suffix} file was cut off cannot be seen: write it as .gz, .zst or .bz2"
    elif suffix == ".bz2" and file.size_bytes < _LEAST_BZ2_BYTES:
        problem = f"a .bz2 file of {file.size_bytes} bytes is cut off"
    else:
        return file
    return file.as_error(Admission.FILE_UNREADABLE, f"{file.path}: {problem}")
