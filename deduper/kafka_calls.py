"""Calls to the brokers, made again while what fails may pass.

A call that ran out of its time says nothing of the cause. What the client knows of it, a connection that is refused or
a login that is not taken, it tells a callback, and only while somebody serves it: `Calls` keeps the last such word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from deduper.bounded_call import bounded
from deduper.kafka_errors import KafkaDeniedError
from deduper.kafka_fates import BAD_LOGIN, Fate, client_errors, error_of, fate_of, lasting_error
from deduper.patience import Patience

T = TypeVar("T")

STEP_S = 2.0
"""No call is to block for longer, so that what is waited for can be said."""

HUNG_S = 15.0
"""A call that was told to end after `STEP_S` and has not come back by now never will."""

_LOGIN_GRACE_S = 30.0


class Calls:
    """Calls of one slot's clients, and what these said last. For one thread at a time.

    `serve` lets the slot's producer call `remember`, which is its `error_cb`.
    """

    def __init__(self, serve: Callable[[], object]) -> None:
        self._serve = serve
        self.last_words: KafkaError | None = None

    def remember(self, error: KafkaError) -> None:
        """Take what a client says of its connections."""
        self.last_words = error

    def said(self, error: KafkaError | None = None) -> str:
        """What is known of a fault: of a call that only ran out of time, what the client said of its connections."""
        words = self.last_words
        if words is not None and (error is None or error.code() == KafkaError._TIMED_OUT):
            return words.str()
        return "no answer" if error is None else error.str()

    def again(self, call: Callable[[], T], what: str, patience: Patience, hung_s: float = HUNG_S) -> T:
        """Make a call until it succeeds or fails for good.

        Raises:
            HungError: it did not come back within `hung_s`.
            KafkaException: with an error that does not pass by waiting.
            KafkaDeniedError: the login was not taken, for longer than a broker needs that has just been told of it.
            BrokerUnavailableError, StopRequested: by `patience`.
        """
        while True:
            try:
                with client_errors():
                    result = bounded(call, hung_s, what)
            except KafkaException as exc:
                error = error_of(exc)
                if fate_of(error) is not Fate.AGAIN:
                    raise
                self._serve()
                waited = patience.wait(what, self.said(error))
                words = self.last_words
                if words is not None and words.code() in BAD_LOGIN and waited > _LOGIN_GRACE_S:
                    raise lasting_error(words, what) or KafkaDeniedError(f"{what}: {words.str()}") from exc
            else:
                patience.forward()
                return result
