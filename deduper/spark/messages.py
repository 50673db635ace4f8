"""Messages between the driver and tasks of its own: a function and its payload one way, a result the other."""

from __future__ import annotations

import contextlib
import pickle
from multiprocessing.connection import Connection


def send(connection: Connection, what: object) -> None:
    """Send; a closed connection shows when the next message is received."""
    with contextlib.suppress(OSError):
        connection.send_bytes(pickle.dumps(what))


def received(connection: Connection) -> bytes | None:
    """The next message; None when the other end has closed."""
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        return None
