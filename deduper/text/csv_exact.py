"""One line of CSV, exactly as SEMANTICS.md says ("What a CSV record is"). PURE.

Slow and simple: for lines that the kernel does not parse itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from deduper.text.format import Malformed, TextFormat, per_format
from deduper.text.values import field_reader

_PAIR = re.compile('"[^"]*+"')


class Layout:
    """The readers of a format's columns, and what a field in quotes is: its content, and blanks behind it."""

    def __init__(self, text: TextFormat) -> None:
        assert text.delimiter is not None
        self.delimiter = text.delimiter
        self.readers = [field_reader(column.kind, text.zone) for column in text.columns]
        blanks = "".join(sign for sign in map(chr, range(33)) if sign != text.delimiter)
        self.quoted = re.compile(rf'"((?:[^"]++|"")*+)"([{re.escape(blanks)}]*+)')


layout_of = per_format(Layout)


def record(line: bytes, text: TextFormat) -> list[Any]:
    """The values of a line, one a column, None for null, as `json_exact.record` gives them.

    Raises:
        Malformed: the line is not one whole record, or a field is not of its column's type.
    """
    layout = layout_of(text)
    fields, missing = fields_of(line.decode(), layout)
    given = [read(field) if field else None for field, read in zip(fields, layout.readers, strict=False)]
    return given + [None] * missing


def fields_of(line: str, layout: Layout) -> tuple[list[str], int]:
    """The fields of a line, and how many are missing at its end.

    Raises:
        Malformed: the line is not one whole record; whether the fields are of their types is not asked.
    """
    source = line.rstrip("\r")
    if not source.strip(" "):
        raise Malformed("the line is blank")
    fields = list(fields_in(source, layout))
    outside_pairs = _PAIR.sub("", source).count(layout.delimiter)
    missing = max(0, len(layout.readers) - 1 - outside_pairs)
    columns = len(layout.readers)
    if len(fields) > columns and outside_pairs == len(fields) - 1:
        raise Malformed(f"the line has {len(fields)} fields, {columns} columns are declared")
    if len(fields) + missing != columns:
        raise Malformed("the line has quotes that may or may not hold delimiters")
    return fields, missing


def fields_in(source: str, layout: Layout) -> Iterator[str]:
    """The fields of a line without its end, however many columns are declared.

    Raises:
        Malformed: a quote is never closed.
    """
    at, delimiter = 0, layout.delimiter
    while True:
        content = ""
        if source.startswith('"', at):
            found = layout.quoted.match(source, at)
            if found is None:
                raise Malformed("a quote is never closed")
            at = found.end()
            content = found[1].replace('""', '"')
            if at < len(source) and not source.startswith(delimiter, at):
                content = f'"{content}"{found[2]}'
        end = source.find(delimiter, at)
        end = len(source) if end < 0 else end
        yield content + source[at:end]
        if end == len(source):
            return
        at = end + len(delimiter)
