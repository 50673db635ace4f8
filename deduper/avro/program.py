"""A record schema of Avro, made ready to decode its data; runs in the driver.

`config.kafka.avro_schema` has decided which types its columns have; the steps here follow from both. A member of a
union with several types is a field of a struct.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from deduper.avro import kernels
from deduper.avro.decode import Node, Program
from deduper.config.kafka.avro_schema import full_name

_VALUES = {
    "boolean": kernels.BOOLEAN,
    "int": kernels.INT,
    "long": kernels.LONG,
    "float": kernels.FLOAT,
    "double": kernels.DOUBLE,
    "string": kernels.STRING,
    "bytes": kernels.BYTES,
}


def program_of(schema: str, columns: Sequence[pa.DataType]) -> Program:
    """The program for the data of a record schema (JSON) that was checked, and the types of its columns."""
    record = json.loads(schema)
    making = _Making()
    namespace = making.name(record, "")
    nodes = tuple(
        making.column(field["type"], namespace, kind) for field, kind in zip(record["fields"], columns, strict=True)
    )
    making.step(kernels.END)
    return Program(
        columns=nodes,
        steps=np.array(making.steps, np.int64).reshape(-1, kernels.FIELDS),
        targets=np.array(making.targets, np.int64),
        powers=np.array(making.powers, np.uint64).reshape(-1, 2),
        nodes=making.nodes,
    )


class _Making:
    """The program so far, and the named types met so far, each with the namespace inside it."""

    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self.targets: list[int] = []
        self.powers: list[tuple[int, int]] = []
        self.nodes = 0
        self._named: dict[str, tuple[Mapping[str, Any], str]] = {}

    def step(self, kind: int, node: int = 0, a: int = 0, b: int = 0) -> int:
        """Add a step: its number."""
        self.steps.append([kind, node, a, b])
        return len(self.steps) - 1

    def name(self, schema: Mapping[str, Any], namespace: str) -> str:
        """Keep a named type: the namespace inside it."""
        full = full_name(schema, namespace)
        inside = full.rpartition(".")[0]
        self._named[full] = schema, inside
        return inside

    def column(self, schema: Any, namespace: str, kind: pa.DataType) -> Node:
        """Add the steps of a value that becomes one of this type."""
        node = self._node()
        return self._value(schema, namespace, kind, node)

    def _node(self) -> int:
        self.nodes += 1
        return self.nodes - 1

    def _value(self, schema: Any, namespace: str, kind: pa.DataType, node: int) -> Node:
        if isinstance(schema, list):
            return self._union(schema, namespace, kind, node)
        if isinstance(schema, str) and schema not in _VALUES:
            full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
            schema, namespace = self._named[full]
            return self._complex(schema, namespace, kind, node)
        if isinstance(schema, str):
            return self._scalar({"type": schema}, kind, node)
        if isinstance(schema["type"], str) and schema["type"] in ("record", "enum", "fixed"):
            inside = self.name(schema, namespace)
            return self._complex(schema, inside, kind, node)
        return self._complex(schema, namespace, kind, node)

    def _complex(self, schema: Mapping[str, Any], namespace: str, kind: pa.DataType, node: int) -> Node:
        name = schema["type"]
        if name == "record":
            self.step(kernels.PRESENT, node)
            fields = zip(schema["fields"], kind, strict=True)
            return Node(node, kind, tuple(self.column(one["type"], namespace, of.type) for one, of in fields))
        if name == "array":
            begin = self.step(kernels.ITEMS, node)
            inside = self.column(schema["items"], namespace, kind.value_type)
            return self._ended(begin, Node(node, kind, (inside,)))
        if name == "map":
            begin = self.step(kernels.ITEMS, node)
            entry = self._node()
            self.step(kernels.PRESENT, entry)
            key = self.column("string", namespace, kind.key_type)
            item = self.column(schema["values"], namespace, kind.item_type)
            entries = Node(entry, pa.struct([kind.key_field, kind.item_field]), (key, item))
            return self._ended(begin, Node(node, kind, (entries,)))
        if name == "enum":
            self.step(kernels.ENUM, node, len(schema["symbols"]))
            return Node(node, kind, symbols=tuple(schema["symbols"]))
        if name == "fixed" or (isinstance(name, str) and name in _VALUES):
            return self._scalar(schema, kind, node)
        return self._value(name, namespace, kind, node)

    def _ended(self, begin: int, node: Node) -> Node:
        self.steps[begin][kernels.A] = self.step(kernels.NEXT) + 1
        return node

    def _scalar(self, schema: Mapping[str, Any], kind: pa.DataType, node: int) -> Node:
        name = schema["type"]
        if pa.types.is_decimal128(kind):
            power = 10**kind.precision
            self.powers.append((power >> 64, power & 2**64 - 1))
            self.step(kernels.DECIMAL, node, schema["size"] if name == "fixed" else -1, len(self.powers) - 1)
        elif name == "fixed":
            self.step(kernels.FIXED, node, schema["size"])
        elif pa.types.is_timestamp(kind) and str(schema.get("logicalType")).endswith("-millis"):
            self.step(kernels.MILLIS, node)
        elif name == "float" and pa.types.is_float64(kind):
            self.step(kernels.WIDE, node)
        else:
            self.step(_VALUES[name], node)
        return Node(node, kind)

    def _union(self, members: Sequence[Any], namespace: str, kind: pa.DataType, node: int) -> Node:
        """Of one type, or of two kinds of numbers, the value itself; otherwise a struct with a field for each type."""
        is_null = [member in ("null", {"type": "null"}) for member in members]
        is_struct = len(members) - sum(is_null) > 1 and pa.types.is_struct(kind)
        union = self.step(kernels.UNION, node, len(self.targets), len(members))
        first = len(self.targets)
        self.targets += [0] * len(members)
        jumps, inside, made = list[int](), list[Node](), Node(node, kind)
        for number, member in enumerate(members):
            if is_null[number]:
                continue
            self.targets[first + number] = len(self.steps)
            if is_struct:
                self.step(kernels.PRESENT, node)
                inside.append(self.column(member, namespace, kind[len(inside)].type))
            else:
                made = self._value(member, namespace, kind, node)
            jumps.append(self.step(kernels.JUMP))
        assert self.steps[union][kernels.A] == first
        for number, absent in enumerate(is_null):
            if absent:
                self.targets[first + number] = len(self.steps)
        for jump in jumps:
            self.steps[jump][kernels.A] = len(self.steps)
        return Node(node, kind, tuple(inside)) if is_struct else made
