"""Whether a store's owner is alive: for owners, and for commands that must not run beside one."""

from __future__ import annotations

import logging
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bucket_store.errors import StoreError
from bucket_store.log.heartbeat import INTERVAL_S, Beat, HeartBeat, Sign, moves, read_beat, read_sign
from bucket_store.log.last_end import LastEnd, read_end, write_end
from bucket_store.places.place import Place
from deduper.errors import ExitCode, OwnerAliveError, PortTakenError, exit_code_of
from deduper.spark.failures import message_of
from deduper.units import format_time, span
from deduper.window.progress import PROGRESS

logger = logging.getLogger(__name__)

_LOOKS, _PAUSE_S = 25, 0.2
_LONGEST = 2000
_KEEPS_S = 2.0
_WHY = {"signal": "by a signal", "drained": "the source is drained", "max_windows": "--max-windows"}


def own_name() -> str:
    """The name of this process as an owner, in its claims and heartbeats: `<machine>:<pid>`."""
    return f"{platform.node()}:{os.getpid()}"


@contextmanager
def owning(root: Place, owner: str, epoch: int, why: Callable[[], str] = lambda: "done") -> Iterator[None]:
    """The heartbeat of an owner while the block runs. How it ends is kept with the store; `why` gives a clean end.

    A fenced owner keeps nothing: the store is another's. A failure to keep it is logged.
    """

    with HeartBeat(root, owner):
        try:
            yield
        except BaseException as error:
            if (code := exit_code_of(error)) is not ExitCode.FENCED:
                _keep(root, epoch, owner, code, message_of(error))
            raise
        _keep(root, epoch, owner, ExitCode.OK, why())


def keep_signal(root: Place, epoch: int, number: signal.Signals) -> None:
    """Keep that a signal ends this owner before its first window. A storage that is away delays that by two seconds."""
    message = f"{number.name} ended it before its first window"
    kept = threading.Thread(target=_keep, args=(root, epoch, own_name(), 128 + number, message), daemon=True)
    kept.start()
    kept.join(_KEEPS_S)


def _keep(root: Place, epoch: int, owner: str, code: int, message: str) -> None:
    try:
        write_end(root, LastEnd(epoch, owner, code, message[:_LONGEST], time.time_ns() // 1000))
    except (OSError, StoreError) as exc:  # raised here, it would hide the error that ends the job
        logger.warning("%s: how this job ends could not be kept: %s", root, exc)


def last_end(root: Place, epoch: int) -> LastEnd | None:
    """How the owner of this epoch ended; None if it left none."""
    end = read_end(root)
    return end if end is not None and end.epoch == epoch else None


def end_as_json(end: LastEnd | None) -> dict[str, object] | None:
    """For `--json`."""
    if end is None:
        return None
    return {"exit_code": end.exit_code, "message": end.message, "at": format_time(end.wall_us), "owner": end.owner}


def how_ended(end: LastEnd | None, left_beat: str) -> str:
    """The last owner's end in words. `left_beat`: the owner of the heartbeat that is left, empty without one."""
    if end is None:
        who = f"{left_beat} vanished" if left_beat else "the last job left no record of its end"
        return f"{who}: it was killed, ran out of memory, or its machine or disk failed; see its log"
    ago = f"{span(time.time() - end.wall_us / 1e6)} ago"
    if end.exit_code:
        return f"the last job ended {ago} with exit {end.exit_code}: {end.message}"
    return f"the last job stopped cleanly {ago} ({_WHY.get(end.message, end.message)})"


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
        f"{root}: another process owns this store and is alive; stop it first, or take over with "
        "--take-over (a Deduper: take_over=True)"
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
