"""The ticket of a process is looked at before the client of HDFS sees it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bucket_store.places import kerberos
from bucket_store.places.kerberos import LoginError, ticket


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of this process, in the form that only a file has."""
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'ticket'}")
    return tmp_path / "ticket"


def counted(text: bytes) -> bytes:
    """A text behind its length."""
    return struct.pack(">I", len(text)) + text


HEADER = struct.pack(">HHHHII", 0x0504, 12, 1, 8, 0xFFFFFFFF, 0)
PRINCIPAL = struct.pack(">II", 1, 1) + counted(b"DEDUPER.TEST") + counted(b"deduper")


@pytest.mark.parametrize("version", [b"", b"\x05\x02", b"\x04\x05", b"#!"])
def test_a_file_that_has_no_tickets_is_named(version: bytes, cache: Path) -> None:
    """The library would end the process."""
    cache.write_bytes(version + HEADER[2:] + PRINCIPAL)
    with pytest.raises(LoginError, match=r"ticket is no file of tickets.*kinit"):
        ticket()


@pytest.mark.parametrize("header", [HEADER, b"\x05\x03"])
def test_every_part_of_a_file_is_none(header: bytes, cache: Path) -> None:
    """While another process writes it; whole, but without a ticket, it is the library's to judge."""
    whole = header + PRINCIPAL
    for size in range(len(whole)):
        cache.write_bytes(whole[:size])
        with pytest.raises(LoginError, match="is no file of tickets, or one that is being written"):
            ticket()
    cache.write_bytes(whole)
    with pytest.raises(LoginError, match=r"no ticket|expired|libgssapi"):
        ticket()


def test_a_huge_count_ends_soon(cache: Path) -> None:
    """It is bounded by the file's size."""
    cache.write_bytes(HEADER + struct.pack(">II", 1, 0xFFFFFFFF) + counted(b"R"))
    with pytest.raises(LoginError, match="is no file of tickets"):
        ticket()


def test_a_folder_is_no_cache(cache: Path) -> None:
    """The system's own words."""
    cache.mkdir()
    with pytest.raises(LoginError, match="cannot be read: Is a directory"):
        ticket()


def test_a_missing_library_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its package."""
    monkeypatch.setattr(kerberos, "_LIBRARY", "libgssapi_none.so.2")
    with pytest.raises(LoginError, match=r"libgssapi_none\.so\.2 is missing .*apt-get install libgssapi-krb5-2"):
        ticket()
    assert not cache.exists()
