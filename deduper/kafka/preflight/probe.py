"""Probes one bootstrap server: does it answer a client that has the job's options?

A client with several servers needs only one of them and reports nothing of the others, so each is asked by a client of
its own, and that client's errors are the answer.
"""

from __future__ import annotations

import logging
import re
import ssl
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from deduper.kafka.error_actions import BAD_LOGIN, error_of
from deduper.kafka.preflight.described import Server

_POLL_S = 0.02
_SETTLE_S = 0.5
"""After the first error: a host may have several addresses, and the client tries the next one within 0.1 s."""
_MOST_AT_ONCE = 16
_DETAILS = re.compile(r"^\S+/bootstrap: | \(after \d+ms in state \w+\)$")
_TLS = re.compile(r"\bSSL\b")
_LOST = re.compile(r"/bootstrap: (Disconnected.*)\(after \d+ms in state (\w+)\)$")


def probe_all(addresses: str, options: Mapping[str, str], seconds: float) -> tuple[Server, ...]:
    """Every server of a list with commas, side by side; `options` are librdkafka's."""
    servers = addresses.split(",")
    with ThreadPoolExecutor(min(len(servers), _MOST_AT_ONCE), thread_name_prefix="probe") as pool:
        return tuple(pool.map(lambda address: probe(address, options, seconds), servers))


def probe(address: str, options: Mapping[str, str], seconds: float) -> Server:
    """One server, with its fault. A login that it refuses is no fault of the server."""
    errors: list[KafkaError] = []
    lost = _LostConnections()
    log = logging.Logger("probe")  # outside the tree of loggers: nothing is printed
    log.addHandler(lost)
    settings: dict[str, Any] = {**options, "bootstrap.servers": address, "error_cb": errors.append}
    try:
        client = AdminClient(settings, logger=log)
    except KafkaException as exc:
        return Server(address, f"our own options cannot be used: {error_of(exc).str()}", lasts=True)
    answer = client.describe_cluster(request_timeout=seconds)
    until, settled = time.monotonic() + seconds, None
    while time.monotonic() < min(until, settled or until):
        try:
            answer.result(_POLL_S)
        except FutureTimeoutError:
            client.poll(0)
        except KafkaException:
            break
        else:
            return Server(address)
        if any(error.code() in BAD_LOGIN - {KafkaError._SSL} for error in errors):
            return Server(address)
        if errors and settled is None:
            settled = time.monotonic() + _SETTLE_S
    protocol = options.get("security.protocol", "PLAINTEXT").upper()
    lasting = _lasting(errors)
    if "SASL" not in protocol and "UP" in lost.states:
        lasting = lasting or "it requires a login, and `kafka.security.protocol` has none"
    if "SSL" not in protocol and not lasting and lost.states and _speaks_tls(address, seconds):
        lasting = "it speaks TLS there, and `kafka.security.protocol` does not"
    if lasting:
        return Server(address, lasting, lasts=True)
    texts = [_words(error) for error in errors if error.code() != KafkaError._ALL_BROKERS_DOWN]
    return Server(address, (texts or lost.words or [f"no answer within {seconds:.0f} s"])[-1])


class _LostConnections(logging.Handler):
    """The connections that a client logs as lost: it reports no error if a server closes the connection.

    `states` has the state of each. A broker that requires a login answers the client's first request and closes at the
    next, when the client is `UP`. One that speaks TLS closes at the first, `APIVERSION_QUERY`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.states: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line when it is one."""
        found = _LOST.search(record.getMessage())
        if found is not None:
            self.words.append(found[1].strip())
            self.states.add(found[2])


def _lasting(errors: Iterable[KafkaError]) -> str:
    """The text of the first error that does not pass by waiting; empty when there is none."""
    for error in errors:
        if error.code() == KafkaError._SSL or _TLS.search(error.str()):
            return f"TLS failed: {_words(error)}"
        if error.code() == KafkaError._BAD_MSG:
            return f"it is no Kafka broker: {_words(error)}"
    return ""


def _speaks_tls(address: str, seconds: float) -> bool:
    """Whether a server that closes connections without TLS accepts one with TLS."""
    host, _, port = address.rpartition(":")
    try:
        ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=seconds)
    except ssl.SSLError as exc:
        return "ALERT" in str(exc.reason)  # it requires a certificate of the client
    except OSError:
        return False
    return True


def _words(error: KafkaError) -> str:
    """An error without the client's names and times."""
    return _DETAILS.sub("", error.str())
