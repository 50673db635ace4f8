"""The time of the newest windows by step, from the store's `profile`: for `status`, people and programs.

Two tables. The first divides a window on the driver, from the batch until the next one can begin: its columns add up to
the window's seconds. The second has the tasks of its three steps, summed, and the sending to topics beside the next
window: several run at once, so these are shares of work, not of time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bucket_store.log.profile import WindowProfile, read_profiles
from bucket_store.places.place import Place
from deduper.as_json import AsJson

STEPS: dict[str, tuple[str, ...]] = {
    "intent": ("intent",),
    "read": ("judge.read",),
    "judge": ("judge.shards",),
    "write": ("judge.write",),
    "sync": ("durable",),
    "wait": ("wait",),
    "commit": ("commit",),
    "publish": ("publish",),
    "expire": ("clean", "expire", "measure"),
}
"""The steps of a window's seconds, and the phases of each step; the rest is `other`."""

TASK_STEPS = ("read", "rows", "keys", "tables", "judge", "verdicts", "piece", "ports")
"""Steps of the tasks: wait for Spark and Arrow; spill records; partition and gather keys; open and apply tables;
decide; leave the verdicts; write the piece; write the ports."""


@dataclass(frozen=True, slots=True)
class ProfileView(AsJson):
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
                    "rows_per_second": rows_per_second(profile),
                    "phases": {name: round(seconds, 6) for name, seconds in profile.phases.items()},
                }
                for profile in self.windows
            ],
            "shares": shares(self.windows, steps_of),
            "task_shares": shares(self.windows, task_steps_of),
        }


def profile_view(root: Place, *, last: int) -> ProfileView:
    """The profiles of the newest `last` windows."""
    return ProfileView(read_profiles(root)[-last:] if last else ())


def steps_of(profile: WindowProfile) -> dict[str, float]:
    """Seconds of a window by step; they add up to its own."""
    seconds = {step: sum(profile.phases.get(name, 0.0) for name in names) for step, names in STEPS.items()}
    return {**seconds, "other": max(0.0, profile.seconds - sum(seconds.values()))}


def task_steps_of(profile: WindowProfile) -> dict[str, float]:
    """Seconds of a window's tasks by step, over all of them, and of its sending beside the next window."""
    of_tasks = {step: profile.phases.get(f"task.{step}", 0.0) for step in TASK_STEPS}
    return {**of_tasks, "send": profile.phases.get("send", 0.0)}


def shares(profiles: Sequence[WindowProfile], steps: Callable[[WindowProfile], dict[str, float]]) -> dict[str, float]:
    """The part of 1 that each step takes of all windows together; none without any second."""
    divided = [steps(profile) for profile in profiles]
    everything = sum(sum(seconds.values()) for seconds in divided)
    if not everything:
        return {}
    return {step: round(sum(seconds[step] for seconds in divided) / everything, 4) for step in divided[0]}


def rows_per_second(profile: WindowProfile) -> int:
    """Of a whole window; 0 for one that took no time."""
    return round(profile.rows / profile.seconds) if profile.seconds > 0 else 0
