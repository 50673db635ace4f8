"""The answers of `inspect` as text: a key, a bucket, a window."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from deduper.admin.errors.export import ErrorExport
from deduper.admin.errors.report import ErrorGroup, ErrorsReport
from deduper.admin.inspect import BucketReport, KeyReport
from deduper.admin.keys.forecast import CopyForecast
from deduper.cli.terminal import counted, pairs, table
from deduper.units import approximate_size

_MOST_GROUPS = 50

_VERDICT_STYLES = {"unique": "green", "duplicate": "cyan", "expired": "yellow", "error": "red"}


def render_key(report: KeyReport) -> list[RenderableType]:
    """A key report as text."""
    key = ", ".join(f"{name} = {'null' if value is None else value}" for name, value in report.key.items())
    remembered = {
        True: Text("yes", style="green"),
        False: Text("no", style="yellow"),
        None: Text("stored; name the config to learn whether it is still remembered", style="yellow"),
    }[report.is_remembered]
    parts: list[RenderableType] = [
        pairs([("key", key), ("digest", f"{report.digest}, shard {report.shard}"), ("remembered", remembered)])
    ]
    if report.copies:
        parts += [Text(), Text("If a copy comes next:", style="bold")]
        parts += [_forecast_line(forecast, report.expiry_field) for forecast in report.copies]
    for entry in report.entries:
        where = entry.source and entry.source + ("" if entry.row is None else f", row {entry.row}")
        state = {True: "live", False: "dead, not yet deleted", None: "not known"}[entry.is_live]
        parts += [
            Text(),
            pairs(
                [
                    ("copy", f"of window {entry.window}"),
                    ("source", where or "not kept"),
                    ("expiry key", entry.expiry_key),
                    ("bucket", f"{entry.bucket}, in piece {entry.piece}"),
                    ("state", state),
                    ("until", entry.until),
                ]
            ),
        ]
    return parts


def _forecast_line(forecast: CopyForecast, field: str | None) -> Text:
    """`a copy with ts 2025-03-05T13:27:01Z, the latest point: unique`."""
    value = forecast.expiry_key
    which = {
        "any": "any copy",
        "same": f"a copy with {field} {value}, as stored",
        "newest": f"a copy with a new {field}" + ("" if value is None else f", {value}"),
        "asked": f"a copy with {field} {value}",
    }[forecast.copy]
    why = f" ({forecast.reason.replace('_', ' ')})" if forecast.reason else ""
    return Text.assemble(f"  {which}: ", (forecast.verdict, _VERDICT_STYLES[forecast.verdict]), why)


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


def _windows(group: ErrorGroup) -> str:
    return (
        str(group.first_window)
        if group.first_window == group.last_window
        else f"{group.first_window}–{group.last_window}"
    )
