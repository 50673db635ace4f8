"""The columns of a Spark DDL string, without Spark. PURE.

    user string, id long, price decimal(10,2) NOT NULL, tags array<string>, `odd name` int COMMENT 'x'

Types that can be dedup keys are scalars; the others are struct, array and map, of scalars in the end.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

# Every name of a scalar type in Spark's DDL, and the name that Spark prints for it.
_SCALARS = {
    "string": "string",
    "int": "int",
    "integer": "int",
    "bigint": "bigint",
    "long": "bigint",
    "smallint": "smallint",
    "short": "smallint",
    "tinyint": "tinyint",
    "byte": "tinyint",
    "float": "float",
    "real": "float",
    "double": "double",
    "decimal": "decimal",
    "dec": "decimal",
    "numeric": "decimal",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "binary": "binary",
}
_FOREIGN = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "str": "string",
    "text": "string",
    "varchar": "string",
    "char": "string",
    "uuid": "string",
    "json": "string",
    "bool": "boolean",
    "bytes": "binary",
    "blob": "binary",
    "datetime": "timestamp",
    "timestamptz": "timestamp",
}
"""Other systems' names of types: the nearest text would often be a narrower type."""
_NESTED = ("struct", "array", "map")
_MOST_NESTED = 100
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([\w]+)|(.))", re.DOTALL)


class DdlError(ValueError):
    """A DDL string that does not parse. `offset` is the character where, counted from 0."""

    def __init__(self, what: str, write: str, offset: int) -> None:
        super().__init__(f"{what}; {write}")
        self.what = what
        self.write = write
        self.offset = offset


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column's type: `name` as Spark prints it (`bigint`, `decimal`, `struct`), `text` in full (`decimal(10,2)`).

    `parts` are the fields of a struct, the `element` of an array, the `key` and the `value` of a map.
    """

    name: str
    text: str
    precision: int | None = None
    scale: int | None = None
    parts: tuple[Column, ...] = ()

    @property
    def is_scalar(self) -> bool:
        """Whether a value of this type can be part of a dedup key."""
        return self.name not in _NESTED


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name without backquotes, and its type."""

    name: str
    type: ColumnType


@lru_cache(maxsize=16)  # a job has one schema, and its configuration asks for columns again and again
def parse_columns(text: str) -> tuple[Column, ...]:
    """The columns in their order.

    Raises:
        DdlError: the first mistake, with its offset. Names that differ only in case count as one name twice,
            as in Spark.
    """
    reader = _DdlReader(text)
    columns: list[Column] = []
    seen: set[str] = set()
    while True:
        offset = reader.offset
        name = reader.name("a column name")
        if name.lower() in seen:
            raise DdlError(f"column `{name}` appears twice", "remove one of the two", offset)
        seen.add(name.lower())
        reader.skip(":")
        columns.append(Column(name, reader.type()))
        reader.attributes()
        if reader.at_end:
            return tuple(columns)
        reader.expect(",")


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    offset: int
    is_name: bool
    is_quoted: bool = False


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        assert match is not None  # the last alternative matches any character
        quoted_name, literal, word, _ = match.groups()
        start = match.end() - len(match.group().lstrip())
        if quoted_name is not None:
            yield _Token(quoted_name[1:-1].replace("``", "`"), start, is_name=True, is_quoted=True)
        else:
            yield _Token(match.group().lstrip(), start, is_name=word is not None, is_quoted=literal is not None)
        position = match.end()


class _DdlReader:
    """The tokens of a DDL string, read from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depth = 0
        self._end = len(text.rstrip())

    @property
    def at_end(self) -> bool:
        return self._next == len(self._tokens)

    @property
    def offset(self) -> int:
        return self._end if self.at_end else self._tokens[self._next].offset

    def peek(self) -> str:
        return "" if self.at_end else self._tokens[self._next].text

    def skip(self, text: str) -> bool:
        if not self.at_end and self.peek().lower() == text and not self._tokens[self._next].is_quoted:
            self._next += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.skip(text):
            found = f"found `{self.peek()}`" if not self.at_end else "found the end"
            raise DdlError(f"expected `{text}`, {found}", _SHAPE, self.offset)

    def name(self, wanted: str) -> str:
        if self.at_end or not self._tokens[self._next].is_name:
            found = f"found `{self.peek()}`" if not self.at_end else "found the end"
            raise DdlError(f"expected {wanted}, {found}", _SHAPE, self.offset)
        self._next += 1
        return self._tokens[self._next - 1].text

    def number(self) -> int:
        # Not isdigit, which takes ² for one; nothing of more digits is a precision.
        if not re.fullmatch("[0-9]{1,9}", self.peek()):
            raise DdlError(f"expected a number, found `{self.peek()}`", "write it as `decimal(10,2)`", self.offset)
        self._next += 1
        return int(self._tokens[self._next - 1].text)

    def type(self) -> ColumnType:
        offset = self.offset
        if self._depth == _MOST_NESTED:
            raise DdlError(f"types are nested more than {_MOST_NESTED} deep", "flatten the column", offset)
        self._depth += 1
        try:
            return self._type(offset)
        finally:
            self._depth -= 1

    def _type(self, offset: int) -> ColumnType:
        word = self.name("a type").lower()
        if word == "array":
            self.expect("<")
            item = self.type()
            self.expect(">")
            return ColumnType("array", f"array<{item.text}>", parts=(Column("element", item),))
        if word == "map":
            self.expect("<")
            key = self.type()
            self.expect(",")
            value = self.type()
            self.expect(">")
            parts = Column("key", key), Column("value", value)
            return ColumnType("map", f"map<{key.text},{value.text}>", parts=parts)
        if word == "struct":
            return self._struct()
        if word not in _SCALARS:
            foreign = _FOREIGN.get(word)
            close = [foreign] if foreign else difflib.get_close_matches(word, [*_SCALARS, *_NESTED], n=1)
            advice = (
                f"did you mean `{close[0]}`?" if close else "types are " + ", ".join(dict.fromkeys(_SCALARS.values()))
            )
            raise DdlError(f"`{word}` is not a type", advice, offset)
        name = _SCALARS[word]
        if name != "decimal":
            return ColumnType(name, name)
        return self._decimal(offset)

    def _decimal(self, offset: int) -> ColumnType:
        precision, scale = 10, 0
        if self.skip("("):
            precision = self.number()
            if self.skip(","):
                scale = self.number()
            self.expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise DdlError(
                f"decimal({precision},{scale}) does not exist",
                "precision is 1 to 38 and scale at most the precision",
                offset,
            )
        return ColumnType("decimal", f"decimal({precision},{scale})", precision, scale)

    def _struct(self) -> ColumnType:
        self.expect("<")
        fields = []
        while True:
            name = self.name("a field name")
            self.skip(":")
            field = self.type()
            self.attributes()
            fields.append(Column(name, field))
            if not self.skip(","):
                break
        self.expect(">")
        text = ",".join(f"{quoted(field.name)}:{field.type.text}" for field in fields)
        return ColumnType("struct", f"struct<{text}>", parts=tuple(fields))

    def attributes(self) -> None:
        """Skips `NOT NULL` and `COMMENT '…'`, which change nothing here: any column of a record can be missing."""
        if self.skip("not"):
            self.expect("null")
        if self.skip("comment"):
            if self.at_end or self.peek()[0] not in "'\"":
                raise DdlError("COMMENT needs a text in quotes", "write it as `COMMENT 'text'`", self.offset)
            while not self.at_end and self.peek()[0] in "'\"":  # Spark joins adjacent texts
                self._next += 1


_SHAPE = "write columns as `name type, name type`"


def ddl_of(columns: Iterable[Column]) -> str:
    """The columns as DDL that Spark parses, whatever a person has written: every name is in backquotes."""
    return ", ".join(f"{backticked(column.name)} {column.type.text}" for column in columns)


def quoted(name: str) -> str:
    """A name as written in DDL. Spark takes no other without backquotes: no letter beyond ASCII, no digit first."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else backticked(name)


def backticked(name: str) -> str:
    """A name as written in an expression, where some words alone are no names: `null`, `end`, `current_date`."""
    return "`" + name.replace("`", "``") + "`"
