"""`verify` finds what is wrong with a store, and nothing in a sound one."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_samples import BEGIN_US, HOUR_US, SeenKey, Window, make_store, write_config

from bucket_store.backend import open_backend
from deduper.findings import Check
from deduper.open_store import open_store
from deduper.verify import Verification, verify_store

BUCKET = BEGIN_US // HOUR_US


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """The config of a sound store of two windows."""
    file = write_config(tmp_path)
    keys = [SeenKey((f"u{n}", n), BUCKET + n % 3, BEGIN_US + n % 3 * HOUR_US, n) for n in range(30)]
    make_store(file, [Window(keys, BEGIN_US), Window([SeenKey(("late", 1), BUCKET, BEGIN_US)], BEGIN_US)])
    return file


def verified(config_file: Path) -> Verification:
    """What `verify` says of the store of this config."""
    return verify_store(open_store(str(config_file)))


def test_a_sound_store_is_sound(config_file: Path) -> None:
    """And everything in it was read."""
    found = verified(config_file).to_json()
    assert (found["sound"], found["records"], found["entries"], found["sources"]) == (True, 4, 31, 2)
    assert (found["unnamed_pieces"], found["findings"]) == (0, [])


def test_every_flipped_byte_of_a_piece_is_found(config_file: Path) -> None:
    """Header, directory, digests, columns, padding: in a sample of places over every piece."""
    store = open_store(str(config_file))
    for pieces in store.log.state.pieces.values():
        for piece in pieces:
            file = store.root / piece.file
            whole = file.read_bytes()
            for at in range(piece.offset, piece.offset + piece.length, 29):
                damaged = bytearray(whole)
                damaged[at] ^= 1
                file.write_bytes(damaged)
                found = verified(config_file)
                assert not found.is_sound, at
                assert all(piece.name in finding.what for finding in found.findings)
            file.write_bytes(whole)
    assert verified(config_file).is_sound


def test_a_missing_segment_and_a_damaged_sources_file_are_both_told(config_file: Path) -> None:
    """One finding hides no other."""
    store = open_store(str(config_file))
    (store.root / store.log.state.pieces[0][0].file).unlink()
    sources = store.root / "sources" / store.log.state.sources[1].name
    sources.write_bytes(sources.read_bytes()[:-1])
    findings = verified(config_file).findings
    assert any("piece 000000000000" in finding.what for finding in findings)
    assert any(finding.what.startswith("sources of window 1: ") for finding in findings)


def test_counts_that_differ_from_the_pieces_are_told(tmp_path: Path) -> None:
    """A window that counted more uniques than it remembers has lost keys."""
    file = write_config(tmp_path)
    make_store(file, [Window([SeenKey(("a", 1), BUCKET, BEGIN_US)], BEGIN_US, {"unique": 2})])
    found = {(finding.check, finding.expected, finding.found) for finding in verified(file).findings}
    assert found == {(Check.LOG_COUNTS, "2", "1 entries"), (Check.LOG_COUNTS, "2", "1")}


def test_remains_of_a_broken_attempt_are_counted_and_harmless(config_file: Path) -> None:
    """The next start discards them."""
    pieces = open_backend(open_store(str(config_file)).url)
    pieces.append(shard=0, epoch=2, name="000000000002-000002-000-0000-deadbeef", data=b"x" * 100)
    pieces.close()
    found = verified(config_file)
    assert (found.is_sound, found.unnamed_pieces) == (True, 1)
