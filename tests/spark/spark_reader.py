"""How Spark reads texts and Parquet files: the oracle of differential tests. No product code reads by it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from deduper.columns import Column as DeclaredColumn
from deduper.columns import backticked, ddl_of
from deduper.config.files import FilesSource
from deduper.config.kafka.sections import KafkaValue
from deduper.config.model import Config
from deduper.core.clock import POSITION_BITS
from deduper.core.verdict import Admission
from deduper.sources.declared_columns import record_layout
from deduper.sources.digest_columns import fast_digest
from deduper.sources.protocol import SparkRows
from deduper.spark.types import spark_type
from deduper.tasks.layout import ADMISSION, HI, LO, ORDER, RAW, parsed
from tests.spark.catalyst_rules import key_columns, secure_digest

REC, MALFORMED = "_rec", "_malformed"
_TEXT, _CORRUPT, _END, _VALID = "_text", "_dedup_corrupt", "_dedup_end", "_valid"
_BLANKS = " \t\r"
"""What JSON allows around a value, but the line end."""


def with_records(rows: DataFrame, text: Column, source: FilesSource | KafkaValue, *, is_json: bool) -> DataFrame:
    """The rows with REC, which has the fields of the record of each text, and MALFORMED."""
    if is_json:
        rows = rows.withColumn(_TEXT, F.rtrim(text, F.lit(_BLANKS)))
        record, malformed = _json_record(source)
    else:
        rows = rows.withColumn(_TEXT, F.rtrim(text, F.lit("\r")))
        record, malformed = _csv_record(source)
    return rows.withColumn(REC, record).withColumn(MALFORMED, malformed)


def _json_record(source: FilesSource | KafkaValue) -> tuple[Column, Column]:
    """The record of _TEXT, and whether it is malformed.

    Spark reads one object and says nothing of what follows it. So the text is put into an array before a number made
    from it, which no text can hold by accident: where the number is not the second element, the text was not one whole
    value. Only texts with a `}` before their last sign can have something behind their object.
    """
    text = F.col(_TEXT)
    record = F.from_json(
        text,
        _schema(source.parsed_columns, T.StructField(_CORRUPT, T.StringType())),
        {"columnNameOfCorruptRecord": _CORRUPT},
    )
    mark = F.xxhash64(text).cast("string")
    followed = F.get_json_object(F.concat(F.lit("["), text, F.lit(","), mark, F.lit("]")), "$[1]").eqNullSafe(mark)
    has_inner = F.contains(F.substring(text, F.lit(1), F.length(text) - 1), F.lit("}"))
    more = F.when(has_inner, ~followed).otherwise(False)
    return record, F.col(REC).isNull() | F.col(f"{REC}.{_CORRUPT}").isNotNull() | more


def _csv_record(source: FilesSource | KafkaValue) -> tuple[Column, Column]:
    """The record of _TEXT, and whether it is malformed.

    Each line is given one field more, because Spark takes a quote that is never closed for closed at the end: it then
    takes that field with it.
    """
    columns, delimiter, text = source.parsed_columns, source.delimiter, F.col(_TEXT)
    end = _END if delimiter not in _END else "=="
    # A record's missing columns are null: a line with fewer fields is filled up, counting no delimiter inside quotes.
    bare = F.regexp_replace(text, '"[^"]*"', "")
    given = F.length(bare) - F.length(F.replace(bare, F.lit(delimiter), F.lit("")))
    missing = F.greatest(F.lit(0), F.lit(len(columns) - 1) - given)
    filled = F.concat(text, F.repeat(F.lit(delimiter), missing), F.lit(f"{delimiter}{end}"))
    # To Spark's parser U+FFFF is a line end: what follows it would become a part of the next record.
    filled = F.when(~F.contains(text, F.lit("\uffff")), filled)
    # Spark takes a backslash in a delimiter for the beginning of an escape.
    options = {"columnNameOfCorruptRecord": _CORRUPT, "sep": delimiter.replace("\\", "\\\\"), "escape": '"'}
    record = F.from_csv(filled, f"{ddl_of(columns)}, {_END} string, {_CORRUPT} string", options)
    whole = F.col(f"{REC}.{_CORRUPT}").isNull() & F.col(f"{REC}.{_END}").eqNullSafe(end)
    return record, F.col(REC).isNull() | ~whole | (F.trim(text) == "")


def parquet_rows(session: SparkSession, config: Config, salt: bytes, paths: Mapping[int, str]) -> SparkRows:
    """The records of Parquet files, by their ordinals, with the columns of a job's layout."""
    columns = config.source.parsed_columns
    reader = session.read.schema(_schema(columns))
    frames = [
        reader.parquet("file://" + re.sub(r"[*?\[\]{}\\]", r"\\\g<0>", path)).withColumn(
            ORDER, F.lit(ordinal << POSITION_BITS).cast("bigint") + F.col("_metadata.row_index")
        )
        for ordinal, path in paths.items()
    ]
    rows = reduce(DataFrame.unionAll, frames)
    values = {column.name: F.col(backticked(column.name)) for column in columns}
    # Text that is no UTF-8 is null, and an error of its record.
    texts = {column.name: values[column.name] for column in columns if column.type.name == "string"}
    valid = [F.coalesce(F.is_valid_utf8(text), F.lit(True)) for text in texts.values()]
    rows = rows.withColumn(_VALID, reduce(Column.__and__, valid, F.lit(True)))
    rows = rows.withColumns({name: F.try_validate_utf8(text) for name, text in texts.items()})
    keys = [(values[column.name], column.type.text) for column in config.key_columns]
    hi, lo = (fast_digest if config.digest == "fast" else secure_digest)(keys, salt)
    made = {
        HI: hi,
        LO: lo,
        ORDER: F.col(ORDER),
        RAW: F.lit(None).cast("string"),
        **key_columns(config),
        **{parsed(number): value for number, value in enumerate(values.values())},
    }
    invalid = F.lit(int(Admission.INVALID_UTF8)).cast("tinyint")
    made[ADMISSION] = F.when(F.col(_VALID), made[ADMISSION]).otherwise(invalid)
    return SparkRows(rows.select([made[name].alias(name) for name in record_layout(config).schema.names]))


def _schema(columns: Iterable[DeclaredColumn], *more: T.StructField) -> T.StructType:
    """The columns, and `more` behind them."""
    return T.StructType([*(T.StructField(column.name, spark_type(column.type)) for column in columns), *more])
