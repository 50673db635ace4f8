"""How Spark reads the files of a window: by name, each whole, every record with its place and as it was when listed.

All that is the same in every window is made once: it is hundreds of calls to the JVM.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import xxhash
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deduper.clock import POSITION_BITS
from deduper.config import FilesSource
from deduper.ddl import quoted
from deduper.file_source import SourceFile, is_text
from deduper.parse import CHANGED, LINE, ORDER, ROW, file_parsing
from deduper.prepared_columns import Added, Selected
from deduper.verdict import Fate

_PATH_HASH, _MODIFIED, _SIZE = "_path_hash", "_modified_ms", "_size"
_HASH, _ORDINAL, _LISTED_MS, _LISTED_SIZE = "_hash", "_ordinal", "_listed_ms", "_listed_size"
_SPARK_HASH_SEED = 42
# Hadoop looks for a checksum file beside every local file: it cannot make the name of one for `12:00.json`, and refuses
# a file that was changed after Hadoop wrote it.
_RAW_FILES = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}
_GLOB_CHARACTERS = re.compile(r"[*?\[\]{}\\]")


@lru_cache(maxsize=1)
def file_plan(session: SparkSession, source: FilesSource) -> FilePlan:
    """The plan of a job; a process has one at a time."""
    return FilePlan(session, source)


class FilePlan:
    """Reads and parses the files of a source, window by window, on one session."""

    def __init__(self, session: SparkSession, source: FilesSource) -> None:
        self._session = session
        self._source = source
        self._read_columns = Selected(session, _read_columns(source))
        self._after_header = F.col(ROW) > 0
        self._is_same_file = F.col(_PATH_HASH) == F.col(_HASH)
        self._placed = Added(session, _placed_columns())
        self._parsing = file_parsing(session, source)

    def tuples(self, files: Sequence[SourceFile]) -> DataFrame:
        """The tuples of those files of a window that are no error tuples themselves: REC, RAW, FATE, ORDER."""
        rows = self._read_columns.of(self._frame(files))
        # A header line is no record; its number stays taken, so that row numbers are those an editor shows, less one.
        if self._source.header:
            rows = rows.filter(self._after_header)
        listed = F.broadcast(self._session.sql(_listed(files)))
        return self._parsing.of(self._placed.to(rows.join(listed, self._is_same_file, "left")))

    def _frame(self, files: Sequence[SourceFile]) -> DataFrame:
        source = self._source
        reader = self._session.read.options(**_RAW_FILES)
        # Names are taken as they are: a `*` in one is no pattern.
        readable = [file for file in files if file.fate is Fate.ADMITTED]
        paths = ["file://" + _GLOB_CHARACTERS.sub(r"\\\g<0>", file.path) for file in readable]
        if is_text(source):
            return reader.format("text").option("lineSep", "\n").load(paths)
        return reader.schema(source.columns).format(source.file_format).load(paths)


def _read_columns(source: FilesSource) -> list[Column]:
    """LINE (the text line) or the source's own columns; the file as it is read; ROW, the number in it from 0."""
    if is_text(source):
        record = F.col("value")
        row = F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1)
    else:
        record = F.struct(*[F.col(quoted(column.name)) for column in source.parsed_columns])
        row = F.col("_metadata.row_index")
    return [
        record.alias(LINE),
        F.xxhash64("_metadata.file_path").alias(_PATH_HASH),
        F.unix_millis("_metadata.file_modification_time").alias(_MODIFIED),
        F.col("_metadata.file_size").alias(_SIZE),
        row.alias(ROW),
    ]


def _listed(files: Sequence[SourceFile]) -> str:
    """The query of what was listed of each file of a window, and its place there.

    A file is found through the hash of its path, which Spark writes as `file:/x` or `file:///x` depending on who asks.
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
    names = ", ".join((_HASH, _ORDINAL, _LISTED_MS, _LISTED_SIZE))
    return f"SELECT * FROM VALUES {', '.join(values)} AS listed({names})"


def _placed_columns() -> dict[str, Column]:
    """The source order, and whether the file is another than the one that was listed."""
    unknown = F.raise_error(F.lit("a row of a file that is not in this window")).cast("long")
    place = F.shiftleft(F.coalesce(F.col(_ORDINAL), unknown), POSITION_BITS).bitwiseOR(F.col(ROW))
    differs = (F.col(_MODIFIED) != F.col(_LISTED_MS)) | (F.col(_SIZE) != F.col(_LISTED_SIZE))
    return {ORDER: place, CHANGED: differs}
