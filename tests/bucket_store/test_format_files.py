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

FOLDER = Path(__file__).parent.parent / "data"
FILES = {path: int(path.parent.name[-1]) for path in sorted(FOLDER.glob("log_v*/*.bin")) if path.stem != "published"}
"""All but the marks, with their versions."""
MARKS = {FOLDER / "log_v1" / "published.bin": (), FOLDER / "log_v2" / "published.bin": (7,)}
"""With the epochs that they name."""


def _record(number: int) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    return lambda data: decode_record(data, number=number, file="f"), encode_record


CODECS: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "claim": _record(1),
    "commit": _record(2),
    "deletion": _record(3),
    "fold": _record(3),
    "compaction": _record(4),
    "snapshot": _record(5),
    "rebase": _record(5),
    "manifest": (lambda data: decode_manifest(data, file="f"), encode_manifest),
    "intent": (lambda data: decode_intent(data, file="f"), encode_intent),
    "sources": (lambda data: decode_sources(data, window=3, file="f"), lambda value: encode_sources(3, value)),
    "archive": (lambda data: decode_archive(data, file="f"), encode_archive),
    "judged": (lambda data: decode_judged(data, file="f"), lambda value: encode_judged(*value)),
}


def _dumped(value: Any, version: int) -> Any:
    """What the dump of a version has: of a record after version 1 the fields that there were."""
    if version == 1 or not isinstance(value, LogRecord):
        return value
    missing = {2: ("inline", "shards", "notes"), 3: ("inline",), 4: ()}[version]
    return asdict(value, dict_factory=lambda items: {name: of for name, of in items if name not in missing or of})


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_file_says_what_it_said(path: Path) -> None:
    """Decoded it is the dump beside it, encoded again it is the same bytes."""
    data, version = path.read_bytes(), FILES[path]
    decode, encode = CODECS[path.stem]
    value = decode(data)
    assert not isinstance(value, LogRecord) or data[8:10] == bytes([version, 0])
    assert pformat(_dumped(value, version), width=118) + "\n" == path.with_suffix(".txt").read_text()
    assert encode(value) == data


@pytest.mark.parametrize(("path", "epoch"), MARKS.items(), ids=["of version 1", "of version 2"])
def test_a_published_mark_says_what_it_said(path: Path, epoch: tuple[int, ...], tmp_path: Path) -> None:
    """Window 1000, and the same bytes when written again."""
    mark = Published("00" * 16, 1000, *epoch)
    assert read_published(local_place(path)) == mark
    prepare_published(local_place(tmp_path / "published"), mark).put()
    assert (tmp_path / "published").read_bytes() == path.read_bytes()


def test_none_is_gone() -> None:
    """A file stands for all that were written as it is."""
    assert len(FILES) == 17
