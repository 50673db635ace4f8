"""The newest window of a store elsewhere, noted on this machine: what `status` has while the storage is away.

A file a store, in the folder of this machine's tables, replaced after each window. Nothing but `status` reads it.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import xxhash

from deduper.config.sections import PORTS
from deduper.tasks.table_room import own_folder
from deduper.units import format_time
from deduper.window.progress import BatchProgress

logger = logging.getLogger(__name__)


def noting(url: str, on_progress: Callable[[BatchProgress], None]) -> Callable[[BatchProgress], None]:
    """`on_progress`, with a note of each window. A note that cannot be written is logged and stops nothing."""

    def noted(progress: BatchProgress) -> None:
        path = _file(url)
        text = json.dumps(
            {
                "url": url,
                "window": progress.window,
                "at": format_time(time.time_ns() // 1000),
                **{port: getattr(progress, port) for port in PORTS},
            }
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(f".{os.getpid()}")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        except OSError as exc:
            logger.info("the newest window is not noted on this machine: %s", exc)
        on_progress(progress)

    return noted


def last_known(url: str) -> str | None:
    """The newest window that a job of this user on this machine has noted of a store, for people; None for none."""
    try:
        found = json.loads(_file(url).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    counts = ", ".join(f"{found[port]:,} {port}" for port in PORTS)
    return f"the last that this machine knows: window {found['window']} was published at {found['at']} ({counts})"


def _file(url: str) -> Path:
    return own_folder(Path(tempfile.gettempdir())) / "last-known" / f"{xxhash.xxh64_hexdigest(url.encode())}.json"
