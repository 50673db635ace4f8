"""Files of format versions 1 to 4 that were written once and must be read, and written, the same for ever.

Beside every `.bin` lies the `.txt` that it must give. A new version gets a directory of its own; these never change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from pprint import pformat
from typing import Any

import pytest

from bucket_store.log.codec import decode_record, encode_record
from bucket_store.log.judged_files import decode_judged, encode_judged
from bucket_store.log.manifest import decode_manifest, encode_manifest
from bucket_store.log.marks import Published, decode_intent, encode_intent, prepare_published, read_published
from bucket_store.log.records import LogRecord
from bucket_store.log.sources_archive import decode_archive, encode_archive
from bucket_store.log.sources_file import decode_sources, encode_sources
from bucket_store.places.local import local_place

FILES = Path(__file__).parent.parent / "data" / "log_v1"
FILES_OF_2 = FILES.with_name("log_v2")
FILES_OF_3 = FILES.with_name("log_v3")
FILES_OF_4 = FILES.with_name("log_v4")

DECODE: dict[str, Callable[[bytes], Any]] = {
    "claim": lambda data: decode_record(data, number=1, file="f"),
    "commit": lambda data: decode_record(data, number=2, file="f"),
    "deletion": lambda data: decode_record(data, number=3, file="f"),
    "compaction": lambda data: decode_record(data, number=4, file="f"),
    "snapshot": lambda data: decode_record(data, number=5, file="f"),
    "manifest": lambda data: decode_manifest(data, file="f"),
    "intent": lambda data: decode_intent(data, file="f"),
    "sources": lambda data: decode_sources(data, window=3, file="f"),
}
DECODE_OF_2 = {name: DECODE[name] for name in ("claim", "deletion", "snapshot")} | {
    "fold": lambda data: decode_record(data, number=3, file="f"),
    "archive": lambda data: decode_archive(data, file="f"),
    "judged": lambda data: decode_judged(data, file="f"),
}
DECODE_OF_3: dict[str, Callable[[bytes], Any]] = {
    name: lambda data: decode_record(data, number=5, file="f") for name in ("rebase", "snapshot")
}
ENCODE: dict[str, Callable[[Any], bytes]] = {
    "manifest": encode_manifest,
    "intent": encode_intent,
    "sources": lambda partitions: encode_sources(3, partitions),
}


@pytest.mark.parametrize("name", DECODE)
def test_a_file_of_version_1_says_what_it_said(name: str) -> None:
    """Decoded it is the dump beside it, encoded again it is the same bytes."""
    data = (FILES / f"{name}.bin").read_bytes()
    value = DECODE[name](data)
    assert pformat(value, width=118) + "\n" == (FILES / f"{name}.txt").read_text()
    assert ENCODE.get(name, encode_record)(value) == data


def as_before_4(record: LogRecord) -> dict[str, Any]:
    """The fields of a record that versions below 4 have."""
    return asdict(record, dict_factory=lambda items: {name: of for name, of in items if (name, of) != ("inline", b"")})


@pytest.mark.parametrize("name", ["claim", "deletion", "snapshot", "fold"])
def test_a_record_of_version_2_says_what_it_said(name: str) -> None:
    """As above, with the fields that version 1 has not."""
    data = (FILES_OF_2 / f"{name}.bin").read_bytes()
    assert data[8:10] == b"\x02\x00"
    record = DECODE_OF_2[name](data)
    dump = as_before_4(record)
    if name == "snapshot":
        assert (dump["body"]["state"].pop("shards"), dump["body"]["state"].pop("notes")) == (0, ())  # of version 3
    assert pformat(dump, width=118) + "\n" == (FILES_OF_2 / f"{name}.txt").read_text()
    assert encode_record(record) == data


@pytest.mark.parametrize("name", ["rebase", "snapshot"])
def test_a_record_of_version_3_says_what_it_said(name: str) -> None:
    """As above, with the fields that version 2 has not."""
    data = (FILES_OF_3 / f"{name}.bin").read_bytes()
    assert data[8:10] == b"\x03\x00"
    record = DECODE_OF_3[name](data)
    assert pformat(as_before_4(record), width=118) + "\n" == (FILES_OF_3 / f"{name}.txt").read_text()
    assert encode_record(record) == data


@pytest.mark.parametrize("name", ["commit", "snapshot"])
def test_a_record_of_version_4_says_what_it_said(name: str) -> None:
    """As above, with the sources of windows in it."""
    data = (FILES_OF_4 / f"{name}.bin").read_bytes()
    assert data[8:10] == b"\x04\x00"
    record = DECODE[name](data)
    assert pformat(asdict(record), width=118) + "\n" == (FILES_OF_4 / f"{name}.txt").read_text()
    assert encode_record(record) == data


@pytest.mark.parametrize("name", ["archive", "judged"])
def test_a_folded_file_says_what_it_said(name: str) -> None:
    """Version 1 of both."""
    data = (FILES_OF_2 / f"{name}.bin").read_bytes()
    value = DECODE_OF_2[name](data)
    assert pformat(value, width=118) + "\n" == (FILES_OF_2 / f"{name}.txt").read_text()
    assert (encode_archive(value) if name == "archive" else encode_judged(*value)) == data


def test_a_published_mark_of_version_1_says_what_it_said(tmp_path: Path) -> None:
    """Window 1000, and the same bytes when written again."""
    mark = Published("00" * 16, 1000)
    assert read_published(local_place(FILES / "published.bin")) == mark
    prepare_published(local_place(tmp_path / "published"), mark).put()
    assert (tmp_path / "published").read_bytes() == (FILES / "published.bin").read_bytes()


def test_a_published_mark_of_version_2_says_what_it_said(tmp_path: Path) -> None:
    """As above, of epoch 7."""
    mark = Published("00" * 16, 1000, 7)
    assert read_published(local_place(FILES_OF_2 / "published.bin")) == mark
    prepare_published(local_place(tmp_path / "published"), mark).put()
    assert (tmp_path / "published").read_bytes() == (FILES_OF_2 / "published.bin").read_bytes()
