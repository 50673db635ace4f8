"""Draws every panel of the dashboard from a Prometheus' answers, to look at where there is no Grafana.

    python -m tests.services.draw_dashboard --url http://127.0.0.1:9090 --minutes 60 --out dashboard.png

Needs matplotlib. It shows titles, units, legends, thresholds, stacking, annotations and values as the dashboard
defines them, in its layout; Grafana's own look it does not have.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parent.parent.parent / "deploy/grafana/dashboards/deduper.json"
_UNITS = {
    "bytes": (1024, ("B", "KiB", "MiB", "GiB", "TiB")),
    "short": (1000, ("", "K", "M", "G")),
    "cps": (1000, (" c/s", "K c/s", "M c/s")),
}


def filled(expression: str, rate_interval: str = "1m") -> str:
    """A query with all variables chosen."""
    for name, value in (("$job", ".*"), ("$instance", ".*"), ("$__rate_interval", rate_interval)):
        expression = expression.replace(name, value)
    return expression


def shown(value: float, unit: str) -> str:
    """A value as Grafana writes it, about."""
    if math.isnan(value):
        return "–"
    if unit == "percentunit":
        return f"{100 * value:.3g}%"
    if unit == "dateTimeAsIso":
        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d\n%H:%M:%S")
    if unit == "s":
        for size, name in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}"
        return f"{1000 * value:.3g} ms" if value else "0 s"
    base, names = _UNITS.get(unit, _UNITS["short"])
    for name in names[:-1]:
        if abs(value) < base:
            return f"{value:.3g}{' ' if unit == 'bytes' else ''}{name}"
        value /= base
    return f"{value:.3g}{names[-1]}"


class Answers:
    """Ranges of a Prometheus."""

    def __init__(self, url: str, end_s: float, minutes: float, points: int = 240) -> None:
        self._url, self.end_s, self.begin_s = url, end_s, end_s - 60 * minutes
        self._step_s = max(1.0, 60 * minutes / points)

    def of(self, expression: str) -> list[tuple[dict[str, str], list[float], list[float]]]:
        """Labels, times and values of each series."""
        asked = urllib.parse.urlencode(
            {"query": filled(expression), "start": self.begin_s, "end": self.end_s, "step": self._step_s}
        )
        with urllib.request.urlopen(f"{self._url}/api/v1/query_range?{asked}", timeout=30) as answer:
            found = json.load(answer)["data"]["result"]
        return [
            (one["metric"], [float(at) for at, _ in one["values"]], [float(value) for _, value in one["values"]])
            for one in found
        ]


def _name(legend: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), legend)


def _color(panel: dict[str, Any], value: float) -> str:
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    color = "#111111"
    for step in steps:
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return {"green": "#2e7d32", "red": "#c62828", "#EAB839": "#b8860b"}.get(color, color)


def draw(answers: Answers, file: Path) -> list[str]:
    """The picture, in `file`; gives the titles of panels without any value."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.dates import DateFormatter, date2num

    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    panels = dashboard["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(22, height * 0.42), dpi=70)
    empty = []
    starts = [
        (annotation["iconColor"], at)
        for annotation in dashboard["annotations"]["list"]
        for _, times, _ in answers.of(annotation["expr"])
        for at in times[:1]
    ]
    for panel in panels:
        place = panel["gridPos"]
        box = (
            place["x"] / 24 + 0.03,
            1 - (place["y"] + place["h"] - 0.9) / height,
            place["w"] / 24 - 0.04,
            (place["h"] - 2.1) / height,
        )
        if panel["type"] == "row":
            figure.text(0.005, 1 - (place["y"] + 0.8) / height, panel["title"], fontsize=17, weight="bold")
            continue
        axes = figure.add_axes(box)
        axes.set_title(panel["title"], fontsize=10, loc="left")
        unit = panel["fieldConfig"]["defaults"]["unit"]
        series = [
            (_name(target["legendFormat"], labels), times, values)
            for target in panel["targets"]
            for labels, times, values in answers.of(target["expr"])
        ]
        if not series:
            empty.append(panel["title"])
            axes.text(0.5, 0.5, "No data", ha="center", va="center", color="gray")
            axes.axis("off")
            continue
        if panel["type"] == "stat":
            axes.axis("off")
            text = series[0][0] if panel["options"]["textMode"] == "name" else shown(series[0][2][-1], unit)
            axes.text(0.5, 0.4, text, ha="center", va="center", fontsize=20, color=_color(panel, series[0][2][-1]))
            continue
        axes.tick_params(labelsize=7)
        if panel["type"] == "heatmap":
            rows = sorted(series, key=lambda one: float(one[0]))
            below = [[0.0] * len(rows[0][2]), *(values for _, _, values in rows)]
            cells = [
                [max(0.0, more - less) for more, less in zip(*pair, strict=False)]
                for pair in zip(below[1:], below, strict=False)
            ]
            logged = [[math.log1p(value) if not math.isnan(value) else 0 for value in row] for row in cells]
            axes.imshow(logged, aspect="auto", origin="lower", cmap="Blues")
            axes.set_yticks(
                range(len(rows)),
                [shown(float(label), "s") if label != "+Inf" else "more" for label, _, _ in rows],
                fontsize=6,
            )
            axes.set_xticks([])
            continue
        colors = {
            one["matcher"]["options"]: one["properties"][0]["value"]["fixedColor"]
            for one in panel["fieldConfig"]["overrides"]
        }
        stacked = "stacking" in panel["fieldConfig"]["defaults"]["custom"]
        bottom: dict[float, float] = {}
        for at, (name, times, values) in enumerate(series):
            color = colors.get(name, f"C{at % 10}")
            when = [date2num(datetime.fromtimestamp(at, UTC)) for at in times]
            if stacked:
                low = [bottom.get(at, 0.0) for at in times]
                values = [under + (0 if math.isnan(value) else value) for under, value in zip(low, values, strict=True)]
                bottom.update(zip(times, values, strict=True))
                axes.fill_between(when, low, values, alpha=0.5, label=name, color=color)
            else:
                axes.plot(when, values, linewidth=1.2, label=name, color=color)
        for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])[1:]:
            axes.axhline(step["value"], color=_color(panel, step["value"]), linewidth=0.8, linestyle="--")
        for color, at in starts:
            axes.axvline(date2num(datetime.fromtimestamp(at, UTC)), color=color, linewidth=1, alpha=0.7)
        axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))
        axes.yaxis.set_major_formatter(lambda value, _, unit=unit: shown(value, unit))
        axes.set_xlim(*(date2num(datetime.fromtimestamp(at, UTC)) for at in (answers.begin_s, answers.end_s)))
        axes.set_ylim(min(0, axes.dataLim.y0), max(axes.dataLim.y1 * 1.08, 1e-3))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, framealpha=0.6, loc="upper left", ncols=2)
    figure.savefig(file)
    return empty


def main() -> None:
    """Draw once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:9090")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, default=Path("dashboard.png"))
    arguments = parser.parse_args()
    print("without a value:", draw(Answers(arguments.url, time.time(), arguments.minutes), arguments.out))


if __name__ == "__main__":
    main()
