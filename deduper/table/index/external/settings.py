"""Where the server of an external index is: its options, and how messages show them."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from deduper import DISTRIBUTION
from deduper.config.problems import mask_text
from deduper.table.errors import SettingError

INSTALL_EXTRA = f"pip install '{DISTRIBUTION}[redis]'"
_SCHEMES = ("redis", "rediss", "unix")
_WRITE = 'write `index: {kind: external, options: {url: "redis://localhost:6379/0"}}`'


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server; neither its text nor `shown` has the password."""

    url: str = field(repr=False)
    password: str | None = field(repr=False)

    @property
    def shown(self) -> str:
        """The URL without a login and options."""
        return mask_text(self.url.partition("?")[0])


def server_address(url: object, password: object) -> ServerAddress:
    """The address in the options of an index.

    Raises:
        SettingError: `index.options` are none.
    """
    if not isinstance(url, str) or not url:
        raise SettingError("index.options", "`external` needs the server's `url`", _WRITE)
    if urlsplit(url).scheme not in _SCHEMES:
        raise SettingError("index.options", f"`{mask_text(url)}` is no URL of a server", _WRITE)
    if password is not None and not isinstance(password, str):
        raise SettingError("index.options", "`password` is no text", "put it in quotes")
    return ServerAddress(url, password)
