"""Whether a store's owner is alive: for owners, and for commands that must not run beside one."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bucket_store.log.heartbeat import INTERVAL_S, Beat, Sign, moves, read_beat, read_sign
from bucket_store.places.place import Place
from deduper.errors import OwnerAliveError, PortTakenError
from deduper.window.progress import PROGRESS

_LOOKS, _PAUSE_S = 25, 0.2


def own_name() -> str:
    """The name of this process as an owner, in its claims and heartbeats: `<machine>:<pid>`."""
    return f"{platform.node()}:{os.getpid()}"


def require_no_owner(root: Place, silent: Sign | None = None) -> None:
    """As `owner_lives`, before a start.

    Raises:
        OwnerAliveError: another process owns the store and is alive.
    """
    if owner_lives(root, silent):
        raise _alive(root)


@contextmanager
def telling_owner_of_port(root: Place, silent: Sign | None) -> Iterator[None]:
    """Explains a PortTakenError in the block: if an owner appears within 5 s, another start of the job has the port.

    That start has bound the port and claims the store next. `silent` is the last sign of an owner that is gone.

    Raises:
        OwnerAliveError: instead of PortTakenError.
    """
    try:
        yield
    except PortTakenError as exc:
        PROGRESS.info("the metrics' port is taken; waiting up to 5 s: is it by another start of this job?")
        for _ in range(_LOOKS):
            if read_sign(root) not in (None, silent):
                raise _alive(root) from exc
            time.sleep(_PAUSE_S)
        raise


def _alive(root: Place) -> OwnerAliveError:
    return OwnerAliveError(
        f"{root}: another process owns this store and is alive; stop it first, or take over with --take-over"
    )


def process_exists(beat: Beat) -> bool | None:
    """Whether an owner's process exists; None if that is unknown, as on another machine."""
    node, _, pid = beat.owner.rpartition(":")
    if node != platform.node() or not beat.has_our_numbers or not pid.isdecimal():
        return None
    return Path("/proc", pid).exists()


def owner_lives(root: Place, silent: Sign | None = None) -> bool:
    """Whether the store's heartbeat moves; takes 5 s, unless there is none or its process is certainly gone.

    `silent` is a heartbeat that this function has seen standing still: if it is still there, no second watch is needed.
    """
    if silent is not None and read_sign(root) == silent:
        return False
    beat = read_beat(root)
    if beat is not None:
        if process_exists(beat) is False:
            return False
        PROGRESS.info("waiting up to 5 s: is the last owner, %s, still alive?", beat.owner)
    return moves(root, 2.5 * INTERVAL_S)
