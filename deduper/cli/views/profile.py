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
