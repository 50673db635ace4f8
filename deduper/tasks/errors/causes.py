"""The likely causes of many errors, from a sample of their records: a wrong name, unit, format, encoding or header.

They are for a warning, and decide nothing. They quote no value of a record, but the name of its field if that is near
the name of a declared column.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyarrow import parquet

from deduper.core.verdict import REASONS, Admission
from deduper.log_formats import LOGS
from deduper.tasks.errors.detail import BYTE_ORDER_MARK, ErrorDetails, LineDetails, bytes_of, signature, wrong_line
from deduper.text.values import WHOLE_BITS, Token, timestamp_of
from deduper.text.wrong import masked
from deduper.time_zones import time_zone

logger = logging.getLogger(__name__)

_SAMPLE: Final = 200
_MOST_DETAILS: Final = 1000
_MOST: Final = 3
_NEAR: Final = 0.6
_UNITS: Final = {"s": range(9, 12), "ms": range(12, 15), "us": range(15, 18), "ns": range(18, 21)}
"""Digits of a time of these days, by the unit in which it counts since 1970."""
_UNIT_NAMES: Final = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_DELIMITERS: Final = {",": "`,`", ";": "`;`", "\t": "a tab", "|": "`|`"}
_ENDINGS: Final = {"gzip": ".gz", "zstd": ".zst"}
_ZONE: Final = re.compile(r"(?:[A-Za-z]|[+-]\d{1,2}(?::?\d{2})?)$")
_COMMA: Final = re.compile(r"[+-]?\d{1,3}(?:[. ']?\d{3})*,\d+|[+-]?\d+,\d+")
_TIMES: Final = ("timestamp", "date", "timestamp_ntz")
_NUMBERS: Final = (*WHOLE_BITS, "float", "double", "decimal")
_QUOTED: Final = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_OF_LINES: Final = (Admission.MALFORMED, Admission.NULL_KEY, Admission.NULL_EXPIRY)
_LATIN: Final = "Latin-1"
HEADER_LINE: Final = "the files begin with a line of column names: set `source.header: true`"


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """The errors of a writer's rows: how many, by reason and detail, and the likely causes."""

    counts: Mapping[tuple[str, str | None], int]
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """An error row of the sample: the code of its reason, its text, its file."""

    code: int
    raw: str | None
    source: str


class ErrorCounts:
    """Counts error rows, and keeps a sample of them."""

    def __init__(self, details: ErrorDetails) -> None:
        self._details = details
        self._counts: Counter[tuple[str, str | None]] = Counter()
        self._rows: list[ErrorRow] = []

    def add(self, codes: Sequence[int], details: Sequence[str | None], raw: pa.Array, sources: Sequence[str]) -> None:
        """Count rows with these reasons, by their codes. Beyond a number of details, only the reason counts."""
        for (code, detail), count in Counter(zip(codes, details, strict=True)).items():
            is_room = len(self._counts) < _MOST_DETAILS or (REASONS[code], detail) in self._counts
            self._counts[REASONS[code], detail if is_room else None] += count
        room = _SAMPLE - len(self._rows)
        if room > 0:
            texts = raw.slice(0, room).to_pylist()
            self._rows += map(ErrorRow, codes[:room], texts, sources[:room])

    def summary(self) -> ErrorSummary | None:
        """The summary of all rows; None without any. A failure in finding causes gives none of them."""
        if not self._counts:
            return None
        try:
            causes = likely_causes(self._details, self._rows)
        except Exception as exc:  # noqa: BLE001  the window is worth more than a text about it
            logger.warning("the cause of errors could not be found: %s", type(exc).__name__)
            causes = ()
        return ErrorSummary(dict(self._counts), causes)


def merged(summaries: Iterable[ErrorSummary | None]) -> ErrorSummary:
    """The summary of several writers."""
    counts: Counter[tuple[str, str | None]] = Counter()
    causes: Counter[str] = Counter()
    for summary in summaries:
        if summary is not None:
            counts.update(summary.counts)
            causes.update(summary.causes)
    return ErrorSummary(counts, tuple(cause for cause, _ in causes.most_common(_MOST)))


def likely_causes(details: ErrorDetails, rows: Sequence[ErrorRow]) -> tuple[str, ...]:
    """The causes that at least half of the rows show, the most frequent first; for a header line one is enough."""
    lines = LineDetails(details, "")
    others = [row for row in rows if not _is_header(details, lines, row)]
    header = [HEADER_LINE] if len(others) < len(rows) else []
    encodings = _encodings(details, others)
    found: Counter[str] = Counter(encoding for encoding in encodings if encoding is not None)
    texts = [row for row, encoding in zip(others, encodings, strict=True) if encoding is None]
    for row in texts:
        found.update(set(_of_row(details, lines, row)))
    causes = [cause for cause, count in found.most_common() if 2 * count >= len(others)]
    return tuple(dict.fromkeys([*header, *_names(details, lines, texts), *causes]))[:_MOST]


def _of_row(details: ErrorDetails, lines: LineDetails, row: ErrorRow) -> Iterable[str]:
    if row.code in _OF_LINES and row.raw is not None and lines.explainer is not None:
        if row.code == Admission.MALFORMED and wrong_line(lines.explainer, row.raw) == BYTE_ORDER_MARK:
            yield f"{BYTE_ORDER_MARK}: write UTF-8 without it"
            return
        if formats := list(_format(details, row.raw)):  # its values are none
            yield from formats
            return
        if row.code == Admission.MALFORMED:
            yield from _numbers(details, lines, row.raw)
    if row.code in (Admission.MALFORMED, Admission.AHEAD_OF_NOW, Admission.BAD_EXPIRY, Admission.JUMP_TOO_FAR):
        yield from _time(details, lines, row)


def _format(details: ErrorDetails, raw: str) -> Iterable[str]:
    """A line of another format."""
    line, columns = raw.strip(), details.of_value
    if details.format == "csv":
        if line.startswith("{") and line.endswith("}"):
            yield "the lines look like JSON: is the format csv?"
        given = details.delimiter
        other = next((sign for sign in _DELIMITERS if sign != given and line.count(sign) == columns - 1), None)
        if columns > 1 and given not in line and other is not None:
            yield f"the delimiter of the lines may be {_DELIMITERS[other]}"
        if raw.count('"') % 2:
            yield (
                "a line ends within quotes: a record must stand on one line, and its second half may be taken for "
                "another record: write texts without line ends, or write JSON"
            )
    elif details.format != "json":
        if line.startswith("{") and line.endswith("}"):
            yield f"the lines look like JSON: is the format {details.format}?"
    elif line.startswith("["):
        yield "a line begins an array: each record must be an object on a line of its own"
    elif line in ("{", "}", "},") or (line.startswith('"') and line.rstrip(",").count('":') == 1):
        yield "objects reach over several lines: each record must stand on one line"
    elif not line.startswith("{") and columns > 1 and any(line.count(sign) == columns - 1 for sign in _DELIMITERS):
        yield "the lines look like CSV: is the format json?"


def _time(details: ErrorDetails, lines: LineDetails, row: ErrorRow) -> Iterable[str]:
    """An expiry key of another unit or kind than declared."""
    if details.expiry is None or row.raw is None or lines.explainer is None or details.expiry not in lines.stored:
        return
    token, text = lines.explainer.token(row.raw, lines.stored.index(details.expiry))
    column = details.columns[details.expiry]
    kind = column.kind.name
    is_whole = token == Token.WHOLE or (token == Token.TEXT and text.isascii() and text.isdigit())
    unit = next((unit for unit, digits in _UNITS.items() if is_whole and len(text.lstrip("-")) in digits), None)
    if kind == "timestamp" and unit is not None:
        takes = "a timestamp column takes " + ("seconds" if details.format == "json" else "texts")
        declare = f"declare `{column.name} bigint` and set `expiry.unit: {unit}`" if unit != "ns" else "convert them"
        if token == Token.TEXT and details.format == "json":
            takes = "they stand in quotes"
        if unit != "s" or token == Token.TEXT:
            yield f"{column.name} has {_UNIT_NAMES[unit]} since 1970, and {takes}: {declare}"
    elif kind in _TIMES and token == Token.TEXT and row.code == Admission.MALFORMED and not _is_time(text):
        yield f'{column.name} has texts like "{masked(text)}", and {kind} takes `2024-12-31 23:59:59`'
    elif kind in WHOLE_BITS and details.unit is not None and unit is not None and unit != details.unit:
        yield f"{column.name} has {_UNIT_NAMES[unit]} since 1970, and `expiry.unit` is {details.unit}"
    elif kind in WHOLE_BITS and token == Token.TEXT and _is_time(text):
        yield f"{column.name} has times as texts: declare it `timestamp`"
    elif row.code == Admission.AHEAD_OF_NOW and kind == "timestamp" and token == Token.TEXT and not _ZONE.search(text):
        yield (
            f"{column.name} has times without a zone, which are taken as {details.zone}: write the zone, or set "
            "`spark.sql.session.timeZone`; or clocks differ"
        )
    elif row.code == Admission.AHEAD_OF_NOW:
        yield f"{column.name} is in the future: this machine's clock is behind, or those of the producers are ahead"


def _numbers(details: ErrorDetails, lines: LineDetails, raw: str) -> Iterable[str]:
    """Numbers as people of many countries write them."""
    for place, number in enumerate(lines.stored):
        column = details.columns[number]
        if lines.explainer is None or column.kind.name not in _NUMBERS or number == details.expiry:
            continue
        token, text = lines.explainer.token(raw, place)
        if token == Token.TEXT and _COMMA.fullmatch(text.strip()):
            yield f"{column.name} has numbers with a comma: write a point, and no sign between thousands"
        elif token == Token.TEXT and details.format == "json" and _QUOTED.fullmatch(text):
            yield f"{column.name} has numbers in quotes: declare `{column.name} string`, or write them without"


def _encodings(details: ErrorDetails, rows: Sequence[ErrorRow]) -> list[str | None]:
    """For each row, the encoding or format of its bytes if they are no UTF-8; None where they may be.

    Only the beginning of a file shows its format, so the other lines of the file that are no text count alike.
    """
    kinds = [_kind(row) for row in rows]
    is_of_files = details.path_rule is not None
    files = {row.source: kind for row, kind in zip(rows, kinds, strict=True) if kind and is_of_files}
    of_rows: list[str | None] = []
    for row, kind in zip(rows, kinds, strict=True):
        if row.code == Admission.INVALID_UTF8:
            kind = kind or files.get(row.source) or _latin(row)
        of_rows.append(kind and _text_of(details, kind))
    return of_rows


def _kind(row: ErrorRow) -> str | None:
    """The format or encoding that a row's first bytes show."""
    if row.code == Admission.INVALID_UTF8:
        return signature(bytes_of(row.raw) or b"")
    if row.raw is not None and row.code == Admission.MALFORMED:
        return signature(row.raw[:8].encode()) or ("UTF-16" if _is_utf16(row.raw) else None)
    return None


def _latin(row: ErrorRow) -> str | None:
    value = bytes_of(row.raw)
    return _LATIN if value is not None and _is_latin(value) else None


def _text_of(details: ErrorDetails, kind: str) -> str:
    if kind in _ENDINGS:
        ending = "" if details.path_rule is None else f": end the names of such files in `{_ENDINGS[kind]}`"
        return f"the data is compressed by {kind}{ending}"
    if kind == _LATIN:
        return "texts are in Latin-1 or a code page of Windows: write UTF-8"
    return "the data is UTF-16: write UTF-8" if kind == "UTF-16" else f"the data is {kind}, not {details.format}"


def _is_utf16(text: str) -> bool:
    """Whether every other byte of a text is 0, as of one that is mostly ASCII; a line may begin within a sign."""
    return len(text) > 1 and any(set(text[start::2]) == {"\0"} for start in (0, 1))


def _is_latin(value: bytes) -> bool:
    """Whether bytes are mostly ASCII, without controls: a text of another encoding, not something binary."""
    has_controls = any(byte < 0x20 and byte not in b"\t\r" for byte in value)
    return not has_controls and 10 * sum(byte > 0x7F for byte in value) <= 3 * len(value)


def _is_time(text: str) -> bool:
    zone = time_zone("UTC")
    return zone is not None and not text.isdigit() and timestamp_of(text, zone) is not None


def _is_header(details: ErrorDetails, lines: LineDetails, row: ErrorRow) -> bool:
    """Whether a line holds the names of the columns, as the first one of a file may."""
    if details.format != "csv" or lines.explainer is None or details.path_rule is None or row.raw is None:
        return False
    names = {details.columns[number].name.lower() for number in lines.stored}
    same = {field.strip().lower() for field in lines.explainer.fields(row.raw)} & names
    return 2 * len(same) > len(names)


def _names(details: ErrorDetails, lines: LineDetails, rows: Sequence[ErrorRow]) -> Iterable[str]:
    """A declared column that none of the rows has, and the name nearest to it that they have.

    One without a near name counts only where the reason is about it. A malformed record may end before its names do.
    """
    rows = [row for row in rows if row.code in (Admission.NULL_KEY, Admission.NULL_EXPIRY)]
    of_rows: list[set[str]] = []
    if details.format in ("json", *LOGS) and lines.explainer is not None:
        of_rows = [names for row in rows if row.raw is not None and (names := lines.explainer.names(row.raw))]
    elif details.format == "parquet" and details.path_rule is not None:
        of_rows = [set(parquet.read_schema(source).names) for source in {row.source for row in rows[:1]}]
    if not of_rows:
        return
    met: Counter[str] = Counter(name for names in of_rows for name in names)
    declared = {details.columns[number].name for number in lines.stored}
    frequent = [name for name in met.keys() - declared if 2 * met[name] >= len(of_rows)]
    codes = {row.code for row in rows}
    needed = {*(details.key if Admission.NULL_KEY in codes else ())}
    needed |= {details.expiry} if Admission.NULL_EXPIRY in codes and details.expiry is not None else set()
    columns = [(details.columns[number].name, number in needed) for number in lines.stored]
    for name, near in misnamed(columns, met, frequent):
        yield f"they lack `{name}`" + (f", but have `{near}`" if near else "")


def misnamed(
    columns: Iterable[tuple[str, bool]], met: Collection[str], others: Iterable[str]
) -> Iterator[tuple[str, str | None]]:
    """The declared columns that are not among the names `met`, each with the nearest one of `others`, None without one.

    `columns` are names and whether they are needed; one that is not needed is left out if no other name is near.
    """
    unknown = {name.lower(): name for name in sorted(others)}
    for name, is_needed in columns:
        if name not in met:
            near = difflib.get_close_matches(name.lower(), unknown, n=1, cutoff=_NEAR)
            if near or is_needed:
                yield name, unknown[near[0]] if near else None
