"""The answer of `explain` as text, and the progress of a long search."""

from __future__ import annotations

import sys
import time
from collections import Counter

import typer
from rich.console import RenderableType
from rich.text import Text

from deduper.admin.keys.conflicts import ConflictReport
from deduper.admin.keys.explain import Explanation, SeenCopy
from deduper.admin.keys.forecast import CopyForecast
from deduper.admin.keys.stored import StoredKey
from deduper.cli.terminal import pairs, table
from deduper.units import approximate_size, counted

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


def render(found: Explanation) -> list[RenderableType]:
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
