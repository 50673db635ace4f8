"""The report as one HTML page: no script, no request, light or dark as the reader's system is. PURE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from itertools import pairwise

from deduper.admin.health import State
from deduper.admin.report import charts
from deduper.admin.report.charts import Axis, Series
from deduper.admin.report.collect import KIND_TEXTS, Course, JobReport, Point, Spans, shown_steps
from deduper.config.sections import PORTS
from deduper.leaks.figures import Estimate
from deduper.units import approximate_size, counted, format_duration, format_time
from deduper.units import span as duration

_MOST_PARTITIONS = 8
_MOST_TICKS = 5
_PAUSE_TIMES, _LEAST_PAUSE = 4, 0.02
"""A pause is so many usual distances between windows, and this part of the time that is shown."""
_MINUTE_US, _HOUR_US, _DAY_US = 60_000_000, 3_600_000_000, 86_400_000_000
_STEPS_US = (
    *(minutes * _MINUTE_US for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR_US for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY_US for days in (1, 2, 7, 14, 28, 56)),
)
_TIMES = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
_SIZES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
_COURSES = {
    "window": "Window by window",
    "minute": "The last day, by the minute",
    "hour": "All that is recorded, by the hour",
}


def page(report: JobReport) -> str:
    """The page's text."""
    style = files("deduper.admin.report").joinpath("page.css").read_text("utf-8")
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{escape(report.name)}: over time</title><style>{style}</style></head><body>",
        f"<header><h1>{escape(report.name)}</h1><p>{escape(_subtitle(report))}</p>{_state(report)}</header><main>",
        _tiles(report),
    ]
    if not report.courses:
        parts.append(_section("Over time", "<p>No window has been recorded yet. A job records them while it runs.</p>"))
    parts += [_course(report, course) for course in report.courses]
    parts.append(_section("The shape of the data", _shapes(report)))
    parts.append(_section("Copies that were not found", _misses(report)))
    parts.append(
        f"</main><footer><p>Made {escape(report.made)} by deduper {escape(report.version)} from the store "
        f"{escape(report.store_id[:8])}. Times are UTC.</p></footer></body></html>\n"
    )
    return "\n".join(parts)


def _subtitle(report: JobReport) -> str:
    latest = "" if report.latest_point is None else f" · latest point {report.latest_point}"
    return f"Key {', '.join(report.key)} · expiry by {report.expiry}, {report.lookup}{latest}"


def _state(report: JobReport) -> str:
    kind = "state" if report.health.state is State.HEALTHY else "state other"
    return f'<p class="{kind}">{escape(str(report.health))}</p>'


def _tiles(report: JobReport) -> str:
    rows = report.rows
    counts = {port: _number(report.counts[port]) for port in PORTS}
    sentences = {
        "unique": f"{counts['unique']} had a key that was not remembered.",
        "duplicate": f"{counts['duplicate']} were copies of one.",
        "expired": f"{counts['expired']} came too late to be judged.",
        "error": f"{counts['error']} could not be judged.",
    }
    many = _number(rows) if rows < 10**8 else _short(rows)
    tiles = [
        ("Records", many, f"They were judged in {counted(report.windows, 'window')}.", ""),
        *((port.capitalize(), _share(report.counts[port], rows), sentences[port], port) for port in PORTS),
        ("Keys", _short(report.entries), f"They take {approximate_size(report.size_bytes)} on disk.", "keys"),
    ]
    if report.leaks is not None:
        missed = [report.leaks.missed[kind] for kind in ("lookup", "period")]
        total = sum(one.records for one in missed)
        high = sum(one.high for one in missed)
        tiles.append(
            ("Not found", f"≈ {_short(total)}", f"At most {_short(high)} copies were judged unique.", "missed")
        )
    boxes = "".join(
        f'<li class="{colour}"><span>{escape(name)}</span><strong>{escape(value)}</strong><em>{escape(more)}</em></li>'
        for name, value, more, colour in tiles
    )
    return f'<ul class="tiles">{boxes}</ul>'


def _course(report: JobReport, course: Course) -> str:
    points = course.points
    if not points:
        return _section(_COURSES[course.level], "<p>No window has been recorded yet.</p>")
    axis = _axis(course)
    ports = [Series(port, port, [float(point.counts[port]) for point in points]) for port in PORTS]
    figures = [
        charts.columns("Records", "By the port that they left through.", axis, ports, _short),
        charts.lines(
            "Share of duplicates, expired and errors",
            "Of the records of each interval.",
            axis,
            [
                Series(port, port, [_part(point.counts[port], point.rows) for point in points])
                for port in ("duplicate", "expired", "error")
            ],
            _percent,
        ),
        charts.lines(
            "Throughput",
            "Records a second while windows were made; pauses between windows do not count.",
            axis,
            [
                Series(
                    "records/s",
                    "accent",
                    [point.rows / point.seconds if point.seconds > 0 else None for point in points],
                )
            ],
            _short,
        ),
        _sources(axis, points),
        charts.lines(
            "Keys in the store",
            "Live ones, after each interval.",
            axis,
            [Series("keys", "keys", [float(point.entries) for point in points])],
            _short,
        ),
        _in_units(
            "Size of the store", "Live pieces on disk.", axis, "keys", [float(one.size_bytes) for one in points], _SIZES
        ),
    ]
    if report.is_time and any(point.watermark_lag_s is not None for point in points):
        figures.append(
            _in_units(
                "Latest point behind the wall clock",
                "Old data that is read again shows as a large distance, a clock that is ahead as one below 0.",
                axis,
                "accent",
                [point.watermark_lag_s for point in points],
                _TIMES,
            )
        )
    if any(point.leaks for point in points):
        figures.append(_leaks_over_time(axis, points))
    begin, end = (format_time(one.wall_us // 1_000_000 * 1_000_000) for one in (points[0], points[-1]))
    text = f'<p class="muted">From {begin} to {end}; where no window was made, the charts are grey.</p>'
    return _section(_COURSES[course.level], f'{text}<div class="figures">{"".join(figures)}</div>{_table(course)}')


def _in_units(
    title: str,
    text: str,
    axis: Axis,
    colour: str,
    values: Sequence[float | None],
    units: Sequence[tuple[float, str]],
) -> str:
    """A line in the unit that suits its greatest value."""
    most = max((abs(value) for value in values if value is not None), default=0.0)
    size, unit = next(((size, unit) for size, unit in units if most >= size), units[-1])
    scaled = [None if value is None else value / size for value in values]
    return charts.lines(title, text, axis, [Series(unit, colour, scaled)], lambda value: f"{value:,.3g} {unit}")


def _sources(axis: Axis, points: Sequence[Point]) -> str:
    totals: dict[str, int] = {}
    for point in points:
        for name, count in point.partitions.items():
            totals[name] = totals.get(name, 0) + count
    if set(totals) <= {"files"}:
        series = [Series("files", "accent", [float(point.partitions.get("files", 0)) for point in points])]
        return charts.columns("Source", "Files, or parts of a query's batches, that were judged.", axis, series, _short)
    largest = sorted(totals, key=lambda name: (-totals[name], name))[:_MOST_PARTITIONS]
    series = [
        Series(name, f"s{place}", [float(point.partitions.get(name, 0)) for point in points])
        for place, name in enumerate(sorted(largest))
    ]
    rest = [sum(point.partitions.values()) - sum(point.partitions.get(name, 0) for name in largest) for point in points]
    if any(rest):
        series.append(Series("others", "expired", [float(count) for count in rest]))
    return charts.columns("Source", "Offsets that were judged, by topic and partition.", axis, series, _short)


def _leaks_over_time(axis: Axis, points: Sequence[Point]) -> str:
    def ends(point: Point, end: int) -> float | None:
        found = [point.leaks[kind][end] for kind in ("lookup", "period") if kind in point.leaks]
        return sum(found) if found else None

    estimate, low, high = ([ends(point, end) for point in points] for end in range(3))
    return charts.lines(
        "Copies that were not found",
        "Estimated since the leak meter began, with about 95 % intervals: judged unique, though a copy was seen.",
        axis,
        [Series("not found", "missed", estimate)],
        _short,
        band=(low, high),
    )


def _axis(course: Course) -> Axis:
    """An axis of time: points where they were, and a pause where there was none for long."""
    points = course.points
    names = [
        f"{_windows(point)}, {format_time(point.wall_us // 1_000_000 * 1_000_000)}: {_number(point.rows)} records"
        for point in points
    ]
    begin, end = points[0].wall_us, points[-1].wall_us
    span = max(1, end - begin)
    gaps = [after.wall_us - before.wall_us for before, after in pairwise(points)]
    usual = sorted(gaps)[len(gaps) // 2] if gaps else span
    width = min(1 / len(points), usual / span)

    def place(wall_us: int) -> float:
        return width / 2 + (1 - width) * (wall_us - begin) / span

    pauses = [
        (at, f"no window for {duration(gap / 1e6)}")
        for at, gap in enumerate(gaps, 1)
        if gap > max(_PAUSE_TIMES * usual, _LEAST_PAUSE * span)
    ]
    return Axis([place(point.wall_us) for point in points], width, names, _times(begin, end, place), pauses)


def _times(begin_us: int, end_us: int, place: Callable[[int], float]) -> list[tuple[float, str]]:
    """Round times between two, and their names."""
    step_us = next((step for step in _STEPS_US if (end_us - begin_us) / step <= _MOST_TICKS), _STEPS_US[-1])
    form = "%d %b" if step_us >= _DAY_US else "%H:%M"
    first = -(-begin_us // step_us) * step_us
    instants = range(first, end_us + 1, step_us) or range(begin_us, begin_us + 1)
    return [(place(at), datetime.fromtimestamp(at / 1e6, UTC).strftime(form)) for at in instants]


def _windows(point: Point) -> str:
    last = point.next_window - 1
    return f"window {last}" if last <= point.first_window else f"windows {point.first_window}–{last}"


def _table(course: Course) -> str:
    head = ("windows", "begun", "records", *PORTS, "records/s", "keys", "on disk")
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td>{escape(cell)}</td>"
            for cell in (
                _windows(point).partition(" ")[2],
                format_time(point.wall_us // 1_000_000 * 1_000_000),
                _number(point.rows),
                *(_number(point.counts[port]) for port in PORTS),
                _number(round(point.rows / point.seconds)) if point.seconds > 0 else "–",
                _number(point.entries),
                approximate_size(point.size_bytes),
            )
        )
        + "</tr>"
        for point in course.points
    )
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return (
        f'<details><summary>The numbers</summary><div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _shapes(report: JobReport) -> str:
    figures = [
        _distribution(
            "Lateness",
            "How far records were behind the latest point when they came; 0 is in order.",
            report.lateness,
            "accent",
        ),
        _distribution("Distance of duplicates", "In event time, from their first copy.", report.distance, "duplicate"),
        _distribution(
            "Age of first copies", "In wall time, from the window of a duplicate's first copy.", report.age, "duplicate"
        ),
    ]
    if report.reasons:
        rows = [(reason.replace("_", " "), (float(count),)) for reason, count in report.reasons.items()]
        figures.append(
            charts.bars("Reasons", "Why records have left so.", rows, [Series("records", "expired", ())], _whole)
        )
    return f'<div class="figures">{"".join(figures)}</div>'


def _distribution(title: str, text: str, spans: Spans, colour: str) -> str:
    if not spans.count:
        return charts.nothing(title, f"{text} None was counted.")
    used = [at for at, (_, count) in enumerate(spans.buckets) if count]
    shown = spans.buckets[used[0] : used[-1] + 1]
    ends = {end: _upto(end, spans.buckets[-2][0]) for end, _ in spans.buckets}
    quantiles = f"Half are within {_quantile(spans.median_s)}, 99 % within {_quantile(spans.p99_s)}."
    rows = [(ends[end], (float(count),)) for end, count in shown]
    return charts.bars(title, f"{text} {quantiles}", rows, [Series("records", colour, ())], _whole)


def _upto(end: int | None, last: int | None) -> str:
    if end is None:
        return f"more than {format_duration((last or 0) * 1_000_000)}"
    return "0" if end == 0 else f"up to {format_duration(end * 1_000_000)}"


def _quantile(end_s: float | None) -> str:
    return "more than the last bound" if end_s is None else format_duration(int(end_s * 1e6)) if end_s else "0"


def _misses(report: JobReport) -> str:
    leaks = report.leaks
    if leaks is None:
        return "<p>The leak meter of this job is off, or has measured no window.</p>"
    rows = "".join(
        f'<tr><th scope="row">{escape(kind)}</th><td>{escape(KIND_TEXTS[kind])}</td>'
        f'<td class="number">≈ {_short(one.records)}</td><td class="number">{_interval(one)}</td>'
        f'<td class="number">{_part(one.records, leaks.records):.2%}</td></tr>'
        for kind, one in leaks.missed.items()
    )
    missing = f" {counted(leaks.missed_windows, 'window')} before a crash not measured." if leaks.missed_windows else ""
    text = (
        f"From the records of one key in {_number(leaks.sample)}, since window {leaks.first_window} "
        f"({format_time(leaks.since_us // 1_000_000 * 1_000_000)}): {_number(leaks.records)} records, "
        f"{_number(leaks.seen)} of them of sampled keys.{missing}"
    )
    heads = ("missed by", "judged", "copies", "95 % interval", "of all records")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    return f"<p>{escape(text)}</p>{table}{_distances(report)}"


def _distances(report: JobReport) -> str:
    leaks = report.leaks
    assert leaks is not None, "there is something to show"
    used = [at for at, (_, found, missed) in enumerate(leaks.distances) if found or missed]
    if not used:
        return ""
    before: float | None = None
    rows: list[tuple[str, tuple[float, float]]] = []
    for end, found, missed in leaks.distances:
        name = f"more than {shown_steps(before, is_time=report.is_time)}" if end is None else "0"
        if end:
            name = f"up to {shown_steps(end, is_time=report.is_time)}"
        rows.append((name, (found, missed)))
        before = end
    figure = charts.bars(
        "Distance of copies",
        "In event time, from the latest copy before; estimated from the sample.",
        rows[used[0] : used[-1] + 1],
        [Series("found", "duplicate", ()), Series("not found", "missed", ())],
        _short,
    )
    return f'<div class="figures">{figure}</div>'


def _section(title: str, inner: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"


def _interval(one: Estimate) -> str:
    return f"{_short(one.low)} to {_short(one.high)}"


def _part(count: float, rows: int) -> float:
    return count / rows if rows else 0.0


def _share(count: int, rows: int) -> str:
    return f"{_part(count, rows):.1%}"


def _number(value: int) -> str:
    return f"{value:,}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{value:.1%}" if value % 0.01 > 1e-9 else f"{value:.0%}"


def _short(value: float) -> str:
    """Three digits: 1.23 M."""
    size = abs(value)
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if size >= factor:
            return f"{value / factor:.3g} {unit}".replace("-", "−")
    return f"{value:.3g}".replace("-", "−")
