"""Random lines of JSON and CSV, read by our exact parsers and by Spark: each the same record, or malformed for both.

Where we differ on purpose (the decisions at the end of SEMANTICS.md) stands in `_DIFFERENT` and `_DIFFERENT_CSV`. A run
takes a sample of lines, the tier `night` a large one.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import Column, ColumnType, backticked
from deduper.config.files import FilesSource
from deduper.core.digests import key_type
from deduper.spark_promises import TIME_ZONE
from deduper.tasks.readers.path_columns import NoValue, path_value
from deduper.text import block, csv_exact, json_exact
from deduper.text.format import Malformed, TextFormat
from tests import tiers
from tests.deduper.text import csv_lines
from tests.spark.harness import Job
from tests.spark.spark_reader import MALFORMED, REC, with_records

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_SEED = tiers.seed()
_LINES = 300_000 if tiers.is_night() else 6_000
_ZONES = ["UTC", "Europe/Berlin", "America/New_York", "-03:30", "Australia/Lord_Howe", "Asia/Kathmandu"]
_COLUMNS = {
    "s": "string",
    "b": "binary",
    "o": "boolean",
    "t": "tinyint",
    "h": "smallint",
    "i": "int",
    "l": "bigint",
    "f": "float",
    "d": "double",
    "c": "decimal(10,2)",
    "w": "decimal(38,10)",
    "y": "decimal(18,0)",
    "z": "decimal(5,5)",
    "day": "date",
    "at": "timestamp",
    "ntz": "timestamp_ntz",
}

Values = list[Any] | None
"""A record's values, as `json_exact.record` gives them; None: malformed."""
Makes = Callable[[random.Random], str]


# Lines ---------------------------------------------------------------------------------------------------------------

_SIGNS = [*"aZ 09.-+_/=,:;{}[]'\t\x7f\u00e4\u0661\u2028\ufeff\U0001f600", '\\"', "\\\\", "\\/", "\\b", "\\n", "\\u0041"]
_RARE_SIGNS = [
    "\\ud83d\\ude00",
    "\\ud83d",
    "\\ude00",
    "\\u0000",
    "\\'",
    "\\x",
    "\\u12",
    "\x01",
    "\\u00e9",
    "\x00",
    "\\uD83D",
]
_EDGES = [
    0,
    1,
    2**7,
    2**8,
    2**15,
    2**16,
    2**24,
    2**31,
    2**32,
    2**53,
    2**63,
    2**64,
    10**8,
    10**10,
    10**18,
    10**28,
    10**38,
]
_PLACES = [
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kathmandu",
    "Africa/Monrovia",
    "America/Sao_Paulo",
    "Pacific/Apia",
]
_PLACES += [
    "PST",
    "EST",
    "IST",
    "UTC",
    "GMT",
    "UT",
    "Z",
    "z",
    "ROC",
    "Etc/GMT+5",
    "GMT0",
    "Mars/Base",
    "utc",
    "Zulu",
]


def of(*makes: Makes | str) -> Makes:
    """One of these."""

    def make(rnd: random.Random) -> str:
        made = rnd.choice(makes)
        return made if isinstance(made, str) else made(rnd)

    return make


def content(rnd: random.Random) -> str:
    """What may stand between quotes."""
    return "".join(rnd.choice(_RARE_SIGNS if rnd.random() < 0.05 else _SIGNS) for _ in range(rnd.randrange(7)))


def quoted(make: Makes) -> Makes:
    """A string of what is made; some within apostrophes."""
    return lambda rnd: (lambda mark: f"{mark}{make(rnd)}{mark}")("'" if rnd.random() < 0.05 else '"')


def whole(rnd: random.Random) -> str:
    """A whole number, often at an edge."""
    choice = rnd.random()
    if choice < 0.5:
        return str(rnd.choice([1, -1]) * rnd.choice(_EDGES) + rnd.randrange(-2, 3))
    if choice < 0.6:
        return "-0"
    return str(
        rnd.randrange(-(10 ** rnd.choice([1, 3, 5, 10, 19, 25, 39])), 10 ** rnd.choice([1, 3, 5, 10, 19, 25, 39]))
    )


def number(rnd: random.Random) -> str:
    """A number with a point or an exponent, some halfway between two floats or doubles."""
    choice = rnd.random()
    if choice < 0.2:
        return repr(struct.unpack("<d", rnd.randbytes(8))[0]).replace("nan", "1.5").replace("inf", "1e400")
    if choice < 0.3:
        single = struct.unpack("<I", struct.pack("<f", rnd.choice([1, 1e-3, 1e10, 1e-40, 7e37]) * rnd.random()))[0]
        low, high = (struct.unpack("<f", struct.pack("<I", bits))[0] for bits in (single, single + 1))
        halfway = f"{(low + high) / 2:.200f}".rstrip("0") + "0"
        return halfway + rnd.choice(["", "0", "1"]) if rnd.random() < 0.7 else halfway[:-2] + "49"
    text = f"{rnd.randrange(10 ** rnd.choice([1, 2, 8, 17, 30]))}"
    if rnd.random() < 0.8:
        text += f".{rnd.randrange(10 ** rnd.choice([1, 2, 3, 10, 20])):0{rnd.randrange(1, 12)}}"
    if rnd.random() < 0.3:
        text += rnd.choice("eE") + rnd.choice(["", "+", "-"]) + str(rnd.randrange(rnd.choice([3, 12, 30, 330, 1000])))
    return rnd.choice(["", "-"]) + text


def day(rnd: random.Random) -> str:
    """The text of a date, now and then of none."""
    year = rnd.choice(
        ["2024", "1970", "0001", "0000", "1582", "9999", "12024", "-0044", "+1999", "999999", "1", "1234567"]
    )
    parts = [
        year,
        rnd.choice(["01", "2", "02", "12", "13", "0", "10"]),
        rnd.choice(["01", "5", "29", "30", "31", "32", "00"]),
    ]
    return "-".join(parts[: rnd.choice([1, 2, 3, 3, 3, 3, 3])])


def offset(rnd: random.Random) -> str:
    """A zone."""
    parts = [rnd.choice(["01", "1", "5", "05", "18", "19", "00"]), rnd.choice(["00", "30", "5", "59", "60"]), "15"]
    text = rnd.choice("+-") + rnd.choice([":", "", ":"]).join(parts[: rnd.choice([1, 2, 2, 2, 3])])
    return rnd.choice(["", "", "UTC", "GMT", "UT", " "]) + text


def time(rnd: random.Random) -> str:
    """The text of a time, now and then of none; some in gaps and overlaps of a zone's local times."""
    dates = [
        "2024-03-31",
        "2024-10-27",
        "2024-03-10",
        "2024-11-03",
        "2011-12-30",
        "2024-04-07",
        "2024-10-06",
        "1900-01-01",
    ]
    date = day(rnd) if rnd.random() < 0.5 else rnd.choice(dates)
    if rnd.random() < 0.02:
        return rnd.choice(["12:30:00", "T12:30", "1:2:3.5Z", "T", " 12:30", "24:00:00"])
    parts = [rnd.choice(["00", "01", "2", "02", "23", "24"]), rnd.choice(["00", "30", "5", "59", "60"])]
    parts.append(rnd.choice(["00", "07", "9", "59", "60"]))
    clock = ":".join(parts[: rnd.choice([1, 2, 3, 3, 3, 3])])
    clock += rnd.choice(["", "", ".", ".5", ".123456", ".1234567", ".000001"])
    return (
        date + rnd.choice("TTTT  t") + clock + rnd.choice(["", "", "Z", "Z", offset(rnd), rnd.choice(_PLACES), " UTC"])
    )


def base64(rnd: random.Random) -> str:
    """Base64, now and then with a flaw."""
    groups = [rnd.choice(["YWJj", "YQ==", "YWI=", "Y+/j", "YR==", "AAAA"]) for _ in range(rnd.randrange(4))]
    text = rnd.choice(["", "", " ", "\\n", "\t"]).join(groups)
    return text if rnd.random() < 0.8 else mutated(rnd, text, "=YA \\-_\t\x01\u00e4\"'")


def nested(rnd: random.Random, depth: int = 3) -> str:
    """An object or an array."""
    size = rnd.randrange(4)
    values = [scalar(rnd) if rnd.random() < 0.7 or not depth else nested(rnd, depth - 1) for _ in range(size)]
    comma, colon = rnd.choice([",", " , ", ",\t"]), rnd.choice([":", " : "])
    if rnd.random() < 0.5:
        return f"[{comma.join(values)}]"
    return "{" + comma.join(f"{quoted(content)(rnd)}{colon}{value}" for value in values) + "}"


not_finite = of("NaN", "Infinity", "-Infinity", "+Infinity", "INF", "-INF", "+INF", "-NaN", "inf")
word = of("true", "false", "null", "True", "nul", "nulls")
number_in_text = of(
    whole,
    number,
    lambda rnd: f"{rnd.randrange(10**6):,}.{rnd.randrange(100)}",
    "+1",
    ".5",
    "5.",
    "1,,0",
    "\u0661",
    " 1",
)
scalar = of(quoted(content), quoted(content), whole, number, not_finite, word, quoted(day), quoted(time))
anything = of(scalar, nested, quoted(number_in_text), quoted(not_finite), quoted(base64), quoted(word))
_OWN = {
    "s": of(quoted(content), quoted(content), whole, number, not_finite, nested),
    "b": quoted(base64),
    "o": word,
    "f": of(number, number, whole, not_finite, quoted(not_finite)),
    "d": of(number, number, whole, not_finite, quoted(not_finite)),
    "c": of(number, whole, quoted(number_in_text)),
    "w": of(number, whole, quoted(number_in_text)),
    "y": of(number, whole, quoted(number_in_text)),
    "z": of(number, "0.99999", "0.999995", "9.99994e-1", "-0.000005", "4e-6", '"-.12345"', "12345e-5", "0"),
    "day": of(quoted(day), quoted(day), quoted(time)),
    "at": of(quoted(time), quoted(time), quoted(day), whole),
    "ntz": of(quoted(time), quoted(day)),
}


def mutated(rnd: random.Random, text: str, signs: Sequence[str]) -> str:
    """The text with a sign more, less, or another."""
    at = rnd.randrange(len(text) + 1)
    return text[:at] + rnd.choice(["", *signs]) + text[at + rnd.randrange(2) :]


def a_line(rnd: random.Random) -> str:
    """A record of few fields, so that most lines with a flaw have just one."""
    members = []
    for _ in range(rnd.choice([0, 1, 1, 1, 2, 2, 3, 5])):
        name = (
            rnd.choice(list(_COLUMNS)) if rnd.random() < 0.9 else rnd.choice(["more", "S", "", "\\u0073", content(rnd)])
        )
        own = rnd.random() < 0.9
        value = _OWN.get(name, whole)(rnd) if own else anything(rnd)
        blank = rnd.choice(["", "", "", " ", "\t", "\r", "\n"])
        members.append(f"{quoted(lambda _, name=name: name)(rnd)}{blank}:{blank}{value}{blank}")
    line = "{" + rnd.choice([",", ", "]).join(members) + "}"
    choice = rnd.random()
    if choice < 0.08:
        line = mutated(rnd, line, "{}[]\"',:\\ 0-.eE\t\x0b\x00\ufeff/#ntf")
    elif choice < 0.1:
        line = line[: rnd.randrange(len(line))]
    elif choice < 0.12:
        line = (
            rnd.choice(["", " ", "\ufeff", "[", "x"])
            + line
            + rnd.choice(["x", "{}", ",", "]", "}", "\x0b", "\n", "\r"])
        )
    return line


# To make a decimal of such a number, Spark writes out all its digits: minutes for one line.
_HUGE = re.compile(r"[eE][+-]?0*+\d{5}")
_HUGE_CSV = re.compile(r"[eE][+-]?0*+\d{6}")


def lines_of(rnd: random.Random, count: int) -> list[str]:
    """Lines for both readers."""
    lines = (deep(rnd) if rnd.random() < 0.01 else a_line(rnd) for _ in range(count))
    return [line for line in lines if not _HUGE.search(line.replace(",", ""))]


def deep(rnd: random.Random) -> str:
    """A line with something at the edge of a limit."""
    size = rnd.choice([1, 998, 999, 1000, 1001])
    sign = rnd.choice(["", "-"])
    name = rnd.choice(["s", "more", "d", "w"])
    value = rnd.choice(
        [
            "[" * size + "]" * size,
            '[{"a":' * (size // 2) + "1" + "}]" * (size // 2),
            sign + "1" * size,
            f"{sign}1.{'1' * (size - 1)}",
            f"{sign}0.{'0' * (size - 4)}1e1",
            f"{sign}1e-{'0' * (size - 2)}1",
            f'"{"x" * size}"',
        ]
    )
    return f'{{"{name}":{value}}}'


# Both readers --------------------------------------------------------------------------------------------------------


def by_us(lines: Sequence[str], zone: str, source: FilesSource) -> list[Values]:
    """The records of our parser."""
    columns = tuple(map(DeclaredColumn.of, source.parsed_columns))
    is_csv = source.file_format == "csv"
    text = TextFormat(columns, zone, source.delimiter if is_csv else None)
    record = csv_exact.record if is_csv else json_exact.record
    found: list[Values] = []
    for line in lines:
        try:
            found.append(record(line.encode(), text))
        except Malformed:
            found.append(None)
    return found


def by_spark(session: SparkSession, lines: Sequence[str], zone: str, source: FilesSource) -> list[Values]:
    """The records of Spark."""
    table = pa.table({"line": pa.array(lines, pa.string()), "number": pa.array(range(len(lines)), pa.int64())})
    before = session.conf.get(TIME_ZONE)
    session.conf.set(TIME_ZONE, zone)
    try:
        rows = session.createDataFrame(table)
        rows = with_records(rows, F.col("line"), source, is_json=source.file_format == "json")
        columns = [F.col(f"{REC}.{backticked(column.name)}") for column in source.parsed_columns]
        found = rows.select("number", MALFORMED, *columns).toArrow().sort_by("number")
    finally:
        session.conf.set(TIME_ZONE, before or "UTC")
    values = [plain(found[column.name].combine_chunks()) for column in source.parsed_columns]
    return [
        None if is_malformed else record
        for is_malformed, *record in zip(found[MALFORMED].to_pylist(), *values, strict=True)
    ]


def plain(column: pa.Array) -> list[Any]:
    """Days and µs as numbers, a struct as a dict, a map as pairs, all else as it is."""
    if pa.types.is_struct(column.type):
        fields = {field.name: plain(column.field(number)) for number, field in enumerate(column.type)}
        rows = [{name: values[row] for name, values in fields.items()} for row in range(len(column))]
        return [row if is_there else None for row, is_there in zip(rows, column.is_valid().to_pylist(), strict=True)]
    if pa.types.is_nested(column.type):
        is_map = pa.types.is_map(column.type)
        items: list[Any] = plain(column.items if is_map else column.values)
        items = list(zip(column.keys.to_pylist(), items, strict=True)) if is_map else items
        places = zip(column.is_valid().to_pylist(), column.offsets[:-1], column.offsets[1:], strict=True)
        return [items[begin.as_py() : end.as_py()] if is_there else None for is_there, begin, end in places]
    if pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return list(column.to_pylist())


def shown(values: Values) -> list[str] | None:
    """For comparison: NaN is NaN, -0.0 is not 0.0, a decimal has its scale."""
    return None if values is None else [repr(value) for value in values]


_DIFFERENT: dict[str, Callable[[str, Values, Values], bool]] = {}
"""By the reason: whether it explains that Spark's answer to a line differs from ours."""


def different(reason: str) -> Callable[[Any], Any]:
    """Adds to `_DIFFERENT`."""

    def add(explains: Callable[[str, Values, Values], bool]) -> Any:
        _DIFFERENT[reason] = explains
        return explains

    return add


def is_given(name: str, value: str, line: str) -> bool:
    """Whether a field of the line has a value of that pattern."""
    return bool(re.search(rf"[\"']{name}[\"']\s*:\s*({value})\s*[,}}]", line))


@different("tinyint 128 to 255 are the negative numbers of their bits")
def _(line: str, spark: Values, ours: Values) -> bool:
    return ours is None and is_given("t", "12[89]|1[3-9][0-9]|2[0-4][0-9]|25[0-5]", line)


@different("seconds that no timestamp can hold wrap around")
def _(line: str, spark: Values, ours: Values) -> bool:
    return ours is None and is_given("at", "-?[0-9]{13,19}", line)


@different("a text that is no date is a number of days")
def _(line: str, spark: Values, ours: Values) -> bool:
    return ours is None and is_given("day", "[\"'][+-]?\\d+[\"']", line)


@different("a time without a date is one of today")
def _(line: str, spark: Values, ours: Values) -> bool:
    return ours is None and is_given("at", "[\"'][\\s\x7f]*(T[0-9]|[0-9]{1,2}:).*?[\"']", line)


@different("a sign beyond ASCII in an escape is the hex digit of its last byte")
def _(line: str, spark: Values, ours: Values) -> bool:
    return ours is None and bool(re.search(r"\\u[0-9A-Fa-f]{0,3}[^\x00-\x7f]", line))


@different("NaN and infinities without quotes need a line without a closing brace before its end")
def _(line: str, spark: Values, ours: Values) -> bool:
    return spark is None and "}" in line.rstrip(" \t\r")[:-1] and bool(re.search("NaN|INF|Infinity", line))


@different("1000 objects and arrays within one another, one of them an object more")
def _(line: str, spark: Values, ours: Values) -> bool:
    return spark is None and "}" in line[:-1] and line.count("[") + line.count("{") == json_exact.MOST_NESTED


@different("before Java 19, a double's text has more digits than it needs")
def _(line: str, spark: Values, ours: Values) -> bool:
    if spark is None or ours is None or shown(spark[1:]) != shown(ours[1:]):
        return False
    return with_doubles(spark[0]) == with_doubles(ours[0])


def with_doubles(text: str) -> str:
    """The text, its numbers with a point as Python writes them."""
    return re.sub(r"-?[0-9]+\.[0-9]+(E-?[0-9]+)?", lambda found: repr(float(found[0])), text)


def test_each_line_is_read_as_spark_reads_it(new_job: Callable[..., Job], session: SparkSession) -> None:
    """Random records, with flaws and without: the same values, or malformed for both."""
    rnd = random.Random(f"text {_SEED}")
    ddl = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
    source = new_job(source={"file_format": "json", "schema": ddl}, key="s").config.source
    assert isinstance(source, FilesSource)
    zones = _ZONES if _LINES > 100_000 else ["UTC", rnd.choice(_ZONES[1:])]
    seen: Counter[str] = Counter()
    wrong = []
    for zone in zones:
        lines = lines_of(rnd, _LINES // len(zones))
        spark = by_spark(session, lines, zone, source)
        for line, theirs, ours in zip(lines, spark, by_us(lines, zone, source), strict=True):
            seen["malformed" if ours is None else "records"] += 1
            if shown(theirs) == shown(ours):
                continue
            reason = next((reason for reason, explains in _DIFFERENT.items() if explains(line, theirs, ours)), None)
            if reason is None:
                wrong.append((zone, line[:300], only_different(theirs, ours)))
            else:
                seen[reason] += 1
    print(f"\nseed {_SEED}: {json.dumps(seen, indent=1)}")
    assert wrong[:20] == [], f"seed {_SEED}: {len(wrong)} of {_LINES} lines"
    assert min(seen["records"], seen["malformed"]) > _LINES // 10


# Nested columns ------------------------------------------------------------------------------------------------------

_NESTED_DDL = (
    "k string, s struct<s:string,b:binary,o:boolean,t:tinyint,l:bigint,f:float,c:decimal(10,2),day:date,at:timestamp,"
    "ntz:timestamp_ntz,more:struct<d:double,`na me`:string>>, a array<bigint>, b array<struct<i:int,x:array<string>>>, "
    "m map<string,decimal(10,2)>, n map<string,struct<at:timestamp,e:array<binary>>>, l array<array<date>>"
)
_MADE = {"string": "s", "binary": "b", "boolean": "o", "float": "f", "double": "d", "decimal": "c", "date": "day"}
_MADE |= {"timestamp": "at", "timestamp_ntz": "ntz"}
_DIFFERENT_NESTED: dict[str, Callable[[str, Values, Values], bool]] = {
    "numbers of another size": lambda line, spark, ours: (
        ours is None and bool(re.search(r"(?<!\d)(12[89]|1[3-9]\d|2[0-4]\d|25[0-5]|\d{13,19})(?!\d)", line))
    ),
    "days since 1970": lambda line, spark, ours: ours is None and bool(re.search("[\"'][+-]?\\d+[\"']", line)),
    "today": lambda line, spark, ours: ours is None and bool(re.search("[\"'][\\s\x7f]*(T[0-9]|[0-9]{1,2}:)", line)),
    "a name twice in a map": lambda line, spark, ours: (
        spark is not None and ours is not None and shown([last_values(spark)]) == shown([last_values(ours)])
    ),
    "texts of doubles": lambda line, spark, ours: (
        with_doubles(repr(last_values(spark))) == with_doubles(repr(last_values(ours)))
    ),
}


def last_values(value: Any) -> Any:
    """Maps with the last value of each name."""
    if isinstance(value, dict):
        return {name: last_values(item) for name, item in value.items()}
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return [(name, last_values(item)) for name, item in dict(value).items()]
    return [last_values(item) for item in value] if isinstance(value, list) else value


def typed(kind: ColumnType, rnd: random.Random) -> str:
    """A value of a type, now and then of none."""
    choice = rnd.random()
    if choice < 0.04:
        return rnd.choice(["null", anything(rnd)])
    blank = rnd.choice(["", "", "", " ", "\t"])
    if kind.is_scalar:
        return _OWN.get(_MADE.get(kind.name, ""), of(whole, lambda rnd: str(rnd.randrange(128))))(rnd)
    if kind.name == "array":
        values = [typed(kind.parts[0].type, rnd) for _ in range(rnd.randrange(4))]
        return f"[{blank}{f'{blank},{blank}'.join(values)}{blank}]"
    if kind.name == "map":
        names = [quoted(content)(rnd) for _ in range(rnd.randrange(4))]
        fields = [f"{name}:{blank}{typed(kind.parts[1].type, rnd)}" for name in names]
    else:
        parts = rnd.sample(kind.parts, min(len(kind.parts), rnd.randrange(4)))
        fields = [f'"{part.name}"{blank}:{typed(part.type, rnd)}' for part in parts]
        if rnd.random() < 0.1:
            fields.append(f"{quoted(content)(rnd)}:{anything(rnd)}")
    fields += [rnd.choice(fields)] if fields and rnd.random() < 0.05 else []
    return f"{{{blank}{f'{blank},'.join(fields)}{blank}}}"


def nested_line(columns: Sequence[Column], rnd: random.Random) -> str:
    """A record of one or two nested columns, now and then with a flaw."""
    chosen = rnd.sample(columns, rnd.choice([1, 1, 2]))
    line = "{" + ",".join(f'"{column.name}":{typed(column.type, rnd)}' for column in chosen) + "}"
    return mutated(rnd, line, "{}[]\"',:\\ 0-.e\t") if rnd.random() < 0.05 else line


def test_nested_columns_are_read_as_spark_reads_them(new_job: Callable[..., Job], session: SparkSession) -> None:
    """Structs, arrays and maps within one another: by the exact parser, and by the kernel in front of it."""
    rnd = random.Random(f"nested {_SEED}")
    source = new_job(source={"file_format": "json", "schema": _NESTED_DDL}, key="k").config.source
    assert isinstance(source, FilesSource)
    zone = rnd.choice(_ZONES)
    lines = [nested_line(source.parsed_columns, rnd) for _ in range(_LINES // 2)]
    lines = [line for line in lines if not _HUGE.search(line.replace(",", "")) and "\n" not in line]
    ours = by_us(lines, zone, source)
    columns = tuple(map(DeclaredColumn.of, source.parsed_columns))
    starts, ends, _ = block.lines(data := "".join(f"{line}\n" for line in lines).encode())
    parsed = block.parse(data, starts, ends, TextFormat(columns, zone), range(len(columns)))
    by_kernel = zip(parsed.malformed, *(plain(parsed.columns[number]) for number in range(len(columns))), strict=True)
    seen: Counter[str] = Counter()
    wrong = []
    for line, theirs, exact, whole in zip(lines, by_spark(session, lines, zone, source), ours, by_kernel, strict=True):
        assert shown(exact) == shown(None if whole[0] else list(whole[1:])), line
        seen["malformed" if exact is None else "records"] += 1
        if shown(theirs) == shown(exact):
            continue
        explained = {**_DIFFERENT, **_DIFFERENT_NESTED}
        reason = next((reason for reason, explains in explained.items() if explains(line, theirs, exact)), None)
        if reason is None:
            wrong.append((zone, line[:300], only_different(theirs, exact)))
        else:
            seen[reason] += 1
    print(f"\nseed {_SEED}: {json.dumps(seen, indent=1)}")
    assert parsed.slow_lines < len(lines) // 2
    assert wrong[:20] == [], f"seed {_SEED}: {len(wrong)} of {len(lines)} lines"
    assert min(seen["records"], seen["malformed"]) > len(lines) // 10


# Texts of folders ----------------------------------------------------------------------------------------------------

_CAST_TEXTS: dict[str, Makes] = {
    "boolean": of("true", "FALSE", "t", "F", "yes", "No", "y", "n", "1", "0", "on", "tr\u00fce", "\u212a"),
    **dict.fromkeys(
        ("tinyint", "smallint", "int", "bigint"), of(whole, whole, number_in_text, lambda rnd: f"0{whole(rnd)}")
    ),
    **dict.fromkeys(
        ("float", "double"), of(number, whole, number_in_text, not_finite, "inf", "-INFINITY", "+Nan", "1d", "2F")
    ),
    **dict.fromkeys(("decimal(10,2)", "decimal(38,10)"), of(number, whole, number_in_text)),
    "date": of(day, day, time),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), of(time, time, day)),
    "binary": content,
}


def test_texts_that_stand_alone_are_cast_as_by_spark(session: SparkSession) -> None:
    """As names of folders have them: of every type, with flaws and without."""
    rnd = random.Random(f"casts {_SEED}")
    zone = rnd.choice(_ZONES)
    wrong, values = [], 0
    session.conf.set(TIME_ZONE, zone)
    try:
        for ddl, make in _CAST_TEXTS.items():
            texts = [
                rnd.choice(["", "", " ", "\t", "\x7f", "\u00a0"]) + make(rnd) + rnd.choice(["", "", "", " "])
                for _ in range(_LINES // 10)
            ]
            texts = [mutated(rnd, text, "+-. 0e\x00:TZ") if rnd.random() < 0.1 else text for text in texts]
            texts = [text for text in texts if not _HUGE.search(text)]
            frame = session.createDataFrame(pa.table({"n": range(len(texts)), "text": pa.array(texts, pa.string())}))
            found = frame.select("n", F.col("text").try_cast(ddl).alias("value")).toArrow().sort_by("n")
            for text, theirs in zip(texts, plain(found["value"].combine_chunks()), strict=True):
                ours = path_value(text, key_type(ddl), zone)
                ours = None if isinstance(ours, NoValue) else ours
                values += ours is not None
                is_known = bool(re.search("0[xX]", text)) or (
                    ddl == "timestamp" and bool(re.match(r"[\s\x7f]*(T[0-9]|[0-9]{1,2}:)", text))
                )
                if repr(theirs) != repr(ours) and not (is_known and ours is None):
                    wrong.append((ddl, zone, text, theirs, ours))
    finally:
        session.conf.set(TIME_ZONE, "UTC")
    assert wrong[:20] == [], f"seed {_SEED}: {len(wrong)} texts"
    assert values > _LINES // 10


def only_different(theirs: Values, ours: Values) -> Any:
    """What a person needs to see: Spark's values that differ, and ours."""
    if theirs is None or ours is None:
        return ("malformed" if theirs is None else theirs, "malformed" if ours is None else ours)
    return [(x, y) for x, y in zip(theirs, ours, strict=True) if repr(x) != repr(y)]


# CSV -----------------------------------------------------------------------------------------------------------------

_CSV_SCHEMAS = [
    "s string",
    "s string, more string",
    "s string, b binary, o boolean, t tinyint, h smallint, i int, l bigint",
    "f float, d double, c decimal(10,2), w decimal(38,10), y decimal(18,0), z decimal(5,5)",
    "day date, `at` timestamp, ntz timestamp_ntz, s string",
]
_DIFFERENT_CSV: dict[str, Callable[[str, FilesSource, Values], bool]] = {
    "U+FFFF is a line end": lambda line, source, spark: "\uffff" in line and spark is None,
    "U+0000 in quotes is left out": lambda line, source, spark: "\0" in line and '"' in line,
    "a byte order mark is left out of a task's first line": lambda line, source, spark: line.startswith("\ufeff"),
    "numbers in hexadecimal digits": lambda line, source, spark: bool(re.search("0[xX]", line)) and spark is not None,
    "a time without a date is one of today": lambda line, source, spark: (
        "timestamp" in source.columns
        and bool(re.search(rf'(?:^|["{re.escape(source.delimiter)}])[\\s\x7f]*(T[0-9]|[0-9]{{1,2}}:)', line))
    ),
    "quotes and a delimiter of two UTF-16 units": lambda line, source, spark: (
        source.delimiter > "\uffff" and '"' in line
    ),
}
"""By the reason: whether it explains that Spark's answer to a line differs from ours."""


def test_each_line_of_csv_is_read_as_spark_reads_it(new_job: Callable[..., Job], session: SparkSession) -> None:
    """Random records, with flaws and without: the same values, or malformed for both."""
    rnd = random.Random(f"csv {_SEED}")
    seen: Counter[str] = Counter()
    wrong = []
    for number, ddl in enumerate(_CSV_SCHEMAS):
        for delimiter in (
            {rnd.choice(csv_lines.DELIMITERS), ","} if _LINES > 100_000 else {rnd.choice(csv_lines.DELIMITERS)}
        ):
            settings = {"file_format": "csv", "schema": ddl, "delimiter": delimiter}
            key = ddl.partition(" ")[0]
            source = new_job(f"{number} {ord(delimiter)}", source=settings, key=key).config.source
            assert isinstance(source, FilesSource)
            zone = rnd.choice(_ZONES)
            lines = csv_lines_of(rnd, ddl, delimiter, zone, _LINES // len(_CSV_SCHEMAS))
            spark = by_spark(session, lines, zone, source)
            for line, theirs, ours in zip(lines, spark, by_us(lines, zone, source), strict=True):
                seen["malformed" if ours is None else "records"] += 1
                if shown(theirs) == shown(ours):
                    continue
                explained = (reason for reason, explains in _DIFFERENT_CSV.items() if explains(line, source, theirs))
                reason = next(explained, None)
                if reason is None:
                    wrong.append((ddl, delimiter, zone, line[:300], only_different(theirs, ours)))
                else:
                    seen[reason] += 1
    print(f"\nseed {_SEED}: {json.dumps(seen, indent=1)}")
    assert wrong[:20] == [], f"seed {_SEED}: {len(wrong)} lines"
    assert min(seen["records"], seen["malformed"]) > _LINES // 10


def csv_lines_of(rnd: random.Random, ddl: str, delimiter: str, zone: str, count: int) -> list[str]:
    """So many lines, all of them UTF-8, in any order."""
    text = csv_lines.csv_format(ddl, delimiter, zone)
    lines: list[str] = []
    while len(lines) < count:
        block = csv_lines.block_of(text, 400, rnd.getrandbits(32)).tobytes()
        some = block.decode(errors="replace").split("\n")[:-1]
        lines += [line for line in some if "\ufffd" not in line and not _HUGE_CSV.search(line)]
    rnd.shuffle(lines)
    return lines[:count]
