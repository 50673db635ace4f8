"""Named places where a test may stop or kill a process. Unset, one costs a dictionary look-up.

`BUCKET_STORE_FAILPOINTS="name=action[@n],…"` in the environment arms them in every process that inherits it. The
actions: `kill` ends the process by SIGKILL; `kill-all` every process of its session at once, as a power cut does (never
arm it in a shell of your own); `freeze` stops the process by SIGSTOP; `raise` raises `FailpointError`. `@n` waits for
the n-th hit in the process. `:once=PATH` after that acts only for whoever creates the file, so that of many processes
one dies. What every name means stands in `docs/failpoints.md`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

from bucket_store.errors import StoreError

ENVIRONMENT = "BUCKET_STORE_FAILPOINTS"
_ACTIONS = ("kill", "kill-all", "freeze", "raise")


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
        if self._action not in _ACTIONS:
            raise ValueError(
                f"{ENVIRONMENT}: {name}: {self._action!r} is not an action: write one of {', '.join(_ACTIONS)}"
            )

    def hit(self) -> None:
        self._hits_left -= 1
        if self._hits_left:
            return
        if self._once:
            try:
                Path(self._once).touch(exist_ok=False)
            except FileExistsError:
                return
        if self._action == "raise":
            raise FailpointError(f"failpoint {self.name}")
        if self._action == "kill-all":
            _kill_others_of_session()
        if self._action == "freeze":
            # To this very thread: sent to the process, another thread may be the one to notice, and this one runs on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def _kill_others_of_session() -> None:
    """Kill the driver, its JVM and all Python workers, whoever of them calls."""
    session = os.getsid(0)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(int(entry.name)) == session:
                    os.kill(int(entry.name), signal.SIGKILL)


def _armed(setting: str) -> dict[str, _Armed]:
    pairs = (item.partition("=") for item in setting.split(",") if item)
    return {name: _Armed(name, action) for name, _, action in pairs}


_ARMED = _armed(os.environ.get(ENVIRONMENT, ""))
