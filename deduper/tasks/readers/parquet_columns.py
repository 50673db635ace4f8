"""The columns of a Parquet file as declared ones: which column is meant, and how its values are read. PURE.

A name stands for the column, or the field of a struct, with the same letters in any case; an absent one is null. Lists
may have any names of layers and any offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deduper.arrow_columns import DeclaredColumn
from deduper.tasks.readers import int96
from deduper.tasks.readers.old_calendar import Calendar, UnclearTime, renamed_days
from deduper.tasks.readers.parquet_values import Cast, Faults, Read, Unlike, ValueFault, cast_of, converted, worst
from deduper.tasks.readers.parquet_values import faults as faults_at

_UTC_TIME = pa.timestamp("us", "UTC")
_MOST_NAMED = 5


class OtherColumns(ValueError):
    """A file whose columns cannot be the declared ones; the text names column, stored and declared type."""


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A declared column as a file has it. `name` is the file's; `cast` is None where values are as declared."""

    name: str
    cast: Cast | None

    def read(self, values: pa.Array, declared: pa.DataType) -> Read:
        """Values of the declared type.

        Raises:
            UnclearTime: a time has no rule.
        """
        try:
            values, faults = converted(values, self.cast, declared)
        except UnclearTime as exc:
            raise UnclearTime(f"column {self.name} {exc}") from exc
        if faults is not None and pa.types.is_nested(declared):
            values = pc.if_else(pa.array(faults == ValueFault.NONE), values, pa.scalar(None, declared))
        return values, faults


def stored_columns(
    schema: pa.Schema, physical: Sequence[str], calendar: Calendar, columns: Sequence[DeclaredColumn]
) -> list[StoredColumn | None]:
    """The file's column for each declared one, None for an absent one; `physical` are its leaves' types, in order.

    Raises:
        OtherColumns: one of them cannot be read.
    """
    fields: dict[str, list[tuple[pa.Field, Sequence[str]]]] = {}
    leaf = 0
    for field in schema:
        last = leaf + leaf_count(field.type)
        fields.setdefault(field.name.lower(), []).append((field, physical[leaf:last]))
        leaf = last
    return [_column(declared, fields.get(declared.name.lower(), []), Casts(calendar)) for declared in columns]


def _column(
    declared: DeclaredColumn, found: Sequence[tuple[pa.Field, Sequence[str]]], casts: Casts
) -> StoredColumn | None:
    if not found:
        return None
    if len(found) > 1:
        raise OtherColumns(f"column {declared.name}: {_ambiguous([field for field, _ in found])}")
    (field, physical), *_ = found
    try:
        return StoredColumn(field.name, casts.of(field.type, declared.arrow, iter(physical)))
    except Unlike as exc:
        why = f" ({exc})" if str(exc) else ""
        raise OtherColumns(
            f"column {declared.name} is declared {declared.kind.text}, the file has {field.type}{why}"
        ) from None


@dataclass(frozen=True, slots=True)
class Casts:
    """How columns of a file become declared ones."""

    calendar: Calendar

    def of(self, found: pa.DataType, declared: pa.DataType, physical: Iterator[str]) -> Cast | None:
        """The cast of a column; consumes as many of the physical types as the type has leaves."""
        if pa.types.is_struct(found) and pa.types.is_struct(declared):
            return self._struct(found, declared, physical)
        if pa.types.is_map(found) and pa.types.is_map(declared):
            casts = (
                self.of(found.key_type, declared.key_type, physical),
                self.of(found.item_type, declared.item_type, physical),
            )
            return None if found == declared and not any(casts) else _Map(declared, *casts).read
        if _is_list(found) and pa.types.is_list(declared):
            element = self.of(found.value_type, declared.value_type, physical)
            return None if found == declared and element is None else _List(declared, element).read
        if not pa.types.is_null(found) and (pa.types.is_nested(found) or pa.types.is_nested(declared)):
            raise Unlike
        return self._leaf(found, declared, next(physical))

    def _struct(self, found: pa.StructType, declared: pa.StructType, physical: Iterator[str]) -> Cast | None:
        wanted = {field.name.lower(): field.type for field in declared}
        fields: dict[str, list[int]] = {}
        casts: list[Cast | None] = []
        for number, field in enumerate(found):
            name = field.name.lower()
            fields.setdefault(name, []).append(number)
            if name in wanted:
                casts.append(self.of(field.type, wanted[name], physical))
            else:
                casts.append(None)
                for _ in range(leaf_count(field.type)):
                    next(physical)
        for name in wanted:
            if len(numbers := fields.get(name, [])) > 1:
                raise Unlike(_ambiguous([found[number] for number in numbers]))
        if found == declared and not any(casts):
            return None
        places = [fields[name][0] if name in fields else None for name in wanted]
        return _Struct(declared, places, casts).read

    def _leaf(self, found: pa.DataType, declared: pa.DataType, physical: str) -> Cast | None:
        if physical == "INT96":
            if not pa.types.is_timestamp(declared):
                raise Unlike
            cast, is_old = cast_of(_UTC_TIME, declared), self.calendar.is_int96_old
            if found == int96.RAW:
                return self._from(int96.times, cast, declared, is_old)
            # Times of INT96 are of UTC and do not say so.
            read = self._from(lambda values: (values.cast(_UTC_TIME), None), cast, declared, is_old)
            return read if cast is not None or is_old else None
        cast = cast_of(found, declared)
        if not self.calendar.are_dates_old or not pa.types.is_temporal(declared):
            return cast
        if found == pa.date32():
            return lambda values: converted(renamed_days(values), cast, declared)
        if pa.types.is_timestamp(found) and found.tz is not None:
            to_us, cast = cast_of(found, _UTC_TIME), cast_of(_UTC_TIME, declared)
            return self._from(lambda values: converted(values, to_us, _UTC_TIME), cast, declared, is_old=True)
        return cast

    def _from(self, first: Cast, cast: Cast | None, declared: pa.DataType, is_old: bool) -> Cast:
        """By way of times in µs, which may be of the old calendar."""

        def read(values: pa.Array) -> Read:
            times, faults = first(values)
            times, more = converted(self.calendar.times(times) if is_old else times, cast, declared)
            return times, worst(faults, more)

        return read


@dataclass(frozen=True, slots=True)
class _Struct:
    """`places` are the numbers of the fields in the file, `casts` are by these numbers."""

    declared: pa.StructType
    places: Sequence[int | None]
    casts: Sequence[Cast | None]

    def read(self, values: pa.Array) -> Read:
        children, found = [], None
        for field, place in zip(self.declared, self.places, strict=True):
            if place is None:
                children.append(pa.nulls(len(values), field.type))
                continue
            child, faults = converted(values.field(place), self.casts[place], field.type)
            children.append(child)
            found = worst(found, faults)
        return pa.StructArray.from_arrays(children, fields=list(self.declared), mask=values.is_null()), found


@dataclass(frozen=True, slots=True)
class _List:
    declared: pa.ListType
    element: Cast | None

    def read(self, values: pa.Array) -> Read:
        if not pa.types.is_list(values.type):
            values = values.cast(pa.list_(values.type.value_type))
        child, faults = converted(values.values, self.element, self.declared.value_type)
        return _with_child(values, self.declared, child), _of_rows(values, faults)


@dataclass(frozen=True, slots=True)
class _Map:
    declared: pa.MapType
    key: Cast | None
    item: Cast | None

    def read(self, values: pa.Array) -> Read:
        keys, of_keys = converted(values.keys, self.key, self.declared.key_type)
        items, of_items = converted(values.items, self.item, self.declared.item_type)
        if keys.null_count:
            # Arrow ends the process over a key that is null.
            kept = keys.is_valid().to_numpy(zero_copy_only=False)
            of_keys = worst(of_keys, faults_at(~kept, ValueFault.MISFIT))
            offsets = np.concatenate(([0], np.cumsum(kept)))[values.offsets.to_numpy()]
            made = pa.MapArray.from_arrays(
                pa.array(offsets, pa.int32()),
                keys.filter(pa.array(kept)),
                items.filter(pa.array(kept)),
                self.declared,
                mask=values.is_null(),
            )
            return made, _of_rows(values, worst(of_keys, of_items))
        entries = pa.StructArray.from_arrays([keys, items], fields=[self.declared.key_field, self.declared.item_field])
        return _with_child(values, self.declared, entries), _of_rows(values, of_items)


def _with_child(values: pa.Array, declared: pa.DataType, child: pa.Array) -> pa.Array:
    own = values.buffers()[: declared.num_buffers]
    return pa.Array.from_buffers(declared, len(values), own, values.null_count, values.offset, [child])


def _of_rows(values: pa.Array, faults: Faults | None) -> Faults | None:
    """The worst fault in each list or map, by those of all their elements."""
    if faults is None:
        return None
    return np.array([faults[begin:end].max(initial=0) for begin, end in pairwise(values.offsets.to_numpy())], np.int8)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def leaf_count(kind: pa.DataType) -> int:
    """The columns that Parquet has for a type."""
    if isinstance(kind, pa.BaseExtensionType):
        return leaf_count(kind.storage_type)
    if pa.types.is_struct(kind):
        return sum(leaf_count(field.type) for field in kind)
    if pa.types.is_map(kind):
        return leaf_count(kind.key_type) + leaf_count(kind.item_type)
    return leaf_count(kind.value_type) if _is_list(kind) else 1


def _ambiguous(fields: Sequence[pa.Field]) -> str:
    named = ", ".join(field.name for field in fields[:_MOST_NAMED])
    return f"more than one could be meant: {named}"


def leaves(kind: pa.DataType, path: str) -> Iterator[tuple[str, pa.DataType]]:
    """(path, type) of the leaves of a column of this type that lies at `path`: as Arrow has them in a file of today."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from leaves(field.type, f"{path}.{field.name}")
    elif pa.types.is_map(kind):
        yield from leaves(kind.key_type, f"{path}.key_value.key")
        yield from leaves(kind.item_type, f"{path}.key_value.value")
    elif pa.types.is_list(kind):
        yield from leaves(kind.value_type, f"{path}.list.element")
    else:
        yield path, kind
