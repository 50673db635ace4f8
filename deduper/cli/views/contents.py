"""What a store and its outputs hold, as text: a window, a bucket, errors, conflicts, a key with all its copies."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

import typer
from rich.console import RenderableType
from rich.text import Text

from deduper.admin.errors.export import ErrorExport
from deduper.admin.errors.report import ErrorRowGroup, ErrorsReport
from deduper.admin.inspect import BucketReport
from deduper.admin.keys.conflicts import ConflictReport
from deduper.admin.keys.explain import Explanation, SeenCopy
from deduper.admin.keys.stored import CopyForecast, StoredKey
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


_STYLES = {"unique": "green", "duplicate": "cyan", "expired": "yellow", "error": "red"}
_WHY = {
    "same_window": "its first copy is in the same window",
    "earlier_window": "its first copy is in an earlier window",
    "conflict": "its key is known from an earlier window, with another payload",
    "conflict_in_window": "its key came in the same window before, with another payload",
    "conflict_refused": "its key is known with another payload (on_conflict: error)",
    "version": "its key is known with other payloads; it is a version of its own (on_conflict: unique)",
    "too_many_versions": "its key has max_versions other payloads (on_conflict: unique)",
    "unknown": "its key is known; the first copy has no fingerprint to compare",
    "older_than_period": "it was a period or more behind the latest point",
    "category_dropped": "its category was dropped",
}
_KNOWN_BY = {
    "duplicate": "known by its duplicates; its row was not found",
    "store": "known by the store; its row was not found",
}
_EVERY_S = 5.0


def render_explanation(found: Explanation) -> list[RenderableType]:
    """The key in the store and its next copy, the copies seen, then what could not be read."""
    counts = Counter(copy.verdict for copy in found.copies)
    listed = ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items())
    searched = [
        ("copies", f"{len(found.copies):,}: {listed}" if found.copies else "none found"),
        ("searched", f"{counted(found.rows, 'row')} in {counted(found.files, 'file')}"),
    ]
    parts = _stored(found.stored)
    if found.has_outputs:
        parts += [Text(), pairs(searched)]
    for copy in found.copies:
        parts += [Text(), _headline(copy), pairs(_details(copy))]
    if found.unread:
        parts += [
            Text(),
            Text("Not read:", style="bold"),
            *(Text(f"  {line}", style="yellow") for line in found.unread),
        ]
    return parts


def render_conflicts(found: ConflictReport) -> list[RenderableType]:
    """How many conflicts there are, then the columns and the keys that have most of them."""
    looked_at = f"the newest {found.looked_at:,}, {found.compared:,} of them beside their first copies"
    parts: list[RenderableType] = [pairs([("conflicts", f"{found.total:,}"), ("looked at", looked_at)])]
    if found.columns:
        shares = [(name, count, f"{count / found.compared:.0%}") for name, count in found.columns.items()]
        parts += [Text(), table(("column that differs", "conflicts", "share"), shares)]
    if found.keys:
        parts += [Text(), table(("key", "conflicts"), found.keys)]
    return [*parts, *(Text(f"not read: {line}", style="yellow") for line in found.unread)]


def _stored(report: StoredKey) -> list[RenderableType]:
    key = ", ".join(f"{name} = {'null' if value is None else value}" for name, value in report.key.items())
    remembered = {
        True: Text("yes", style="green"),
        False: Text("no", style="yellow"),
        None: Text("stored; name the config to learn whether it is still remembered", style="yellow"),
    }[report.is_remembered]
    parts: list[RenderableType] = [
        pairs([("key", key), ("digest", f"{report.digest}, shard {report.shard}"), ("remembered", remembered)])
    ]
    if report.next:
        parts += [Text(), Text("If a copy comes next:", style="bold")]
        parts += [_forecast_line(forecast, report.expiry_field) for forecast in report.next]
    for entry in report.entries:
        where = entry.source and entry.source + ("" if entry.row is None else f", row {entry.row}")
        state = {True: "live", False: "dead, not yet deleted", None: "not known"}[entry.is_live]
        parts += [
            Text(),
            pairs(
                [
                    ("stored", f"by window {entry.window}"),
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
    return Text.assemble(f"  {which}: ", (forecast.verdict, _STYLES[forecast.verdict]), why)


def _headline(copy: SeenCopy) -> Text:
    when = f", begun {copy.when}" if copy.when else ""
    return Text.assemble((copy.verdict, f"bold {_STYLES[copy.verdict]}"), f" in window {copy.window}{when}")


def _details(copy: SeenCopy) -> list[tuple[str, object]]:
    record = ", ".join(f"{name} = {'null' if value is None else value}" for name, value in copy.record.items())
    first = None if copy.first is None else f"{copy.first['place']}, window {copy.first['window']}"
    return [
        ("  why", _why(copy)),
        ("  first copy", first),
        ("  read from", copy.place or "not kept"),
        ("  written to", copy.output),
        ("  differs in", ", ".join(copy.differs) or None),
        ("  record", record or None),
    ]


def _why(copy: SeenCopy) -> str:
    if copy.known_by != "output":
        return f"the first copy; {_KNOWN_BY[copy.known_by]}"
    return _WHY.get(copy.reason, copy.reason.replace("_", " ")) if copy.reason else "the first copy"


class ScanProgress:
    """A line on standard error every few seconds of a search; on a terminal it is replaced, and removed at the end."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1
        self._is_shown = False

    def __call__(self, read: int, everything: int) -> None:
        """That many bytes of all are read."""
        if time.monotonic() < self._next:
            return
        is_terminal = sys.stderr.isatty()
        self._next = time.monotonic() + (0.2 if is_terminal else _EVERY_S)
        text = f"read {approximate_size(read)} of {approximate_size(everything)}, {read / max(1, everything):.0%}"
        typer.echo(f"\r\x1b[K{text}" if is_terminal else text, err=True, nl=not is_terminal)
        self._is_shown = is_terminal

    def end(self) -> None:
        """Remove the line."""
        if self._is_shown:
            typer.echo("\r\x1b[K", err=True, nl=False)
