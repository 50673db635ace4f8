"""Ports that tests give to servers are no other server's, though it is down at the moment."""

from __future__ import annotations

import pytest

from tests import ports


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outgoing connections begin at a low port, so that a draw would soon meet a port again."""
    monkeypatch.setattr(ports, "_given", set())
    monkeypatch.setattr(ports.Path, "read_text", lambda *_, **__: "12200 60999")


def drawn(monkeypatch: pytest.MonkeyPatch, worker: int) -> set[int]:
    """A thousand ports that nobody listens on, for a process of two."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
    return {ports.free_port() for _ in range(1000)}


def test_a_port_is_given_once_and_by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that a test has killed comes back on its port."""
    first, second = drawn(monkeypatch, 0), drawn(monkeypatch, 1)
    assert len(first) == len(second) == 1000
    assert not first & second
