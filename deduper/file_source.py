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
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deduper.checkpoint import ListedFile
from deduper.clock import POSITION_BITS
from deduper.config import FilesSource
from deduper.ddl import quoted
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

LINE, PATH_HASH, MODIFIED, SIZE, ROW = "_line", "_path_hash", "_modified_ms", "_size", "_row"
_SPARK_HASH_SEED = 42
# Hadoop looks for a checksum file beside every local file: it cannot make the name of one for `12:00.json`, and refuses
# a file that was changed after Hadoop wrote it.
_RAW_FILES = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}
_GLOB_CHARACTERS = re.compile(r"[*?\[\]{}\\]")
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


def read_files(session: SparkSession, source: FilesSource, files: Sequence[SourceFile]) -> DataFrame:
    """The records of the files that are no error tuples themselves.

    Columns: LINE (the text line) or the source's own columns; PATH_HASH, MODIFIED, SIZE from the file as it is read;
    ROW, its number in the file from 0.
    """
    readable = [file for file in files if file.fate is Fate.ADMITTED]
    reader = session.read.options(**_RAW_FILES)
    # Names are taken as they are: a `*` in one is no pattern.
    paths = ["file://" + _GLOB_CHARACTERS.sub(r"\\\g<0>", file.path) for file in readable]
    if is_text(source):
        frame = reader.format("text").option("lineSep", "\n").load(paths)
        record = F.col("value").alias(LINE)
        row = F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1)
    else:
        frame = reader.schema(source.columns).format(source.file_format).load(paths)
        record = F.struct(*[F.col(quoted(column.name)) for column in source.parsed_columns]).alias(LINE)
        row = F.col("_metadata.row_index")
    rows = frame.select(
        record,
        F.xxhash64("_metadata.file_path").alias(PATH_HASH),
        F.unix_millis("_metadata.file_modification_time").alias(MODIFIED),
        F.col("_metadata.file_size").alias(SIZE),
        row.alias(ROW),
    )
    # A header line is no record; its number stays taken, so that row numbers are those an editor shows, less one.
    return rows.filter(F.col(ROW) > 0) if source.header else rows


def with_order(
    session: SparkSession, rows: DataFrame, files: Sequence[SourceFile], order: str, changed: str
) -> DataFrame:
    """Adds the source order and whether the file is another than the one that was listed.

    The place of a file in the window is found through the hash of its path, which Spark writes as `file:/x` or
    `file:///x` depending on who asks.
    """
    known: dict[int, int] = {}
    values = []
    for ordinal, file in enumerate(files):
        for spelling in {file.uri, file.uri.replace("file:///", "file:/", 1)}:
            path_hash = xxhash.xxh64_intdigest(spelling.encode(), seed=_SPARK_HASH_SEED)
            signed = path_hash - (1 << 64) if path_hash >> 63 else path_hash
            if known.setdefault(signed, ordinal) != ordinal:
                raise RuntimeError(f"two files of a window share a 64-bit path hash: {file.path}")
            values.append(f"({signed}L, {ordinal}L, {file.modified_ms}L, {file.size_bytes}L)")
    table = session.sql(f"SELECT * FROM VALUES {', '.join(values)} AS f(h, ordinal, listed_ms, listed_size)")
    joined = rows.join(F.broadcast(table), F.col(PATH_HASH) == F.col("h"), "left")
    place: Column = F.shiftleft(
        F.coalesce("ordinal", F.raise_error(F.lit("a row of a file that is not in this window")).cast("long")),
        POSITION_BITS,
    ).bitwiseOR(F.col(ROW))
    differs = (F.col(MODIFIED) != F.col("listed_ms")) | (F.col(SIZE) != F.col("listed_size"))
    return joined.withColumn(order, place).withColumn(changed, differs)
