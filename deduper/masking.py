"""What must never be printed, and how it is hidden. PURE.

A setting is secret by its name. Logins in URLs and broker lists, and what follows `password=` and its like in a text,
are hidden whatever the setting is called.
"""

from __future__ import annotations

import re

MASK = "***"

_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|secret|token|credential|sasl\.jaas|key.*pass|private.?key|access.?key|account\.key"
    r"|keystore\.key"
    r"|\bkey\.pem",
    re.I,
)
# Up to the last @ of a URL's authority: a password may hold one. A broker list has no scheme.
_USER_INFO = re.compile(r"(?<=://)[^/\s]+(?=@)|(?<![\w.:/@-])[^\s/@:,\"'`]+:[^\s/@,]+(?=@[\w.\[-])")
_ASSIGNED = re.compile(r"(?i)((?:password|passwd|passphrase|secret|token|credential)[\w.]*=)[^\s,;&]+")


def is_secret(name: str) -> bool:
    """Whether the value of a setting of this name, or of any part of its dotted path, is secret."""
    return _SECRET_NAME.search(name) is not None


def masked(name: str, value: object) -> object:
    """The value as it may be printed."""
    if is_secret(name):
        return MASK
    return mask_text(value) if isinstance(value, str) else value


def mask_text(text: str) -> str:
    """The text without logins of URLs and brokers, and without what is assigned to a password."""
    return _ASSIGNED.sub(rf"\1{MASK}", _USER_INFO.sub(MASK, text))
