"""Checks of the store: its owner, the settings that are fixed for its life, its seed, and its ports."""

from __future__ import annotations

import contextlib

from bucket_store.errors import StoreMissingError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.copies import original_of
from bucket_store.log.heartbeat import read_beat, read_sign
from bucket_store.places.open import open_place
from deduper.diagnostics import note, warning
from deduper.preflight.results import Results, Start
from deduper.window.completeness import require_none_open
from deduper.window.owner_alive import how_ended, last_end, owner_lives, require_no_owner
from deduper.window.recovery import check_ports, require_fixed_settings, require_of_job


def owner(start: Start) -> Results:
    """No other process owns the store and is alive, unless it is taken over; for a look, a running job is a note."""
    root = open_place(start.config.store.url)
    sign = read_sign(root)
    if sign is None or start.take_over:
        return
    if start.waits:
        require_no_owner(root)
    elif owner_lives(root):
        start.is_beside = True
        beat = read_beat(root)
        who = "a job" if beat is None else beat.owner
        yield note("owner", "store", f"{who} runs on this store, and a second start is refused")
    start.silent = sign


def settings(start: Start) -> Results:
    """The store can be read, was made with the same fixed settings, and holds no half of a seed."""
    log = store_log(start)
    if log is None:
        return
    require_fixed_settings(start.config, log)
    if not start.seeds:
        require_none_open(log)
        require_of_job(log)
    yield from _last_end(start, log)
    original = original_of(log)
    if original is not None:
        what = f"{log.root} is a copy of {original}, which is still there: each remembers its own keys"
        yield warning("owner", "store", what, "if only one is to go on, remove the other")


def _last_end(start: Start, log: CommitLog) -> Results:
    """How the last owner ended. Of one that may be alive nothing is known."""
    if not log.state.epoch or start.take_over or start.is_beside:
        return
    end, beat = last_end(log.root, log.state.epoch), read_beat(log.root)
    weight = warning if end is None or end.exit_code else note
    yield weight("owner", "store", how_ended(end, "" if beat is None else beat.owner), "")


def outputs(start: Start) -> Results:
    """The file ports hold windows of this store only, and none beyond its last."""
    # A file in the place of a port is a matter of folders.
    with contextlib.suppress(NotADirectoryError):
        check_ports(start.config, store_log(start))
    yield from ()


def store_log(start: Start) -> CommitLog | None:
    """The log of the store; None before the first start."""
    try:
        return CommitLog.open(open_place(start.config.store.url))
    except StoreMissingError:
        return None
