"""A window, a bucket, and the errors of a store as text."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from deduper.admin.errors.export import ErrorExport
from deduper.admin.errors.report import ErrorRowGroup, ErrorsReport
from deduper.admin.inspect import BucketReport
from deduper.cli.terminal import pairs, table
from deduper.units import approximate_size, counted

_MOST_GROUPS = 50


def render_bucket(report: BucketReport) -> list[RenderableType]:
    """A bucket report as text."""
    parts: list[RenderableType] = [
        pairs(
            [
                ("bucket", str(report.bucket)),
                ("holds", report.holds),
                ("live", {True: "yes", False: "no", None: None}[report.is_live]),
                ("entries", f"{report.entries:,} in {counted(len(report.pieces), 'piece')}"),
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
        if not isinstance(value, list | dict) and value not in (None, "")
    ]
    buckets = record["buckets"]
    scalars.append(("buckets", f"{len(buckets):,}" + (f", from {buckets[0]} to {buckets[-1]}" if buckets else "")))
    parts: list[RenderableType] = [pairs((name, str(value)) for name, value in scalars)]
    parts.append(table(("port", "rows"), record["counts"].items()))
    if record["reasons"]:
        parts.append(table(("reason", "rows"), record["reasons"].items()))
    for name, columns, optional in (
        ("sources", ("name", "start", "end", "rows"), ()),
        ("pieces", ("shard", "entries", "bytes", "file", "name"), ("file",)),
        ("outputs", ("port", "rows", "bytes", "final"), ()),
    ):
        if record[name]:
            rows = ([item[column] for column in columns] for item in record[name])
            parts.append(table(columns, rows, title=name, optional=optional))
    return parts


def render_errors(report: ErrorsReport) -> list[RenderableType]:
    """Errors by reason and detail as text."""
    found = f"{counted(report.rows, 'row')} of {counted(report.windows, 'window')}"
    taken = f"{report.taken_rows:,} rows are not in the folder any more" if report.taken_rows else None
    parts: list[RenderableType] = [pairs([("from", report.origin), ("errors", found), ("taken", taken)])]
    if report.groups:
        rows = [
            (group.reason, group.detail, group.rows, _windows(group), group.place)
            for group in report.groups[:_MOST_GROUPS]
        ]
        parts.append(table(("reason", "detail", "rows", "windows", "first at"), rows))
    more = report.groups[_MOST_GROUPS:]
    others = report.others + sum(group.rows for group in more)
    if others:
        parts.append(Text(f"{counted(others, 'row')} of further groups; --json has up to 10,000 groups"))
    return parts


def render_export(report: ErrorExport) -> list[RenderableType]:
    """An export of error records as text."""
    rows = counted(sum(report.rows.values()), "record")
    if not report.rows:
        done = "no record to export: nothing is written"
    elif report.files:
        done = f"{report.to}: {rows} in {counted(report.files, 'file')}; move the files into the source"
    else:
        done = f"topic {report.to}: {rows} sent"
    parts: list[RenderableType] = [Text(done)]
    if report.rows:
        parts.append(table(("reason", "records"), report.rows.items()))
    if report.left_out:
        parts.append(table(("not in the error port", "rows"), report.left_out.items()))
    return parts


def _windows(group: ErrorRowGroup) -> str:
    return (
        str(group.first_window)
        if group.first_window == group.last_window
        else f"{group.first_window}–{group.last_window}"
    )
