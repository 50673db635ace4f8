"""TLS with the server of an index: its files, and why a handshake fails, as the client does not say.

The client's errors depend on the moment in which a server closes a connection: a server that refuses a certificate
may be seen as one that went away. So after such an error one more handshake is tried, whose end is looked at.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from deduper.table.errors import ServerRefusedError
from deduper.table.index.external.settings import ServerAddress, TlsFiles

_CONNECT_S = 5.0
_ALERT_S = 1.0
"""With TLS 1.3 a server judges the client's certificate after the client's handshake."""
_CERTIFICATES = {
    10: "has a certificate that has expired; renew it on the server",
    9: "has a certificate that does not count yet; correct the clock of this machine or of the server",
    62: "has a certificate for other names than the URL's host; write a `url` with a name of the certificate",
    64: "has a certificate for other names than the URL's host; write a `url` with a name of the certificate",
}
"""By OpenSSL's codes X509_V_ERR."""
_ALERTS = (
    ("ALERT_CERTIFICATE_REQUIRED", "requires a client's certificate; set `certificate_file` and `key_file`"),
    ("ALERT_HANDSHAKE_FAILURE", "refuses the handshake; if it requires a client's certificate, set `certificate_file`"),
    ("ALERT_CERTIFICATE_EXPIRED", "refuses the client's certificate, which has expired; renew `certificate_file`"),
    (
        "ALERT_UNKNOWN_CA",
        "refuses the client's certificate, whose authority it does not have; name another `certificate_file`, or add "
        "the authority to the server's `tls-ca-cert-file`",
    ),
    ("ALERT_", "refuses the client's certificate or the version of TLS; correct `certificate_file` or the server"),
)


def require_sound(address: ServerAddress) -> None:
    """Reads the files of TLS.

    Raises:
        ServerRefusedError: one is not there, is not what its option asks for, or does not fit the others.
    """
    if address.files is not None:
        _context(address)


def refusal(address: ServerAddress) -> str | None:
    """Why a connection cannot serve, and what to do; None when no setting is wrong, or no server is there."""
    if address.place is None:
        return None
    try:
        if address.files is not None and _speaks_plain(address.place):
            return "answers without TLS at this port; write `redis://`, or the port of TLS"
        with socket.create_connection(address.place, _CONNECT_S) as plain:
            if address.files is None:
                return "speaks TLS at this port; write `rediss://`" if _speaks_tls(plain) else None
            with _context(address).wrap_socket(plain, server_hostname=address.place[0]) as secured:
                secured.settimeout(_ALERT_S)
                secured.recv(1)
    except ssl.SSLCertVerificationError as error:
        untrusted = (
            f"has a certificate that is not trusted ({error.verify_message}); name the file with the certificate of "
            "the authority that signed it as `ca_file`"
        )
        return _CERTIFICATES.get(error.verify_code, untrusted)
    except ssl.SSLError as error:
        reason = error.reason or ""
        return next((what for alert, what in _ALERTS if alert in reason), None)
    except OSError:  # the client's own error says so
        return None
    return None


def _speaks_plain(place: tuple[str, int]) -> bool:
    """A server without TLS waits for more of a handshake, so it is asked in its own words."""
    with socket.create_connection(place, _CONNECT_S) as plain:
        plain.settimeout(_ALERT_S)
        plain.sendall(b"PING\r\n")
        try:
            return plain.recv(1) in (b"+", b"-")
        except OSError:
            return False


def _speaks_tls(plain: socket.socket) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent over this connection.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")


def _context(address: ServerAddress) -> ssl.SSLContext:
    files = address.files or TlsFiles()
    context = ssl.create_default_context()
    if files.ca is not None:
        _require_readable(address, "ca_file", files.ca)
        try:
            context.load_verify_locations(files.ca)
        except ssl.SSLError:
            raise _wrong(address, "ca_file", files.ca, "has no certificate", "name a PEM file of authorities") from None
    if files.certificate is not None:
        _load_own(context, address, files.certificate, files)
    return context


def _load_own(context: ssl.SSLContext, address: ServerAddress, certificate: Path, files: TlsFiles) -> None:
    """The client's certificate and key."""
    _require_readable(address, "certificate_file", certificate)
    option, key = ("certificate_file", certificate) if files.key is None else ("key_file", files.key)
    _require_readable(address, option, key)
    asked: list[bool] = []

    def password() -> str:
        asked.append(True)  # without an answer OpenSSL asks the terminal
        return files.key_password or ""

    try:
        context.load_cert_chain(certificate, files.key, password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or ""
        if asked:
            what = "is encrypted" if files.key_password is None else "is encrypted with another password"
            raise _wrong(address, option, key, what, "correct `key_password`") from None
        if reason == "KEY_VALUES_MISMATCH":
            what = f"is not the key of {certificate}"
            raise _wrong(address, option, key, what, "name the two files of one certificate") from None
        what = f"and {certificate} are no key and certificate" if files.key else "is no certificate with its key"
        raise _wrong(address, option, key, what, "name PEM files with them") from None


def _require_readable(address: ServerAddress, option: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise _wrong(address, option, path, what, "correct the path, or the rights of the file") from error


def _wrong(address: ServerAddress, option: str, path: Path, what: str, write: str) -> ServerRefusedError:
    return ServerRefusedError(f"{address.shown}: `{option}` {path} {what}; {write}")
