"""Texts that Spark's parsers must not see: one record of them would hold up or end the window of all others.

- A decimal such as `1e999999999`: Spark computes that power of 10 (13 s for 1e9999999). A value of 1e100000 fits no
  decimal, and one of 1e-100000 is written by nobody. So an exponent of more than five digits is malformed, and so are
  more than 10,000 characters: the time that the digits of a number take grows with their square.
- A CSV line of more fields than `MOST_FIELDS`: Spark's parser throws, in every mode.

A cheap pattern finds the few texts that may be meant, and only those are looked at closely: a text column may hold
`12e3456789`, the beginning of a checksum. `when` is what keeps Spark from looking: an operand of `&` that stands twice
in a plan is evaluated first, needed or not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from deduper.columns import Column as SourceColumn
from deduper.columns import backticked
from deduper.spark.schemas import spark_schema

MOST_FIELDS = 20_480
"""Of a CSV line, with Spark's parser. It throws when a line has more."""

_MOST_DIGITS = 10_000
# Java's: its decimals take the digits of any script, and Spark drops commas from a decimal first. None of the patterns
# repeats a group, which Java matches by recursion: a long text would overflow its stack.
_EXPONENT = r"[eE][+,0-]*+[\p{Nd},]{6}"
_IN_JSON = rf"""[\p{{Nd}}.,]{_EXPONENT}[\p{{Nd}},]*(?=[,"'\s}}\]]|\z)"""
"""With what a number ends with there: few of the checksums and UUIDs do."""
_DIGITS = rf"(?<![\p{{Nd}},.])[\p{{Nd}},.]{{{_MOST_DIGITS}}}"
_ESCAPED = r"[eE][+,0-]*+[\p{Nd},]{0,6}\\u|\\u00(?:2[bBcCdDeE]|3[0-9]|[46]5)"
"""In JSON any sign of a number may be written by its code."""
_NAKED_EXPONENT = r"[0-9.][eE][+-]?0*+[0-9]{6}"


def has_decimals(columns: Sequence[SourceColumn]) -> bool:
    """Whether one of the columns is a decimal, or holds some."""
    return any("decimal(" in column.type.text for column in columns)


def is_costly_json(text: Column, columns: Sequence[SourceColumn]) -> Column:
    """Whether a JSON text has a number that Spark must not compute; also true of one that is no JSON, where it may.

    Names that stand twice are found too: of both values, Spark computes a number.
    """
    may_be = _may_be_costly(text, _IN_JSON) | F.when(F.contains(text, F.lit("\\u")), text.rlike(_ESCAPED)).otherwise(
        False
    )
    # The text as Jackson writes it, with nothing escaped that need not be; numbers that were not quoted are rounded.
    written = F.try_element_at(F.from_json(F.concat(F.lit("["), text, F.lit("]")), "array<string>"), F.lit(1))
    names = "|".join(_named(spark_schema(columns)))
    # What is left without strings: an escaped quote ends none.
    naked = F.regexp_replace(F.regexp_replace(text, r"(?s)\\.", ""), "\"[^\"]*\"|'[^']*'", '""')
    is_costly = written.isNull() | written.rlike(f"(?s){names}") | naked.rlike(_NAKED_EXPONENT)
    return F.when(may_be, is_costly).otherwise(False)


def is_costly_csv(text: Column, filled: Column, columns: Sequence[SourceColumn], options: dict[str, str]) -> Column:
    """Whether a field of a CSV line in a decimal's place is a number that Spark must not compute.

    `filled` is the line with all its fields.
    """
    record = F.from_csv(filled, ", ".join(f"{backticked(column.name)} string" for column in columns), options)
    is_costly = F.lit(False)
    for column in columns:
        if has_decimals([column]):
            field = record.getField(column.name)
            is_costly |= F.coalesce(field.rlike(_EXPONENT) | (F.length(field) > _MOST_DIGITS), F.lit(False))
    return F.when(_may_be_costly(text, _EXPONENT), is_costly).otherwise(False)


def _may_be_costly(text: Column, exponent: str) -> Column:
    long = F.when(F.octet_length(text) >= _MOST_DIGITS, text.rlike(_DIGITS)).otherwise(False)
    return text.rlike(exponent) | long


def has_too_many_fields(text: Column, outside_quotes: Column, count: int, delimiter: str) -> Column:
    """Whether a CSV line may have more fields than Spark's parser takes; it has then more than `count`, or odd quotes.

    `outside_quotes` is the number of its delimiters outside quotes.
    """
    delimiters = F.length(text) - F.length(F.replace(text, F.lit(delimiter), F.lit("")))
    # Where quotes stand for quoted texts, one that touches anything but a delimiter is not the edge of a field.
    other = rf'[^"\Q{delimiter}\E]'
    is_odd = F.regexp_replace(text, '"[^"]*"', '"').rlike(f'{other}"|"{other}')
    most = MOST_FIELDS - 2  # a line is given one field more, and the last has no delimiter
    is_wide = F.when(delimiters >= most, (outside_quotes >= count) | is_odd).otherwise(False)
    return F.when(F.octet_length(text) >= most, is_wide).otherwise(False)


def _named(kind: T.DataType, name: str | None = None) -> Iterator[str]:
    """Patterns of values in written JSON that are to be decimals, by the names they stand behind."""
    if isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _named(field.dataType, field.name)
        return
    begin = "" if name is None else rf"\Q{_in_json(name)}\E:"
    held, has_map = kind, False
    while isinstance(held, (T.ArrayType, T.MapType)):
        has_map |= isinstance(held, T.MapType)
        held = held.elementType if isinstance(held, T.ArrayType) else held.valueType
    if isinstance(held, T.StructType):
        yield from _named(held)
    elif isinstance(held, T.DecimalType):
        if held is kind:
            before, after = '"[^"\\\\]*', ""
        else:
            # Anything that is no name; names of maps may look like anything.
            before, after = (r"[\[{].*" if has_map else r"\[[^{}:]*"), r'[^"\\]*"(?!:)'
        yield f"{begin}{before}{_EXPONENT}{after}"
        yield f'{begin}{before}[^"\\\\]{{{_MOST_DIGITS}}}{after}'


def _in_json(name: str) -> str:
    return json.dumps(name, ensure_ascii=False).replace(r"\E", r"\E\\E\Q")
