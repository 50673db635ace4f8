"""PURE. Fingerprints of payloads: 64 bits of the parts of a record that tell a copy from a conflict.

Two records have one fingerprint if all leaves (`deduper.payload`) have equal values by the rules of keys
(`core.digests`: -0.0 is 0.0, NaN is NaN, an instant is one in every zone, texts are their UTF-8 bytes). Arrays are
equal with equal elements in their order, maps with equal entries in any order.

The hash is that of fast digests, one word wide, over the leaves in the order of their paths: running := xxhash64 of the
16 bytes of the salt, with seed 42; then for every leaf, seeded with `running`, the flag null as int32, and of a value
that is not null

    scalar  its bytes, as `core.digests` has them
    array   its length and the hashes of its elements, each 8 bytes
    map     its length and the sum of the hashes of its entries (key, then value) modulo 2^64

Elements and entries are hashed from the same beginning as a record, an object by its leaves. 0 is no fingerprint: it
becomes 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from deduper.columns import ColumnType
from deduper.core import digest_kernels as kernels
from deduper.core.digests import SEED, check_salt
from deduper.payload import Leaf, Path, leaves

UNKNOWN: Final = 0
"""In a store: the entry has no fingerprint that counts."""


def array_fingerprint(
    chosen: Sequence[Leaf], columns: dict[str, pa.Array], salt: bytes, rows: int
) -> NDArray[np.uint64]:
    """The fingerprint of every row; `columns` are those that the leaves begin with, of the Arrow types of their kinds.

    Raises:
        ValueError: the salt's length is wrong.
    """
    check_salt(salt)
    begin = xxhash.xxh64_intdigest(salt, seed=SEED)
    found = [(leaf.path, _at(columns[leaf.path[0]], leaf.path[1:]), leaf.kind) for leaf in chosen]
    hashed = _hashed(found, begin, rows)
    hashed[hashed == UNKNOWN] = 1
    return hashed


_Found = tuple[Path, pa.Array, ColumnType]


def _at(array: pa.Array, path: Path) -> pa.Array:
    """The field of objects at a path; null where an object is."""
    for name in path:
        # By number: two fields may differ in case alone.
        array = array.flatten()[array.type.get_field_index(name)]
    return array


def _hashed(found: Sequence[_Found], begin: int, rows: int) -> NDArray[np.uint64]:
    running = np.full(rows, begin, np.uint64)
    for _, array, kind in sorted(found, key=lambda one: one[0]):
        _fold(array, kind, begin, running)
    return running


def _fold(array: pa.Array, kind: ColumnType, begin: int, running: NDArray[np.uint64]) -> None:
    """Folds one leaf into the words."""
    if kind.name not in ("array", "map"):
        kernels.fold_column(array, kind, running)
        return
    offsets = np.asarray(array.offsets).astype(np.int64)
    if kind.name == "array":
        element = _elements(("",), array.values, kind.parts[0].type)
        kernels.fold_lists(_hashed(element, begin, len(array.values)), offsets, kernels.valid_of(array), running)
    else:
        of_key, of_value = kind.parts
        entries = [
            *_elements(("0",), array.keys, of_key.type),
            *_elements(("1",), array.items, of_value.type),
        ]
        kernels.fold_maps(_hashed(entries, begin, len(array.keys)), offsets, kernels.valid_of(array), running)


def _elements(path: Path, array: pa.Array, kind: ColumnType) -> list[_Found]:
    """The leaves of elements of an array, or of keys or values of a map."""
    if kind.name != "struct":
        return [(path, array, kind)]
    return [((*path, *leaf.path), _at(array, leaf.path), leaf.kind) for leaf in leaves(kind.parts)]
