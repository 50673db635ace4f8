"""Batches of files: which files are new, and their tuples: records, or one error tuple a file.

`sources.files.unreadable` finds the files that cannot be read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bucket_store.log.sources_file import GONE, SourcePartition
from deduper.config.files import FilesSource
from deduper.core.verdict import Admission
from deduper.errors import SourceAwayError
from deduper.sources.files.judged import FOLDER, KnownFiles
from deduper.sources.files.listing import Listing
from deduper.sources.files.plan import error_tuples, file_plan
from deduper.sources.files.seen_folders import SeenFolders, is_of_entry
from deduper.sources.files.source_file import (
    ListedFile,
    SourceFile,
    shown,
    source_order,
    stat,
    stat_files,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileBatch:
    """The files of a window, in source order: modification time, then path. An ordinal is a file's place there.

    `folder` is the folder of the source that the commit record names, if another one than it has now. `seen` are the
    folders that the files were listed in.
    """

    source: FilesSource
    files: tuple[SourceFile, ...]
    folder: str | None = None
    seen: SeenFolders = field(default_factory=SeenFolders, compare=False)

    @property
    def digests(self) -> tuple[bytes, ...]:
        return tuple(file.digest for file in self.files)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(file.name for file in self.files)

    @property
    def starts(self) -> tuple[int, ...]:
        return (0,) * len(self.files)

    @property
    def slots(self) -> tuple[int, ...]:
        return (0,) * len(self.files)

    @property
    def is_known_by_digests(self) -> bool:
        return True

    def partitions(self, rows: Mapping[int, int]) -> tuple[SourcePartition, ...]:
        return tuple(
            SourcePartition(
                name=file.name,
                version=GONE if file.admission is Admission.FILE_MISSING else file.modified_ms,
                start=0,
                end=file.size_bytes,
                rows=rows.get(ordinal, 0),
                digest=file.digest,
            )
            for ordinal, file in enumerate(self.files)
        )

    @property
    def places(self) -> None:
        return None

    def tuples(self, session: SparkSession) -> DataFrame:
        return self.tuples_of(session, range(len(self.files)))

    def tuples_of(self, session: SparkSession, ordinals: Sequence[int]) -> DataFrame:
        """The tuples of some of the files."""
        files = {ordinal: self.files[ordinal] for ordinal in ordinals}
        readable = {ordinal: file for ordinal, file in files.items() if file.admission is Admission.ADMITTED}
        if not readable:
            return self._error_tuples(session, files)
        tuples = file_plan(session, self.source).tuples(readable)
        return tuples if len(readable) == len(files) else tuples.unionByName(self._error_tuples(session, files))

    @property
    def readable(self) -> dict[int, SourceFile]:
        """The files that are no error tuples, by ordinal."""
        return {ordinal: file for ordinal, file in enumerate(self.files) if file.admission is Admission.ADMITTED}

    @property
    def errors(self) -> list[int]:
        """The ordinals of the others."""
        return [ordinal for ordinal, file in enumerate(self.files) if file.admission is not Admission.ADMITTED]

    def with_errors(self, admission: Admission, problems: Mapping[int, str]) -> FileBatch:
        """The batch with some files as error tuples, for the reason that is given by ordinal."""
        for ordinal, problem in problems.items():
            logger.warning(
                "%s leaves by the error port as %s: %s", self.files[ordinal].name, admission.reason, shown(problem)
            )
        return replace(
            self,
            files=tuple(
                file.as_error(admission, f"{file.path}: {problems[ordinal]}") if ordinal in problems else file
                for ordinal, file in enumerate(self.files)
            ),
        )

    def named_by(self, error: Exception) -> int | None:
        """The file that an error names; None when it names none."""
        text = str(error)
        named = [ordinal for ordinal, file in self.readable.items() if _names(text, file)]
        # One path may be the beginning of another.
        return max(named, key=lambda ordinal: len(self.files[ordinal].uri), default=None)

    def after_failure(self, error: Exception) -> FileBatch:
        raise error  # one over a file has come no further than `sources.files.unreadable`

    def confirmed(self, rows: Mapping[int, int]) -> FileBatch:
        del rows  # a file that changed or vanished while it was read has failed in the read itself
        return self

    def extra(self) -> dict[str, Any]:
        return {FOLDER: self.folder or str(self.source.folder)}

    def _error_tuples(self, session: SparkSession, files: Mapping[int, SourceFile]) -> DataFrame:
        bad = {ordinal: file for ordinal, file in files.items() if file.admission is not Admission.ADMITTED}
        return error_tuples(session, self.source, bad)


def _names(text: str, file: SourceFile) -> bool:
    # Spark quotes the path it was given, in which a backslash stands before the signs of its pattern language.
    plain = text.replace("\\", "")
    path, of_uri = file.spellings
    return of_uri in text or path.replace("\\", "") in plain


class FileBatches:
    """The files source of a job: its new files, in windows of `max_files_per_batch`."""

    def __init__(self, source: FilesSource, known: KnownFiles) -> None:
        self._source = source
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
                return FileBatch(self._source, left, folder=self.known.folder, seen=self._listing.seen)
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
