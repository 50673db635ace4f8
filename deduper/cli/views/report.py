"""The summary of `report` as text."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from deduper.admin.report.collect import KIND_TEXTS, Course, JobReport, Spans
from deduper.cli.terminal import pairs, table
from deduper.config.sections import PORTS
from deduper.units import approximate_size, counted, format_duration

_STEPS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


def render(report: JobReport) -> list[RenderableType]:
    """The summary."""
    parts: list[RenderableType] = [pairs(_summary(report))]
    if report.rows:
        rows = [(port, report.counts[port], f"{report.counts[port] / report.rows:.1%}") for port in PORTS]
        parts.append(table(("port", "rows", "share"), rows))
    for course in report.courses:
        if len(course.points) > 1:
            parts += [Text(), Text(f"by {course.level}", style="bold"), pairs(_course(course))]
    spans = [
        ("lateness", report.lateness),
        ("distance of duplicates", report.distance),
        ("age of first copies", report.age),
    ]
    shown = [(name, one.count, _end(one, one.median_s), _end(one, one.p99_s)) for name, one in spans if one.count]
    if shown:
        parts.append(table(("", "records", "half within", "99 % within"), shown))
    if report.leaks is not None:
        missed = [
            (kind, _three(one.records), f"{_three(one.low)} to {_three(one.high)}", KIND_TEXTS[kind])
            for kind, one in report.leaks.missed.items()
        ]
        parts.append(table(("copies missed by", "about", "95 % interval", "judged"), missed))
    return parts


def _summary(report: JobReport) -> list[tuple[str, object]]:
    return [
        ("job", report.name),
        ("health", report.health),
        ("expiry", f"{report.expiry}, {report.lookup}"),
        ("records", f"{report.rows:,} in {counted(report.windows, 'window')}"),
        ("latest point", report.latest_point),
        ("keys", f"{report.entries:,} in {counted(report.pieces, 'piece')}, {approximate_size(report.size_bytes)}"),
    ]


def _course(course: Course) -> list[tuple[str, object]]:
    shares = [point.counts["duplicate"] / point.rows if point.rows else 0.0 for point in course.points]
    return [
        ("records", _sparkline([float(point.rows) for point in course.points])),
        ("duplicates", f"{_sparkline(shares)}  up to {max(shares):.1%}"),
        ("keys", _sparkline([float(point.entries) for point in course.points])),
    ]


def _sparkline(values: list[float]) -> str:
    """A line of blocks; the greatest value is the highest one."""
    every = -(-len(values) // _WIDTH)
    means = [sum(part) / len(part) for at in range(0, len(values), every) if (part := values[at : at + every])]
    most = max(means) or 1.0
    return "".join(_STEPS[min(7, int(8 * max(0.0, mean) / most))] for mean in means)


def _end(spans: Spans, end_s: float | None) -> str:
    if end_s is None:
        return f"more than {format_duration((spans.buckets[-2][0] or 0) * 1_000_000)}"
    return format_duration(int(end_s * 1e6)) if end_s else "0"


def _three(number: float) -> str:
    return f"{float(f'{number:.3g}'):,.0f}"
