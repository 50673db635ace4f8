"""The answer of `status` as text: now, with the time of the newest windows by step; and over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from bucket_store.log.profile import WindowProfile
from deduper.admin.health import State
from deduper.admin.profile import ProfileView, rows_per_second, shares, steps_of, task_steps_of
from deduper.admin.report.collect import KIND_TEXTS, Course, JobReport, Spans
from deduper.admin.status import KeyHistory, PartitionLag, SourceLag, StoreStatus
from deduper.cli.terminal import pairs, table
from deduper.config.sections import PORTS
from deduper.leaks.figures import LeakFigures
from deduper.units import approximate_size, counted, format_duration, span

_MOST_PARTITIONS = 50
_SPANS = {"lateness": "late by", "distance": "copies apart", "age": "first copies"}


_STATE_STYLES = {
    State.HEALTHY: "bold green",
    State.BEHIND: "bold yellow",
    State.STUCK: "bold red",
    State.NOT_RUNNING: "bold",
    State.NEEDS_A_PERSON: "bold red",
}


def render(status: StoreStatus, *, timings: bool = False, verbose: bool = False) -> list[RenderableType]:
    """The status as text, the verdict on the job's health first, then what a person asks next.

    `timings` adds the seconds of the newest windows, `verbose` ids, epochs, sizes and meters.
    """
    verdict = status.health
    parts: list[RenderableType] = [
        Text.assemble((f"{verdict.state}", _STATE_STYLES[verdict.state]), f": {verdict.why}"),
        Text(),
        pairs(_first(status)),
    ]
    if status.rows:
        ports = [(port, count, f"{count / status.rows:.1%}") for port, count in status.counts.items()]
        if status.is_running and status.rates:
            with_rates = [(*row, f"{status.rates[row[0]]:,.1f}") for row in ports]
            parts.append(table(("port", "rows", "share", "rows/s now"), with_rates))
        else:
            parts.append(table(("port", "rows", "share"), ports))
    if status.reasons:
        parts.append(table(("reason", "rows"), status.reasons.items()))
    if status.lag is not None and status.lag.partitions:
        shown = sorted(status.lag.partitions, key=lambda one: -(one.lag or 0))[:_MOST_PARTITIONS]
        rows = [(one.topic, one.partition, one.judged, one.end, _lag(one)) for one in sorted(shown, key=_place)]
        parts.append(table(("topic", "partition", "judged up to", "end", "lag"), rows))
    if status.last_windows:
        parts.append(
            table(
                ("window", "begun", "rows", *PORTS, "latest point"),
                [
                    (
                        window["window"],
                        _to_the_second(window["begun"]),
                        *(window[name] for name in ("rows", *PORTS)),
                        window["latest_point"],
                    )
                    for window in status.last_windows
                ],
                optional=("latest point",),
            )
        )
    if verbose:
        parts += [Text(), pairs(_rest(status))]
    return [*parts, *render_profile(status.profile)] if timings else parts


def line(status: StoreStatus) -> str:
    """A status on one line."""
    return f"{status.health}; {counted(status.windows, 'window')}, {counted(status.rows, 'row')}"


def _to_the_second(time: str) -> str:
    return time.partition(".")[0].rstrip("Z") + "Z"


def _first(status: StoreStatus) -> list[tuple[str, object]]:
    """What waits, the newest window and event time, and how long ago they were."""
    window = None
    if status.since_window_s is not None:
        window = f"{status.windows - 1:,}, begun {span(status.since_window_s)} ago ({status.last_commit})"
    ago = (
        ""
        if status.behind_s is None
        else f", {span(abs(status.behind_s))} {'ago' if status.behind_s >= 0 else 'ahead'}"
    )
    unpublished = f"window{'s' * (len(status.unpublished) > 1)} " + ", ".join(map(str, status.unpublished))
    return [
        ("store", status.url),
        ("waiting", None if status.waiting_files is None else counted(status.waiting_files, "file")),
        ("lag", None if status.lag is None else _lag_line(status.lag)),
        ("latest window", window),
        ("latest point", None if status.latest_point is None else f"{status.latest_point}{ago}"),
        ("unpublished", Text(unpublished, style="yellow") if status.unpublished else None),
        ("history", _history_line(status.history)),
    ]


def _rest(status: StoreStatus) -> list[tuple[str, object]]:
    owner = f"{status.owner}, {'running' if status.is_running else 'not running'}"
    size = approximate_size(status.bytes_on_disk["total"])
    per_key = "" if status.bytes_per_key is None else f", {status.bytes_per_key:g} B of pieces a key"
    return [
        ("id", f"{status.store_id} (incarnation {status.incarnation})"),
        ("created", status.created),
        ("key", ", ".join(status.settings["key"])),
        ("expiry", _expiry(status.settings)),
        ("epoch", status.epoch or "none: no job has opened it yet"),
        ("owner", "no job is running" if status.owner is None else owner),
        ("expiry point", status.expiry_point),
        ("keys", f"{counted(status.entries, 'key')} in {counted(status.pieces, 'piece')}"),
        *((words, _spans_line(status.spans[name])) for name, words in _SPANS.items() if name in status.spans),
        ("not found", None if status.leaks is None else missed_line(status.leaks)),
        ("on disk", f"{size}{per_key}"),
    ]


def _history_line(history: KeyHistory) -> str | Text | None:
    if history.is_seed_open:
        return Text("a seed is not over: repeat `deduper seed`; no job may start before", style="yellow")
    if history.complete_since is None:
        return None
    final = "unique is final" if history.is_complete else "unique so far: a copy of before may have been missed"
    return f"complete since {history.complete_since}: {final}"


def _place(one: PartitionLag) -> tuple[str, int]:
    return one.topic, one.partition


def _lag(one: PartitionLag) -> str | int | None:
    return f"{one.lag:,}, held back" if one.is_held_back and one.lag is not None else one.lag


def _lag_line(lag: SourceLag) -> Text:
    count = len(lag.partitions)
    over = f"over {counted(count, 'partition')}"
    if lag.error:
        return Text(f"not known: {lag.error}", style="yellow")
    if lag.total is None:
        return Text(f"not known {over}: a topic ends before the judged offset, or is gone", style="yellow")
    most = ", the largest below" if count > _MOST_PARTITIONS else ""
    return Text(f"{counted(lag.total, 'offset')} {over}{most}")


def _spans_line(spans: dict[str, float | None]) -> str:
    """Half and 99 % of some spans of time are below these."""
    half, most = (_at_most(spans[name]) for name in ("half_s", "most_s"))
    return f"half {half}, 99 % {most}"


def _at_most(seconds: float | None) -> str:
    if seconds is None:
        return "more than 30d"
    return f"up to {format_duration(round(seconds * 1_000_000))}" if seconds else "0 s"


def missed_line(leaks: LeakFigures) -> Text:
    """The copies that were not found, as estimated, on a line."""
    parts = [
        f"{_rounded(one.records)} {kind} ({_rounded(one.low)} to {_rounded(one.high)})"
        for kind, one in leaks.missed.items()
    ]
    missing = f", {counted(leaks.missed_windows, 'window')} not measured" if leaks.missed_windows else ""
    measured = f"of {leaks.records:,} records, from 1 key in {leaks.sample:,}{missing}"
    return Text(f"about {', '.join(parts)} {measured}")


def _rounded(number: float) -> str:
    """Three digits: an estimate has no more."""
    return f"{float(f'{number:.3g}'):,.0f}"


def _expiry(settings: dict[str, Any]) -> str:
    field = settings.get("expiry.field")
    on_field = f" on {field}" if field else ""
    return f"{settings['expiry.by']}{on_field}, {settings['expiry.lookup']}"


def render_profile(view: ProfileView) -> list[RenderableType]:
    """The tables in ms; nothing without a profile."""
    if not view.windows:
        return []
    return [
        _divided(view.windows, steps_of, "time by step, ms", with_rate=True),
        _divided(view.windows, task_steps_of, "work inside the tasks, and sending, ms", with_rate=False),
    ]


def _divided(
    windows: Sequence[WindowProfile],
    steps: Callable[[WindowProfile], dict[str, float]],
    title: str,
    *,
    with_rate: bool,
) -> RenderableType:
    parts = shares(windows, steps)
    divided = [steps(window) for window in windows]
    rows: list[tuple[object, ...]] = []
    if with_rate:
        rows += [
            ("rows", *(window.rows for window in windows), None),
            ("seconds", *(f"{window.seconds:.2f}" for window in windows), None),
            ("rows/s", *(rows_per_second(window) for window in windows), None),
        ]
    rows += [
        (step, *(_ms(seconds[step]) for seconds in divided), f"{parts.get(step, 0):.0%}")
        for step in divided[0]
        if any(seconds[step] for seconds in divided)
    ]
    # The steps stand below one another: for their names there is always room.
    newest_first = [str(window.window) for window in reversed(windows)]
    return table(
        ("window", *(str(window.window) for window in windows), "share"), rows, title=title, optional=newest_first
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}" if seconds >= 0.01 else f"{seconds * 1000:.1f}"


_STEPS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


def render_over_time(report: JobReport) -> list[RenderableType]:
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
            (kind, _rounded(one.records), f"{_rounded(one.low)} to {_rounded(one.high)}", KIND_TEXTS[kind])
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
