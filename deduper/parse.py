"""From records to tuples, in Catalyst: the columns that judging needs, or the reason why a record is an error.

Nothing here fails on bad input. A record that cannot be judged gets a `Fate` and keeps its raw text.
"""

from __future__ import annotations

from decimal import Decimal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deduper.config import CategoryExpiry, Config, EventTimeExpiry, FilesSource
from deduper.ddl import Column as SourceColumn
from deduper.file_source import LINE, is_text
from deduper.verdict import Fate

REC, RAW, FATE, ORDER, CHANGED, EXPIRY, CATEGORY = "_rec", "_raw", "_fate", "_order", "_changed", "_expiry", "_category"
_CORRUPT = "_dedup_corrupt"
_UNIT_US = {"us": 1, "ms": 1_000, "s": 1_000_000}


def parsed(rows: DataFrame, source: FilesSource) -> DataFrame:
    """LINE becomes REC (the source's columns as a struct), RAW (its text) and FATE.

    One physical line is one record. A line that is not UTF-8 keeps its bytes as Base64 in RAW: no text holds them.
    """
    if not is_text(source):
        changed = F.when(F.col(CHANGED), int(Fate.FILE_CHANGED)).otherwise(int(Fate.ADMITTED))
        return rows.select(
            F.col(LINE).alias(REC), F.lit(None).cast("string").alias(RAW), changed.cast("tinyint").alias(FATE), ORDER
        )
    schema = f"{source.columns}, {_CORRUPT} string"
    line = F.col(LINE)
    if source.file_format == "json":
        record = F.from_json(line, schema, {"columnNameOfCorruptRecord": _CORRUPT})
    else:
        text = F.rtrim(line, F.lit("\r"))
        options = {"columnNameOfCorruptRecord": _CORRUPT, "sep": source.delimiter, "mode": "PERMISSIVE"}
        record = F.from_csv(text, schema, options)
    valid = F.is_valid_utf8(line)
    read = rows.withColumn(REC, record).withColumn(RAW, F.when(valid, line).otherwise(F.base64(line.cast("binary"))))
    malformed = F.col(REC).isNull() | F.col(f"{REC}.{_CORRUPT}").isNotNull() | (F.trim(line) == "")
    fate = (
        F.when(F.col(CHANGED), int(Fate.FILE_CHANGED))
        .when(~valid, int(Fate.INVALID_UTF8))
        .when(malformed, int(Fate.MALFORMED))
        .otherwise(int(Fate.ADMITTED))
    )
    record = F.col(REC).dropFields(_CORRUPT).alias(REC)
    return read.select(record, RAW, fate.cast("tinyint").alias(FATE), ORDER)


def with_keys(rows: DataFrame, config: Config) -> DataFrame:
    """Adds EXPIRY or CATEGORY, and gives the tuples that have no key or no expiry key their FATE."""
    fate = F.when(F.col(FATE) != int(Fate.ADMITTED), F.col(FATE))
    if config.null_keys == "error":
        for column in config.key_columns:
            fate = fate.when(record_column(column).isNull(), int(Fate.NULL_KEY))
    expiry_column = config.expiry_column
    if expiry_column is None:
        expiry = F.lit(0).cast("bigint")
    else:
        expiry, bad = _expiry_key(config, expiry_column)
        fate = fate.when(record_column(expiry_column).isNull(), int(Fate.NULL_EXPIRY)).when(bad, int(Fate.BAD_EXPIRY))
    name = CATEGORY if config.expiry.by == "category" else EXPIRY
    return rows.withColumn(name, expiry).withColumn(FATE, fate.otherwise(int(Fate.ADMITTED)).cast("tinyint"))


def record_column(column: SourceColumn) -> Column:
    """A column of the source's record, in its declared type."""
    return F.col(f"{REC}.`{column.name}`")


def _expiry_key(config: Config, column: SourceColumn) -> tuple[Column, Column]:
    """The expiry key as bigint, double or (category) string, and whether a value that is there cannot serve as one."""
    value = record_column(column)
    if isinstance(config.expiry, CategoryExpiry):
        return value.cast("string"), F.lit(False)
    if isinstance(config.expiry, EventTimeExpiry):
        if config.expiry.unit is not None:
            key = F.try_multiply(value.cast("bigint"), F.lit(_UNIT_US[config.expiry.unit]).cast("bigint"))
        else:
            key = F.unix_micros(value.cast("timestamp"))
        return key, key.isNull()
    scale = config.point_scale
    if scale.is_float:
        key = value.cast("double")
        return key, F.isnan(key) | (F.abs(key) == F.lit(float("inf")))
    if scale.scale:
        unscaled = (value * F.lit(Decimal(10) ** scale.scale)).cast("decimal(38,0)")
        return unscaled.cast("bigint"), F.lit(False)
    return value.cast("bigint"), F.lit(False)
