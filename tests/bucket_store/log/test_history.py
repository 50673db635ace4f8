"""The history: bounded, downsampled, whole or begun anew, and it stops no owner."""

from __future__ import annotations

import logging
from pathlib import Path
from pprint import pformat

import pytest

from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.filesystem import LocalFileSystem
from bucket_store.framing import frame
from bucket_store.log.history import (
    FILE_NAME,
    LEVELS,
    MAGIC,
    History,
    Sample,
    decode_history,
    read_history,
)
from bucket_store.places.local import local_place

FILES = Path(__file__).parents[2] / "data" / "history_v1"
STORE = "00112233445566778899aabbccddeeff"
MINUTE_US, HOUR_US = 60_000_000, 3_600_000_000
BEGIN_US = 1_767_225_600_000_000  # a full hour


def sample(window: int, wall_us: int, **values: float) -> Sample:
    return Sample(wall_us, window + 1, values or {"unique": 10 * (window + 1)})


def written(root: Path, samples: list[Sample]) -> tuple[tuple[Sample, ...], ...]:
    """What is read back."""
    history = History(local_place(root), STORE, next_window=1 << 40)
    for one in samples:
        history.add(one)
    history.write()
    return read_history(local_place(root), STORE)


def test_levels(tmp_path: Path) -> None:
    """Every window; the last one of a minute, and of an hour; both sides of their edges."""
    walls = [0, MINUTE_US - 1, MINUTE_US, HOUR_US - 1, HOUR_US]
    samples = [sample(window, BEGIN_US + wall_us) for window, wall_us in enumerate(walls)]
    windows, minutes, hours = written(tmp_path, samples)
    assert windows == tuple(samples)
    assert [one.next_window for one in minutes] == [2, 3, 4, 5]
    assert [one.next_window for one in hours] == [4, 5]


def test_it_is_bounded(tmp_path: Path) -> None:
    """However long a job runs; the newest are kept, and nothing else is left in the folder."""
    samples = [sample(window, BEGIN_US + window * HOUR_US) for window in range(LEVELS[2].most + 5)]
    levels = written(tmp_path, samples)
    assert [len(level) for level in levels] == [level.most for level in LEVELS]
    assert all(level[-1] == samples[-1] for level in levels)
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert (tmp_path / FILE_NAME).stat().st_size < 400_000


def test_the_first_sample_is_before_the_first_window(tmp_path: Path) -> None:
    """So that the first difference is that of a window, at every level."""
    history = History(local_place(tmp_path), STORE, next_window=7)
    history.begin(Sample(BEGIN_US, 7, {"unique": 70}))
    history.add(Sample(BEGIN_US, 8, {"unique": 80}))
    history.write()
    for level in read_history(local_place(tmp_path), STORE):
        assert [one.values["unique"] for one in level] == [70, 80]


def test_a_restart_goes_on(tmp_path: Path) -> None:
    """Samples of an earlier process stay; those beyond a store that was set back go."""
    written(tmp_path, [sample(window, BEGIN_US + window * MINUTE_US) for window in range(5)])
    history = History(local_place(tmp_path), STORE, next_window=3)
    assert history.newest == sample(2, BEGIN_US + 2 * MINUTE_US)
    history.add(sample(3, BEGIN_US + 9 * MINUTE_US))
    history.write()
    windows, minutes, _ = read_history(local_place(tmp_path), STORE)
    assert [one.next_window for one in windows] == [one.next_window for one in minutes] == [1, 2, 3, 4]


def test_a_clock_that_goes_back(tmp_path: Path) -> None:
    """No sample comes before an earlier one: it takes its place."""
    _, minutes, _ = written(tmp_path, [sample(0, BEGIN_US + HOUR_US), sample(1, BEGIN_US)])
    assert [one.next_window for one in minutes] == [2]


def test_another_store_or_damage_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a warning in the log when the file is damaged."""
    written(tmp_path, [sample(0, BEGIN_US)])
    assert read_history(local_place(tmp_path), "another") == ((), (), ())
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        assert History(local_place(tmp_path), STORE, next_window=9).newest is None
    assert "the history begins anew" in caplog.text
    path.unlink()
    assert read_history(local_place(tmp_path), STORE) == ((), (), ())


def test_one_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The job goes on."""

    class Full(LocalFileSystem):
        def write_file(self, path: Path, data: bytes, *, sync: bool) -> None:
            raise OSError(28, "no space left on device")

    history = History(local_place(tmp_path, Full()), STORE, next_window=9)
    history.add(sample(0, BEGIN_US))
    history.write()
    assert "could not be written" in caplog.text


def test_a_file_of_version_1_says_what_it_said(tmp_path: Path) -> None:
    """Read it is the dump beside it; other versions and other fields are refused."""
    data = (FILES / FILE_NAME).read_bytes()
    assert pformat(decode_history(data, file="f"), width=118) + "\n" == (FILES / "history.txt").read_text()
    with pytest.raises(UnknownFormatError):
        decode_history(frame(MAGIC, 2, data[10:-8]), file="f")
    with pytest.raises(CorruptionError, match="samples"):
        decode_history(frame(MAGIC, 1, b"\x93\xa1a\x90\x90"), file="f")
