"""Columns of Parquet files whose numbers the declared type may not hold. PURE.

Spark takes the lower bits of such a number, or the digits of a decimal without its point, and says nothing; of unsigned
numbers in dictionaries it fails in generated code, without naming the file. So it reads them by the type that they
have, and each value is cast to the declared one afterwards.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.core.verdict import INT64_MAX, INT64_MIN

_DAYS_OR_MILLISECONDS = (pa.date32(), pa.time32("ms"), pa.time32("s"))


def exact_type(found: pa.DataType, declared: pa.DataType) -> str | None:
    """Spark's type that holds every number of a column; None where it reads the declared one right, or refuses it."""
    if not pa.types.is_integer(declared) and declared not in (pa.float64(), pa.date32()):
        return None
    if pa.types.is_decimal(found) and found.precision <= 38 and declared != pa.date32():
        return f"decimal({found.precision},{found.scale})"
    if not pa.types.is_integer(declared):
        return "bigint" if found == pa.uint32() else None
    if found in _DAYS_OR_MILLISECONDS:
        return "int" if declared.bit_width < 32 else None
    if not pa.types.is_integer(found):
        return None
    bits = found.bit_width + pa.types.is_unsigned_integer(found)
    if bits <= declared.bit_width:
        return None
    return "int" if bits <= 32 else "bigint" if bits <= 64 else "decimal(20,0)"


def may_misread(found: pa.DataType, declared: pa.DataType) -> bool:
    """Whether there are such numbers in a column, at any depth."""
    if pa.types.is_struct(declared) and pa.types.is_struct(found):
        inner = {field.name.lower(): field.type for field in found}
        return any(may_misread(inner[name], field.type) for field in declared if (name := field.name.lower()) in inner)
    if pa.types.is_map(declared) and pa.types.is_map(found):
        return may_misread(found.key_type, declared.key_type) or may_misread(found.item_type, declared.item_type)
    if pa.types.is_list(declared) and hasattr(found, "value_type"):
        return may_misread(found.value_type, declared.value_type)
    return exact_type(found, declared) is not None


def beyond_us(column: pa.Array) -> NDArray[np.bool_]:
    """Where times in ms have no µs in 64 bits."""
    values = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    far: NDArray[np.bool_] = (values > INT64_MAX // 1000) | (values < -(-INT64_MIN // 1000))
    return far
