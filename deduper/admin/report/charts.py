"""Charts as SVG and HTML text: columns, lines, bars. PURE.

Colours are classes of the page's style sheet, so they follow the reader's light or dark scheme. Each chart has a text
for screen readers, and a title for every point, which browsers show beside the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

_WIDTH, _HEIGHT = 400, 168
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 8, 10, 26
_INNER_W, _INNER_H = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

Form = Callable[[float], str]
"""A number as its axis and its titles show it."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The places of the points, from 0 to 1, the width of a column, and their names; `ticks` are written at theirs.

    `pauses`: times without a point, as the number of the point after it and a text; no line goes through one.
    """

    places: Sequence[float]
    width: float
    names: Sequence[str]
    ticks: Sequence[tuple[float, str]]
    pauses: Sequence[tuple[int, str]] = ()

    def runs(self) -> Iterator[range]:
        """The numbers of the points between two pauses."""
        ends = [0, *(after for after, _ in self.pauses), len(self.places)]
        return (range(first, end) for first, end in pairwise(ends))


@dataclass(frozen=True, slots=True)
class Series:
    """A name, the class of its colour, and a value for each point; None is not drawn."""

    name: str
    colour: str
    values: Sequence[float | None]


def columns(title: str, text: str, axis: Axis, series: Sequence[Series], form: Form) -> str:
    """Columns, the series on top of one another."""
    totals = [sum(one.values[at] or 0 for one in series) for at in range(len(axis.places))]
    top = _greatest(totals)
    parts = [_grid(axis, top, form)]
    width = max(0.6, axis.width * _INNER_W * 0.86)
    below = [0.0] * len(totals)
    for one in series:
        rects = []
        for at, value in enumerate(one.values):
            if not value:
                continue
            height = _INNER_H * value / top
            y = _TOP + _INNER_H * (1 - below[at] / top) - height
            x = _x(axis.places[at]) - width / 2
            rects.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.2f}"/>')
            below[at] += value
        parts.append(f'<g class="fill {one.colour}">{"".join(rects)}</g>')
    parts.append(_hover(axis, series, form))
    return _figure(title, text, series, "".join(parts))


def lines(
    title: str,
    text: str,
    axis: Axis,
    series: Sequence[Series],
    form: Form,
    *,
    band: tuple[Sequence[float | None], Sequence[float | None]] | None = None,
) -> str:
    """Lines; `band` are the lower and upper ends of an interval around the first."""
    given = [value for one in series for value in one.values if value is not None]
    given += [value for value in (band[1] if band else ()) if value is not None]
    top, bottom = _greatest(given), min([0.0, *given])
    bottom = -_greatest([-bottom]) if bottom < 0 else 0.0
    span = top - bottom

    def y(value: float) -> float:
        return _TOP + _INNER_H * (1 - (value - bottom) / span)

    parts = [_grid(axis, top, form, bottom)]
    for run in axis.runs():
        if band:
            ends = [
                (_x(axis.places[at]), y(low), y(high))
                for at in run
                if (low := band[0][at]) is not None and (high := band[1][at]) is not None
            ]
            there = [f"{x:.1f},{high:.1f}" for x, _, high in ends]
            back = [f"{x:.1f},{low:.1f}" for x, low, _ in reversed(ends)]
            parts.append(f'<polygon class="band {series[0].colour}" points="{" ".join(there + back)}"/>')
        for one in series:
            points = [
                f"{_x(axis.places[at]):.1f},{y(value):.1f}" for at in run if (value := one.values[at]) is not None
            ]
            if len(points) == 1:
                x, _, at_y = points[0].partition(",")
                parts.append(f'<circle class="fill {one.colour}" cx="{x}" cy="{at_y}" r="2"/>')
            else:
                parts.append(f'<polyline class="line {one.colour}" points="{" ".join(points)}"/>')
    parts.append(_hover(axis, series, form))
    return _figure(title, text, series, "".join(parts))


def bars(
    title: str, text: str, rows: Sequence[tuple[str, Sequence[float]]], series: Sequence[Series], form: Form
) -> str:
    """Bars from the left, one a row, its values after one another; as a table, with their share of all."""
    total = sum(sum(values) for _, values in rows) or 1.0
    most = max((sum(values) for _, values in rows), default=0.0) or 1.0
    body = []
    for name, values in rows:
        pieces = "".join(
            f'<span class="bar {one.colour}" style="width:{100 * value / most:.2f}%"></span>'
            for one, value in zip(series, values, strict=True)
            if value
        )
        body.append(
            f'<tr><th scope="row">{escape(name)}</th><td class="bars" aria-hidden="true">{pieces}</td>'
            f'<td class="number">{escape(form(sum(values)))}</td>'
            f'<td class="number muted">{sum(values) / total:.1%}</td></tr>'
        )
    table = f'<table class="shares"><caption class="hidden">{escape(title)}</caption>{"".join(body)}</table>'
    return f"<figure>{_caption(title, text, series)}{table}</figure>"


def nothing(title: str, text: str) -> str:
    """In place of a chart without numbers."""
    return f"<figure>{_caption(title, text, ())}</figure>"


def _figure(title: str, text: str, series: Sequence[Series], inner: str) -> str:
    label = escape(f"{title}. {text}")
    return (
        f"<figure>{_caption(title, text, series)}"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{inner}</svg></figure>'
    )


def _caption(title: str, text: str, series: Sequence[Series]) -> str:
    keys = "".join(f'<li><span class="key {one.colour}"></span>{escape(one.name)}</li>' for one in series)
    legend = f"<ul>{keys}</ul>" if len(series) > 1 else ""
    return f"<figcaption><h3>{escape(title)}</h3><p>{escape(text)}</p>{legend}</figcaption>"


def _grid(axis: Axis, top: float, form: Form, bottom: float = 0.0) -> str:
    parts = []
    step = _step(top - bottom)
    value = math.ceil(bottom / step) * step
    while value <= top * 1.0001:
        y = _TOP + _INNER_H * (1 - (value - bottom) / (top - bottom))
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{escape(form(value))}</text>'
        )
        value += step
    for place, name in axis.ticks:
        x = _x(place)
        anchor = "start" if x < _LEFT + 20 else "end" if x > _WIDTH - _RIGHT - 20 else "middle"
        bottom_y = _TOP + _INNER_H
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom_y}" y2="{bottom_y + 5}"/>')
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{escape(name)}</text>')
    return f'<g class="grid">{"".join(parts)}</g>'


def _hover(axis: Axis, series: Sequence[Series], form: Form) -> str:
    rects = []
    width = max(2.0, axis.width * _INNER_W)
    for at, name in enumerate(axis.names):
        values = [
            f"{one.name}: {form(value)}" if len(series) > 1 else form(value)
            for one in series
            if (value := one.values[at]) is not None
        ]
        rects.append(
            f'<rect x="{_x(axis.places[at]) - width / 2:.1f}" y="{_TOP}" width="{width:.1f}" height="{_INNER_H}">'
            f"<title>{escape(chr(10).join((name, *values)))}</title></rect>"
        )
    for after, text in axis.pauses:
        left, right = (_x(axis.places[at]) for at in (after - 1, after))
        rects.append(
            f'<rect class="pause" x="{left + width / 2:.1f}" y="{_TOP}" width="{max(1.0, right - left - width):.1f}" '
            f'height="{_INNER_H}"><title>{escape(text)}</title></rect>'
        )
    return f'<g class="hover">{"".join(rects)}</g>'


def _x(place: float) -> float:
    return _LEFT + _INNER_W * place


def _step(span: float) -> float:
    """A round step, so that there are three to six."""
    rough = span / 4
    size = 10.0 ** math.floor(math.log10(rough))
    return next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)


def _greatest(values: Sequence[float]) -> float:
    """The upper end of an axis: a round number."""
    most = max(values, default=0.0)
    if most <= 0:
        return 1.0
    step = _step(most)
    return math.ceil(most / step - 1e-9) * step
