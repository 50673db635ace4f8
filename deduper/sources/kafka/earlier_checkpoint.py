"""Where a job of an earlier release began, from the checkpoint of Spark's stream that it kept.

Needed for one case: a job that began at the topics' ends, and was stopped before it had judged a window. The beginning
is the last line of `<epoch>/sources/0/0`, after a zero byte and a version line: {"topic": {"0": 23}}.
"""

from __future__ import annotations

import logging
from pathlib import Path

from deduper.kafka.offsets import Offsets, parse_offsets

logger = logging.getLogger(__name__)


def initial_offsets(root: Path) -> Offsets | None:
    """The beginning of the newest checkpoint below `root`; None where there is none that can be read."""
    newest = max(
        (path for path in root.glob("*") if path.name.isdecimal()), key=lambda path: int(path.name), default=None
    )
    first = None if newest is None else newest / "sources" / "0" / "0"
    if first is None or not first.exists():
        return None
    try:
        return parse_offsets(first.read_text(encoding="utf-8").lstrip("\0").rstrip("\n").rsplit("\n", 1)[-1])
    except (OSError, ValueError) as exc:
        logger.warning("%s: where an earlier release began cannot be read, the config decides: %s", first, exc)
        return None
