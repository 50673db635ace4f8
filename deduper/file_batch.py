"""Batches of files: which files of a batch are new, and what to do about one that cannot be read.

A file that makes Spark fail twice, or that is gone, becomes one error tuple; the window is judged without it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bucket_store.sources_file import SourcePartition
from deduper import checkpoint
from deduper.clock import POSITION_BITS
from deduper.config import FilesSource
from deduper.file_plan import file_plan
from deduper.file_source import SourceFile, file_stream, source_digest, stat_files
from deduper.parse import FATE, ORDER, RAW, REC
from deduper.source_batch import SourceBatch
from deduper.spark_errors import innermost_cause
from deduper.verdict import Fate

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileBatch:
    """The files of a window, in source order: modification time, then path. `suspects` have made Spark fail once."""

    source: FilesSource
    files: tuple[SourceFile, ...]
    suspects: frozenset[str] = frozenset()

    @property
    def digests(self) -> tuple[bytes, ...]:
        return tuple(file.digest for file in self.files)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.files)

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
                name=file.path,
                version=file.modified_ms,
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
        readable = [file for file in self.files if file.fate is Fate.ADMITTED]
        if not readable:
            return self._error_tuples(session)
        tuples = file_plan(session, self.source).tuples(self.files)
        return tuples if len(readable) == len(self.files) else tuples.unionByName(self._error_tuples(session))

    def after_failure(self, error: Exception) -> FileBatch:
        text = str(error)
        named = [file for file in self.files if file.fate is Fate.ADMITTED and _names(text, file)]
        if not named or not any(condition in text for condition in _READ_FAILURES) or any(s in text for s in _PASSING):
            raise error
        # One path may be the beginning of another.
        culprit = max(named, key=lambda file: len(file.uri))
        if not culprit.is_there():
            bad = culprit.as_error(Fate.FILE_MISSING, f"{culprit.path}: vanished before it was read")
        elif culprit.uri in self.suspects:
            bad = culprit.as_error(Fate.FILE_UNREADABLE, f"{culprit.path}: {innermost_cause(error)}")
        else:
            return replace(self, suspects=self.suspects | {culprit.uri})
        return replace(self, files=tuple(bad if file is culprit else file for file in self.files))

    def confirmed(self, rows: Mapping[int, int]) -> FileBatch:
        del rows  # a file that changed or went away while it was read has told so itself
        return self

    def extra(self) -> dict[str, Any]:
        return {}

    def _error_tuples(self, session: SparkSession) -> DataFrame:
        rows = [
            (None, f"{file.problem}", int(file.fate), ordinal << POSITION_BITS)
            for ordinal, file in enumerate(self.files)
            if file.fate is not Fate.ADMITTED
        ]
        schema = f"{REC} struct<{self.source.columns}>, {RAW} string, {FATE} tinyint, {ORDER} bigint"
        return session.createDataFrame(rows, schema)


_PASSING = ("Too many open files", "Input/output error", "Stale file handle", "Cannot allocate memory", "OutOfMemory")
"""Faults of the machine: no file may be written off for one of them. The job stops, and its next start tries again."""
_READ_FAILURES = ("FAILED_READ_FILE", "PATH_NOT_FOUND", "FileNotFoundException", "CANNOT_READ_FILE_FOOTER")


def _names(text: str, file: SourceFile) -> bool:
    # Spark quotes the path it was given, in which a backslash stands before the signs of its pattern language.
    plain = text.replace("\\", "")
    return file.uri.removeprefix("file://").removeprefix("file:") in text or file.path.replace("\\", "") in plain


class FileBatches:
    """The files source of a job: `known` are the digests of all files that the store has judged."""

    def __init__(self, source: FilesSource, checkpoint_path: Path, known: set[bytes]) -> None:
        self._source = source
        self._checkpoint = checkpoint_path
        self._known = known

    def stream(self, session: SparkSession) -> DataFrame:
        return file_stream(session, self._source)

    def batch(self, batch_id: int, frame: DataFrame) -> FileBatch | None:
        del frame  # never read: see `file_source`
        listed = checkpoint.files_of_batch(self._checkpoint, batch_id)
        fresh = [file for file in listed if source_digest(file.path, file.modified_ms) not in self._known]
        if len(fresh) < len(listed):
            logger.warning(
                "batch %d: %d of its %d files were judged before and are skipped",
                batch_id,
                len(listed) - len(fresh),
                len(listed),
            )
        return FileBatch(self._source, tuple(stat_files(fresh))) if fresh else None

    def judged(self, batch: SourceBatch) -> None:
        self._known.update(batch.digests)

    def look(self) -> None:
        """Files are there, or they are not."""

    def is_over(self, failure: Exception) -> bool:
        raise failure
