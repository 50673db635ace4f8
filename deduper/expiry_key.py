"""Expiry keys as they are stored, and as people read them. PURE.

Stored is a number: µs for times, the unscaled integer for decimals, the number itself for the rest. One step of a
stored key is 1 µs, or 10**-scale, or 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from deduper.columns import ColumnType
from deduper.units import format_time


@dataclass(frozen=True, slots=True)
class ExpiryKeyScale:
    """The scale of stored expiry keys."""

    is_time: bool
    is_float: bool
    scale: int = 0

    @classmethod
    def of(cls, by: str, column: ColumnType | None) -> ExpiryKeyScale:
        """The scale of an expiry (`by` as in the configuration) on a column of this type."""
        if by != "ordered" or column is None:
            return cls(is_time=by in ("event_time", "processing_time"), is_float=False)
        return cls(is_time=False, is_float=column.name == "double", scale=column.scale or 0)

    @property
    def ddl(self) -> str:
        """Spark's type of an expiry key in `_dedup.first_seen`."""
        if self.is_time:
            return "timestamp"
        if self.is_float:
            return "double"
        return f"decimal(18,{self.scale})" if self.scale else "bigint"

    def steps(self, number: int | float) -> int | float:
        """A number of the configuration in steps of the stored key.

        Raises:
            ValueError: the number falls between two steps.
        """
        if self.is_float:
            return float(number)
        exact = Decimal(repr(number)).scaleb(self.scale)
        if exact != exact.to_integral_value():
            raise ValueError(f"{number} is not a multiple of {Decimal(1).scaleb(-self.scale)}")
        return int(exact)

    def shown(self, point: int | float | None) -> str | int | float | None:
        """A stored key as printed: ISO 8601 UTC, a decimal's text, or the number."""
        if point is None or self.is_float:
            return point
        if self.is_time:
            return format_time(int(point))
        return str(Decimal(int(point)).scaleb(-self.scale)) if self.scale else int(point)
