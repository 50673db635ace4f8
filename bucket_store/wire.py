"""PURE. Frozen dataclasses as msgpack arrays and back, every field of exactly its annotated type.

A dataclass is an array of its fields in order, a tuple an array, a dict keyed by numbers an array of [key, value] pairs
ascending by key, a dict keyed by strings a map, None is nil. Fields marked `LATER` come after those of the first
version, then fields marked `OF_3` and `OF_4`; those of a version are written all together, and only if one of them, or
of a later version, differs from its default.

A checksum proves that the bytes are those that were written, not that their writer was right. Decoded values are
folded, added and compared far away from their file; so only the exact types pass (true is no int, an int no string).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, is_dataclass
from functools import cache
from itertools import takewhile
from operator import attrgetter
from types import UnionType
from typing import Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

_VERSION: Final = "version"
LATER: Final = {_VERSION: 2}
"""The `metadata` of a field that the first version of a format has not."""
OF_3: Final = {_VERSION: 3}
"""The `metadata` of a field that the first two versions of a format have not."""
OF_4: Final = {_VERSION: 4}
"""The same of the first three."""

_T = TypeVar("_T")
_PLAIN: tuple[Any, ...] = (bool, int, float, str, bytes)


class _Shape(NamedTuple):
    """A type as msgspec's schema, and the functions between its values and those of the schema."""

    schema: Any
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


def encode(value: Any) -> bytes:
    """The bytes of a dataclass."""
    kind: Any = type(value)
    return _ENCODER.encode(_shape(kind).pack(value))


def decode(kind: type[_T], data: bytes) -> _T:
    """The dataclass of this kind in these bytes.

    Raises:
        ValueError: no msgpack, another number of fields, or a field of another type.
    """
    hint: Any = kind
    try:
        unpacked: _T = _shape(hint).unpack(_decoder(hint).decode(data))
    except RecursionError as exc:
        raise ValueError(str(exc)) from exc
    return unpacked


def version_of(value: Any) -> int:
    """The first version of the format that has every field of this value that differs from its default."""
    later = (field for field in dataclasses.fields(value) if field.metadata)
    return max((_since(field) for field in later if getattr(value, field.name) != _default(field)), default=1)


def _of_base(value: Any) -> Any:
    """A value of a subclass, as numpy's float64 is of float, as one of the plain class."""
    for plain in _PLAIN:
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(f"{type(value).__name__} has no place in a file")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_of_base)


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(_shape(kind).schema)


@cache
def _shape(hint: Any) -> _Shape:
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return _shape_of_fields(hint)
    if origin in (Union, UnionType) and any(map(is_dataclass, arguments)):
        kind: Any = next(filter(is_dataclass, arguments))
        one = _shape(kind)
        return _Shape(
            one.schema | None,
            lambda value: None if value is None else one.pack(value),
            lambda value: None if value is None else one.unpack(value),
        )
    if origin is tuple and arguments[1:] == (...,):
        each = _shape(arguments[0])
        return _Shape(
            tuple[each.schema, ...],  # type: ignore[name-defined]  # msgspec reads it at run time
            lambda values: [each.pack(value) for value in values],
            lambda values: tuple([each.unpack(value) for value in values]),
        )
    if origin is dict and arguments[0] is int:
        of_key = _shape(arguments[1])
        return _Shape(
            tuple[tuple[int, of_key.schema], ...],  # type: ignore[name-defined]
            lambda values: [[key, of_key.pack(values[key])] for key in sorted(values)],
            lambda pairs: {key: of_key.unpack(value) for key, value in pairs},
        )
    if arguments[1:] == (Any,):
        return _Shape(hint, _demand_plain, _demand_plain)
    return _Shape(hint, _as_it_is, _as_it_is)


def _shape_of_fields(kind: Any) -> _Shape:
    hints = get_type_hints(kind)
    shapes = [_shape(hints[field.name]) for field in dataclasses.fields(kind)]
    versions = [_since(field) for field in dataclasses.fields(kind)]
    lengths = {version: sum(since <= version for since in versions) for version in {1, *versions}}
    schema = msgspec.defstruct(
        kind.__name__,
        [
            (field.name, shape.schema)
            if not field.metadata
            else (field.name, shape.schema | msgspec.UnsetType, msgspec.UNSET)
            for field, shape in zip(dataclasses.fields(kind), shapes, strict=True)
        ],
        array_like=True,
        forbid_unknown_fields=True,
    )
    names = [field.name for field in dataclasses.fields(kind)]
    if len(lengths) == 1 and all(shape.pack is _as_it_is for shape in shapes) and len(names) > 1:
        # A snapshot has many thousands of pieces.
        return _Shape(schema, attrgetter(*names), lambda struct: kind(*msgspec.structs.astuple(struct)))

    def pack(value: Any) -> list[Any]:
        written = zip(names if len(lengths) == 1 else names[: lengths[version_of(value)]], shapes, strict=False)
        return [shape.pack(getattr(value, name)) for name, shape in written]

    def unpack(struct: Any) -> Any:
        values = msgspec.structs.astuple(struct)
        if values[-1] is msgspec.UNSET:
            values = tuple(takewhile(lambda value: value is not msgspec.UNSET, values))
            if len(values) not in lengths.values():
                raise ValueError(f"{kind.__name__}: {len(values)} fields, which no version has")
        return kind(*[shape.unpack(value) for shape, value in zip(shapes, values, strict=False)])

    return _Shape(schema, pack, unpack)


def _since(field: Field[Any]) -> int:
    """The version of the format that has this field first."""
    return int(field.metadata.get(_VERSION, 1))


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _as_it_is(value: Any) -> Any:
    return value


def _demand_plain(value: Any) -> Any:
    """A value of another package, when it is of nothing but what JSON has, and bytes. Raises ValueError."""
    if isinstance(value, dict):
        if not all(isinstance(key, str | bytes) for key in value):
            raise ValueError(f"a map from strings, not {value!r:.200}")
        for item in value.values():
            _demand_plain(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _demand_plain(item)
    elif value is not None and not isinstance(value, _PLAIN):
        raise ValueError(f"a plain value, not {value!r:.200}")
    return value
