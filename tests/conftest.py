"""How a run is divided among processes (`-n 2 --dist loadgroup`), and the last lines of one that killed something."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash import ledger

_STARTS_PROCESSES = ("spark", "services", "crash")
_LEDGER = "ledger"
_told: list[str] = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts a JVM or a service runs in one process, as these share sessions and brokers; all else beside it.

    The stories of kills come last: they use both cores by themselves, so that by then nothing should be beside them.
    """
    for item in items:
        if any(item.get_closest_marker(name) for name in _STARTS_PROCESSES):
            item.add_marker(pytest.mark.xdist_group("processes"))
    items.sort(key=lambda item: item.get_closest_marker("crash") is not None)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The process that has killed says so to the one that prints."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_LEDGER] = ledger.summary()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What the process that has killed said; one that died before its end said nothing."""
    _told.extend(getattr(node, "workeroutput", {}).get(_LEDGER, ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Who was killed how often, the seed that repeats it, how long recovery took."""
    for line in (*_told, *ledger.summary()):
        terminalreporter.write_line(line)
