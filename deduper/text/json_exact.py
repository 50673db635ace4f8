"""One line of JSON, exactly as SEMANTICS.md says ("What a JSON record is"). PURE.

Slow and simple: for lines that the kernel does not parse itself. A flat member is taken by one regular expression,
anything else piece by piece. Nothing here recurses but over the declared types, so no depth of nesting can end the
process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from deduper.columns import ColumnType
from deduper.text.format import Malformed, TextFormat, per_format
from deduper.text.values import Reader, Token, reader, text_of

MOST_NESTED: Final = 1000
"""Objects and arrays within one another, the record counted."""
MOST_DIGITS: Final = 1000
"""Digits of a number."""
MOST_NAME: Final = 50_000
"""UTF-16 units of a field's name."""

_BLANK = r"[ \t\r\n]*+"
_ESCAPE = r"\\(?:[\"\\/bfnrt']|u[0-9A-Fa-f]{4})"
_QUOTED = rf'"([^"\\\x00-\x1f]*+(?:{_ESCAPE}[^"\\\x00-\x1f]*+)*+)"'
_APOSTROPHED = rf"'([^'\\\x00-\x1f]*+(?:{_ESCAPE}[^'\\\x00-\x1f]*+)*+)'"
# Base64 is read as it comes: it takes signs below the blank for blanks.
_QUOTED_BASE64 = rf'"([^"\\]*+(?:{_ESCAPE}[^"\\]*+)*+)"'
_WHOLE = r"-?(?:0|[1-9][0-9]*+)"
_FRACTION = rf"{_WHOLE}(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
_MEMBER = re.compile(
    rf'{_BLANK}"([^"\\\x00-\x1f]*+)"{_BLANK}:{_BLANK}'
    rf'(?:"([^"\\\x00-\x1f]*+)"|({_WHOLE})(?![.eE])|({_FRACTION})|(true|false|null)){_BLANK}[,}}]'
)
_NAME = re.compile(rf"(?:{_QUOTED}|{_APOSTROPHED}){_BLANK}:{_BLANK}")
_SCALAR = re.compile(
    rf"(?:{_QUOTED}|{_APOSTROPHED}|({_WHOLE})(?![.eE])|({_FRACTION})|(true|false|null)"
    r"|(NaN|Infinity|[+-]INF|[+-]Infinity))"
)
_SCALAR_TOKENS = (None, Token.TEXT, Token.TEXT, Token.WHOLE, Token.FRACTION, Token.BOOLEAN, Token.NOT_FINITE)
_BASE64 = re.compile(_QUOTED_BASE64)
_BLANKS = re.compile(_BLANK)
_ESCAPES = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))")
_SIGNS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_TO_ESCAPE = re.compile('["\\\\\x00-\x1f\ud800-\udfff\U00010000-\U0010ffff]')
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\"} | {sign: f"\\{letter}" for letter, sign in _SIGNS.items()}
_PAIR = re.compile("([\ud800-\udbff])([\udc00-\udfff])")
_LONE = re.compile("[\ud800-\udfff]")
_TEXT, _WORD = int(Token.TEXT), int(Token.BOOLEAN)


PlaceReader = Callable[[str, int, int], tuple[Any, int]]
"""The value at a place of a line, inside so many objects and arrays, and the place behind it."""

Columns = dict[str, tuple[int, Reader, PlaceReader]]
"""The columns of a format by their names: number, reader of a flat value's token, reader of any value."""


def columns_of(text: TextFormat) -> Columns:
    """The columns of a format."""
    return {
        column.name: (number, reader(column.kind, text.zone), place_reader(column.kind, text.zone))
        for number, column in enumerate(text.columns)
    }


layout_of = per_format(columns_of)


def record(line: bytes, text: TextFormat) -> list[Any]:
    """The values of a line, one a column, None for null.

    The line is valid UTF-8, without the byte order mark of its file. A text is a str, Base64 bytes, a decimal has its
    column's scale, a date is days and a time µs since the epoch, a struct a dict, a map a list of pairs.

    Raises:
        Malformed: the line is not one whole object, or a value is not of its column's type.
    """
    return values_of(line.decode(), layout_of(text), len(text.columns))


def values_of(source: str, columns: Columns, size: int) -> list[Any]:
    """The values of a line as `record` gives them, `size` of them; `columns` has the reader of each.

    Raises:
        Malformed: see `record`.
    """
    values: list[Any] = [None] * size
    at = _after_blanks(source, 0)
    if source[at : at + 1] != "{":
        raise Malformed("the line is no object" if source[at:] else "the line is empty")
    at = _after_blanks(source, at + 1)
    if source[at : at + 1] == "}":
        at += 1
    else:
        match = _MEMBER.match
        while True:
            member = match(source, at)
            if member is None:
                at = _any_member(source, at, columns, values)
            else:
                at = member.end()
                token = member.lastindex
                column = columns.get(member[1])
                assert token is not None
                value = member[token]
                if token != _TEXT and token != _WORD and len(value) > MOST_DIGITS:
                    _check_number(value)
                if column is None:
                    if len(member[1]) > MOST_NAME // 2:
                        _check_name(member[1])
                elif token == _WORD and value == "null":
                    values[column[0]] = None
                else:
                    values[column[0]] = column[1](token, value)
            if source[at - 1] == "}":
                break
    if _after_blanks(source, at) != len(source):
        raise Malformed("something follows the object")
    return values


def _any_member(source: str, at: int, columns: Columns, values: list[Any]) -> int:
    """Reads a member; gives the place behind the comma or brace after it."""
    name, at = _name(source, _after_blanks(source, at))
    column = columns.get(_name_of(name))
    if column is not None:
        values[column[0]], at = column[2](source, at, 1)
    else:
        at = skipped(source, at, 1)
    at = _after_blanks(source, at)
    if source[at : at + 1] not in (",", "}"):
        raise Malformed("no comma or brace follows a value")
    return at + 1


def skipped(source: str, at: int, depth: int) -> int:
    """The place behind the value at `at`, which is inside of `depth` objects and arrays."""
    if source[at : at + 1] in ("{", "["):
        return _skip_nested(source, at, depth, [])
    return _scalar(source, at)[2]


# Values of a type ----------------------------------------------------------------------------------------------------


def place_reader(kind: ColumnType, zone: str) -> PlaceReader:
    """Reads any value of a type. `zone` is that of times without one."""
    if kind.is_scalar:
        return flat_reader(reader(kind, zone), is_binary=kind.name == "binary")
    parts = {part.name: place_reader(part.type, zone) for part in kind.parts}
    if kind.name == "array":
        return _array_reader(parts["element"])
    return _struct_reader(parts) if kind.name == "struct" else _map_reader(parts["value"])


def flat_reader(read: Reader, *, is_binary: bool) -> PlaceReader:
    """Reads a value by its token; the token of an object or array is its text."""

    def value(source: str, at: int, depth: int) -> tuple[Any, int]:
        sign = source[at : at + 1]
        if is_binary and sign == '"':
            found = _BASE64.match(source, at)
            if found is None:
                raise Malformed("a string is not closed, or has an unknown escape")
            return read(_TEXT, unescaped(found[1])), found.end()
        if sign in ("{", "["):
            written: list[str] = []
            at = _skip_nested(source, at, depth, written)
            return read(Token.NESTED, "".join(written)), at
        token, text, at = _scalar(source, at)
        if token is None:
            return None, at
        return read(token, unescaped(text) if token == Token.TEXT else text), at

    return value


def _array_reader(element: PlaceReader) -> PlaceReader:
    def value(source: str, at: int, depth: int) -> tuple[list[Any] | None, int]:
        if source[at : at + 1] != "[":
            return _null(source, at, "array")
        at = _inside(source, at, depth)
        values: list[Any] = []
        if source[at : at + 1] == "]":
            return values, at + 1
        while True:
            item, at = element(source, at, depth + 1)
            values.append(item)
            at, is_last = _behind(source, at, "]")
            if is_last:
                return values, at

    return value


def _struct_reader(fields: dict[str, PlaceReader]) -> PlaceReader:
    def value(source: str, at: int, depth: int) -> tuple[dict[str, Any] | None, int]:
        values: dict[str, Any] = dict.fromkeys(fields)

        def take(name: str, at: int) -> int:
            name = _name_of(name)
            if name not in fields:
                return skipped(source, at, depth + 1)
            values[name], at = fields[name](source, at, depth + 1)
            return at

        if source[at : at + 1] != "{":
            return _null(source, at, "struct")
        return values, _members(source, at, depth, take)

    return value


def _map_reader(item: PlaceReader) -> PlaceReader:
    def value(source: str, at: int, depth: int) -> tuple[list[tuple[str, Any]] | None, int]:
        values: dict[str, Any] = {}

        def take(name: str, at: int) -> int:
            values[unescaped(name)], at = item(source, at, depth + 1)
            return at

        if source[at : at + 1] != "{":
            return _null(source, at, "map")
        at = _members(source, at, depth, take)
        return list(values.items()), at

    return value


def _null(source: str, at: int, kind: str) -> tuple[None, int]:
    token, _, at = _scalar(source, at) if source[at : at + 1] not in ("{", "[") else (Token.NESTED, "", at)
    if token is not None:
        raise Malformed(f"not a value of type {kind}")
    return None, at


def _members(source: str, at: int, depth: int, take: Callable[[str, int], int]) -> int:
    """The place behind the object at `at`; `take` gets each name, its escapes as they are, and its value's place."""
    at = _inside(source, at, depth)
    if source[at : at + 1] == "}":
        return at + 1
    while True:
        name, at = _name(source, at)
        at, is_last = _behind(source, take(name, at), "}")
        if is_last:
            return at


def _inside(source: str, at: int, depth: int) -> int:
    """The place of the first value or name of an object or array, or of its end."""
    if depth >= MOST_NESTED:
        raise Malformed(f"more than {MOST_NESTED} objects and arrays within one another")
    return _after_blanks(source, at + 1)


def _behind(source: str, at: int, closing: str) -> tuple[int, bool]:
    """The place behind the sign that follows a value, and whether it closes the object or array."""
    at = _after_blanks(source, at)
    sign = source[at : at + 1]
    if sign == ",":
        return _after_blanks(source, at + 1), False
    if sign != closing:
        raise Malformed("an object or array is not closed")
    return at + 1, True


# Parts of a line -----------------------------------------------------------------------------------------------------


def _after_blanks(source: str, at: int) -> int:
    if source[at : at + 1] > " ":
        return at  # as at most places
    found = _BLANKS.match(source, at)
    assert found is not None
    return found.end()


def _name(source: str, at: int) -> tuple[str, int]:
    """A name at `at`, its escapes as they are, and the place of its value."""
    found = _NAME.match(source, at)
    if found is None:
        raise Malformed("no name and colon begin a member")
    assert found.lastindex is not None
    name = found[found.lastindex]
    if len(name) > MOST_NAME // 2:
        _check_name(name)
    return name, found.end()


def _check_name(name: str) -> None:
    if len(_single_signs(name).encode("utf-16-le", "surrogatepass")) > 2 * MOST_NAME:
        raise Malformed(f"a name has more than {MOST_NAME} signs")


def _scalar(source: str, at: int) -> tuple[Token | None, str, int]:
    """A string with its escapes, a number or a word at `at` (None: null), and the place behind it."""
    found = _SCALAR.match(source, at)
    if found is None or found.lastindex is None:
        raise Malformed("a value is none of JSON")
    token, text = _SCALAR_TOKENS[found.lastindex], found[found.lastindex]
    if token == Token.BOOLEAN and text == "null":
        token = None
    elif token in (Token.WHOLE, Token.FRACTION) and len(text) > MOST_DIGITS:
        _check_number(text)
    return token, text, found.end()


def _check_number(text: str) -> None:
    if sum(map(str.isdigit, text)) > MOST_DIGITS:
        raise Malformed(f"a number has more than {MOST_DIGITS} digits")


def _skip_nested(source: str, at: int, depth: int, written: list[str]) -> int:
    """The place behind the object or array at `at`, inside `depth` others; `written` gets its text without blanks."""
    closing: list[str] = []
    while True:
        opening = source[at : at + 1]
        if opening in ("{", "["):
            closing.append("}" if opening == "{" else "]")
            written.append(opening)
            if len(closing) + depth > MOST_NESTED:
                raise Malformed(f"more than {MOST_NESTED} objects and arrays within one another")
            at = _after_blanks(source, at + 1)
            if source[at : at + 1] != closing[-1]:
                if opening == "{":
                    at = _nested_name(source, at, written)
                continue
            written.append(closing.pop())
            at += 1
        else:
            token, text, at = _scalar(source, at)
            written.append(f'"{_escaped(text)}"' if token == Token.TEXT else text_of(token, text))
        while closing:
            at = _after_blanks(source, at)
            sign = source[at : at + 1]
            at += 1
            written.append(sign)
            if sign == ",":
                at = _after_blanks(source, at)
                if closing[-1] == "}":
                    at = _nested_name(source, at, written)
                break
            if sign != closing.pop():
                raise Malformed("an object or array is not closed")
        else:
            return at


def _nested_name(source: str, at: int, written: list[str]) -> int:
    name, at = _name(source, at)
    written.append(f'"{_escaped(name)}":')
    return at


# Escapes -------------------------------------------------------------------------------------------------------------


def unescaped(text: str) -> str:
    """A text with its escapes decoded, each of which is one of JSON."""
    if "\\" not in text:
        return text
    # A surrogate without its other half becomes a question mark.
    return _LONE.sub("?", _PAIR.sub(_paired, _single_signs(text)))


def _name_of(written: str) -> str:
    """A name whose escapes are as they are; half of a surrogate pair is a part of none that is declared."""
    return _PAIR.sub(_paired, _single_signs(written))


def _single_signs(text: str) -> str:
    """The text of escapes, surrogates one by one."""
    return _ESCAPES.sub(_sign, text) if "\\" in text else text


def _escaped(text: str) -> str:
    """The text of a string that is written again: few escapes, but two for a sign of more than 16 bits."""
    return _TO_ESCAPE.sub(_escape, _single_signs(text))


def _escape(found: re.Match[str]) -> str:
    sign = found[0]
    if sign in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[sign]
    units = sign.encode("utf-16-be", "surrogatepass").hex().upper()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _sign(found: re.Match[str]) -> str:
    code, sign = found.groups()
    return chr(int(code, 16)) if code else _SIGNS.get(sign, sign)


def _paired(found: re.Match[str]) -> str:
    return chr(0x10000 + ((ord(found[1]) - 0xD800) << 10) + ord(found[2]) - 0xDC00)
