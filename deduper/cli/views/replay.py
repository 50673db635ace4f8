"""The answer of `replay` as text: the plan, or the result."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from deduper.cli.terminal import pairs, table
from deduper.config.sections import PORTS
from deduper.replay.compare import Comparison
from deduper.replay.estimate import MeasuredRate, ReplayEstimate
from deduper.replay.inputs import LostOffsets
from deduper.replay.run import ReplayReport
from deduper.units import approximate_size, counted, span


def render_replay(report: ReplayReport) -> list[RenderableType]:
    """What is read, what it costs and where it goes; or what came of it."""
    rows: list[tuple[str, object]] = [
        ("order", "by time: (expiry key, place)" if report.order == "time" else "arrival, as `run --once`"),
        ("files", f"{counted(report.files, 'file')}, {approximate_size(report.bytes)}" if report.files else None),
        ("offsets", _offsets(report)),
        *(("lost", _lost(one)) for one in report.lost),
        ("left out", _left_out(report)),
        *(_estimate(report) if not report.is_executed else ()),
        ("store", report.store),
        *((port, place) for port, place in report.outputs.items()),
        ("sorts in", report.sorts_in if report.order == "time" and not report.is_over else None),
        ("windows", f"{report.windows:,}" if report.windows else None),
        ("came since", _since(report)),
        ("report", report.report),
        ("verdict", _verdict(report)),
    ]
    parts: list[RenderableType] = [pairs([row for row in rows if row[1] is not None])]
    total = sum(report.judged.values())
    if total:
        judged = [(port, count, f"{count / total:.1%}") for port, count in report.judged.items()]
        parts.append(table(("port", "rows", "share"), judged))
    return parts


def render_comparison(found: Comparison) -> list[RenderableType]:
    """Where the two rules differ, or what the comparison is to do."""
    if not found.is_over:
        return [
            Text("here", "bold"),
            *render_replay(found.here),
            Text(),
            Text("there", "bold"),
            *render_replay(found.there),
        ]
    ports = {(cell.here, cell.there): cell.records for cell in found.cells}
    counts = [(here, *(ports.get((here, there), 0) for there in PORTS)) for here in PORTS]
    parts: list[RenderableType] = [table(("here \\ there", *PORTS), counts)]
    parts += [Text(f"lost: {_lost(one)}", "yellow") for one in found.here.lost]
    samples = [
        (cell.here, cell.there, f"{one['source']}, row {one['position']}", _key(one["key"]))
        for cell in found.cells
        for one in cell.samples
    ]
    if samples:
        parts += [Text(), table(("here", "there", "for example", "key"), samples)]
    if found.keys:
        parts += [
            Text(),
            table(("key", "records with other ports"), [(_key(one["key"]), one["records"]) for one in found.keys]),
        ]
    return parts


def _key(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _left_out(report: ReplayReport) -> str | None:
    return f"{counted(report.unfinished, 'file')}, empty, unfinished or not readable" if report.unfinished else None


def _offsets(report: ReplayReport) -> str | None:
    if not report.offsets:
        return None
    size = f", about {approximate_size(report.bytes)} decoded" if report.bytes else ""
    return f"{report.offsets:,} in {counted(report.partitions, 'partition')}{size}"


def _lost(lost: LostOffsets) -> str:
    last = lost.first + lost.offsets - 1
    where = f"{counted(lost.offsets, 'offset')} of {lost.partition}, from {lost.first} to {last}"
    return f"{where}: deleted before they were read"


def _since(report: ReplayReport) -> str | None:
    if report.files_since:
        return f"{counted(report.files_since, 'file')}, not judged"
    if report.offsets_since is None:
        return "unknown: the brokers do not answer"
    return f"{counted(report.offsets_since, 'offset')}, not judged" if report.offsets_since else None


def _estimate(report: ReplayReport) -> list[tuple[str, object]]:
    of, noun = report.estimate, "file" if report.files else "range"
    if of is None:
        return []
    from_to = None if of.first is None else f"{of.first} to {of.last}, as far as {counted(of.sampled, noun)} show"
    return [
        ("records", f"about {of.records:,}"),
        ("expiry keys", from_to),
        ("time", _time(of, report.rate)),
        ("keys in memory", None if of.state_bytes is None else f"up to {approximate_size(of.state_bytes)}"),
        ("rows of all ports", f"about {approximate_size(of.output_bytes)} before compression"),
    ]


def _time(of: ReplayEstimate, rate: MeasuredRate | None) -> str:
    """With the rate that it assumes, and where that is from."""
    if rate is not None:
        seconds = span(max(1.0, of.records / rate.records_per_second))
        return f"about {seconds} at {rate.records_per_second:,.0f} records/s, as in the last windows of {rate.store}"
    of_core = f"about {span(max(1.0, of.core_seconds))} of one core"
    if not of.core_seconds:
        return of_core
    return f"{of_core}, at {of.records / of.core_seconds:,.0f} records/s: by the reading of the sample"


def _verdict(report: ReplayReport) -> Text:
    if report.is_over:
        return Text("everything is judged", "green")
    if not report.is_executed:
        begun = (
            "a replay is under way: repeat with --execute"
            if report.is_begun or report.windows
            else "nothing was changed: repeat with --execute"
        )
        return Text(begun, "yellow")
    return Text("interrupted: repeat the command", "yellow")
