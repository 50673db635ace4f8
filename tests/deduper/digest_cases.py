"""Keys of every scalar type, and what Spark says of them: written once, read by two tests.

`python -m tests.deduper.digest_cases` writes tests/data/digest_vectors.json again, from Spark.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

SALT = bytes(range(100, 116))
VECTORS = Path(__file__).parent.parent / "data" / "digest_vectors.json"

_MICROSECOND = timedelta(microseconds=1)

SCALARS: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [0, 1, -1, 127, -128],
    "smallint": [0, -1, 32767, -32768],
    "int": [0, 1, -1, 2**31 - 1, -(2**31)],
    "bigint": [0, 1, -1, 2**63 - 1, -(2**63)],
    "float": [0.0, -0.0, 1.5, -2.25, 0.1, 1e-45, 3.4028234663852886e38, float("nan"), float("inf"), float("-inf")],
    "double": [
        *(0.0, -0.0, 1.0, -1.5, 0.1, 1e22, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 123456.789),
        *(float("nan"), float("inf"), float("-inf")),
    ],
    "decimal(5,2)": [Decimal("0"), Decimal("0.01"), Decimal("-0.01"), Decimal("123.45"), Decimal("-999.99")],
    "decimal(18,18)": [Decimal("0.000000000000000001"), Decimal("-0.999999999999999999")],
    "decimal(18,0)": [Decimal(10**18 - 1), Decimal(-(10**18) + 1)],
    "decimal(19,2)": [Decimal(text) for text in ("0", "1.00", "-1.28", "1.27", "1.28", "-1.29")],
    "decimal(38,0)": [Decimal(0), Decimal(10**38 - 1), Decimal(-(10**38) + 1), Decimal(2**63), Decimal(-(2**63))],
    "decimal(38,38)": [Decimal(0), Decimal("1E-38"), Decimal("-0." + "9" * 38)],
    "date": [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)],
    "timestamp": [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2024, 3, 31, 2, 30, 0, 1, tzinfo=timezone(timedelta(hours=5, minutes=45))),
        datetime(2262, 4, 12, tzinfo=UTC),
    ],
    "timestamp_ntz": [
        datetime.fromisoformat("1970-01-01"),
        datetime.fromisoformat("1969-12-31 23:59:59.999999"),
        datetime.fromisoformat("2024-03-31 02:30:00.000001"),
        datetime.fromisoformat("9999-12-31 23:59:59.999999"),
        datetime.fromisoformat("0001-01-01"),
    ],
    "string": ["", "a", "ab", "c", "é", "e\u0301", "\x00", "日本語 𝄞", "x" * 31, "x" * 32, "x" * 100, "-", "1:-"],
    "binary": [b"", b"\x00", b"\xff\xfe", bytes(range(64))],
}

KEYS: list[tuple[list[str], list[Any]]] = (
    [([name], [value]) for name, values in SCALARS.items() for value in values]
    + [([name], [None]) for name in SCALARS]
    + [
        (["string", "string"], pair)
        for pair in (["a", "bc"], ["ab", "c"], ["", ""], [None, ""], ["", None], [None, None], ["abc", None])
    ]
    + [
        (["bigint", "string", "double"], [7, "k", -0.0]),
        (["bigint", "string", "double"], [7, "k", 0.0]),
        (["bigint", "string", "double"], [7, None, 0.0]),
        (["bigint", "string", "double"], [None, "7", 0.0]),
    ]
)


def literal(value: Any, declared: str) -> Any:
    """The value as a column of its declared type, by way of text where Python's own would be ambiguous."""
    from pyspark.sql import functions as F

    if value is None:
        return F.lit(None).cast(declared)
    if isinstance(value, bytes):
        return F.lit(bytearray(value))
    if declared == "timestamp":
        return F.timestamp_micros(F.lit((value - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND).cast("bigint"))
    if declared == "string":
        return F.lit(value)
    if declared == "timestamp_ntz":
        return F.lit(value.isoformat(sep=" ")).cast(declared)
    return F.lit(repr(value) if isinstance(value, float) else str(value)).cast(declared)


def digests_by_spark(spark: Any) -> list[dict[str, list[str]]]:
    """{"fast": [hi, lo], "secure": [hi, lo]} in 16 hex digits, one for each of KEYS."""
    from pyspark.sql import functions as F

    from deduper.sources.digest_columns import fast_digest
    from tests.spark.catalyst_rules import secure_digest

    answers: list[dict[str, list[str]]] = [{} for _ in KEYS]
    for start in range(0, len(KEYS), 16):
        columns = []
        for types, values in KEYS[start : start + 16]:
            pairs = [
                # A condition on a row keeps Spark from folding constants: real columns go through generated code.
                (F.when(F.col("id") == 0, literal(value, declared)), declared)
                for value, declared in zip(values, types, strict=True)
            ]
            columns += [*fast_digest(pairs, SALT), *secure_digest(pairs, SALT)]
        row = spark.range(1).select(*[column.alias(f"c{index}") for index, column in enumerate(columns)]).first()
        words = [f"{word % 2**64:016x}" for word in row]
        for index in range(len(words) // 4):
            answers[start + index] = {"fast": words[4 * index :][:2], "secure": words[4 * index + 2 :][:2]}
    return answers


def local_session() -> Any:
    """A small session for one test, in a zone that is not UTC: no digest may depend on it."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "America/New_York")
        .getOrCreate()
    )


def main() -> None:
    """Asks Spark and writes the file."""
    answers = digests_by_spark(local_session())
    lines = [
        json.dumps({"types": types, "values": [repr(value) for value in values]} | answer)
        for (types, values), answer in zip(KEYS, answers, strict=True)
    ]
    VECTORS.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
