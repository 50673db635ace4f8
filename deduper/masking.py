"""What must never be printed, and how it is hidden. PURE.

A setting is secret by its name. Passwords inside URLs are hidden whatever the setting is called.
"""

from __future__ import annotations

import re

MASK = "***"

_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|secret|token|credential|sasl\.jaas|key.*pass|private.?key|access.?key|keystore\.key"
    r"|\bkey\.pem",
    re.I,
)
_USER_INFO = re.compile(r"(?<=://)[^/@\s:]+:[^/@\s]+(?=@)")


def is_secret(name: str) -> bool:
    """Whether the value of a setting of this name, or of any part of its dotted path, is secret."""
    return _SECRET_NAME.search(name) is not None


def masked(name: str, value: object) -> object:
    """The value as it may be printed."""
    if is_secret(name):
        return MASK
    return mask_urls(value) if isinstance(value, str) else value


def mask_urls(text: str) -> str:
    """The text without the `user:password` of URLs."""
    return _USER_INFO.sub(MASK, text)
