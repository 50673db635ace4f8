"""How Spark reads the files of a window: by name, each whole, every record with its place and as it was when listed.

All that is the same in every window is made once: it is hundreds of calls to the JVM. Files of one layout share a plan;
most sources have one layout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import pyarrow as pa
import xxhash
from pyarrow import parquet
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from deduper.columns import backticked, quoted
from deduper.config.files import FilesSource
from deduper.core.clock import POSITION_BITS
from deduper.core.verdict import INT64_MAX, INT64_MIN, Admission
from deduper.sources.files.source_file import SourceFile
from deduper.sources.parsing import CHANGED, LINE, REC, ROW, file_parsing, record_column
from deduper.sources.record_layout import arrow_types
from deduper.spark.columns import Added, Selected
from deduper.spark.schemas import spark_schema
from deduper.tasks.layout import ADMISSION, ORDER, RAW
from deduper.tasks.readers.parquet_numbers import exact_type, may_misread
from deduper.tasks.readers.partition_folders import folder_texts

_PATH_HASH, _MODIFIED, _SIZE = "_path_hash", "_modified_ms", "_size"
_HASH, _ORDINAL, _LISTED_MS, _LISTED_SIZE = "_hash", "_ordinal", "_listed_ms", "_listed_size"
_FOLDER = "_folder_"
"""With the number of a column: the text that the file's folders give it."""
_SPARK_HASH_SEED = 42
# Hadoop looks for a checksum file beside every local file: it cannot make the name of one for `12:00.json`, and refuses
# a file that was changed after Hadoop wrote it.
_RAW_FILES = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}
_GLOB_CHARACTERS = re.compile(r"[*?\[\]{}\\]")


@lru_cache(maxsize=1)
def file_plan(session: SparkSession, source: FilesSource, expiry: str | None = None) -> FilePlan:
    """The plan of a job; a process has one at a time."""
    return FilePlan(session, source, expiry)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the columns of a file lie, if not all of them lie in it as declared.

    `folders` are the columns that stand in the names of its folders, `read_as` those that are read by another type.
    """

    folders: tuple[str, ...]
    read_as: tuple[tuple[str, str], ...]


class Misread(Exception):
    """A file holds numbers that Spark would take for others; the text says where."""


class FilePlan:
    """Reads and parses the files of a source, window by window, on one session."""

    def __init__(self, session: SparkSession, source: FilesSource, expiry: str | None = None) -> None:
        """`expiry`: the column of the expiry key."""
        self._session = session
        self._source = source
        self._expiry = expiry
        self._plans: dict[Layout, _LayoutPlan] = {}

    def tuples(self, files: Mapping[int, SourceFile]) -> DataFrame:
        """The tuples of some files of a window, by ordinal, none of them an error: REC, RAW, ADMISSION, ORDER."""
        groups: dict[Layout, dict[int, SourceFile]] = {}
        misread: dict[int, SourceFile] = {}
        for ordinal, file in files.items():
            try:
                groups.setdefault(layout_of(self._source, file), {})[ordinal] = file
            except Misread as exc:
                misread[ordinal] = file.as_error(Admission.FILE_UNREADABLE, f"{file.path}: {exc}")
        frames = [
            self._plan(layout).tuples(told_apart)
            for layout, alike in groups.items()
            for told_apart in _told_apart(alike)
        ]
        if misread:
            frames.append(error_tuples(self._session, self._source, misread))
        return reduce(DataFrame.unionByName, frames)

    def _plan(self, layout: Layout) -> _LayoutPlan:
        if layout not in self._plans:
            self._plans[layout] = _LayoutPlan(self._session, self._source, layout, self._expiry)
        return self._plans[layout]


def layout_of(source: FilesSource, file: SourceFile) -> Layout:
    """The layout by which a file is read.

    Raises:
        Misread: Spark must not read it.
    """
    path = file.laid_out_as or file.path
    texts = folder_texts(path, source.folder, source.parsed_columns)
    if source.is_text:
        return Layout(tuple(sorted(texts)), ())
    stored = _stored_types(path)
    read_as = []
    far = () if source.is_text else _far_times(path)
    for name, declared in zip(_names(source), _arrow_types(source), strict=True):
        found = stored.get(name.lower())
        if name not in texts and name.lower() in far and declared == pa.timestamp("us", "UTC"):
            read_as.append((name, "bigint"))
            continue
        if name in texts or found is None or not may_misread(found, declared):
            continue
        exact = exact_type(found, declared)
        if exact is None or declared == pa.date32():
            raise Misread(f"column {name} is of type {found}, whose numbers {declared} may not hold")
        read_as.append((name, exact))
    return Layout(tuple(sorted(texts)), tuple(read_as))


@lru_cache(maxsize=1)
def _arrow_types(source: FilesSource) -> list[pa.DataType]:
    return arrow_types(source.parsed_columns)


class _LayoutPlan:
    """Reads and parses files of one layout."""

    def __init__(self, session: SparkSession, source: FilesSource, layout: Layout, expiry: str | None) -> None:
        self._session = session
        self._declared = source
        self._folders = layout.folders
        self._source = stored = _stored(source, layout)
        self._read_columns = Selected(session, _read_columns(stored))
        self._after_header = F.col(ROW) > 0
        self._is_same_file = F.col(_PATH_HASH) == F.col(_HASH)
        self._placed = Added(session, _placed_columns())
        self._parsing = file_parsing(session, stored, [F.col(name) for name in _folder_names(layout.folders)])
        completed = _completed_columns(source, layout, expiry) if stored is not source else None
        self._completed = None if completed is None else Added(session, completed)
        self._left = Selected(session, [F.col(name) for name in (REC, RAW, ADMISSION, ORDER)])

    def tuples(self, files: Mapping[int, SourceFile]) -> DataFrame:
        """The tuples of these files, by their place in the window."""
        rows = self._read_columns.of(self._frame(files.values()))
        # A header line is no record; its number stays taken, so that row numbers are those an editor shows, less one.
        if self._source.header:
            rows = rows.filter(self._after_header)
        listed = F.broadcast(self._session.sql(self._listed(files)))
        parsed = self._parsing.of(self._placed.to(rows.join(listed, self._is_same_file, "left")))
        return parsed if self._completed is None else self._left.of(self._completed.to(parsed))

    def _frame(self, files: Iterable[SourceFile]) -> DataFrame:
        source = self._source
        reader = self._session.read.options(**_RAW_FILES)
        # Names are taken as they are: a `*` in one is no pattern.
        paths = ["file://" + _GLOB_CHARACTERS.sub(r"\\\g<0>", file.path) for file in files]
        if source.is_text:
            return reader.format("text").option("lineSep", "\n").load(paths)
        return reader.schema(spark_schema(source.parsed_columns)).format(source.file_format).load(paths)

    def _listed(self, files: Mapping[int, SourceFile]) -> str:
        """The query of what was listed of each file: its place, its time, its size, the texts of its folders.

        A file is found through the hash of its path.
        """
        values = []
        for ordinal, file in files.items():
            texts = folder_texts(file.laid_out_as or file.path, self._declared.folder, self._declared.parsed_columns)
            folders = "".join(f", {_literal(texts[name])}" for name in self._folders)
            for path_hash in _path_hashes(file):
                values.append(f"({path_hash}L, {ordinal}L, {file.modified_ms}L, {file.size_bytes}L{folders})")
        names = ", ".join((_HASH, _ORDINAL, _LISTED_MS, _LISTED_SIZE, *_folder_names(self._folders)))
        return f"SELECT * FROM VALUES {', '.join(values)} AS listed({names})"


def _told_apart(files: Mapping[int, SourceFile]) -> list[dict[int, SourceFile]]:
    """Groups of files, in none of which two have one hash. Names can be made to have one: its seed is known."""
    groups: list[dict[int, SourceFile]] = []
    hashes: list[set[int]] = []
    for ordinal, file in files.items():
        own = _path_hashes(file)
        at = next((at for at, taken in enumerate(hashes) if taken.isdisjoint(own)), len(groups))
        if at == len(groups):
            groups.append({})
            hashes.append(set())
        groups[at][ordinal] = file
        hashes[at] |= own
    return groups


def _path_hashes(file: SourceFile) -> set[int]:
    """The hashes that Spark may give its path, written as `file:/x` or `file:///x` depending on who asks."""
    spellings = (file.uri, file.uri.replace("file:///", "file:/", 1))
    hashes = (xxhash.xxh64_intdigest(spelling.encode(), seed=_SPARK_HASH_SEED) for spelling in spellings)
    return {path_hash - (1 << 64) if path_hash >> 63 else path_hash for path_hash in hashes}


def error_tuples(session: SparkSession, source: FilesSource, files: Mapping[int, SourceFile]) -> DataFrame:
    """One tuple for each of these files, which as a whole are errors, by their place in the window."""
    rows = [(None, file.problem, int(file.admission), ordinal << POSITION_BITS) for ordinal, file in files.items()]
    schema = T.StructType(
        [
            T.StructField(REC, spark_schema(source.parsed_columns)),
            T.StructField(RAW, T.StringType()),
            T.StructField(ADMISSION, T.ByteType()),
            T.StructField(ORDER, T.LongType()),
        ]
    )
    return session.createDataFrame(rows, schema)


def _names(source: FilesSource) -> list[str]:
    return [column.name for column in source.parsed_columns]


def _stored_types(path: str) -> dict[str, pa.DataType]:
    """The types of a Parquet file's columns, by their names in lower case; none of a file that Spark has to judge."""
    try:
        schema = parquet.ParquetFile(pa.OSFile(path)).schema_arrow
    except OSError as exc:
        if exc.errno is not None:
            raise  # not looked at; Spark might see the file a moment later, and misread it
        return {}
    except Exception:  # noqa: BLE001 - no file may end the job
        return {}
    return {field.name.lower(): field.type for field in schema}


def _far_times(path: str) -> frozenset[str]:
    """Columns of times in ms, in lower case, of which some may have no µs in 64 bits: Spark fails over such a file."""
    try:
        footer = parquet.ParquetFile(pa.OSFile(path)).metadata
        schema = footer.schema.to_arrow_schema()
        kinds = {field.name for field in schema if pa.types.is_timestamp(field.type) and field.type.unit == "ms"}
        if not kinds:
            return frozenset()
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        leaves = [group.column(number) for group in groups for number in range(group.num_columns)]
        return frozenset(
            leaf.path_in_schema.lower() for leaf in leaves if leaf.path_in_schema in kinds and _is_far(leaf)
        )
    except OSError as exc:
        if exc.errno is not None:
            raise
        return frozenset()
    except Exception:  # noqa: BLE001 - no file may end the job
        return frozenset()


def _is_far(leaf: parquet.ColumnChunkMetaData) -> bool:
    found = leaf.statistics
    if found is None or not found.has_min_max:
        return True
    return bool(found.min_raw < -(-INT64_MIN // 1000) or found.max_raw > INT64_MAX // 1000)


def _stored(source: FilesSource, layout: Layout) -> FilesSource:
    """The source with the columns that are read from the files themselves, by the types they are read by."""
    if not layout.folders and not layout.read_as:
        return source
    read_as = dict(layout.read_as)
    columns = [column for column in source.parsed_columns if column.name not in layout.folders]
    # Spark reads no record of no columns; any one will do.
    columns = columns or list(source.parsed_columns[:1])
    ddl = ", ".join(f"{backticked(column.name)} {read_as.get(column.name, column.type.text)}" for column in columns)
    return source.model_copy(update={"columns": ddl})


def _folder_names(folders: Sequence[str]) -> list[str]:
    return [f"{_FOLDER}{number}" for number in range(len(folders))]


def _literal(text: str | None) -> str:
    # As bytes: no sign of a file's name has a meaning in them.
    return "CAST(NULL AS STRING)" if text is None else f"CAST(X'{text.encode(errors='replace').hex()}' AS STRING)"


def _read_columns(source: FilesSource) -> list[Column]:
    """LINE (the text line) or the source's own columns; the file as it is read; ROW, the number in it from 0."""
    if source.is_text:
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


def _placed_columns() -> dict[str, Column]:
    """The source order, and whether the file is another than the one that was listed."""
    unknown = F.raise_error(F.lit("a row of a file that is not in this window")).cast("long")
    place = F.shiftleft(F.coalesce(F.col(_ORDINAL), unknown), POSITION_BITS).bitwiseOR(F.col(ROW))
    differs = (F.col(_MODIFIED) != F.col(_LISTED_MS)) | (F.col(_SIZE) != F.col(_LISTED_SIZE))
    return {ORDER: place, CHANGED: differs}


def _completed_columns(source: FilesSource, layout: Layout, expiry: str | None) -> dict[str, Column]:
    """All columns of the source by their declared types; a record with a value that is not of its type is malformed."""
    texts = dict(zip(layout.folders, _folder_names(layout.folders), strict=True))
    read_as = dict(layout.read_as)
    record, all_fit, bad_expiry = [], F.lit(True), F.lit(False)
    for column in source.parsed_columns:
        name, value = column.name, record_column(column)
        if name in texts:
            text = F.col(texts[name])
            value = text.try_cast(column.type.text)
            all_fit &= text.isNull() | value.isNotNull()
        elif name in read_as:
            if column.type.name == "timestamp":  # of ms, see `_far_times`
                us = F.try_multiply(value, F.lit(1000).cast("bigint"))
                fits, cast = value.isNull() | us.isNotNull(), F.timestamp_micros(us)
                if name == expiry:
                    bad_expiry = ~fits
                    value = cast
                    record.append(value.alias(name))
                    continue
            else:
                cast = value.try_cast(column.type.text)
                fits = value.eqNullSafe(cast.try_cast(read_as[name]))
            value = F.when(fits, cast)
            all_fit &= fits
        record.append(value.alias(name))
    is_admitted = F.col(ADMISSION) == int(Admission.ADMITTED)
    admission = (
        F.when(is_admitted & ~all_fit, int(Admission.MALFORMED))
        .when(is_admitted & bad_expiry, int(Admission.BAD_EXPIRY))
        .otherwise(F.col(ADMISSION))
    )
    return {REC: F.struct(*record), ADMISSION: admission.cast("tinyint")}
