"""What the Java process writes is in the log, and its last words are known."""

from __future__ import annotations

import io
import logging

import pytest

from deduper.spark.jvm_log import JvmLog, logger


class Kept(logging.Handler):
    """Keeps what is logged, whatever handlers other tests have left."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelname, record.getMessage()))


def test_lines_are_of_the_log_and_only_fatal_ones_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the bytes; a Java machine that dies says so with a `#`."""
    kept = Kept()
    monkeypatch.setattr(logger, "handlers", [kept])
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "level", logging.INFO)
    text = b"WARNING: Using incubator modules\n\n\xff\xfe\n#\n# There is insufficient memory for the Java\nat x.Y(Z)\n"
    log = JvmLog(io.BytesIO(text))
    log.start()
    assert log.last_words() == "There is insufficient memory for the Java"
    assert kept.lines == [
        ("INFO", "WARNING: Using incubator modules"),
        ("INFO", "��"),
        ("INFO", "#"),
        ("WARNING", "# There is insufficient memory for the Java"),
        ("INFO", "at x.Y(Z)"),
    ]
