"""Calls to the brokers: bounded in time, and repeated while the failure may pass.

A call that timed out does not name the cause. The client gives the cause, a refused connection or login, to a
callback, and only while it is polled: `Calls` keeps the last such error.

A call may also hang for good, although it has a timeout. librdkafka's `send_offsets_to_transaction` ignores its timeout
once the group's coordinator was down, and hangs although the broker is back (its issues 5456 and 5511, open in 2.16). A
thread that hangs inside a library cannot be ended: thread and client are left, and the caller makes another client.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from deduper.kafka.error_actions import BAD_LOGIN, ErrorAction, action_of, client_errors, error_of, lasting_error
from deduper.kafka.errors import KafkaDeniedError
from deduper.kafka.retry import RetryDeadline

T = TypeVar("T")

STEP_S = 2.0
"""The timeout of each call, so that a wait can be reported."""

HUNG_S = 15.0
"""A call with a timeout of `STEP_S` that has not returned after so long counts as hanging."""

_LOGIN_GRACE_S = 30.0


class HungError(Exception):
    """The call did not return in time. It may still return and take effect, but its client is unusable."""


def bounded(call: Callable[[], T], limit_s: float, what: str) -> T:
    """The call's result or error; `what` names the wait in the error.

    Raises:
        HungError: neither within the limit.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as exc:  # noqa: BLE001  raised below, in the waiting thread
            errors.append(exc)

    thread = threading.Thread(target=run, name=f"bounded in {threading.current_thread().name}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise HungError(f"waiting for {what} for {limit_s:.0f} s (the call neither answers nor ends)")
    return results[0]


class Calls:
    """Calls of one slot's clients, and the last error of their connections. For one thread at a time.

    `serve` lets the slot's producer call `remember`, which is its `error_cb`.
    """

    def __init__(self, serve: Callable[[], object]) -> None:
        self._serve = serve
        self.last_error: KafkaError | None = None

    def remember(self, error: KafkaError) -> None:
        """Keep an error of a client's connections."""
        self.last_error = error

    def cause(self, error: KafkaError | None = None) -> str:
        """The cause of a fault; for a call that only timed out, the last error of the client's connections."""
        last = self.last_error
        if last is not None and (error is None or error.code() == KafkaError._TIMED_OUT):
            return last.str()
        return "no answer" if error is None else error.str()

    def again(
        self,
        call: Callable[[], T],
        what: str,
        retry: RetryDeadline,
        hung_s: float = HUNG_S,
        stuck_s: float | None = None,
    ) -> T:
        """Make a call until it succeeds or fails for good.

        Raises:
            HungError: it did not return within `hung_s`, or failed for `stuck_s`: another client may succeed.
            KafkaException: with an error that does not pass by waiting.
            KafkaDeniedError: the login was refused for longer than a broker takes to load a new one.
            BrokerUnavailableError, StopRequested: by `kafka.retry`.
        """
        began = time.monotonic()
        while True:
            try:
                with client_errors():
                    result = bounded(call, hung_s, what)
            except KafkaException as exc:
                error = error_of(exc)
                if action_of(error) is not ErrorAction.RETRY:
                    raise
                self._serve()
                tried_s = time.monotonic() - began
                if stuck_s is not None and tried_s > stuck_s:
                    raise HungError(f"waiting for {what} for {tried_s:.0f} s ({self.cause(error)})") from exc
                waited = retry.wait(what, self.cause(error))
                last = self.last_error
                if last is not None and last.code() in BAD_LOGIN and waited > _LOGIN_GRACE_S:
                    raise lasting_error(last, what) or KafkaDeniedError(f"{what}: {last.str()}") from exc
            else:
                retry.progressed()
                return result
