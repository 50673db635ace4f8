"""This process's ticket of Kerberos, as the library that HDFS's client logs in with sees it.

Where the file of tickets is none, MIT's library (1.20) frees memory that it never had (`krb5_cccol_have_content`), and
the process ends by a segmentation fault. So the beginning of the file is read here first. Nothing is asked for over the
network, unless `KRB5_CLIENT_KTNAME` names a keytab and the cache has no ticket: then the library gets one.
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from pathlib import Path

CACHE, KEYTAB = "KRB5CCNAME", "KRB5_CLIENT_KTNAME"
TOKENS = "HADOOP_TOKEN_FILE_LOCATION"
"""The variable that names a file of delegation tokens. The client of HDFS reads it for each connection."""
_LIBRARY = "libgssapi_krb5.so.2"
_INITIATE = 1
_INDEFINITE = 0xFFFFFFFF
_OF_LIBRARY = 2
"""The kind of a status that is Kerberos's own; GSSAPI's says no more than that something is wrong."""
_EXPIRED = 11 << 16
_ROUTINE_ERROR = 0xFF << 16


class LoginError(Exception):
    """No login: the message says what is wrong and ends with what to do."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Its principal, and how long it is good for."""

    principal: str
    seconds_left: int


class _Buffer(ctypes.Structure):
    _fields_ = (("length", ctypes.c_size_t), ("value", ctypes.c_void_p))


def cache_name() -> str:
    """The cache of this process's tickets; Kerberos's usual one where the environment names none."""
    return os.environ.get(CACHE) or f"FILE:/tmp/krb5cc_{os.getuid()}"


def ticket() -> Ticket:
    """The ticket of this process. For all threads.

    Raises:
        LoginError: no library, no ticket, an expired one, or a cache that cannot be read.
    """
    _require_readable()
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as exc:
        raise LoginError(
            f"Kerberos's library {_LIBRARY} is missing ({exc}); install it: `apt-get install libgssapi-krb5-2`, or "
            "`dnf install krb5-libs`"
        ) from exc
    minor, left = ctypes.c_uint32(), ctypes.c_uint32()
    credential, name = ctypes.c_void_p(), ctypes.c_void_p()
    try:
        major = library.gss_acquire_cred(
            ctypes.byref(minor),
            None,
            ctypes.c_uint32(_INDEFINITE),
            None,
            ctypes.c_int(_INITIATE),
            ctypes.byref(credential),
            None,
            ctypes.byref(left),
        )
        _require(library, major, minor)
        major = library.gss_inquire_cred(
            ctypes.byref(minor), credential, ctypes.byref(name), ctypes.byref(left), None, None
        )
        _require(library, major, minor)
        if left.value == 0:
            raise LoginError(f"the ticket in {cache_name()} has expired; {_REMEDY}")
        return Ticket(_principal(library, name), left.value)
    finally:
        library.gss_release_name(ctypes.byref(minor), ctypes.byref(name))
        library.gss_release_cred(ctypes.byref(minor), ctypes.byref(credential))


_REMEDY = f"get one as the job's user (`kinit`, {CACHE}), and renew it in time, or let {KEYTAB} name a keytab"


def _require_readable() -> None:
    """Raise where the library would crash: a file that is there, and does not begin as a file of tickets does.

    Big-endian: 2 bytes of version, 05 04 (a 2-byte length and so many bytes follow) or 05 03; the kind of a name, 4
    bytes; the number of its parts, 4 bytes; a realm and these parts, each behind its length of 4 bytes.
    """
    kind, colon, path = cache_name().partition(":")
    if colon and kind != "FILE":
        return
    file = Path(path if colon else kind)
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return
    except OSError as exc:
        raise LoginError(f"{file} cannot be read: {exc.strerror}; {_REMEDY}") from exc
    try:
        if data[:2] not in (b"\x05\x03", b"\x05\x04"):
            raise ValueError("another version")
        at = 2 if data[1] == 3 else 4 + struct.unpack_from(">H", data, 2)[0]
        parts = struct.unpack_from(">I", data, at + 4)[0]
        at += 8
        for _ in range(min(parts, len(data)) + 1):
            at += 4 + struct.unpack_from(">I", data, at)[0]
        if at > len(data):
            raise ValueError("cut off")
    except (ValueError, IndexError, struct.error) as exc:
        raise LoginError(f"{file} is no file of tickets, or one that is being written; {_REMEDY}") from exc


def _require(library: ctypes.CDLL, major: int, minor: ctypes.c_uint32) -> None:
    kind = major & _ROUTINE_ERROR
    if not kind:
        return
    if kind == _EXPIRED:
        raise LoginError(f"the ticket in {cache_name()} has expired; {_REMEDY}")
    raise LoginError(f"no ticket: {_text(library, minor)}; {_REMEDY}")


def _text(library: ctypes.CDLL, minor: ctypes.c_uint32) -> str:
    ignored, more, text = ctypes.c_uint32(), ctypes.c_uint32(), _Buffer()
    library.gss_display_status(
        ctypes.byref(ignored), minor, ctypes.c_int(_OF_LIBRARY), None, ctypes.byref(more), ctypes.byref(text)
    )
    return _taken(library, text)


def _principal(library: ctypes.CDLL, name: ctypes.c_void_p) -> str:
    minor, text = ctypes.c_uint32(), _Buffer()
    library.gss_display_name(ctypes.byref(minor), name, ctypes.byref(text), None)
    return _taken(library, text)


def _taken(library: ctypes.CDLL, text: _Buffer) -> str:
    """The text of a buffer, which is freed."""
    if not text.value:
        return ""
    found = ctypes.string_at(text.value, text.length).decode("utf-8", "replace")
    library.gss_release_buffer(ctypes.byref(ctypes.c_uint32()), ctypes.byref(text))
    return found
