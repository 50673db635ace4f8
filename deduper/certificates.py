"""PURE. From when until when a certificate in a PEM file holds.

Python's own reader of certificates says this only of a peer's, so the four fields in front of it are stepped over here:

    Certificate ::= SEQUENCE { tbsCertificate SEQUENCE { [0] version, serial, algorithm, issuer, validity, … } … }
    Validity    ::= SEQUENCE { notBefore Time, notAfter Time }
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime

_BLOCK = re.compile(
    r"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----(.*?)-----END (?:TRUSTED |X509 )?CERTIFICATE-----", re.DOTALL
)
_VERSION, _UTC_TIME, _GENERALIZED_TIME, _SEQUENCE = 0xA0, 0x17, 0x18, 0x30


@dataclass(frozen=True, slots=True)
class Validity:
    """The time in which a certificate holds."""

    not_before: datetime
    not_after: datetime


def validities(pem: str) -> list[Validity]:
    """Of every certificate in a PEM text, in order.

    Raises:
        ValueError: one of them is damaged.
    """
    found = []
    for block in _BLOCK.findall(pem):
        try:
            found.append(_validity(base64.b64decode("".join(block.split()), validate=True)))
        except (binascii.Error, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"a certificate in it is damaged: {error}") from error
    return found


def _validity(der: bytes) -> Validity:
    at, _ = _inside(der, 0, _SEQUENCE)  # Certificate
    at, _ = _inside(der, at, _SEQUENCE)  # tbsCertificate
    skipped = 4 if der[at] == _VERSION else 3
    for _ in range(skipped):
        at = _element(der, at)[2]
    at, _ = _inside(der, at, _SEQUENCE)  # validity
    begin = _time(der, at)
    return Validity(begin, _time(der, _element(der, at)[2]))


def _inside(der: bytes, at: int, tag: int) -> tuple[int, int]:
    found, begin, end = _element(der, at)
    if found != tag:
        raise ValueError(f"a certificate in it is damaged: tag {found:#x} at byte {at}")
    return begin, end


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag, and the first byte of the content and the first after it."""
    length, begin = der[at + 1], at + 2
    if length & 0x80:
        width = length & 0x7F
        length = int.from_bytes(der[begin : begin + width], "big")
        begin += width
    if begin + length > len(der):
        raise ValueError("a certificate in it is damaged: it is cut off")
    return der[at], begin, begin + length


def _time(der: bytes, at: int) -> datetime:
    tag, begin, end = _element(der, at)
    text = der[begin:end].decode("ascii")
    if tag == _UTC_TIME:
        # Two digits of the year, of which those below 50 are of this century.
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"a certificate in it is damaged: tag {tag:#x} for a time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
