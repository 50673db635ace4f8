"""Named places where a test may stop or kill a process. Unset, one costs a dictionary look-up.

`BUCKET_STORE_FAILPOINTS="name=action[@n],…"` in the environment arms them in every process that inherits it. The
actions: `kill` ends the process by SIGKILL; `kill-driver`, `kill-jvm` and `kill-worker` that one of its session, and
the process goes on; so does `kill-executor`, which takes the JVM above a worker, or the oldest executor of a driver;
`kill-all` every process of its session at once, as a power cut does (never arm it in a shell of your own); `freeze`
stops the process by SIGSTOP; `hang` stops the thread for ever, and the process's others go on; `raise` raises
`FailpointError`. `@n` waits for the n-th hit in the process, and for the first one after it at which there is a process
to kill. `:once=PATH` after that acts only in the process that creates the file, so that of many processes one dies;
`:on=PATH` in the process that removes the file, as often as a test puts it there. `docs/failpoints.md` says what each
name means.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

from bucket_store.errors import StoreError

ENVIRONMENT = "BUCKET_STORE_FAILPOINTS"
_ACTIONS = ("kill", "kill-all", "kill-driver", "kill-executor", "kill-jvm", "kill-worker", "freeze", "hang", "raise")
_EXECUTOR = "CoarseGrainedExecutorBackend"


class FailpointError(StoreError):
    """A failpoint that was armed with `raise`. The operator: nothing; tests alone raise it."""


def hit(name: str) -> None:
    """Do the armed action of the failpoint, if any."""
    if _ARMED and name in _ARMED:
        _ARMED[name].hit()


class _Armed:
    """One armed failpoint of this process."""

    def __init__(self, name: str, action: str) -> None:
        self.name = name
        action, _, self._once = action.partition(":once=")
        action, _, self._on = action.partition(":on=")
        self._action, _, nth = action.partition("@")
        self._hits_left = int(nth or 1)
        self._is_done = False
        if self._action not in _ACTIONS:
            raise ValueError(
                f"{ENVIRONMENT}: {name}: {self._action!r} is not an action: write one of {', '.join(_ACTIONS)}"
            )

    def hit(self) -> None:
        self._hits_left -= 1
        if self._hits_left > 0 or self._is_done or (self._on and not Path(self._on).exists()):
            return
        victims = _victims(self._action)
        if victims == []:
            return
        if self._on:
            try:
                Path(self._on).unlink()
            except FileNotFoundError:
                return
        self._is_done = not self._on
        if self._once:
            try:
                Path(self._once).touch(exist_ok=False)
            except FileExistsError:
                return
        if victims is not None:
            for victim in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
        elif self._action == "raise":
            raise FailpointError(f"failpoint {self.name}")
        elif self._action == "hang":
            threading.Event().wait()
        else:
            # To this very thread: sent to the process, another thread may receive it, and this one runs on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _victims(action: str) -> list[int] | None:
    """The processes that an action kills, this one last; None for actions that kill no process."""
    own, session = os.getpid(), os.getsid(0)
    match action:
        case "kill":
            return [own]
        case "kill-driver":
            return [session]
        case "kill-all":
            return sorted(_session(), key=lambda process: process == own)
        case "kill-jvm":
            return [process for process, (name, _) in _session().items() if name == "java"]
        case "kill-executor":
            return _executors()[:1]
        case "kill-worker":
            # Workers are forked by a daemon that the JVM has started.
            of_session = _session()
            daemons = {
                process
                for process, (name, parent) in of_session.items()
                if name != "java" and of_session.get(parent, ("", 0))[0] == "java"
            }
            return [process for process, (_, parent) in of_session.items() if parent in daemons and process != own][:1]
    return None


def _executors() -> list[int]:
    """The executor above this process; elsewhere those of the session, oldest first."""
    import psutil  # for armed failpoints alone

    above = [process.pid for process in psutil.Process().parents() if _is_executor(process)]
    return above or sorted(process for process in _session() if _is_executor(psutil.Process(process)))


def _is_executor(process: Any) -> bool:
    import psutil  # for armed failpoints alone

    with contextlib.suppress(psutil.Error):
        return process.name() == "java" and any(_EXECUTOR in word for word in process.cmdline())
    return False


def _session() -> dict[int, tuple[str, int]]:
    """The processes of this session: the driver, which leads it, its JVM, its workers; name and parent of each."""
    import psutil  # for armed failpoints alone

    session = os.getsid(0)
    found = {}
    for process in psutil.process_iter(["name", "ppid", "status"]):
        with contextlib.suppress(OSError):
            if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                found[process.pid] = process.info["name"], process.info["ppid"]
    return found


def _armed(setting: str) -> dict[str, _Armed]:
    pairs = (item.partition("=") for item in setting.split(",") if item)
    return {name: _Armed(name, action) for name, _, action in pairs}


_ARMED = _armed(os.environ.get(ENVIRONMENT, ""))
