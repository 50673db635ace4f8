"""Knocking at something that may be no broker: whatever it answers, the answer is a sentence."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deduper.kafka_described import ADD_PARTITIONS, OFFSET_FETCH
from deduper.kafka_handshake import knock, knock_at_all

PLAIN = {"security.protocol": "PLAINTEXT"}
WITH_LOGIN = {"security.protocol": "SASL_PLAINTEXT"}


def frame(body: bytes) -> bytes:
    """A message as Kafka frames it."""
    return struct.pack(">i", len(body)) + body


def versions(*ranges: tuple[int, int, int], error: int = 0) -> bytes:
    """The answer to ApiVersions."""
    entries = b"".join(struct.pack(">hhh", *entry) for entry in ranges)
    return frame(struct.pack(">ihi", 1, error, len(ranges)) + entries)


SOUND = versions((OFFSET_FETCH, 1, 9), (ADD_PARTITIONS, 0, 4))


@contextmanager
def server(*answers: bytes, then_close: bool = True) -> Iterator[str]:
    """Something that answers one request after another with these bytes; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                for answer in answers:
                    connection.recv(4096)
                    connection.sendall(answer)
                if then_close:
                    connection.recv(4096) if not answers else None
                else:
                    over.wait(20)

        over = threading.Event()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        over.set()
        thread.join(20)


def test_a_broker_tells_its_age() -> None:
    """By the highest version of two requests."""
    with server(SOUND) as address:
        found = knock(address, WITH_LOGIN, 5)
    assert (found.error, found.age) == ("", "3.6")


@pytest.mark.parametrize(
    ("answers", "says", "lasts"),
    [
        ((), "it hung up without an answer", False),
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), "what answers there is no Kafka broker", True),
        ((b"\x15\x03\x03\x00\x02\x02\x0a",), "it speaks TLS there", True),
        ((frame(b"short"),), "what answers there is no Kafka broker", True),
        ((versions(error=35),), "what answers there is no Kafka broker", True),
        ((struct.pack(">i", -5),), "what answers there is no Kafka broker", True),
        ((SOUND[:20],), "it hung up without an answer", False),
        ((versions((3, 0, 13)),), "it wants a login", True),
    ],
    ids=["nothing", "HTTP", "TLS", "short", "refused", "negative", "cut off", "login"],
)
def test_what_is_no_broker_for_us_is_told(answers: tuple[bytes, ...], says: str, lasts: bool) -> None:
    """In words, and whether waiting may help."""
    with server(*answers) as address:
        found = knock(address, PLAIN, 5)
    assert says in found.error
    assert (found.lasts, found.versions) == (lasts, None)


def test_who_never_answers_is_not_waited_for() -> None:
    """Neither at the first byte nor in the middle; many at once take no longer than one."""
    with server(then_close=False) as silent, server(SOUND[:7], then_close=False) as slow:
        began = time.monotonic()
        found = knock_at_all(f"{silent},{slow},{silent}", PLAIN, 0.5)
        assert time.monotonic() - began < 3
    assert [one.address for one in found] == [silent, slow, silent]
    assert all("no answer within" in one.error for one in found)


def test_no_answer_is_a_crash() -> None:
    """Every truncation, and random bytes: an error in words or an age."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    spoilt = [SOUND[:length] for length in range(len(SOUND))]
    spoilt += [bytes(chance.randrange(256) for _ in range(chance.randrange(40))) for _ in range(60)]
    spoilt += [frame(bytes(chance.randrange(256) for _ in range(chance.randrange(1, 60)))) for _ in range(60)]
    for answer in spoilt:
        with server(answer) as address:
            found = knock(address, WITH_LOGIN, 5)
        assert found.error or found.versions is not None, answer
