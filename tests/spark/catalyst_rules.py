"""The rules of keys and expiry keys as Catalyst expressions: said once more, in another engine.

`tasks.readers.declared` has them in the product, for columns of Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from pyspark.sql import Column
from pyspark.sql import functions as F

from deduper.columns import Column as DeclaredColumn
from deduper.columns import ColumnType, backticked
from deduper.config.model import Config
from deduper.config.sections import CategoryExpiry, EventTimeExpiry
from deduper.core.digests import check_salt, key_type
from deduper.core.verdict import Admission
from deduper.sources.digest_columns import not_zero
from deduper.tasks.layout import ADMISSION, CATEGORY, EXPIRY
from deduper.units import UNIT_US

_DAY_US = 86_400_000_000


def key_columns(config: Config) -> dict[str, Column]:
    """EXPIRY or CATEGORY, and the ADMISSION of rows that have no key or no expiry key."""
    admission = F.lit(int(Admission.ADMITTED))
    # The first that is true counts, so the last comes first.
    if config.expiry_column is None:
        expiry = F.lit(0).cast("bigint")
    else:
        value = _value(config.expiry_column)
        expiry, bad = _expiry_key(config, value)
        admission = F.when(bad, int(Admission.BAD_EXPIRY)).otherwise(admission)
        admission = F.when(value.isNull(), int(Admission.NULL_EXPIRY)).otherwise(admission)
    if config.null_keys == "error":
        for column in config.key_columns:
            admission = F.when(_value(column).isNull(), int(Admission.NULL_KEY)).otherwise(admission)
    name = CATEGORY if config.expiry.by == "category" else EXPIRY
    return {name: expiry, ADMISSION: admission.cast("tinyint")}


def _expiry_key(config: Config, value: Column) -> tuple[Column, Column]:
    """The expiry key as bigint, double or (category) string, and whether a present value cannot be one."""
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


def _value(column: DeclaredColumn) -> Column:
    return F.col(backticked(column.name))


def secure_digest(columns: Sequence[tuple[Column, str]], salt: bytes) -> tuple[Column, Column]:
    """(hi, lo) as bigint, of (column, declared type) pairs: the first 16 bytes of a salted SHA-256, word by word.

    The two words go through xxhash64, which maps 8 bytes to a bigint one to one.
    """
    check_salt(salt)
    parts = [_part(column, key_type(declared)) for column, declared in columns]
    sha = F.unhex(F.sha2(F.concat(F.lit(bytearray(salt)), *parts), 256))
    return not_zero(F.xxhash64(F.substring(sha, 1, 8)), F.xxhash64(F.substring(sha, 9, 8)))


def _part(column: Column, kind: ColumnType) -> Column:
    text = _text(column, kind)
    length = F.concat(F.octet_length(text).cast("string"), F.lit(":")).cast("binary")
    return F.coalesce(F.concat(length, text), F.lit(bytearray(b"-")))


def _text(column: Column, kind: ColumnType) -> Column:
    """The text of a value as binary, null for null; see `digests`."""
    match kind.name:
        case "binary":
            return column
        case "string" | "boolean" | "tinyint" | "smallint" | "int" | "bigint":
            text = column
        case "date":
            text = F.unix_date(column)
        case "timestamp":
            text = F.unix_micros(column)
        case "timestamp_ntz":
            text = _ntz_micros(column)
        case "decimal":
            # A cast to string writes small ones with or without an exponent, as spark.sql.ansi.enabled says.
            text = _formatted(column, "%s", column)
        case _:
            number = column.cast("double")
            # -0.0 = 0.0 holds, and then the literal is taken.
            number = F.when(number == 0, F.lit(0.0)).otherwise(number)
            text = _formatted(column, "%a", number)
    return text.cast("string").cast("binary")


def _formatted(column: Column, form: str, value: Column) -> Column:
    # Without the check a null would become the text "null".
    return F.when(column.isNotNull(), F.format_string(form, value))


def _ntz_micros(column: Column) -> Column:
    """Microseconds since 1970-01-01 on a clock without a zone; Spark has none but by way of the session's zone."""
    second_us = (F.date_part(F.lit("SECOND"), column) * 1_000_000).cast("bigint")
    in_day = (F.hour(column).cast("bigint") * 60 + F.minute(column)) * 60_000_000 + second_us
    return F.unix_date(column.cast("date")).cast("bigint") * _DAY_US + in_day
