"""Plots of a benchmark's document as SVG, by matplotlib: the optional extra `bench`."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deduper.errors import UsageError

ADVICE = "plots need matplotlib, which is not installed: pip install matplotlib"
_OURS, _OTHERS = "#1565c0", "#9e9e9e"
_STEP_COLOURS = ("#5e35b1", "#1e88e5", "#00897b", "#7cb342", "#fdd835", "#fb8c00", "#e53935", "#6d4c41", "#bdbdbd")


def require_plots() -> None:
    """Raises UsageError with what to install."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError as exc:
        raise UsageError(ADVICE) from exc


def rates_plot(lanes: Sequence[Mapping[str, Any]]) -> str:
    """Median rows/s of every contender as a bar, least to greatest as a line, each batch as a dot."""
    shown = [lane for lane in lanes if lane["rows_per_second"]]
    shown.sort(key=lambda lane: lane["rows_per_second"]["median"])

    def draw(axes: Any) -> None:
        for at, lane in enumerate(shown):
            spread = lane["rows_per_second"]
            colour = _OURS if lane["contender"].startswith("deduper") else _OTHERS
            axes.barh(at, spread["median"], color=colour, height=0.7)
            axes.plot([spread["minimum"], spread["maximum"]], [at, at], color="black", linewidth=1)
            axes.plot(_speeds(lane), [at] * len(_speeds(lane)), "k.", markersize=4)
        axes.set_yticks(range(len(shown)), [lane["name"] for lane in shown])
        axes.set_xlabel("rows/s")
        axes.xaxis.set_major_formatter(_thousands)

    return _svg(draw, 0.42 * len(shown) + 1)


def sweep_plot(lanes: Sequence[Mapping[str, Any]], label: str) -> str:
    """Rows/s over the swept value, a line for each contender, least to greatest as a band."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for lane in lanes:
        if lane["rows_per_second"]:
            by_name.setdefault(lane["contender"], []).append(lane)

    def draw(axes: Any) -> None:
        values = sorted({lane["x"] for lane in lanes})
        for name, points in by_name.items():
            points.sort(key=lambda lane: lane["x"])
            xs = [lane["x"] for lane in points]
            spreads = [lane["rows_per_second"] for lane in points]
            (line,) = axes.plot(xs, [spread["median"] for spread in spreads], "o-", label=name)
            least, most = ([spread[end] for spread in spreads] for end in ("minimum", "maximum"))
            axes.fill_between(xs, least, most, color=line.get_color(), alpha=0.15)
        if values and values[0] > 0 and values[-1] / values[0] >= 20:
            axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(label)
        axes.set_ylabel("rows/s")
        axes.yaxis.set_major_formatter(_thousands)
        axes.legend(frameon=False)

    return _svg(draw, 4)


def steps_plot(divided: Mapping[str, Mapping[str, float]]) -> str:
    """Where the seconds of a window go, a bar a contender of the service."""

    def draw(axes: Any) -> None:
        steps = [step for step in next(iter(divided.values())) if any(each[step] for each in divided.values())]
        lefts = [0.0] * len(divided)
        for step, colour in zip(steps, _STEP_COLOURS, strict=False):
            widths = [seconds[step] * 1000 for seconds in divided.values()]
            axes.barh(range(len(divided)), widths, left=lefts, label=step, color=colour)
            lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
        axes.set_yticks(range(len(divided)), list(divided))
        axes.set_xlabel("ms")
        axes.legend(frameon=False, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize="small")

    return _svg(draw, 0.42 * len(divided) + 1.6)


def _speeds(lane: Mapping[str, Any]) -> list[float]:
    return [
        trigger["rows"] / (max(1, trigger["durations"]["triggerExecution"]) / 1000)
        for turn in lane["turns"]
        for trigger in turn["measured"]
    ]


def _thousands(value: float, _: int) -> str:
    return f"{value / 1000:,.0f} k" if value else "0"


def _svg(draw: Callable[[Any], None], height: float) -> str:
    """A figure as an element for a page; the same bytes for the same numbers."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "deduper", "svg.fonttype": "none", "font.size": 10})
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    draw(axes)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()[out.getvalue().index("<svg") :]
