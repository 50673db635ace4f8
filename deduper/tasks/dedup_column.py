"""The column that the rows of all ports have beside the source's own: its name, its types for Spark and for Arrow."""

from __future__ import annotations

import pyarrow as pa

from deduper.expiry_key import ExpiryKeyScale

DEDUP = "_dedup"


def dedup_ddl(scale: ExpiryKeyScale, *, first_seen: bool, detail: bool = False, fingerprints: bool = False) -> str:
    """The struct as Spark reads it, with the place of the first copy if the store keeps it.

    `detail` is in the error port alone; `fingerprints`, those of a conflict, in it and in the duplicate port, and in
    the unique port if conflicts are versions.
    """
    first = f", first_seen: struct<window: bigint, source: string, position: bigint, expiry: {expiry_ddl(scale)}>"
    return (
        "struct<verdict: string, reason: string, window: bigint, source: string, position: bigint, raw: string"
        f"{', detail: string' if detail else ''}{first if first_seen else ''}"
        f"{', fingerprint: string, first_fingerprint: string' if fingerprints else ''}>"
    )


def expiry_ddl(scale: ExpiryKeyScale) -> str:
    """Spark's type of an expiry key in `_dedup.first_seen`."""
    if scale.is_time:
        return "timestamp"
    if scale.is_float:
        return "double"
    return f"decimal(18,{scale.scale})" if scale.scale else "bigint"


def expiry_type(scale: ExpiryKeyScale) -> pa.DataType:
    """Arrow's type of an expiry key in `_dedup.first_seen`."""
    if scale.is_time:
        return pa.timestamp("us", "UTC")
    if scale.is_float:
        return pa.float64()
    return pa.decimal128(18, scale.scale) if scale.scale else pa.int64()
