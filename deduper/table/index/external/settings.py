"""Where the server of an external index is: its options, and how messages show them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from deduper import DISTRIBUTION
from deduper.config.problems import mask_text
from deduper.table.errors import SettingError

INSTALL_EXTRA = f"pip install '{DISTRIBUTION}[redis]'"
_SCHEMES = ("redis", "rediss", "unix")
_WRITE = 'write `index: {kind: external, options: {url: "redis://localhost:6379/0"}}`'
_PORT = 6379


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a connection with TLS; the system's authorities count beside those of `ca`."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    """None: it is in the certificate's file."""
    key_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server; neither its text nor `shown` has the password. `files` is None without TLS."""

    url: str = field(repr=False)
    password: str | None = field(repr=False)
    files: TlsFiles | None = None

    @property
    def shown(self) -> str:
        """The URL without a login and options."""
        return mask_text(self.url.partition("?")[0])

    @property
    def place(self) -> tuple[str, int] | None:
        """Host and port; None of a socket of the machine."""
        parts = urlsplit(self.url)
        return None if parts.scheme == "unix" else (parts.hostname or "localhost", parts.port or _PORT)


def server_address(
    url: object,
    password: object,
    *,
    ca_file: object = None,
    certificate_file: object = None,
    key_file: object = None,
    key_password: object = None,
) -> ServerAddress:
    """The address in the options of an index.

    Raises:
        SettingError: `index.options` are none.
    """
    if not isinstance(url, str) or not url:
        raise _wrong("`external` needs the server's `url`", _WRITE)
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise _wrong(f"`{mask_text(url)}` is no URL of a server", _WRITE)
    files = TlsFiles(
        _path("ca_file", ca_file),
        _path("certificate_file", certificate_file),
        _path("key_file", key_file),
        _text("key_password", key_password),
    )
    password = _text("password", password)
    if password is not None and parts.password:
        raise _wrong("the URL has a password, and `password` is another", "leave one of them out")
    unsafe = [name for name, _ in parse_qsl(parts.query) if name.startswith("ssl_")]
    if unsafe:
        write = "leave it out; `ca_file`, `certificate_file` and `key_file` are the options of TLS"
        raise _wrong(f"`{unsafe[0]}` in the URL is not read", write)
    if files.certificate is None and files.key is not None:
        raise _wrong("`key_file` is without its certificate", "name it as `certificate_file`")
    if parts.scheme == "rediss":
        return ServerAddress(url, password, files)
    if files != TlsFiles():
        raise _wrong(f"`{parts.scheme}://` is without TLS and needs no files", "write `rediss://`, or leave them out")
    return ServerAddress(url, password)


def _text(name: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise _wrong(f"`{name}` is no text", "put it in quotes")


def _path(name: str, value: object) -> Path | None:
    path = _text(name, value)
    if path is None:
        return None
    if not Path(path).is_absolute():
        raise _wrong(f"`{name}` is `{mask_text(path)}`, which is no absolute path", "write the whole path")
    return Path(path)


def _wrong(what: str, write: str) -> SettingError:
    return SettingError("index.options", what, write)
