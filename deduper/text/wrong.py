"""Why a line is no record or no header, and why a column has no value: in words without any value of the line. PURE.

For lines that are errors already: the exact parsers read them once more, and note what they refuse. Fields of CSV are
columns by their order, so under another header each column would have the values of another. Names of a header are
equal in any case, and blanks around them count for nothing. A header may end early: the columns that it lacks are null.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from deduper.text import csv_exact, json_exact, log_exact
from deduper.text.format import Malformed, TextFormat
from deduper.text.json_exact import PlaceReader, flat_reader
from deduper.text.log_exact import log_reader
from deduper.text.values import Reader, Token, field_reader, reader

MASKED: Final = 32
"""Characters of a text that are shown, masked."""

_MOST_NAMES: Final = 1000
_MOST_SHOWN = 20
"""Names that are shown."""
_ANOTHER_NESTED: Final = "an object or array that is none"
_TOKENS: Final = {
    Token.FRACTION: "a number with a point or an exponent",
    Token.BOOLEAN: "true or false",
    Token.NOT_FINITE: "NaN or an infinity",
    Token.NESTED: "an object or array",
}


def masked(text: str) -> str:
    """A text by the classes of its characters: `9` for a digit, `a` for a letter, other signs of ASCII as they are."""
    signs = "".join(map(_class_of, text[:MASKED]))
    return f"{signs}…" if len(text) > MASKED else signs


def _class_of(sign: str) -> str:
    if sign.isdecimal():
        return "9"
    if sign.isalpha():
        return "a"
    return sign if sign.isascii() and sign.isprintable() else "?"


def described(token: int, text: str) -> str:
    """A value without its contents: its kind, its length, the classes of its characters."""
    if token == Token.WHOLE:
        count = len(text.lstrip("-"))
        return f"a whole number of {count} digit{'' if count == 1 else 's'}"
    if token != Token.TEXT:
        return _TOKENS[Token(token)]
    if not text:
        return "an empty text"
    return f'text of {len(text)} character{"" if len(text) == 1 else "s"} like "{masked(text)}"'


class Explainer:
    """Explains the lines of a format, one after another. Not for several threads."""

    def __init__(self, text: TextFormat) -> None:
        self._text = text
        self._wrong: dict[int, str] = {}
        self._tokens: dict[int, tuple[int, str]] = {}
        self._names = _Asked()
        self._csv: csv_exact.Layout | None = None
        self._of_log: dict[str, tuple[int, Callable[[int, str], Any]]] = {}
        if text.log is not None:
            for number, column in enumerate(text.columns):
                read = log_reader(text.log, column.name, column.kind, text.zone)
                self._of_log[column.name] = number, self._noting_text(number, read)
        elif text.delimiter is None:
            for number, column in enumerate(text.columns):
                noting = self._noting(number, reader(column.kind, text.zone))
                whole = flat_reader(noting, is_binary=column.kind.name == "binary")
                if not column.kind.is_scalar:
                    whole = self._noting_nested(number, json_exact.place_reader(column.kind, text.zone), whole)
                self._names[column.name] = number, noting, whole
        else:
            self._csv = csv_exact.Layout(text)
            self._fields = [
                self._noting_text(number, field_reader(column.kind, text.zone))
                for number, column in enumerate(text.columns)
            ]

    def malformed(self, line: str) -> str | None:
        """The reason why a line is no record; None when it is one here."""
        try:
            if self._csv is None:
                self._values(line)
                return self._wrongs()
            self._wrong.clear()
            fields, _ = csv_exact.fields_of(line, self._csv)
            for field, read in zip(fields, self._fields, strict=False):
                if field:
                    read(Token.TEXT, field)
            return self._wrongs()
        except Malformed as exc:
            return str(exc)

    def absent(self, line: str, numbers: Sequence[int]) -> dict[int, str]:
        """Of these columns, those that have no value in a line which is a record, each with the way in which."""
        try:
            if self._csv is None:
                values = self._values(line)
                return {
                    number: "null" if self._text.columns[number].name in self._names.asked else "no such field"
                    for number in numbers
                    if values[number] is None and number not in self._wrong
                }
            fields, _ = csv_exact.fields_of(line, self._csv)
        except Malformed:
            return {}
        return {
            number: "an empty field" if number < len(fields) else "the line ends before it"
            for number in numbers
            if number >= len(fields) or not fields[number]
        }

    def token(self, line: str, number: int) -> tuple[int | None, str]:
        """The value of a column as it is written, by its kind; no kind where there is none. Not to be shown."""
        self._tokens.pop(number, None)
        with contextlib.suppress(Malformed):
            if self._csv is None:
                self._values(line)
            else:
                fields, _ = csv_exact.fields_of(line, self._csv)
                if number < len(fields) and fields[number]:
                    return Token.TEXT, fields[number]
        return self._tokens.get(number, (None, ""))

    def names(self, line: str) -> set[str]:
        """The names of the fields of a line that has names, as far as it can be read."""
        with contextlib.suppress(Malformed):
            self._values(line)
        return set(self._names.asked)

    def fields(self, line: str) -> list[str]:
        """The fields of a CSV line; none of a line that is no record."""
        if self._csv is None:
            return []
        try:
            return csv_exact.fields_of(line, self._csv)[0]
        except Malformed:
            return []

    def _values(self, line: str) -> list[Any]:
        self._wrong.clear()
        self._names.asked.clear()
        if self._text.log is not None:
            return self._values_of_log(line, self._text.log)
        return json_exact.values_of(line, self._names, len(self._text.columns))

    def _values_of_log(self, line: str, form: str) -> list[Any]:
        values: list[Any] = [None] * len(self._text.columns)
        for name, text in log_exact.pairs_of(line, form):
            self._names.asked.add(name)
            number, read = self._of_log.get(name, (None, None))
            if number is not None and read is not None:
                values[number] = None if text is None else read(Token.TEXT, text)
        return values

    def _wrongs(self) -> str | None:
        if not self._wrong:
            return None
        first, *more = sorted(self._wrong)
        also = f"; {', '.join(self._text.columns[number].name for number in more)} too" if more else ""
        return f"{self._wrong[first]}{also}"

    def _noting(self, number: int, read: Callable[[int, str], Any]) -> Callable[[int, str], Any]:
        column = self._text.columns[number]

        def noting(token: int, text: str) -> Any:
            self._tokens[number] = token, text
            try:
                return read(token, text)
            except Malformed:
                self._wrong.setdefault(number, f"{column.name}: {column.kind.text} expected, {described(token, text)}")
                return None

        return noting

    def _noting_nested(self, number: int, read: PlaceReader, flat: PlaceReader) -> PlaceReader:
        column = self._text.columns[number]

        def noting(source: str, at: int, depth: int) -> tuple[Any, int]:
            if source[at : at + 1] not in ("{", "["):
                return flat(source, at, depth)
            end = json_exact.skipped(source, at, depth)
            try:
                return read(source, at, depth)
            except Malformed:
                self._wrong.setdefault(number, f"{column.name}: {column.kind.text} expected, {_ANOTHER_NESTED}")
                return None, end

        return noting

    def _noting_text(self, number: int, read: Callable[[str], Any]) -> Callable[[int, str], Any]:
        return self._noting(number, lambda _, text: read(text))


class _Asked(dict[str, tuple[int, Reader, PlaceReader]]):
    """Columns by name, which remember the names that a parser asks for: those of a line's fields."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        if len(self.asked) < _MOST_NAMES:
            self.asked.add(name)
        return super().get(name, default)


def header_fault(line: bytes, declared: Sequence[str], delimiter: str) -> str | None:
    """What is wrong with the first line of a file of these columns; None when it is their header."""
    if not declared:
        return None
    expected = f"the header {_shown(declared)} is expected"
    try:
        text = line.decode().rstrip("\r")
        found = [name.strip() for name in csv_exact.fields_in(text, csv_exact.Layout(TextFormat((), "UTC", delimiter)))]
    except UnicodeDecodeError:
        return f"{expected}; the first line is not UTF-8"
    except Malformed as exc:
        return f"{expected}; in the first line {exc}"
    met, wanted = [name.lower() for name in found], [name.lower() for name in declared]
    if met == wanted[: len(met)]:
        return None
    if not text.strip():
        return f"{expected}; the first line is empty"
    # A line that is no header is a record, whose values are not shown.
    is_header = 2 * len({*met} & {*wanted}) > min(len(wanted), len(met))
    shown = found if is_header else [f'"{masked(name)}"' for name in found]
    return f"{expected}; the first line {'is' if is_header else 'has fields like'} {_shown(shown)}"


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(name if len(name) <= 2 * MASKED else f"{name[: 2 * MASKED]}…" for name in names[:_MOST_SHOWN])
    return shown + (f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else "")
