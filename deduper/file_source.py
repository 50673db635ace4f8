"""The file source: Spark's stream finds the files, we read exactly the ones a window is about.

The stream is used for what it does well: listing a directory, remembering what was seen, cutting batches. Its rows are
never touched. A batch's files come from the checkpoint (`checkpoint.py`), and are read here by name, so that

- files that were judged before are not even opened,
- a file that vanished or cannot be read becomes one error tuple, and the others are read without it,
- `_metadata` of every row can be held against what was listed: a file that changed since leaves by the error port.

Every file is one partition, never split, so that a row's number in its file is the same in every run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from deduper.checkpoint import ListedFile
from deduper.config import FilesSource, SourceConfig
from deduper.verdict import Fate

SPARK_SETTINGS = {
    # One whole file a partition whatever the sizes and cores: row numbers and the clock depend on it.
    "spark.sql.files.maxPartitionBytes": "1099511627776",
    "spark.sql.files.openCostInBytes": "1099511627776",
    # The driver lists the few files of a batch itself; a Spark job for it would cost more than it saves.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}

# Spark's seven days would never read an older file that arrives later.
_NO_MAX_AGE = "36500d"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of one window.

    `size_bytes` is from the moment before the intent; `fate` is ADMITTED unless the file as a whole is an error tuple,
    and then `problem` says why.
    """

    uri: str
    path: str
    modified_ms: int
    size_bytes: int
    fate: Fate = Fate.ADMITTED
    problem: str = ""

    @property
    def digest(self) -> bytes:
        """What tells this file from all others, 16 bytes: its path and modification time.

        The size is left out: a replay after the file vanished or grew must still know that it was judged.
        """
        return source_digest(self.path, self.modified_ms)

    def is_there(self) -> bool:
        """Whether the file exists now."""
        return Path(self.path).exists()

    def as_error(self, fate: Fate, problem: str) -> SourceFile:
        """The same file, as one error tuple."""
        return replace(self, fate=fate, problem=problem)


def missing_folder(source: SourceConfig) -> Path | None:
    """The folder of files that Spark would refuse to watch, because it is not there; None for patterns and topics."""
    if not isinstance(source, FilesSource) or source.folder != Path(source.path) or source.folder.exists():
        return None
    return source.folder


def is_text(source: FilesSource) -> bool:
    """Whether a record is a line of text, which is kept for the error port."""
    return source.file_format in ("json", "csv")


def source_digest(path: str, modified_ms: int) -> bytes:
    """16 bytes that name a file as it was listed, for as long as the store lives."""
    return hashlib.blake2b(f"{modified_ms}\0{path}".encode(), digest_size=16).digest()


def stat_files(listed: Sequence[ListedFile]) -> list[SourceFile]:
    """The files with their sizes as of now; one that is gone becomes an error tuple."""
    files = []
    for file in listed:
        try:
            size_bytes = Path(file.path).stat().st_size
        except OSError as exc:
            gone = SourceFile(file.uri, file.path, file.modified_ms, 0)
            files.append(gone.as_error(Fate.FILE_MISSING, f"{file.path}: {exc.strerror or exc}"))
        else:
            files.append(SourceFile(file.uri, file.path, file.modified_ms, size_bytes))
    return files


def file_stream(session: SparkSession, source: FilesSource) -> DataFrame:
    """The stream that finds files; its rows are never read."""
    reader = (
        session.readStream.format("text" if is_text(source) else source.file_format)
        .option("maxFilesPerTrigger", source.max_files_per_batch)
        .option("maxFileAge", _NO_MAX_AGE)
    )
    if not is_text(source):
        reader = reader.schema(source.columns)
    return reader.load(str(source.path))
