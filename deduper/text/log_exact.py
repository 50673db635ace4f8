"""One line of a log, exactly as SEMANTICS.md says ("What a line of a log is"). PURE.

Slow and simple: for lines that the kernel does not parse itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

from deduper.columns import ColumnType
from deduper.log_formats import LOGFMT, TIME
from deduper.text.format import Malformed, TextFormat
from deduper.text.json_exact import unescaped
from deduper.text.values import days_of, field_reader

Pairs = list[tuple[str, str | None]]
"""The fields of a line, names and texts, in their order; None is null."""

_QUOTED = r'"((?:[^"\\]|\\.)*+)"'
_WORD = r"([^ ]++)"
_COMMON: Final = (
    ("host", _WORD + " "),
    ("ident", _WORD + " "),
    ("user", r"((?:(?! \[).)++) "),
    (TIME, r"\[(.{26})\] "),
    ("request", _QUOTED + " "),
    ("status", _WORD + " "),
    ("bytes", _WORD),
)
_COMBINED: Final = (*_COMMON, ("referer", " " + _QUOTED), ("agent", " " + _QUOTED))
_PARTS: Final = {
    form: tuple((name, re.compile(pattern, re.DOTALL)) for name, pattern in parts)
    for form, parts in (("common_log", _COMMON), ("combined_log", _COMBINED))
}
_REQUEST = re.compile(r"([^ ]+) (.+) (HTTP/[^ ]*)", re.DOTALL)
_TIME = re.compile(r"([0-9]{2})/([A-Z][a-z]{2})/([0-9]{4}):([0-9]{2}):([0-9]{2}):([0-9]{2}) ([+-])([0-9]{2})([0-9]{2})")
_MONTHS: Final = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_MOST_AHEAD: Final = 18 * 3600

_BLANKS: Final = "".join(map(chr, range(0x21)))
_PAIR = re.compile(
    r'[\x00-\x20]*+([^\x00-\x20="]++)(?:=(?:"((?:[^"\\]|\\.)*+)"|([^\x00-\x20"]*+)))?+(?=[\x00-\x20]|\Z)', re.DOTALL
)
_ESCAPES = re.compile(r'(?:[^\\]|\\["\\/bfnrt]|\\u[0-9A-Fa-f]{4})*+', re.DOTALL)


def record(line: bytes, text: TextFormat) -> list[Any]:
    """The values of a line, one a column, None for null, as `json_exact.record` gives them.

    Raises:
        Malformed: the line is not one whole record, or a field is not of its column's type.
    """
    assert text.log is not None
    places = {column.name: number for number, column in enumerate(text.columns)}
    values: list[Any] = [None] * len(text.columns)
    for name, found in pairs_of(line.decode(), text.log):
        number = places.get(name)
        if number is not None:
            column = text.columns[number]
            values[number] = log_reader(text.log, column.name, column.kind, text.zone)(found) if found else None
    return values


def pairs_of(line: str, form: str) -> Pairs:
    """The fields of a line, whatever their types.

    Raises:
        Malformed: the line is not one whole record.
    """
    return list(_logfmt(line) if form == LOGFMT else _web_log(line.rstrip("\r"), form))


@lru_cache(maxsize=256)
def log_reader(form: str, name: str, kind: ColumnType, zone: str) -> Callable[[str], Any]:
    """Reads the texts of a field, which are not empty, as values of its column's type."""
    return _instant if form != LOGFMT and name == TIME and kind.name == "timestamp" else field_reader(kind, zone)


def _web_log(line: str, form: str) -> Iterator[tuple[str, str | None]]:
    at = 0
    for name, part in _PARTS[form]:
        found = part.match(line, at)
        if found is None or (name == TIME and _time_us(found[1]) is None):
            raise Malformed(f"no {name} stands where {form} has it")
        at, content = found.end(), found[1]
        yield name, None if content in ("", "-") else content
        if name == "request":
            parts = _REQUEST.fullmatch(content)
            yield from zip(("method", "target", "protocol"), parts.groups() if parts else (None,) * 3, strict=True)
    if at < len(line) and line[at] != " ":
        raise Malformed("something stands right behind the last field")
    yield "rest", line[at + 1 :] or None


def _instant(text: str) -> int:
    found = _time_us(text)
    if found is None:
        raise Malformed("not a value of type timestamp")
    return found


def _time_us(text: str) -> int | None:
    """µs since 1970 of `10/Oct/2000:13:55:36 -0700`; None of any other text."""
    found = _TIME.fullmatch(text)
    if found is None or found[2] not in _MONTHS:
        return None
    days = days_of(int(found[3]), _MONTHS.index(found[2]) + 1, int(found[1]))
    hour, minute, second, ahead_h, ahead_min = (int(found[part]) for part in (4, 5, 6, 8, 9))
    ahead = (ahead_h * 60 + ahead_min) * 60
    if days is None or hour > 23 or minute > 59 or second > 59 or ahead_min > 59 or ahead > _MOST_AHEAD:
        return None
    since = days * 86_400 + hour * 3600 + minute * 60 + second
    return (since + (ahead if found[7] == "-" else -ahead)) * 1_000_000


def _logfmt(line: str) -> Iterator[tuple[str, str | None]]:
    end = len(line.rstrip(_BLANKS))
    if not end:
        raise Malformed("the line is blank")
    at = 0
    while at < end:
        found = _PAIR.match(line, at)
        if found is None:
            raise Malformed("the line is not pairs name=value, with blanks between them")
        at = found.end()
        name, quoted, bare = found.groups()
        if quoted is not None:
            if _ESCAPES.fullmatch(quoted) is None:
                raise Malformed("a text in quotes has an escape that is none")
            yield name, unescaped(quoted) or None
        elif bare is None:
            yield name, "true"
        else:
            yield name, None if bare in ("", "null") else bare
