"""Log lines on standard error, as text for people or as one JSON object a line. Configured by the CLI alone."""

from __future__ import annotations

import logging
import sys
from typing import Any


def configure_logging(*, as_json: bool, verbose: bool) -> None:
    """Send the log lines of both packages to standard error; INFO and above when `verbose`, else WARNING and above."""
    import structlog  # 40 ms that commands which log nothing need not pay

    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    tail: list[Any] = [structlog.processors.format_exc_info] if as_json else []
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tail, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    for package in ("deduper", "bucket_store"):
        logger = logging.getLogger(package)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO if verbose else logging.WARNING)
        logger.propagate = False
