"""The profile: bounded, whole or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from bucket_store.log.profile import (
    FILE_NAME,
    KEPT,
    Profiles,
    WindowProfile,
    decode_profiles,
    read_profiles,
)
from bucket_store.places.local import local_place
from bucket_store.places.place import Place


def a_profile(window: int, **phases: float) -> WindowProfile:
    return WindowProfile(window, 3, 1_767_225_600_000_000 + window, 1000 + window, 2.5, phases or {"judge": 1.25})


def write(place: Place, *windows: WindowProfile) -> None:
    """What an owner writes after these windows, beside what is there."""
    profiles = Profiles(place)
    for profile in windows:
        profiles.add(profile)
    profiles.write()


def test_what_is_added_is_read_back(tmp_path: Path) -> None:
    """Every field, with phases that differ from window to window."""
    added = [a_profile(0, intent=0.001, judge=2.0), a_profile(1, judge=0.5, publish=0.000123)]
    write(local_place(tmp_path), *added)
    assert read_profiles(local_place(tmp_path)) == tuple(added)


def test_only_the_newest_are_kept_and_nothing_else_is_left(tmp_path: Path) -> None:
    """The file is bounded however long a job runs."""
    write(local_place(tmp_path), *map(a_profile, range(KEPT + 10)))
    assert [profile.window for profile in read_profiles(local_place(tmp_path))] == list(range(10, KEPT + 10))
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_a_restart_goes_on_with_what_is_there(tmp_path: Path) -> None:
    """Windows of an earlier process stay."""
    write(local_place(tmp_path), a_profile(0, judge=1.0))
    write(local_place(tmp_path), a_profile(1, commit=2.0))
    assert read_profiles(local_place(tmp_path)) == (a_profile(0, judge=1.0), a_profile(1, commit=2.0))


def test_windows_of_a_store_that_was_set_back_are_dropped(tmp_path: Path) -> None:
    """A window's number stands once, and the last one counts."""
    write(local_place(tmp_path), *map(a_profile, range(4)), a_profile(1, judge=9.0))
    assert read_profiles(local_place(tmp_path)) == (a_profile(0), a_profile(1, judge=9.0))


def test_one_that_is_torn_counts_as_absent(tmp_path: Path) -> None:
    """No reader and no start fails on it, and the next window begins a new one. Other damage: `test_flips`."""
    write(local_place(tmp_path), a_profile(0), a_profile(1))
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-1])
    assert read_profiles(local_place(tmp_path)) == ()
    write(local_place(tmp_path), a_profile(2))
    assert read_profiles(local_place(tmp_path)) == (a_profile(2),)


def test_whole_bytes_that_no_release_writes_are_refused(tmp_path: Path) -> None:
    """An index without a name is not taken for a phase."""
    bad = WindowProfile(0, 1, 2, 3, 4.0, {"judge": 1.0})
    path = tmp_path / FILE_NAME
    write(local_place(tmp_path), bad)
    assert decode_profiles(path.read_bytes(), file="profile") == (bad,)
    path.unlink()
    write(local_place(tmp_path), WindowProfile("0", 1, 2, 3, 4.0, {}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="int"):
        decode_profiles(path.read_bytes(), file="profile")
