"""The column that the rows of all ports have beside the source's own: its name, its types for Spark and for Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    # Workers take the name from here, and need not load what checks configurations.
    from deduper.config import Config

DEDUP = "_dedup"


def dedup_ddl(config: Config) -> str:
    """The struct as Spark reads it."""
    first = f", first_seen: struct<window: bigint, source: string, position: bigint, expiry: {_expiry_ddl(config)}>"
    return (
        "struct<verdict: string, reason: string, window: bigint, source: string, position: bigint, raw: string"
        f"{first if config.store.first_seen else ''}>"
    )


def _expiry_ddl(config: Config) -> str:
    scale = config.point_scale
    if scale.is_time:
        return "timestamp"
    if scale.is_float:
        return "double"
    return f"decimal(18,{scale.scale})" if scale.scale else "bigint"


def expiry_type(config: Config) -> pa.DataType:
    """What an expiry key is in `_dedup.first_seen`, as Arrow has it."""
    scale = config.point_scale
    if scale.is_time:
        return pa.timestamp("us", "UTC")
    if scale.is_float:
        return pa.float64()
    return pa.decimal128(18, scale.scale) if scale.scale else pa.int64()
