"""Runs in this process that end at a failpoint, as if it had been killed there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bucket_store import failpoints


class Killed(Exception):
    """The process ends here."""


def killing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Names the failpoint at whose hit a run ends; for `window.4.record@2` its second one."""
    armed = {"point": "", "left": 0}

    def hit(name: str) -> None:
        if name == armed["point"]:
            armed["left"] -= 1  # type: ignore[operator]
            if not armed["left"]:
                raise Killed(name)

    def arm(point: str) -> None:
        name, _, nth = point.partition("@")
        armed.update(point=name, left=int(nth or 1))

    monkeypatch.setattr(failpoints, "hit", hit)
    return arm
