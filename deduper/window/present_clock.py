"""The wall clock for the records of a store's owner, from the machine's clock."""

from __future__ import annotations

import logging
import time

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.wall_clock import is_far_ahead, next_wall_us
from deduper.units import format_time

logger = logging.getLogger(__name__)


def wall_clock_us() -> int:
    """The machine's wall clock, µs since the epoch."""
    return time.time_ns() // 1000


def present_wall_us(log: CommitLog, now_us: int) -> int:
    """Wall clock of a claim or a deletion placed now, with a warning when the records before were far ahead of it."""
    last_us = log.state.last_wall_us
    if is_far_ahead(last_us, now_us):
        logger.warning(
            "%s: this machine's clock is at %s, earlier records of the store have %s: the present clock counts from "
            "here on; see `The clock was wrong` in docs/recovery.md",
            log.root,
            format_time(now_us),
            format_time(last_us),
        )
    return next_wall_us(last_us, now_us)
