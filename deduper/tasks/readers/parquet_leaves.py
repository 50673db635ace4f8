"""The leaves of a column of a Parquet file, by the paths that Arrow gives them in a file of today's layout. PURE."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def leaves(kind: pa.DataType, path: str) -> Iterator[tuple[str, pa.DataType]]:
    """(path, type) of the leaves of a column of this type that lies at `path`."""
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
