"""Knocking at one bootstrap server: is it there, does it speak TLS with us, and how old is it?

A client that is given several servers is content with one, and says of the others nothing. So each is tried by itself:
a connection, TLS if it is spoken, and the one request that every broker answers before any login, ApiVersions.
"""

from __future__ import annotations

import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deduper.kafka_described import Server

_API_VERSIONS, _METADATA = 18, 3
_PLAIN_METADATA = 1  # its version in which a request for no topic is just a zero
_NO_BROKER = "what answers there is no Kafka broker"
_TLS_ALERT = 0x1503  # the first bytes of an alert: its type, and the version
_LONGEST_ANSWER = 1 << 20
_MOST_AT_ONCE = 16


def knock_at_all(addresses: str, client: Mapping[str, str], seconds: float) -> tuple[Server, ...]:
    """Every server of a list with commas, side by side; `client` are librdkafka's options."""
    servers = addresses.split(",")
    with ThreadPoolExecutor(min(len(servers), _MOST_AT_ONCE), thread_name_prefix="knock") as pool:
        return tuple(pool.map(lambda address: knock(address, client, seconds), servers))


def knock(address: str, client: Mapping[str, str], seconds: float) -> Server:
    """One server; what is wrong with it stands in the answer."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    until = time.monotonic() + seconds
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as plain:
            if not _is_tls(client):
                return Server(address, versions=_versions(plain, client, until))
            try:
                context = _context(client)
            except (OSError, ValueError) as error:
                return Server(address, f"our own certificate or authority cannot be used: {error}", lasts=True)
            if context is None:
                return Server(address)
            with context.wrap_socket(plain, server_hostname=host) as secured:
                return Server(address, versions=_versions(secured, client, until))
    except socket.gaierror:
        return Server(address, f"{host} is not a known host")
    except TimeoutError:
        return Server(address, f"no answer within {seconds:.0f} s")
    except ConnectionRefusedError:
        return Server(address, "nobody listens there")
    except ssl.SSLCertVerificationError as error:
        return Server(address, f"its certificate is not trusted: {error.verify_message}", lasts=True)
    except ssl.SSLError as error:
        return Server(address, _told(error), lasts=True)
    except _NoBrokerError as error:
        return Server(address, str(error), lasts=True)
    except (OSError, ValueError) as error:
        return Server(address, str(error))


class _NoBrokerError(Exception):
    """What answers there does not talk as a broker does with a client that was configured like this."""


def _told(error: ssl.SSLError) -> str:
    reason = str(error.reason or error)
    if "CERTIFICATE" in reason:
        return f"it refuses our certificate, or asks for one ({reason})"
    if "EOF" in reason or "WRONG_VERSION" in reason:
        return f"it does not speak TLS there ({reason})"
    return f"TLS failed ({reason})"


def _is_tls(client: Mapping[str, str]) -> bool:
    return _protocol(client).endswith("SSL")


def _protocol(client: Mapping[str, str]) -> str:
    return client.get("security.protocol", "PLAINTEXT").upper()


def _context(client: Mapping[str, str]) -> ssl.SSLContext | None:
    """TLS as librdkafka would speak it; None when Python cannot (with a PKCS12 store)."""
    if "ssl.keystore.location" in client:
        return None
    context = ssl.create_default_context(cafile=client.get("ssl.ca.location"), cadata=client.get("ssl.ca.pem"))
    if client.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    if client.get("enable.ssl.certificate.verification") == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    password = client.get("ssl.key.password", "")
    if "ssl.certificate.location" in client:
        key = client.get("ssl.key.location")
        context.load_cert_chain(client["ssl.certificate.location"], key, password=password)
    elif "ssl.certificate.pem" in client:
        with tempfile.TemporaryDirectory() as folder:  # of this user alone
            both = Path(folder, "identity.pem")
            both.write_text(f"{client.get('ssl.key.pem', '')}\n{client['ssl.certificate.pem']}\n", encoding="utf-8")
            context.load_cert_chain(both, password=password)
    return context


def _versions(connection: socket.socket, client: Mapping[str, str], until: float) -> dict[int, int]:
    """The highest version of each request, by the request's number."""
    try:
        answer = _ask(connection, _API_VERSIONS, 0, b"", until)
    except ConnectionError:
        raise ConnectionError("it hung up without an answer") from None
    if len(answer) < 10:
        raise _NoBrokerError(_NO_BROKER)
    _, error, count = struct.unpack_from(">ihi", answer)
    if error or 10 + 6 * count > len(answer):
        raise _NoBrokerError(_NO_BROKER)
    ranges = [struct.unpack_from(">hhh", answer, 10 + 6 * number) for number in range(count)]
    lowest = {request: low for request, low, _ in ranges}
    if "SASL" not in _protocol(client) and lowest.get(_METADATA, _PLAIN_METADATA + 1) <= _PLAIN_METADATA:
        # Before a login a broker hangs up at any other request, without a word.
        try:
            _ask(connection, _METADATA, _PLAIN_METADATA, struct.pack(">i", 0), until)
        except ConnectionError:
            raise _NoBrokerError("it wants a login, and `kafka.security.protocol` has none") from None
    return {request: highest for request, _, highest in ranges}


def _ask(connection: socket.socket, request: int, version: int, body: bytes, until: float) -> bytes:
    whole = struct.pack(">hhih", request, version, 1, -1) + body
    connection.sendall(struct.pack(">i", len(whole)) + whole)
    (length,) = struct.unpack(">i", _read(connection, 4, until))
    if length >> 16 == _TLS_ALERT:
        raise _NoBrokerError("it speaks TLS there, and `kafka.security.protocol` does not")
    if not 0 < length <= _LONGEST_ANSWER:
        raise _NoBrokerError(_NO_BROKER)
    return _read(connection, length, until)


def _read(connection: socket.socket, length: int, until: float) -> bytes:
    data = b""
    while len(data) < length:
        connection.settimeout(max(0.01, until - time.monotonic()))
        block = connection.recv(length - len(data))
        if not block:
            raise ConnectionError("it hung up without an answer")
        data += block
    return data
