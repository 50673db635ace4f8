"""What the Java process writes is in the log, and its last words are known."""

from __future__ import annotations

import io
import logging

import pytest

from deduper.spark.jvm_log import JvmLog


def test_lines_are_of_the_log_and_only_fatal_ones_are_warnings(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the bytes; a Java machine that dies says so with a `#`."""
    monkeypatch.setattr(logging.getLogger("deduper"), "propagate", True)
    caplog.set_level(logging.INFO, "deduper")
    text = b"WARNING: Using incubator modules\n\n\xff\xfe\n#\n# There is insufficient memory for the Java\nat x.Y(Z)\n"
    log = JvmLog(io.BytesIO(text))
    log.start()
    assert log.last_words() == "There is insufficient memory for the Java"
    levels = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert levels == [
        ("INFO", "WARNING: Using incubator modules"),
        ("INFO", "��"),
        ("INFO", "#"),
        ("WARNING", "# There is insufficient memory for the Java"),
        ("INFO", "at x.Y(Z)"),
    ]
