"""The time of the newest windows by step, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import RenderableType

from bucket_store.log.profile import WindowProfile
from deduper.admin.profile import ProfileView, rows_per_second, shares, steps_of, task_steps_of
from deduper.cli.terminal import table


def render(view: ProfileView) -> list[RenderableType]:
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
    shown = [step for step in steps(windows[0]) if any(steps(window)[step] for window in windows)]
    head = ("window", *(("rows", "seconds", "rows/s") if with_rate else ()), *shown)
    rows: list[tuple[object, ...]] = [
        (
            window.window,
            *((window.rows, f"{window.seconds:.2f}", rows_per_second(window)) if with_rate else ()),
            *(_ms(steps(window)[step]) for step in shown),
        )
        for window in windows
    ]
    rows.append(("share", *([None] * 3 if with_rate else []), *(f"{parts.get(step, 0):.0%}" for step in shown)))
    return table(head, rows, title=title)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}" if seconds >= 0.01 else f"{seconds * 1000:.1f}"
