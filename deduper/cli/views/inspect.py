"""The answers of `inspect` as text: a key, a bucket, a window."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from deduper.admin.inspect import BucketReport, KeyReport
from deduper.cli.terminal import pairs, table
from deduper.units import approximate_size


def render_key(report: KeyReport) -> list[RenderableType]:
    """A key report as text."""
    next_copy = "the next copy in the same bucket" if report.is_own_bucket else "the next copy"
    verdict = {
        True: Text(f"remembered: {next_copy} is a duplicate", style="green"),
        False: Text("not remembered: the next copy is unique", style="yellow"),
        None: Text("stored; with a config this says whether it is still remembered", style="yellow"),
    }[report.is_remembered]
    key = ", ".join(f"{name} = {'null' if value is None else value}" for name, value in report.key.items())
    parts: list[RenderableType] = [
        pairs([("key", key), ("digest", f"{report.digest}, shard {report.shard}"), ("verdict", verdict)])
    ]
    for entry in report.entries:
        where = entry.source and entry.source + ("" if entry.row is None else f", row {entry.row}")
        state = {True: "live", False: "dead, not yet deleted", None: "not known"}[entry.is_live]
        parts += [
            Text(),
            pairs(
                [
                    ("first seen", f"window {entry.window}"),
                    ("source", where or "not kept"),
                    ("expiry key", entry.expiry_key),
                    ("bucket", f"{entry.bucket}, in piece {entry.piece}"),
                    ("state", state),
                    ("until", entry.until),
                ]
            ),
        ]
    return parts


def render_bucket(report: BucketReport) -> list[RenderableType]:
    """A bucket report as text."""
    parts: list[RenderableType] = [
        pairs(
            [
                ("bucket", str(report.bucket)),
                ("holds", report.holds),
                ("live", {True: "yes", False: "no", None: None}[report.is_live]),
                ("entries", f"{report.entries:,} in {len(report.pieces):,} pieces"),
            ]
        )
    ]
    if report.pieces:
        parts.append(
            table(
                ("shard", "windows", "entries", "size", "piece"),
                [
                    (
                        part.shard,
                        str(part.first_window)
                        if part.first_window == part.last_window
                        else f"{part.first_window} to {part.last_window}",
                        part.entries,
                        approximate_size(part.size_bytes),
                        part.piece,
                    )
                    for part in report.pieces
                ],
            )
        )
    return parts


def render_window(record: dict[str, Any]) -> list[RenderableType]:
    """A commit record of `inspect_window` as text."""
    scalars = [
        (name.replace("_", " "), value)
        for name, value in record.items()
        if not isinstance(value, list | dict) and value is not None
    ]
    buckets = record["buckets"]
    scalars.append(("buckets", f"{len(buckets):,}" + (f", from {buckets[0]} to {buckets[-1]}" if buckets else "")))
    parts: list[RenderableType] = [pairs((name, str(value)) for name, value in scalars), Text()]
    parts.append(table(("port", "rows"), record["counts"].items()))
    if record["reasons"]:
        parts.append(table(("reason", "rows"), record["reasons"].items()))
    for name, columns in (
        ("sources", ("name", "start", "end", "rows")),
        ("pieces", ("shard", "entries", "bytes", "file", "name")),
        ("outputs", ("port", "rows", "bytes", "final")),
    ):
        if record[name]:
            parts.append(table(columns, ([item[column] for column in columns] for item in record[name]), title=name))
    return parts
