"""The columns of an Avro record schema, with the types that Spark has for them. PURE.

    int, date                       int, date
    long, timestamp-*               bigint, timestamp; local-timestamp-* timestamp_ntz
    float, double, boolean          the same
    string, enum                    string
    bytes, fixed                    binary, or decimal(p,s)
    record, array, map              struct, array, map<string,...>
    [null, X], [X, null], [X]       X, which can be null as every column can
    [int, long], [float, double]    bigint, double
    any other union                 struct<member0:...,member1:...>

A time of day (long, time-micros) is refused. Other logical types that Spark does not know, or that are not as Avro
wants them, count for nothing, as Avro says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deduper.columns import quoted

_PLAIN = {
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "binary",
}
_LOGICAL = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
}
# Types of unions of two kinds of numbers.
_WIDER = {frozenset({"int", "long"}): "bigint", frozenset({"float", "double"}): "double"}
_MOST_NESTED = 100


class AvroError(ValueError):
    """A schema whose records cannot be columns: what is wrong, and what to write."""

    def __init__(self, what: str, write: str) -> None:
        super().__init__(f"{what}; {write}")
        self.what = what
        self.write = write


def columns_of(text: str) -> str:
    """The columns of a record schema (JSON) as Spark DDL.

    Raises:
        AvroError: not JSON, not the schema of a record, or of one that Spark has no type for.
    """
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        what = f"is not JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        raise AvroError(what, "write the schema as JSON, or the path of an .avsc file") from None
    except RecursionError:
        raise AvroError("is nested too deep", "flatten the record") from None
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise AvroError("is not the schema of a record", 'write `{"type": "record", "name": ..., "fields": [...]}`')
    fields = _SchemaReader().fields(schema, "")
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in fields)


class _SchemaReader:
    """The named types met so far, by full name; None while one is being read."""

    def __init__(self) -> None:
        self._named: dict[str, str | None] = {}
        self._depth = 0

    def fields(self, schema: Mapping[str, Any], namespace: str) -> list[tuple[str, str]]:
        """The fields of a record with their types."""
        full = full_name(schema, namespace)
        fields = schema.get("fields")
        if not isinstance(fields, list) or not fields:
            raise AvroError(f"record `{full}` has no fields", 'write them as `"fields": [{"name": ..., "type": ...}]`')
        self._named[full] = None
        read = []
        for field in fields:
            if not isinstance(field, Mapping) or not isinstance(field.get("name"), str) or "type" not in field:
                what = f"record `{full}` has a field without name or type"
                raise AvroError(what, 'write `{"name": ..., "type": ...}`')
            read.append((field["name"], self._type(field["type"], full.rpartition(".")[0], f"{full}.{field['name']}")))
        return read

    def _type(self, schema: object, namespace: str, where: str) -> str:
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise AvroError(f"`{where}` is nested more than {_MOST_NESTED} deep", "flatten the record")
        try:
            if isinstance(schema, str):
                return self._by_name(schema, namespace, where)
            if isinstance(schema, list):
                return self._union(schema, namespace, where)
            if isinstance(schema, Mapping):
                return self._complex(schema, namespace, where)
        finally:
            self._depth -= 1
        raise AvroError(f"`{where}` has no type", "write a name, a union [...] or a schema {...}")

    def _by_name(self, name: str, namespace: str, where: str) -> str:
        if name in _PLAIN:
            return _PLAIN[name]
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self._named:
            what = f"`{where}` has the unknown type `{name}`"
            raise AvroError(what, f"types are {', '.join(_PLAIN)}, record, enum, fixed, array and map")
        kind = self._named[full]
        if kind is None:
            raise AvroError(f"`{where}` contains its own record", "leave the field out: Spark has no recursive types")
        return kind

    def _union(self, members: Sequence[object], namespace: str, where: str) -> str:
        others = [member for member in members if member != "null" and member != {"type": "null"}]
        if not others:
            raise AvroError(f"`{where}` can only be null", "leave the field out")
        if len(others) == 1:
            return self._type(others[0], namespace, where)
        names = frozenset(name for name in others if isinstance(name, str))
        if len(names) == len(others) and names in _WIDER:
            return _WIDER[names]
        kinds = [self._type(member, namespace, where) for member in others]
        return f"struct<{','.join(f'member{number}:{kind}' for number, kind in enumerate(kinds))}>"

    def _complex(self, schema: Mapping[str, Any], namespace: str, where: str) -> str:
        name = schema.get("type")
        if name == "record":
            fields = self.fields(schema, namespace)
            kind = f"struct<{','.join(f'{quoted(field)}:{inner}' for field, inner in fields)}>"
        elif name == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not symbols or not all(isinstance(one, str) for one in symbols):
                raise AvroError(f"`{where}` is an enum without symbols", 'write `"symbols": ["A", "B"]`')
            kind = "string"
        elif name == "fixed":
            if type(schema.get("size")) is not int or schema["size"] < 1:
                raise AvroError(f"`{where}` is a fixed without a size", 'write its bytes as `"size": 16`')
            kind = _decimal(schema) or "binary"
        elif name == "array":
            return f"array<{self._type(schema.get('items'), namespace, where)}>"
        elif name == "map":
            return f"map<string,{self._type(schema.get('values'), namespace, where)}>"
        elif isinstance(name, str) and name in _PLAIN:
            logical = schema.get("logicalType")
            if (name, logical) == ("long", "time-micros"):
                raise AvroError(f"`{where}` is a time of day, for which Spark has no type", "leave the field out")
            decimal = _decimal(schema) if name == "bytes" else None
            return decimal or _LOGICAL.get((name, str(logical)), _PLAIN[name])
        else:
            return self._type(name, namespace, where)
        self._named[full_name(schema, namespace)] = kind
        return kind


def _decimal(schema: Mapping[str, Any]) -> str | None:
    """The decimal that bytes stand for; None when they stand for themselves."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if schema.get("logicalType") != "decimal" or type(precision) is not int or type(scale) is not int:
        return None
    if not 0 <= scale <= precision or precision < 1:
        return None
    if precision > 38:
        raise AvroError(f"has a decimal of {precision} digits", "Spark's decimals have at most 38: leave the field out")
    return f"decimal({precision},{scale})"


def full_name(schema: Mapping[str, Any], namespace: str) -> str:
    """The name of a named type in a namespace, as other types refer to it."""
    name = schema.get("name")
    if not isinstance(name, str) or not name:
        raise AvroError(f"a {schema.get('type')} has no name", 'write `"name": ...`')
    own = schema.get("namespace", namespace)
    return name if "." in name or not own else f"{own}.{name}"
