"""Whether a store's owner is alive: for owners, and for commands that must not run beside one."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from bucket_store.log.heartbeat import INTERVAL_S, moves, read_beat


def own_name() -> str:
    """The name of this process as an owner, in its claims and heartbeats: `<machine>:<pid>`."""
    return f"{platform.node()}:{os.getpid()}"


def owner_lives(root: Path) -> bool:
    """Whether the store's heartbeat moves; takes 5 s, unless there is none or its process is certainly gone."""
    beat = read_beat(root)
    if beat is not None:
        node, _, pid = beat.owner.rpartition(":")
        if node == platform.node() and pid.isdecimal() and not Path("/proc", pid).exists():
            return False
    return moves(root, 2.5 * INTERVAL_S)
