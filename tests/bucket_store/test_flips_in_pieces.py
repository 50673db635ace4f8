"""Damage to a piece under the look-ups of a job, and to RocksDB's files: never a wrong key, never much memory."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from bucket_store.errors import CorruptionError, StoreError, UnknownFormatError
from bucket_store.pieces import reader as piece_reader
from bucket_store.pieces import rocksdb_backend
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.reader import PieceReader
from bucket_store.pieces.rocksdb_backend import RocksPieces
from bucket_store.tables.manager import Matches, ShardTables
from bucket_store.tables.merge_lookup import find_in_parts
from tests import tiers
from tests.bucket_store.damage import flip, little_room
from tests.bucket_store.table_samples import Shard, digests_of
from tests.bucket_store.tables.test_manager import FULL, make_settings, make_shard


def drawn(bits: Sequence[int], count: int) -> list[int]:
    """So many bits."""
    return random.Random(tiers.seed()).sample(bits, min(count, len(bits)))


def some_of(bits: Sequence[int], count: int) -> Sequence[int]:
    """So many bits; all of them at night."""
    return bits if tiers.is_night() else drawn(bits, count)


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def test_a_reference_to_what_is_not_there_is_corruption_and_makes_no_room(tmp_path: Path) -> None:
    """However far beyond the file it points, in either backend."""
    wrong = [1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    for pieces in (open_backend(f"file:{tmp_path}/file"), RocksPieces(tmp_path / "rocks")):
        location = pieces.append(shard=0, epoch=1, name="a", data=b"a" * 100)
        with little_room():
            for number in wrong:
                for bad in (replace(location, length=number), replace(location, length=number, offset=number)):
                    with pytest.raises(CorruptionError):
                        pieces.read(bad)
                    with pytest.raises(CorruptionError):
                        pieces.read(bad, 0, number)


# --- through the look-ups of a job


@dataclass
class Damaged:
    """A shard of two pieces, the second with three buckets; its bytes can be changed under the product."""

    shard: Shard
    path: Path
    data: bytes
    start: int
    end: int

    @classmethod
    def make(cls, tmp_path: Path) -> Damaged:
        shard = make_shard(tmp_path, FULL)
        shard.commit({(0, (9, 9)): (1, 7, 0)})
        shard.commit({(bucket, (hi, 5)): (10 * bucket, hi, 1) for bucket in (-1, 0, 4) for hi in (3, 8)})
        ref = shard.refs[1]
        path = tmp_path / "store" / ref.file
        return cls(shard, path, path.read_bytes(), ref.offset, ref.offset + ref.length)

    def flip(self, bit: int) -> None:
        """Turns one bit of the second piece over. Headers are read once a process: this is a new one."""
        piece_reader._headers.clear()
        self.path.write_bytes(flip(self.data, 8 * self.start + bit))

    @property
    def bits(self) -> range:
        return range(8 * (self.end - self.start))

    def answer(self, bucket: int, tables: ShardTables | None = None) -> list[tuple[bool, int, int]] | None:
        """What is known of three keys; None when the damage is found. `tables` answers, or else the pieces do."""
        asked = digests_of([(3, 5), (8, 5), (9, 9)])
        try:
            if tables is not None:
                matches = tables.find(bucket, asked)
            else:
                reader = PieceReader(self.shard.pieces, self.shard.view().store_id)
                matches = find_in_parts(reader, reader.parts(self.shard.refs, bucket), asked, FULL, None)
        except UnknownFormatError:
            return None
        except CorruptionError as error:
            reported = error
        else:
            return known_of(matches)
        assert reported.file == self.shard.refs[1].file
        assert self.start <= reported.offset <= self.end
        return None


def known_of(matches: Matches) -> list[tuple[bool, int, int]]:
    """Whether, where and in which window each key was found."""
    assert matches.origin is not None
    assert matches.window is not None
    return [
        (bool(found), int(origin) * bool(found), int(window) * bool(found))
        for found, origin, window in zip(matches.found, matches.origin, matches.window, strict=True)
    ]


BUCKETS = (-1, 0, 4)


def assert_damage_stops_the_look_up(damaged: Damaged, bits: Iterable[int]) -> None:
    """Each bucket answers what it answered before, or not at all; one of them at least notices."""
    sound = [damaged.answer(bucket) for bucket in BUCKETS]
    assert sound[1] == [(True, 3, 1), (True, 8, 1), (True, 7, 0)]
    for bit in bits:
        damaged.flip(bit)
        answers = [damaged.answer(bucket) for bucket in BUCKETS]
        assert None in answers, f"bit {bit}: nobody noticed"
        assert all(now in (None, then) for now, then in zip(answers, sound, strict=True)), f"bit {bit}: {answers}"
    damaged.path.write_bytes(damaged.data)


def test_a_damaged_piece_gives_no_wrong_and_no_missing_key(tmp_path: Path) -> None:
    """Merged look-ups read headers and blocks by range: they find what a reading of the whole piece finds."""
    damaged = Damaged.make(tmp_path)
    with little_room():
        assert_damage_stops_the_look_up(damaged, some_of(damaged.bits, 150))


def tables_find_damage(tmp_path: Path, damaged: Damaged, bits: Iterable[int]) -> None:
    """New tables are built over the damaged piece, as after a restart, and tables of the first window advanced."""
    shard, settings = damaged.shard, make_settings(tmp_path, FULL)
    before = replace(shard.view(), next_window=1, pieces=tuple(shard.refs[:1]))
    sound = {}
    for bucket in BUCKETS:
        with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
            sound[bucket] = damaged.answer(bucket, tables)
    for at, bit in enumerate(bits):
        damaged.flip(bit)
        for name, advances in (("cold", False), ("warm", True)):
            settings = make_settings(tmp_path / f"{name}-{at}", FULL)
            if advances:
                with ShardTables.open(settings, shard.pieces, before) as tables:
                    damaged.answer(0, tables)
            noticed = False
            for bucket in BUCKETS:
                try:
                    with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
                        answer = damaged.answer(bucket, tables)
                except (CorruptionError, UnknownFormatError):
                    answer = None
                assert answer in (None, sound[bucket]), f"bit {bit}, {name}, bucket {bucket}: {answer}"
                noticed |= answer is None
            assert noticed, f"bit {bit}, {name}: nobody noticed"
    damaged.path.write_bytes(damaged.data)


def test_no_table_is_made_of_a_damaged_piece(tmp_path: Path) -> None:
    """A few bits; at night some more."""
    damaged, more = Damaged.make(tmp_path), 50 if tiers.is_night() else 3
    tables_find_damage(tmp_path, damaged, [*range(3, 8 * 80, 211), *drawn(damaged.bits, more)])


# --- RocksDB's own files


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.sst", "MANIFEST-*", "CURRENT"])
def test_rocksdb_flipped_bits_give_no_wrong_bytes(tmp_path: Path, kind: str) -> None:
    """RocksDB checks what it reads; whatever it says, the bytes are the written ones or there is an error of ours."""
    data = np.random.default_rng(1).bytes(3000)
    writer = RocksPieces(tmp_path)
    location = writer.append(shard=0, epoch=1, name="a", data=data)
    (path,) = (tmp_path / location.file).glob(kind)
    sound = path.read_bytes()
    refused = 0
    for bit in drawn(range(8 * len(sound)), 60 if tiers.is_night() else 20):
        path.write_bytes(flip(sound, bit))
        pieces = open_backend(f"rocksdb:{tmp_path}")
        rocksdb_backend._readers.clear()
        try:
            assert pieces.read(location) == data
        except StoreError:
            refused += 1
    assert refused > 0
