"""Log lines on standard error, as text for people or as one JSON object a line. Configured by the CLI alone.

Lines of other packages, which report as exceptions what matters, are shown when `verbose`, in the same form.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from deduper.window.progress import PROGRESS

PACKAGES = ("deduper", "bucket_store")
_WAITS = (PROGRESS.name, "bucket_store.compiled")


def configure_logging(
    *, as_json: bool, verbose: bool, handler: Callable[[], logging.Handler] = logging.StreamHandler
) -> None:
    """Send the log lines of both packages to standard error; INFO and above when `verbose`, else WARNING and above.

    What a command waits for is shown without `verbose` too, as plain lines, but not as JSON. `handler` makes what
    prints the lines.
    """
    import structlog  # 40 ms that commands which log nothing need not pay

    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        )
    )
    # A trace never shows local variables: they may hold records and secrets.
    tail: list[Any] = [structlog.processors.format_exc_info] if verbose and as_json else []
    if not verbose:
        tail = [_without_trace]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tail, renderer],
    )
    printer = logging.StreamHandler() if as_json else handler()
    printer.setFormatter(formatter)
    for package in PACKAGES:
        logger = logging.getLogger(package)
        logger.handlers = [printer]
        logger.setLevel(logging.INFO if verbose else logging.WARNING)
        logger.propagate = False
    plain = handler()
    plain.setFormatter(logging.Formatter("%(message)s"))
    show_waits([] if as_json or verbose else [plain])
    # With a handler at the root, no package installs one of its own.
    others = logging.getLogger()
    others.handlers = [printer if verbose else logging.NullHandler()]
    others.setLevel(logging.WARNING)
    _quiet_pyspark()


def show_waits(handlers: list[logging.Handler]) -> None:
    """Send what a command waits for to these handlers alone; to none: where all lines go, by their level."""
    for name in _WAITS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = handlers, not handlers
        logger.setLevel(logging.INFO if handlers else logging.NOTSET)


def _quiet_pyspark() -> None:
    """Of PySpark and its bridge to the JVM only warnings go on, in our form, and with --verbose alone.

    A level of the root is none for what other loggers hand up to it. PySpark's own class of loggers has a handler that
    prints JSON to the terminal: a logger of a name that is there already is not made of it. What the two of errors say
    is in the exception.
    """
    for name in ("py4j", "py4j.clientserver", "py4j.java_gateway"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [logging.NullHandler()], True
        logger.setLevel(logging.WARNING)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]
        logger.setLevel(logging.CRITICAL + 1)
    # No part of the product uses pandas.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")


def _without_trace(_: Any, __: str, event: Any) -> Any:
    """The exception of a line as one more sentence: its trace is for developers."""
    info = event.pop("exc_info", None)
    error = sys.exc_info()[1] if info is True else info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        event["event"] = f"{event['event']}: {type(error).__name__}: {error}".splitlines()[0]
    return event


LEVELS = ("warning", "error")


class LogCounts(logging.Handler):
    """Counts warnings and errors, each from 0 on, and not by module: most never log one.

    Of a counter that appears with its first line, Prometheus sees no increase.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._counts = dict.fromkeys(LEVELS, 0)
        self._counting = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Count one line."""
        level = "error" if record.levelno >= logging.ERROR else "warning"
        with self._counting:
            self._counts[level] += 1

    @property
    def counts(self) -> dict[str, int]:
        """Lines by level."""
        with self._counting:
            return dict(self._counts)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Around the job whose lines are counted."""
        loggers = [logging.getLogger(package) for package in PACKAGES]
        for logger in loggers:
            logger.addHandler(self)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(self)
