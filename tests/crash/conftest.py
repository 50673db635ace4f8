"""The last lines of a session that killed something."""

from __future__ import annotations

import pytest

from tests.crash import ledger


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Who was killed how often, the seed that repeats it, how long recovery took."""
    for line in ledger.summary():
        terminalreporter.write_line(line)
