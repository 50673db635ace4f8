"""Damage to a segment of several pieces, and to a piece under the look-ups of a job: others are not harmed by it."""

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
from bucket_store.pieces.file_backend import FilePieces
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import dump_piece
from bucket_store.pieces.reader import PieceReader
from bucket_store.pieces.rocksdb_backend import RocksPieces
from bucket_store.pieces.store import PieceLocation
from bucket_store.tables.manager import Matches, ShardTables
from bucket_store.tables.merge_lookup import find_in_parts
from tests import tiers
from tests.bucket_store.damage import flip, little_room
from tests.bucket_store.pieces.test_piece import encode, small
from tests.bucket_store.table_samples import Shard, digests_of
from tests.bucket_store.tables.test_manager import FULL, make_settings, make_shard

_STATE = range(8, 16)
"""Where a frame's state stands; no checksum covers it."""


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


@dataclass
class Segment:
    """A segment of four pieces, the second of them deleted."""

    pieces: FilePieces
    path: Path
    data: bytes
    locations: list[PieceLocation]
    dead: int = 1

    @classmethod
    def make(cls, root: Path) -> Segment:
        pieces = FilePieces(root)
        data = [
            encode(small(columns=columns), first_window=at, last_window=9) for at, columns in enumerate([1, 0, 1, 0])
        ]
        locations = [pieces.append(shard=3, epoch=2, name=f"piece-{at}", data=piece) for at, piece in enumerate(data)]
        pieces.delete([locations[cls.dead]])
        path = root / locations[0].file
        return cls(pieces, path, path.read_bytes(), locations)

    def frame_at(self, at: int) -> int:
        """Where the frame of a piece begins."""
        return 0 if at == 0 else self.end_of(at - 1)

    def end_of(self, at: int) -> int:
        """Where a piece ends."""
        return self.locations[at].offset + self.locations[at].length

    def hit(self, byte: int) -> tuple[int, int, bool]:
        """Which piece a byte belongs to, how far into its frame it lies, and whether in the frame at all."""
        at = next(at for at in range(len(self.locations)) if byte < self.end_of(at))
        return at, byte - self.frame_at(at), byte < self.locations[at].offset

    def listed(self) -> set[str]:
        """Names that listing gives, each with the place and length that it really has."""
        found = list(self.pieces.pieces())
        assert len({piece.name for piece in found}) == len(found)
        for piece in found:
            (known,) = [location for location in self.locations if location.name == piece.name]
            assert (piece.file, piece.offset, piece.length) == (known.file, known.offset, known.length)
            assert (piece.shard, piece.epoch) == (3, 2)
        return {piece.name for piece in found}

    def is_whole(self, at: int) -> bool:
        """Whether a piece is read as it was written; otherwise it must be refused, with its file and a place in it."""
        location = self.locations[at]
        sound = self.data[location.offset : location.offset + location.length]
        try:
            data = self.pieces.read(location)
            dump_piece(data, file=location.file, offset=location.offset)
        except UnknownFormatError:
            return False
        except CorruptionError as error:
            reported = error
        else:
            assert data == sound
            return True
        assert reported.file == location.file
        assert location.offset <= reported.offset <= self.end_of(at)
        return False


def names(*numbers: int) -> set[str]:
    return {f"piece-{at}" for at in numbers}


def assert_others_are_unharmed(segment: Segment, bits: Iterable[int]) -> None:
    """Each of these bits turned over alone, in the file."""
    everything = set(range(len(segment.locations)))
    for bit in bits:
        segment.path.write_bytes(flip(segment.data, bit))
        harmed, into, is_frame = segment.hit(bit // 8)
        listed = segment.listed()
        others = names(*(everything - {harmed, segment.dead}))
        assert others <= listed, f"bit {bit} hides {others - listed}"
        # A flipped bit takes no live piece for a dead one; a dead one may come back, to be deleted once more.
        if not is_frame or (into in _STATE and harmed != segment.dead):
            assert listed - names(segment.dead) == names(*(everything - {segment.dead}))
        if not is_frame or harmed != segment.dead:
            assert listed <= names(*(everything - {segment.dead}))
        for at in everything:
            assert segment.is_whole(at) == (is_frame or at != harmed), f"bit {bit}, piece {at}"
    segment.path.write_bytes(segment.data)


def test_a_flipped_bit_in_a_segment_harms_one_piece_at_most(tmp_path: Path) -> None:
    """Some bits of every frame and piece; at night every bit of every frame, state and name and checksum too."""
    segment = Segment.make(tmp_path)
    assert segment.listed() == names(0, 2, 3)
    bits = [bit for bit in range(8 * len(segment.data)) if segment.hit(bit // 8)[2] or bit % 53 == 0]
    assert len(bits) > 1700
    with little_room():
        assert_others_are_unharmed(segment, some_of(bits, 300))


def test_a_segment_cut_off_anywhere_shows_what_is_whole(tmp_path: Path) -> None:
    """Every piece before the cut is listed and read; none behind it is read."""
    segment = Segment.make(tmp_path)
    for length in range(0, len(segment.data), 7):
        segment.path.write_bytes(segment.data[:length])
        whole = {at for at in range(4) if segment.end_of(at) <= length}
        assert {at for at in range(4) if segment.is_whole(at)} == whole
        assert names(*(whole - {segment.dead})) <= segment.listed()


def test_a_dead_piece_that_a_flipped_bit_brought_back_is_deleted_again(tmp_path: Path) -> None:
    """And a segment goes when the last of its pieces is dead, whatever became of the state's other bits."""
    segment = Segment.make(tmp_path)
    segment.path.write_bytes(flip(segment.data, 8 * (segment.frame_at(segment.dead) + _STATE[0])))
    assert segment.listed() == names(0, 1, 2, 3)
    segment.pieces.delete([piece for piece in segment.pieces.pieces() if piece.name == "piece-1"])
    assert segment.listed() == names(0, 2, 3)
    segment.pieces.delete(list(segment.pieces.pieces()))
    assert not segment.path.exists()


def test_a_reference_to_what_is_not_there_is_corruption_and_makes_no_room(tmp_path: Path) -> None:
    """However far beyond the file it points, in either backend."""
    wrong = [1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    for pieces in (FilePieces(tmp_path / "file"), RocksPieces(tmp_path / "rocks")):
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
