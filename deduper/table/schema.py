"""Schemas of batches and tables in one form, by which they are compared; texts that are UTF-8. PURE.

Engines spell one type in several ways: a text is `string`, `large_string`, `string_view` or a dictionary of any of
them. The one form has `string`, `binary`, µs, days, `decimal128` and plain lists; no metadata; every column nullable.
Of a file with a text that is not UTF-8, strict readers read no row, and no folder has such a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import types

from deduper.arrow_columns import kind_of
from deduper.table.errors import SchemaDriftError, TableUsageError


def one_form(schema: pa.Schema) -> pa.Schema:
    """The schema in the one form.

    Raises:
        TableUsageError: a column has a type that tables do not have; it and what to do are named.
    """
    names = [name.lower() for name in schema.names]
    for name in schema.names:
        if names.count(name.lower()) > 1:
            raise TableUsageError(f"column `{name}` is there twice, also if case is ignored; rename one")
        for above in _above(name):
            if above in schema.names:
                # Arrow asks for columns of a file by dotted paths, and takes both for one of the two names.
                raise TableUsageError(f"column `{name}` is taken for a part of column `{above}` in Parquet; rename one")
    fields = []
    for field in schema:
        kind = form_of(field.type)
        if kind is None:
            raise TableUsageError(f"column `{field.name}` is {field.type}, which tables do not have; cast it")
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def in_form(records: pa.RecordBatch, wanted: pa.Schema, where: object) -> Iterator[pa.RecordBatch]:
    """Rows of a batch in the types of `wanted`, which has its columns; in parts if their texts take more than 2 GiB.

    Raises:
        TableUsageError: a value has no such form; naming `where` and the column.
    """
    columns = []
    for column, field in zip(records.columns, wanted, strict=True):
        try:
            columns.append(column if column.type == field.type else _cast(column, field.type))
        except pa.ArrowException as error:
            if records.num_rows <= 1:
                message = f"{where}: `{field.name}` cannot be cast to {field.type}: {error}"
                raise TableUsageError(message) from error
            half = records.num_rows // 2
            for part in (records.slice(0, half), records.slice(half)):
                # Of a slice the offsets may be beyond 32 bits; a copy begins at 0.
                yield from in_form(pa.concat_batches([part]), wanted, where)
            return
    yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def type_name(kind: pa.DataType) -> str:
    """The name of a type of the one form: Spark's for scalars, Arrow's for nested ones."""
    scalar = kind_of(kind)
    return str(kind) if scalar is None else scalar.text


def is_scalar(kind: pa.DataType) -> bool:
    """Whether a type of the one form has an order and a digest."""
    return kind_of(kind) is not None


def require_same(root: Path, table: pa.Schema, batch: pa.Schema) -> None:
    """The columns of a batch are those of the table, in any order.

    Raises:
        SchemaDriftError: naming each that is not.
    """
    wrong = [f"`{one.name}` ({type_name(one.type)}) is missing in the batch" for one in _beyond(table, batch)]
    wrong += [f"`{one.name}` ({type_name(one.type)}) is not in the table" for one in _beyond(batch, table)]
    wrong += [
        f"`{one.name}` is {type_name(one.type)} in the batch and {type_name(table.field(one.name).type)} in the table"
        for one in batch
        if one.name in table.names and table.field(one.name).type != one.type
    ]
    if wrong:
        raise SchemaDriftError(f"{root}: {'; '.join(wrong)}; nothing was written")


def _above(name: str) -> Sequence[str]:
    """The names of which a dotted name is a part."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _beyond(one: pa.Schema, other: pa.Schema) -> Sequence[pa.Field]:
    return [field for field in one if field.name not in other.names]


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values.cast(_castable(values.type)).cast(kind)


def _castable(kind: pa.DataType) -> pa.DataType:
    """The type with its dictionaries of views as those of texts or bytes: Arrow does not cast views out of them."""
    if types.is_dictionary(kind):
        offsets = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
        return pa.dictionary(kind.index_type, offsets.get(kind.value_type, kind.value_type), kind.ordered)
    if types.is_list(kind) or types.is_large_list(kind):
        make = pa.list_ if types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_castable(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_castable(field.type)) for field in kind])
    if types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_castable(key.type)), item.with_type(_castable(item.type)))
    return kind


def form_of(kind: pa.DataType) -> pa.DataType | None:
    """The one form of a type, None for a type that tables do not have."""
    if types.is_dictionary(kind):
        return form_of(kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_date(kind):
        return pa.date32()
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_list(kind) or types.is_large_list(kind):
        element = form_of(kind.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    if types.is_struct(kind):
        fields = [(field.name, form_of(field.type)) for field in kind]
        return None if any(inner is None for _, inner in fields) else pa.struct([pa.field(*one) for one in fields])
    if types.is_map(kind):
        key, item = form_of(kind.key_type), form_of(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return kind if is_scalar(kind) else None


def require_utf8(records: pa.RecordBatch, where: object, write: str) -> None:
    """All texts of rows are UTF-8, nested ones too. `write`: what to do.

    Raises:
        TableUsageError: naming `where` and the column.
    """
    for name, column in zip(records.schema.names, records.columns, strict=True):
        if not _has_text(column.type):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise TableUsageError(
                f"{where}: `{name}` has a text that is not UTF-8 ({error}); {write}; nothing was committed"
            ) from error


def _has_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or any(_has_text(kind.field(at).type) for at in range(kind.num_fields))
