"""What a job comes to that nobody disturbs: what every disturbed one is held against."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.scene import MANY_WINDOWS, Scene

VARIANTS: dict[str, dict[str, str]] = {
    "rocksdb": {"store": "rocksdb:state"},
    "file": {"store": "file:state", "lookup": "all_live", "error_format": "json"},
}
Undisturbed = Callable[[str], dict[str, Any]]
"""The outcome of a variant after many windows."""


def undisturbed_in(base: Path) -> Undisturbed:
    """Each outcome is found when it is first asked for."""
    return functools.cache(lambda variant: _outcome(variant, base / variant))


def _outcome(variant: str, directory: Path) -> dict[str, Any]:
    """A run to the end."""
    scene = Scene(directory, **VARIANTS[variant]).make(MANY_WINDOWS)
    try:
        assert scene.run() == 0, scene.output()
        outcome = scene.outcome()
        scene.check_is_as_if_undisturbed(outcome)
        reasons = {"same_window", "earlier_window", "older_than_period", "null_key", "malformed"}
        assert reasons <= outcome["reasons"].keys(), outcome["reasons"]
        return outcome
    finally:
        scene.clean_up()
