"""Durations, sizes and times: exact, and refused with what to write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.units import (
    MAX_I64,
    UnitError,
    approximate_size,
    format_duration,
    format_size,
    format_time,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "duration_us"),
    [
        ("90s", 90_000_000),
        ("24h", 86_400_000_000),
        ("7d", 604_800_000_000),
        ("1w", 604_800_000_000),
        ("500ms", 500_000),
        ("3us", 3),
        ("3µs", 3),
        ("1h30m", 5_400_000_000),
        ("1h 30m", 5_400_000_000),
        ("1.5h", 5_400_000_000),
        ("24 hours", 86_400_000_000),
        ("1 Day 30 minutes", 88_200_000_000),
        ("5 milliseconds", 5_000),
        ("0s", 0),
        (" 10s ", 10_000_000),
    ],
)
def test_durations_are_read_exactly(text: str, duration_us: int) -> None:
    """Each spelling is the number of µs it says."""
    assert parse_duration(text) == duration_us


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("90", "a duration needs a unit, found `90`; write `90s` for seconds; units are w, d, h, m, s, ms, us"),
        ("", "`` is not a duration; write a number and a unit, such as `90s`, `24h`, `7d` or `1h30m`"),
        ("soon", "`soon` is not a duration; write a number and a unit, such as `90s`, `24h`, `7d` or `1h30m`"),
        ("-1h", "`-1h` is not a duration; write a number and a unit, such as `90s`, `24h`, `7d` or `1h30m`"),
        ("1mo", "`mo` is not a unit of time in `1mo`; units are w, d, h, m, s, ms, us"),
        ("30m1h", "`30m1h` does not go from large to small units; write `1h30m`, not `30m1h`"),
        ("1h1h", "`1h1h` does not go from large to small units; write `1h30m`, not `30m1h`"),
        ("0.5us", "`0.5us` is not a whole number of µs; write fewer digits after the point"),
        ("16000000w", "`16000000w` is too long; the longest duration is about 292,000 years"),
    ],
)
def test_what_is_no_duration_says_what_to_write(text: str, message: str) -> None:
    """A refusal names the text and the way out."""
    with pytest.raises(UnitError) as caught:
        parse_duration(text)
    assert str(caught.value) == message


@given(st.integers(0, MAX_I64))
def test_a_printed_duration_reads_back(duration_us: int) -> None:
    """Nothing is lost by printing."""
    assert parse_duration(format_duration(duration_us)) == duration_us


@given(st.integers(1, MAX_I64))
def test_a_printed_size_reads_back(size_bytes: int) -> None:
    """Nothing is lost by printing."""
    assert parse_size(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("2GiB", 2**31), ("512MiB", 2**29), ("1.5GB", 1_500_000_000), ("1 kB", 1000), ("7B", 7)]
)
def test_sizes_are_read_exactly(text: str, size_bytes: int) -> None:
    """Binary and decimal units are distinguished."""
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2G", "`G` is not a unit of size in `2G`; write `2GiB` (1024) or `2GB` (1000)"),
        ("2gb", "`gb` is not a unit of size in `2gb`; write `2GiB` (1024) or `2GB` (1000)"),
        (
            "2048",
            "a size needs a unit, found `2048`; write it as `2GiB` or `512MiB`; "
            "units are B, KiB, MiB, GiB, TiB, kB, MB, GB, TB",
        ),
        ("lots", "`lots` is not a size; write a number and a unit, such as `2GiB` or `512MiB`"),
        ("3 apples", "`apples` is not a unit of size in `3 apples`; units are B, KiB, MiB, GiB, TiB, kB, MB, GB, TB"),
        ("0.5B", "`0.5B` is not a whole number of bytes; write fewer digits after the point"),
        ("9300000000GB", "`9300000000GB` is too large; a size is at most 8 EiB"),
    ],
)
def test_what_is_no_size_says_what_to_write(text: str, message: str) -> None:
    """A refusal names the text and the way out."""
    with pytest.raises(UnitError) as caught:
        parse_size(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_735_603_200_000_000, "2024-12-31T00:00:00Z"),
        (1_735_603_200_000_001, "2024-12-31T00:00:00.000001Z"),
        (1_735_603_200_250_000, "2024-12-31T00:00:00.250Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (2**63 - 1, "9223372036854775807us"),
    ],
)
def test_times_are_iso_8601_in_utc(time_us: int, text: str) -> None:
    """Also before 1970, and beyond what a calendar holds."""
    assert format_time(time_us) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1_640_000_000, "1.53 GiB")]
)
def test_sizes_for_people_have_three_digits(size_bytes: int, text: str) -> None:
    """The unit is the largest that leaves a number above one."""
    assert approximate_size(size_bytes) == text
