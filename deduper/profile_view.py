"""Where the time of the newest windows went, from the store's `profile`: for `status`, people and programs.

Two tables. The first divides a window as its driver lives it, from the batch to the published mark: its columns add up
to the window's seconds. The second has the tasks of its three steps, summed: several run at once, so these are shares
of work, not of time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from bucket_store.profile_file import WindowProfile, read_profiles
from deduper.terminal import table

STEPS: dict[str, tuple[str, ...]] = {
    "intent": ("intent",),
    "read": ("judge.read",),
    "judge": ("judge.shards",),
    "write": ("judge.write",),
    "files": ("judge.files",),
    "sync": ("durable",),
    "commit": ("commit",),
    "publish": ("publish",),
    "expire": ("clean", "expire"),
}
"""What a window's seconds are divided into, and the phases each is made of; what is left is `other`."""

TASK_STEPS = ("read", "rows", "keys", "tables", "judge", "verdicts", "piece", "ports")
"""What the tasks do: wait for Spark and Arrow; set records aside; deal and gather keys; open and apply tables; decide;
leave the verdicts; write the piece; write the ports."""


@dataclass(frozen=True, slots=True)
class ProfileView:
    """The newest windows that the profile has, ascending; none when there is no profile."""

    windows: tuple[WindowProfile, ...]

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`: seconds, and shares of 1."""
        return {
            "windows": [
                {
                    "window": profile.window,
                    "epoch": profile.epoch,
                    "rows": profile.rows,
                    "seconds": round(profile.seconds, 4),
                    "rows_per_second": _rate(profile),
                    "phases": {name: round(seconds, 6) for name, seconds in profile.phases.items()},
                }
                for profile in self.windows
            ],
            "shares": shares(self.windows, steps_of),
            "task_shares": shares(self.windows, task_steps_of),
        }


def profile_view(root: Path, *, last: int) -> ProfileView:
    """The profiles of the newest `last` windows."""
    return ProfileView(read_profiles(root)[-last:] if last else ())


def steps_of(profile: WindowProfile) -> dict[str, float]:
    """Seconds of a window by step; they add up to its own."""
    seconds = {step: sum(profile.phases.get(name, 0.0) for name in names) for step, names in STEPS.items()}
    return {**seconds, "other": max(0.0, profile.seconds - sum(seconds.values()))}


def task_steps_of(profile: WindowProfile) -> dict[str, float]:
    """Seconds of a window's tasks by step, over all of them."""
    return {step: profile.phases.get(f"task.{step}", 0.0) for step in TASK_STEPS}


def shares(profiles: Sequence[WindowProfile], steps: Callable[[WindowProfile], dict[str, float]]) -> dict[str, float]:
    """The part of 1 that each step takes of all windows together; none without any second."""
    divided = [steps(profile) for profile in profiles]
    everything = sum(sum(seconds.values()) for seconds in divided)
    if not everything:
        return {}
    return {step: round(sum(seconds[step] for seconds in divided) / everything, 4) for step in divided[0]}


def render(view: ProfileView) -> list[RenderableType]:
    """The tables as a person reads them, in ms; nothing without a profile."""
    if not view.windows:
        return []
    return [
        _divided(view.windows, steps_of, "where the time went, ms", with_rate=True),
        _divided(view.windows, task_steps_of, "work of the tasks, ms", with_rate=False),
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
            *((window.rows, f"{window.seconds:.2f}", _rate(window)) if with_rate else ()),
            *(_ms(steps(window)[step]) for step in shown),
        )
        for window in windows
    ]
    rows.append(("share", *([None] * 3 if with_rate else []), *(f"{parts.get(step, 0):.0%}" for step in shown)))
    return table(head, rows, title=title)


def _rate(profile: WindowProfile) -> int:
    return round(profile.rows / profile.seconds) if profile.seconds > 0 else 0


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}" if seconds >= 0.01 else f"{seconds * 1000:.1f}"
