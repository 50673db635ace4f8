"""A call that is given up when it does not come back, although it was told to.

librdkafka's `send_offsets_to_transaction` does not look at its timeout once the group's coordinator was down, and hangs
for good although the broker is back (its issues 5456 and 5511, open in 2.16). A thread that hangs inside a library
cannot be ended: it stays behind, with the client it belongs to, and whoever called goes on with another client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class HungError(Exception):
    """The call did not come back in time; it may still, and do what it was told. Its client is of no more use."""


def bounded(call: Callable[[], T], limit_s: float, what: str) -> T:
    """What the call gives or raises; `what` is what it asks for, in an error's words.

    Raises:
        HungError: neither, within the limit.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as exc:  # noqa: BLE001  raised below, by whoever waits
            errors.append(exc)

    thread = threading.Thread(target=run, name=f"bounded in {threading.current_thread().name}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise HungError(f"waiting for {what} for {limit_s:.0f} s (the call neither answers nor ends)")
    return results[0]
