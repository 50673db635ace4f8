"""Who owns a store, and whether he is at work: for owners, and for whoever must not disturb one."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from bucket_store.heartbeat import INTERVAL_S, moves, read_beat


def own_name() -> str:
    """What this process calls itself as an owner, in its claims and in its heart's beats: `<machine>:<pid>`."""
    return f"{platform.node()}:{os.getpid()}"


def owner_lives(root: Path) -> bool:
    """Whether the store's heart beats: a look of 5 s, unless there is no beat, or its process is known to be gone."""
    beat = read_beat(root)
    if beat is not None:
        node, _, pid = beat.owner.rpartition(":")
        if node == platform.node() and pid.isdecimal() and not Path("/proc", pid).exists():
            return False
    return moves(root, 2.5 * INTERVAL_S)
