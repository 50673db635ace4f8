"""Small line charts one below the other, sharing their time, as one SVG file. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 900, 130, 90, 40, 46
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e")

Panel = tuple[str, Mapping[str, Sequence[float]]]
"""A title with its unit, and the lines by name."""


def plot(title: str, minutes: Sequence[float], panels: Sequence[Panel], marks: Mapping[str, float]) -> str:
    """The file's text. `marks` are moments (in minutes) with a name, drawn through every panel; NaN is not drawn."""
    inner = _WIDTH - _LEFT - 30
    last = max(minutes, default=1.0) or 1.0
    height = _TOP + len(panels) * (_HEIGHT + _GAP) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/><text x="{_LEFT}" y="20" font-size="15">'
        f"{escape(title)}</text>"
    ]
    for position, (name, lines) in enumerate(panels):
        top = _TOP + position * (_HEIGHT + _GAP) + 14
        values = [value for line in lines.values() for value in line if value == value]
        greatest = max(values, default=1.0) * 1.08 or 1.0
        parts.append(f'<text x="{_LEFT}" y="{top - 5}">{escape(name)}</text>')
        for share in (0.0, 0.5, 1.0):
            y = top + _HEIGHT * (1 - share)
            parts.append(
                f'<line x1="{_LEFT}" y1="{y}" x2="{_LEFT + inner}" y2="{y}" stroke="#ddd"/>'
                f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end" fill="#555">{greatest * share:,.4g}</text>'
            )
        for minute in range(0, int(last) + 1, max(1, int(last) // 10)):
            x = _LEFT + inner * minute / last
            parts.append(f'<text x="{x:.0f}" y="{top + _HEIGHT + 14}" text-anchor="middle" fill="#555">{minute}</text>')
        for mark, minute in marks.items():
            x = _LEFT + inner * minute / last
            label = f'<text x="{x + 3:.0f}" y="{top + 10}" fill="#888">{escape(mark)}</text>' if position == 0 else ""
            parts.append(
                f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + _HEIGHT}" stroke="#888" '
                f'stroke-dasharray="4 3"/>{label}'
            )
        for number, (line_name, line) in enumerate(lines.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            points = " ".join(
                f"{_LEFT + inner * minute / last:.1f},{top + _HEIGHT * (1 - value / greatest):.1f}"
                for minute, value in zip(minutes, line, strict=True)
                if value == value
            )
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
            if len(lines) > 1:
                x = _LEFT + inner - 110 * (len(lines) - number)
                parts.append(f'<text x="{x}" y="{top - 5}" fill="{colour}">{escape(line_name)}</text>')
    parts.append("</svg>\n")
    return "\n".join(parts)
