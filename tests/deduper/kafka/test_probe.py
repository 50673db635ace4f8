"""A look at a server that may be no broker: whatever it answers, the result is a sentence."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from deduper.kafka.preflight.examine import probe, probe_all
from deduper.kafka.preflight.rules import Server
from tests.services.certificates import make_certificates

PLAIN = {"security.protocol": "PLAINTEXT"}
_UNSUPPORTED_VERSION = 35


def frame(body: bytes) -> bytes:
    """A message as Kafka frames it."""
    return struct.pack(">i", len(body)) + body


def versions(request: bytes) -> bytes:
    """The answer to ApiVersions: its first version, which every client then asks for, and few others."""
    version, number = struct.unpack_from(">hi", request, 6)
    entries = b"".join(struct.pack(">hhh", *entry) for entry in ((18, 0, 0), (3, 0, 5)))
    return frame(struct.pack(">ihi", number, _UNSUPPORTED_VERSION if version else 0, 2) + entries)


@contextmanager
def server(*answers: bytes | None, tls: ssl.SSLContext | None = None, stays: bool = False) -> Iterator[str]:
    """A server that gives these answers, None for its versions, and hangs up; its address."""
    over = threading.Event()

    def talk(connection: socket.socket) -> None:
        with closing(connection):
            try:
                with connection if tls is None else tls.wrap_socket(connection, server_side=True) as plain:
                    for answer in answers:
                        request = plain.recv(4096)
                        if not request:
                            return  # the client has hung up
                        plain.sendall(versions(request) if answer is None else answer)
                    if stays:
                        over.wait(20)
                    else:
                        plain.recv(4096)
            except OSError:
                return

    def serve() -> None:
        while not over.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        over.set()
        # A thread that waits in `accept` while the socket is closed serves the next one of its number, once the kernel
        # restarts the call.
        listening.shutdown(socket.SHUT_RDWR)
        serving.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "says", "lasts"),
    [
        ((), "Disconnected", False),
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), "it is no Kafka broker", True),
        ((struct.pack(">iI", -5, 0),), "it is no Kafka broker", True),
        ((None, None), "it requires a login", True),
    ],
    ids=["nothing", "HTTP", "negative", "login"],
)
def test_what_is_no_broker_for_us_is_told(answers: tuple[bytes | None, ...], says: str, lasts: bool) -> None:
    """In words, and whether waiting may help."""
    with server(*answers) as address:
        found = probe(address, PLAIN, 5)
    assert says in found.error
    assert found.lasts == lasts


def test_a_login_that_fails_is_no_fault_of_the_server() -> None:
    """The server is reached; the client for all of them reports the login."""
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "secret"}
    with server(None, None) as address:
        assert probe(address, {"security.protocol": "SASL_PLAINTEXT", **login}, 5) == Server(address)


@pytest.mark.slow
def test_who_never_answers_is_not_waited_for() -> None:
    """Neither at the first byte nor in the middle; many at once take no longer than one."""
    with server(stays=True) as silent, server(b"\0\0\0", stays=True) as slow:
        many = [silent, slow] * 8
        began = time.monotonic()
        found = probe_all(",".join(many), PLAIN, 0.5)
        assert time.monotonic() - began < 0.5 * len(many)
    assert [one.address for one in found] == many
    assert all("no answer within" in one.error for one in found)


@pytest.mark.slow
def test_an_address_without_a_server() -> None:
    """Refused, or unknown: reported long before an answer would be late, and waiting may help."""
    for address, says in (("127.0.0.1:9", "Connection refused"), ("no.such.invalid:9092", "Failed to resolve")):
        began = time.monotonic()
        found = probe(address, PLAIN, 60)
        assert says in found.error
        assert "bootstrap" not in found.error
        assert not found.lasts
        assert time.monotonic() - began < 30


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an authority, and of a broker's identity that it has issued."""
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    return folder


@pytest.mark.night(but=["772"])
@pytest.mark.slow
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_that_fails_is_told(certificates: Path, version: ssl.TLSVersion) -> None:
    """Our certificate is missing, theirs is not trusted, or one of the two does not speak it: no waiting mends it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = version
    context.load_cert_chain(certificates / "broker.pem")
    trusting = {"security.protocol": "SSL", "ssl.ca.location": str(certificates / "ca.pem")}
    with server(tls=context) as address:
        needed = probe(address, PLAIN, 5)
        distrusted = probe(address, {"security.protocol": "SSL"}, 5)
    context.verify_mode = ssl.CERT_REQUIRED
    with server(tls=context) as address:
        needed_with_ours = probe(address, PLAIN, 5)
        anonymous = probe(address, trusting, 5)
    with server() as address:
        plain = probe(address, trusting, 5)
    for found in (distrusted, anonymous, plain):
        assert "TLS failed" in found.error
        assert found.lasts
    for found in (needed, needed_with_ours):
        assert "it speaks TLS there" in found.error
        assert found.lasts


def test_options_that_no_client_takes(tmp_path: Path) -> None:
    """A file without a certificate is named before anything is asked."""
    (tmp_path / "ca.pem").write_text("nothing", encoding="ascii")
    found = probe("127.0.0.1:9", {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "ca.pem")}, 5)
    assert "our own options cannot be used: " in found.error
    assert "ssl.ca.location" in found.error
    assert found.lasts
