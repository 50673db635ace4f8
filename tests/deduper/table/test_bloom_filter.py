"""The files of a bloom index: their bytes, whatever is cut or flipped, and filters against sets."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from numpy.typing import NDArray

from bucket_store.errors import CorruptionError, UnknownFormatError
from deduper.table.columns import KeyColumn, KeyColumns
from deduper.table.errors import IndexDamagedError
from deduper.table.formats.protocol import PRIVATE
from deduper.table.index.bloom import (
    FILTERS,
    FORM,
    BloomIndex,
    BloomState,
    FilteredFile,
    bound_texts,
    bound_value,
)
from deduper.table.index.bloom_filter import (
    FilterOwner,
    add_keys,
    bits_for,
    decode_filter,
    empty_words,
    encode_filter,
    may_have,
)
from deduper.table.index.keys import UInt64s
from deduper.table.index.matching import bounds_of
from deduper.table.index.protocol import Condition
from deduper.table.operations.questions import filter_exists
from deduper.table.operations.upkeep import rebuild, table_status
from deduper.table.operations.verify import verify
from tests.deduper.table.scene import Place, arrow, dying

SAMPLES = Path(__file__).parent / "samples"
OWNER = FilterOwner("0102030405060708090a0b0c0d0e0f10", 7, 50)
KEYS = np.arange(1, 51, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
STATE = BloomState(
    OWNER.index_id,
    bytes(range(16)),
    KeyColumns((KeyColumn("k", "bigint"),), (KeyColumn("d", "date"),), "partition"),
    8,
    (
        FilteredFile(7, "d=1970-01-01/a.parquet", 1234, 5, 50, 146, "-3", "99"),
        FilteredFile(3, "d=1970-01-02/b.parquet", 99, 0, 0, 50, None, None),
    ),
)


def filter_words(keys: UInt64s, bits: int = 12) -> NDArray[np.uint32]:
    """A filter of these keys, added in two parts."""
    words = empty_words(len(keys), bits)
    for part in np.array_split(keys, 2):
        add_keys(words, part)
    return words


@pytest.mark.parametrize("count", [0, 1, 21, 22, 1000, 100_000])
def test_a_filter_has_its_keys(count: int) -> None:
    """Every one passes; of others 1 in 185, and none of an empty filter's; 12 bits a key."""
    rng = np.random.default_rng(count)
    keys, others = (rng.integers(0, 1 << 64, size, np.uint64) for size in (count, 100_000))
    words = filter_words(keys)
    assert may_have(words, keys).all()
    assert len(words) == 8 * -(-12 * count // 256)
    passed = int(may_have(words, others).sum())
    assert passed <= (0 if not count else 1200 if count < 1000 else 600)


@pytest.mark.parametrize("fpp", [0.5, 0.1, 0.01, 0.006, 0.001, 0.0001])
def test_as_many_keys_pass_as_were_asked_for(fpp: float) -> None:
    """With the fewest bits a key that do it, and hardly fewer keys; 12 bits are the default's."""
    bits = bits_for(fpp)
    assert (bits == 12) == (fpp == 0.006)
    rng = np.random.default_rng(bits)
    keys, others = (rng.integers(0, 1 << 64, size, np.uint64) for size in (100_000, 1_000_000))
    passed = [may_have(filter_words(keys, some), others).mean() for some in (bits, bits - 1)]
    assert passed[0] < 1.2 * fpp < 1.5 * passed[1]


def test_a_filter_of_another_fpp_is_read_as_it_is(place: Place) -> None:
    """A change holds for new filters; a rebuild makes all of them anew."""

    def sizes() -> list[int]:
        state = FORM.read(BloomIndex().folder(place.root) / "state")
        assert state is not None
        return [file.size_bytes for file in state.files]

    place.index = "bloom"
    place.load([(key, "a", 0) for key in range(1000)])
    place.index = "{kind: bloom, options: {fpp: 0.0001}}"
    assert place.load([(key, "b", day) for key in range(1000) for day in (0, 1)]).inserted == 1000
    old, new = sizes()
    assert new > 2 * old - 100
    assert verify(place.config()).is_sound
    rebuild(place.config())
    assert sizes() == [new, new]
    assert verify(place.config()).is_sound


def test_a_filter_has_room_for_keys_that_are_null(tmp_path: Path) -> None:
    """Another writer's rows without a key are in no filter; of a file that has no others, no key passes."""
    place = Place(tmp_path, "delta", "bloom")
    place.load([(1, "a", 0)])
    for keys in ([None, 2, None], [None]):
        write_deltalake(str(place.root), arrow([(key, "f", 1) for key in keys]), mode="append", partition_by=["d"])
    receipt = place.load([(1, "b", 0), (2, "b", 1), (3, "b", 1)])
    assert (receipt.found, receipt.inserted, receipt.read_files) == (2, 1, 2)
    assert verify(place.config()).is_sound


def test_the_bits_are_those_of_the_page() -> None:
    """Against the rule in Python."""
    salts = [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31]
    words = filter_words(KEYS)
    bits = {(place, bit) for place, word in enumerate(words.tolist()) for bit in range(32) if word >> bit & 1}
    expected = set()
    for key in KEYS.tolist():
        block = (key >> 32) * (len(words) // 8) >> 32
        expected |= {
            (8 * block + word, ((key & 0xFFFFFFFF) * salt & 0xFFFFFFFF) >> 27) for word, salt in enumerate(salts)
        }
    assert bits == expected


def test_the_committed_files_are_read_and_written(tmp_path: Path) -> None:
    """Version 1, byte for byte."""
    data = (SAMPLES / "bloom-filter-1.bin").read_bytes()
    assert encode_filter(OWNER, filter_words(KEYS)) == data
    assert decode_filter(data, OWNER, "f").tolist() == filter_words(KEYS).tolist()
    (tmp_path / "state").write_bytes((SAMPLES / "bloom-state-1.bin").read_bytes())
    assert FORM.read(tmp_path / "state") == STATE
    FORM.replace(tmp_path / "state", STATE)
    assert (tmp_path / "state").read_bytes() == (SAMPLES / "bloom-state-1.bin").read_bytes()


@pytest.mark.slow
def test_every_cut_and_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """Of a filter and of a state; so is a filter of another file, index or number of keys."""
    data = encode_filter(OWNER, filter_words(KEYS))
    wrong = [data[:end] for end in range(len(data))]
    wrong += [data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in range(len(data)) for bit in range(8)]
    for one in (*wrong, data + b"\0"):
        with pytest.raises((CorruptionError, UnknownFormatError)):
            decode_filter(one, OWNER, "f")
    without_words = encode_filter(OWNER, np.zeros(0, np.uint32))
    with pytest.raises(CorruptionError):
        decode_filter(without_words, OWNER, "f")
    for owner in (
        replace(OWNER, index_id="00" * 16),
        replace(OWNER, number=8),
        replace(OWNER, keys=51),
    ):
        with pytest.raises(CorruptionError):
            decode_filter(data, owner, "f")
    FORM.replace(tmp_path / "state", STATE)
    data = (tmp_path / "state").read_bytes()
    wrong = [data[:end] for end in range(len(data))]
    wrong += [data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in range(len(data)) for bit in range(8)]
    for one in wrong:
        (tmp_path / "state").write_bytes(one)
        with pytest.raises((CorruptionError, UnknownFormatError)):
            FORM.read(tmp_path / "state")


def test_bounds_are_never_too_narrow() -> None:
    """Long texts bound less, or nothing; values come back as they were."""
    text, day, number = KeyColumn("t", "string"), KeyColumn("d", "date"), KeyColumn("n", "bigint")
    assert bound_texts(None) == (None, None)
    assert bound_texts(("a" * 70, "b" * 70)) == ("a" * 64, None)
    assert bound_texts(("", "ü" * 64)) == ("", "ü" * 64)
    for column, bounds in ((text, ("a", "b")), (day, (-719162, 2932896)), (number, (-(2**63), 5))):
        assert tuple(bound_value(one, column) for one in bound_texts(bounds)) == bounds


@pytest.mark.parametrize("seed", range(5))
def test_bounds_of_footers(seed: int, tmp_path: Path) -> None:
    """Over row groups, with nulls, of files without statistics."""
    rng = random.Random(seed)
    values = [rng.choice([None, rng.randint(-5, 5)]) for _ in range(rng.randrange(30))]
    column = KeyColumn("k", "bigint")
    for statistics in (True, False):
        pq.write_table(
            pa.table({"k": pa.array(values, pa.int64())}),
            tmp_path / "a.parquet",
            row_group_size=4,
            write_statistics=statistics,
        )
        known = [value for value in values if value is not None]
        found = bounds_of(pq.read_metadata(tmp_path / "a.parquet"), column)
        assert found == ((min(known), max(known)) if known and statistics else None)


def test_a_damaged_index_says_what_to_do(place: Place) -> None:
    """A filter that is cut, gone or another's is an error that names the folder; a bad state is built anew."""
    place.index = "bloom"
    place.load([(key, "a", 0) for key in range(20)])
    (path,) = (BloomIndex().folder(place.root) / FILTERS).iterdir()
    data = path.read_bytes()
    for wrong in (data[:-1], data[:20] + bytes([data[20] ^ 1]) + data[21:], None):
        path.unlink()
        if wrong is not None:
            path.write_bytes(wrong)
        with pytest.raises(IndexDamagedError, match=r"delete .*/_deduper/bloom: the next load builds"):
            place.load([(1, "b", 0)])
        if wrong is None or len(wrong) != len(data):
            assert table_status(place.config()).index.state is Condition.DAMAGED
        path.write_bytes(data)
    assert place.load([(1, "b", 0)]).found == 1
    (BloomIndex().folder(place.root) / "state").write_bytes(b"no state")
    assert table_status(place.config()).index.state is Condition.UNREADABLE
    receipt = place.load([(1, "b", 0)])
    assert (receipt.found, receipt.read_files) == (1, 1)
    assert receipt.began_anew is not None


def test_a_filter_without_its_keys_is_found(place: Place) -> None:
    """By `verify`; a rebuild makes it right."""
    place.index = "bloom"
    place.load([(key, "a", 0) for key in range(20)])
    state = FORM.read(BloomIndex().folder(place.root) / "state")
    assert state is not None
    (file,) = state.files
    path = (BloomIndex().folder(place.root) / FILTERS) / state.name(file)
    path.write_bytes(encode_filter(state.owner(file), empty_words(20, 12)))
    report = verify(place.config())
    assert (report.missing, report.extra) == (20, 0)
    rebuild(place.config())
    assert verify(place.config()).is_sound


@pytest.mark.slow
@pytest.mark.parametrize("step", ["index.piece", "index.state", "index.rebuilt"])
def test_an_interrupted_rebuild(step: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the old index as it was; the next one continues, and no filter is left over."""
    place.index = "bloom"
    place.load([(key, "a", key % 3) for key in range(9)])
    monkeypatch.setattr("deduper.table.index.bloom._STEP_ROWS", 1)
    before = (BloomIndex().folder(place.root) / "state").read_bytes()
    with dying(step) as died:
        rebuild(place.config())
    assert died
    assert (BloomIndex().folder(place.root) / "state").read_bytes() == before
    assert place.load([(key, "a", key % 3) for key in range(9)]).found == 9
    receipt = rebuild(place.config())
    assert (receipt.is_continued, receipt.read_files) == (True, {"index.piece": 3, "index.state": 2}.get(step, 0))
    assert len(list((BloomIndex().folder(place.root) / FILTERS).iterdir())) == 3
    assert verify(place.config()).is_sound


def test_filters_of_removed_files_go(place: Place) -> None:
    """With the write that removes the file."""
    place.index = "bloom"
    place.load([(key, "a", 0) for key in range(10)])
    for turn in range(3):
        place.upsert([(key, f"b{turn}", 0) for key in range(5)])
        assert len(list((place.root / PRIVATE / "bloom/filters").iterdir())) == 1
    assert filter_exists(arrow([(3, "", 0), (11, "", 0)]), place.config()).to_pylist() == [False, True]
