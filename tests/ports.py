"""Ports of 127.0.0.1 for servers that tests start."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

_WORKER, _WORKERS = "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"
_draw = random.SystemRandom()  # a forked process, and a test that sets a seed, would draw the same ports again
_given: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on now."""
    return free_ports(["one"], None)["one"]


def free_ports(names: list[str], first: int | None) -> dict[str, int]:
    """A free port for each name, the first as given if it is; below the ports of outgoing connections.

    No other server of the tests has it, or had it: one that was killed starts again on its port, which looks free
    meanwhile. Each process of `-n` has ports of its own, and gives each of them once.

    Raises:
        OSError: the given one is taken.
    """
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        lowest_outgoing = int(text.split()[0])
    except OSError:
        lowest_outgoing = 32768
    candidates = range(10_000, lowest_outgoing) if lowest_outgoing > 12_000 else range(61_001, 65_536)
    worker, workers = int(os.environ.get(_WORKER, "gw0").removeprefix("gw")), int(os.environ.get(_WORKERS, "1"))
    untried = [port for port in candidates[worker::workers] if port not in _given]
    held: list[socket.socket] = []
    try:
        for name in names:
            while True:
                one = socket.socket()
                # As the broker does: a port with only dead connections is free.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                fixed = first is not None and not held
                port = first if first is not None and not held else _draw.choice(untried)
                try:
                    one.bind(("127.0.0.1", port))
                except OSError as exc:
                    one.close()
                    if fixed:
                        raise OSError(exc.errno, f"port {port} for {name}: {exc.strerror}") from exc
                    continue
                held.append(one)
                break
        ports = {name: one.getsockname()[1] for name, one in zip(names, held, strict=True)}
        _given.update(ports.values())
        return ports
    finally:
        for one in held:
            one.close()
