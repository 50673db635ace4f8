"""What a job comes to that nobody disturbs: what every disturbed one is held against."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from tests.crash.scene import MANY_WINDOWS, WINDOWS, Scene

VARIANTS: dict[str, dict[str, str]] = {
    "rocksdb": {"store": "rocksdb:state"},
    "file": {"store": "file:state", "lookup": "all_live", "error_format": "json"},
}
Outcome = dict[str, Any]


class Undisturbed:
    """The outcomes of both variants, after a few and after many windows."""

    def __init__(self, pool: Executor, base: Path) -> None:
        self._futures: dict[str, Future[dict[int, Outcome]]] = {
            name: pool.submit(_undisturbed, name, base / f"undisturbed-{name}") for name in VARIANTS
        }

    def outcome(self, variant: str, windows: int = WINDOWS) -> Outcome:
        """The outcome of a variant of which so many windows were fed."""
        return self._futures[variant].result()[windows]

    def wait(self) -> None:
        """Until there is nothing left to wait for, be it an error."""
        for future in self._futures.values():
            future.exception()


def _undisturbed(variant: str, directory: Path) -> dict[int, Outcome]:
    """Two runs to the end."""
    scene = Scene(directory, **VARIANTS[variant])
    scene.make()
    outcomes = {}
    try:
        for first, end in ((0, WINDOWS), (WINDOWS, MANY_WINDOWS)):
            if first:
                scene.add_windows(first, end)
            assert scene.run() == 0, scene.output()
            outcomes[end] = scene.outcome()
            scene.check_is_as_if_undisturbed(outcomes[end])
        reasons = outcomes[WINDOWS]["reasons"]
        assert {"same_window", "earlier_window", "older_than_period", "null_key", "malformed"} <= reasons.keys(), (
            reasons
        )
        return outcomes
    finally:
        scene.clean_up()
