"""From records to tuples, in Catalyst: the columns that judging needs, or the reason why a record is an error.

Nothing here fails on bad input. A record that cannot be judged gets a `Admission` and keeps its raw text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from deduper.columns import Column as SourceColumn
from deduper.columns import ddl_of, quoted
from deduper.config.expiry import CategoryExpiry, EventTimeExpiry
from deduper.config.files import FilesSource
from deduper.config.kafka.sections import KafkaValue
from deduper.config.model import Config
from deduper.core.verdict import Admission
from deduper.sources.text_limits import (
    MOST_FIELDS,
    has_decimals,
    has_too_many_fields,
    is_costly_csv,
    is_costly_json,
)
from deduper.spark.columns import Added, Selected
from deduper.spark.schemas import spark_schema
from deduper.tasks.layout import ADMISSION, CATEGORY, EXPIRY, ORDER, RAW
from deduper.units import UNIT_US

LINE, ROW = "_line", "_row"
REC, CHANGED = "_rec", "_changed"
VALID = "_valid"
"""A step of parsing: whether a record's text is UTF-8."""
_TEXT, _INNER, _CORRUPT, _END = "_text", "_inner", "_dedup_corrupt", "_dedup_end"
_OWN_FIELDS = {"json": (_CORRUPT,), "csv": (_END, _CORRUPT)}
_BOM = "\ufeff"
_TO_THE_END = 2**31 - 1
_BLANKS = " \t\r"
"""What JSON allows around a value, but the line end."""


class Steps:
    """Columns that are added, one group after another, and those that are left then.

    Made once and applied to the rows of every window: to make them takes hundreds of calls to the JVM.
    """

    def __init__(self, session: SparkSession, added: Sequence[Mapping[str, Column]], left: Sequence[Column]) -> None:
        self._added = [Added(session, columns) for columns in added]
        self._left = Selected(session, left)

    def of(self, rows: DataFrame) -> DataFrame:
        """The rows with the columns that are left."""
        for columns in self._added:
            rows = columns.to(rows)
        return self._left.of(rows)


def file_parsing(session: SparkSession, source: FilesSource, kept: Sequence[Column] = ()) -> Steps:
    """LINE becomes REC (the source's columns as a struct), RAW (its text) and ADMISSION; ORDER and `kept` stay.

    One physical line is one record. A line that is not UTF-8 keeps its bytes as Base64 in RAW: no text holds them.
    """
    order = F.col(ORDER)
    if not source.is_text:
        changed = F.when(F.col(CHANGED), int(Admission.FILE_CHANGED)).otherwise(int(Admission.ADMITTED))
        raw = F.lit(None).cast("string")
        left = (F.col(LINE).alias(REC), raw.alias(RAW), changed.cast("tinyint").alias(ADMISSION), order, *kept)
        return Steps(session, (), left)
    line = F.col(LINE)
    # A byte order mark belongs to the file and not to its first record: as a part of it, it would make another key.
    text = F.when((F.col(ROW) == 0) & line.startswith(_BOM), F.substring(line, 2, _TO_THE_END)).otherwise(line)
    given, record, malformed = text_record(text, source.file_format == "json", source)
    given[VALID] = F.is_valid_utf8(line)
    raw = F.when(F.col(VALID), line).otherwise(F.base64(line.cast("binary")))
    admission = (
        F.when(F.col(CHANGED), int(Admission.FILE_CHANGED))
        .when(~F.col(VALID), int(Admission.INVALID_UTF8))
        .when(malformed, int(Admission.MALFORMED))
        .otherwise(int(Admission.ADMITTED))
    )
    bare = bare_record(source.file_format == "json").alias(REC)
    left = (bare, F.col(RAW), admission.cast("tinyint").alias(ADMISSION), order, *kept)
    return Steps(session, (given, {REC: record, RAW: raw}), left)


def text_record(
    text: Column, is_json: bool, source: FilesSource | KafkaValue
) -> tuple[dict[str, Column], Column, Column]:
    """Columns to compute of a text first, the record made of them, and whether it (REC then) is malformed.

    All expressions over the whole text are in the first: there its bytes are at hand and need not be copied.
    """
    # `rtrim` takes an array of numbers for every text, so it is kept for those that need it.
    if is_json:
        crlf = F.endswith(text, F.lit("}\r"))
        trimmed = F.when(F.endswith(text, F.lit("}")), text).when(crlf, _without_last(text, F.lit(1)))
        # Looked for in bytes: to find a sign's place, or to count signs, takes a comparison for each of them.
        but_last = _without_last(text, F.when(crlf, 2).otherwise(1))
        given = {_TEXT: trimmed.otherwise(F.rtrim(text, F.lit(_BLANKS))), _INNER: F.contains(but_last, F.lit("}"))}
        return given, *_json_record(source)
    trimmed = F.when(F.endswith(text, F.lit("\r")), F.rtrim(text, F.lit("\r"))).otherwise(text)
    return {_TEXT: trimmed}, *_csv_record(source)


def _without_last(text: Column, count: Column) -> Column:
    """A text but for its last bytes, be they a part of a sign."""
    return F.substring(text.cast("binary"), F.lit(1), F.octet_length(text) - count).cast("string")


def bare_record(is_json: bool) -> Column:
    """REC without the fields that only tell whether it is malformed."""
    return F.col(REC).dropFields(*_OWN_FIELDS["json" if is_json else "csv"])


def _json_record(source: FilesSource | KafkaValue) -> tuple[Column, Column]:
    """The record of _TEXT, and whether it is malformed.

    Spark reads one object and says nothing of what follows it. So the text is put into an array before a number made
    from it, which no text can hold by accident: where the number is not the second element, the text was not one whole
    value. Only texts with a `}` before their last byte (_INNER) can have something behind their object; few flat
    records do.
    """
    text = F.col(_TEXT)
    # Not where the text is made: a plan with `from_json` is not compiled as a whole.
    read = F.when(~is_costly_json(text, source.parsed_columns), text) if has_decimals(source.parsed_columns) else text
    record = F.from_json(
        read,
        spark_schema(source.parsed_columns, T.StructField(_CORRUPT, T.StringType())),
        {"columnNameOfCorruptRecord": _CORRUPT},
    )
    mark = F.xxhash64(text).cast("string")
    followed = F.get_json_object(F.concat(F.lit("["), text, F.lit(","), mark, F.lit("]")), "$[1]").eqNullSafe(mark)
    more = F.when(F.col(_INNER), ~followed).otherwise(False)
    return record, F.col(REC).isNull() | F.col(f"{REC}.{_CORRUPT}").isNotNull() | more


def _csv_record(source: FilesSource | KafkaValue) -> tuple[Column, Column]:
    """The record of _TEXT, and whether it is malformed.

    Quotes are doubled inside quoted fields (RFC 4180), as our own CSV ports write them. Each line is given one field
    more, because Spark takes a quote that is never closed for closed at the end: it then takes that field with it.
    """
    end = _END if source.delimiter not in _END else "=="
    text = F.col(_TEXT)
    # A record's missing columns are null: a line with fewer fields is filled up, counting no delimiter inside quotes.
    bare = F.when(F.instr(text, '"') > 0, F.regexp_replace(text, '"[^"]*"', "")).otherwise(text)
    given = F.length(bare) - F.length(F.replace(bare, F.lit(source.delimiter), F.lit("")))
    missing = F.greatest(F.lit(0), F.lit(len(source.parsed_columns) - 1) - given)
    filled = F.concat(text, F.repeat(F.lit(source.delimiter), missing), F.lit(f"{source.delimiter}{end}"))
    columns = source.parsed_columns
    # To Spark's parser U+FFFF is a line end: what follows it would become a part of the next record.
    refused = F.contains(text, F.lit("\uffff")) | has_too_many_fields(text, given, len(columns), source.delimiter)
    filled = F.when(~refused, filled)
    schema = f"{ddl_of(columns)}, {_END} string, {_CORRUPT} string"
    # Spark takes a backslash in a delimiter for the beginning of an escape.
    separator = source.delimiter.replace("\\", "\\\\")
    options = {"columnNameOfCorruptRecord": _CORRUPT, "sep": separator, "escape": '"', "mode": "PERMISSIVE"}
    options["maxColumns"] = str(max(MOST_FIELDS, len(columns) + 1))
    if has_decimals(columns):
        filled = F.when(~is_costly_csv(text, filled, columns, options), filled)
    record = F.from_csv(filled, schema, options)
    whole = F.col(f"{REC}.{_CORRUPT}").isNull() & F.col(f"{REC}.{_END}").eqNullSafe(end)
    return record, F.col(REC).isNull() | ~whole | (F.trim(text) == "")


def key_columns(
    config: Config, value_of: Callable[[SourceColumn], Column] | None = None, *, may_be_error: bool = True
) -> dict[str, Column]:
    """EXPIRY or CATEGORY, and the ADMISSION of tuples that have no key or no expiry key.

    `value_of` gives a column of the source; by default a field of REC. `may_be_error`: a tuple may have another
    ADMISSION already.
    """
    value_of = value_of or record_column
    admission = F.lit(int(Admission.ADMITTED))
    expiry_column = config.expiry_column
    # The first that is true counts, so the last comes first.
    if expiry_column is None:
        expiry = F.lit(0).cast("bigint")
    else:
        expiry, bad = _expiry_key(config, value_of(expiry_column))
        admission = F.when(bad, int(Admission.BAD_EXPIRY)).otherwise(admission)
        admission = F.when(value_of(expiry_column).isNull(), int(Admission.NULL_EXPIRY)).otherwise(admission)
    if config.null_keys == "error":
        for column in config.key_columns:
            admission = F.when(value_of(column).isNull(), int(Admission.NULL_KEY)).otherwise(admission)
    if may_be_error:
        is_error = F.col(ADMISSION) != int(Admission.ADMITTED)
        admission = F.when(is_error, F.col(ADMISSION)).otherwise(admission)
    name = CATEGORY if config.expiry.by == "category" else EXPIRY
    return {name: expiry, ADMISSION: admission.cast("tinyint")}


def record_column(column: SourceColumn) -> Column:
    """A column of the source's record, in its declared type."""
    return F.col(f"{REC}.{quoted(column.name)}")


def _expiry_key(config: Config, value: Column) -> tuple[Column, Column]:
    """The expiry key as bigint, double or (category) string, and whether a value that is there cannot serve as one."""
    if isinstance(config.expiry, CategoryExpiry):
        return value.cast("string"), F.lit(False)
    if isinstance(config.expiry, EventTimeExpiry):
        if config.expiry.unit is not None:
            key = F.try_multiply(value.cast("bigint"), F.lit(UNIT_US[config.expiry.unit]).cast("bigint"))
        else:
            key = F.unix_micros(value.cast("timestamp"))
        return key, key.isNull()
    scale = config.expiry_key_scale
    if scale.is_float:
        key = value.cast("double")
        return key, F.isnan(key) | (F.abs(key) == F.lit(float("inf")))
    if scale.scale:
        unscaled = (value * F.lit(Decimal(10) ** scale.scale)).cast("decimal(38,0)")
        return unscaled.cast("bigint"), F.lit(False)
    return value.cast("bigint"), F.lit(False)
