"""Named places where a test may stop or kill a process. Unset, one costs a dictionary look-up.

`BUCKET_STORE_FAILPOINTS="name=action[@n],…"` in the environment arms them in every process that inherits it. `kill`
ends the process by SIGKILL, `raise` raises `FailpointError`; `@n` waits for the n-th hit in the process. `:once=PATH`
after the action acts only for whoever creates that file, so that of many processes one dies.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from bucket_store.errors import StoreError

ENVIRONMENT = "BUCKET_STORE_FAILPOINTS"


class FailpointError(StoreError):
    """A failpoint that was armed with `raise`. The operator: never sees it."""


def hit(name: str) -> None:
    """Do what the failpoint is armed for, if it is."""
    if _ARMED and name in _ARMED:
        _ARMED[name].hit()


class _Armed:
    """One armed failpoint of this process."""

    def __init__(self, name: str, action: str) -> None:
        self.name = name
        action, _, self._once = action.partition(":once=")
        self._action, _, nth = action.partition("@")
        self._hits_left = int(nth or 1)
        if self._action not in ("kill", "raise"):
            raise ValueError(f"{ENVIRONMENT}: {name}: {self._action!r} is not an action: write kill or raise")

    def hit(self) -> None:
        self._hits_left -= 1
        if self._hits_left:
            return
        if self._once:
            try:
                Path(self._once).touch(exist_ok=False)
            except FileExistsError:
                return
        if self._action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise FailpointError(f"failpoint {self.name}")


def _armed(setting: str) -> dict[str, _Armed]:
    pairs = (item.partition("=") for item in setting.split(",") if item)
    return {name: _Armed(name, action) for name, _, action in pairs}


_ARMED = _armed(os.environ.get(ENVIRONMENT, ""))
