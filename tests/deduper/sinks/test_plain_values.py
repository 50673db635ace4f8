"""Every date and time that a column holds comes back from the text that a port writes of it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucket_store.places.local import local_place
from deduper.columns import ColumnType, parse_columns
from deduper.errors import IntegrityError
from deduper.sinks.plain_values import time_of_text
from deduper.sinks.published import judged_rows
from deduper.text.written import text_of_day

DATE, TIMESTAMP, LOCAL = (column.type for column in parse_columns("d date, t timestamp, n timestamp_ntz"))
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-290308-12-21T19:59:05.224192", INT64_MIN),
        ("-0001-12-31T23:59:59.999999", -62_167_219_200_000_001),
        ("0000-01-01T00:00:00.000000", -62_167_219_200_000_000),
        ("0000-12-31T23:59:59.999999", -62_135_596_800_000_001),
        ("1970-01-01T00:00:00.000000", 0),
        ("9999-12-31T23:59:59.999999", 253_402_300_799_999_999),
        ("+10000-01-01T00:00:00.000000", 253_402_300_800_000_000),
        ("+294247-01-10T04:00:54.775807", INT64_MAX),
    ],
)
def test_times_at_every_edge_come_back(text: str, value: int) -> None:
    """As Spark's JSON and CSV writers write them, with a zone and without."""
    assert time_of_text(text, LOCAL) == value
    assert time_of_text(f"{text}Z", TIMESTAMP) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-5877641-06-23", -(2**31)),
        ("-0001-12-31", -719_529),
        ("0000-02-29", -719_469),
        ("1970-01-01", 0),
        ("+10000-01-01", 2_932_897),
        ("+5881580-07-11", 2**31 - 1),
    ],
)
def test_dates_at_every_edge_come_back(text: str, value: int) -> None:
    """As Spark writes them."""
    assert time_of_text(text, DATE) == value
    assert text_of_day(value) == text


@given(day=st.integers(-(2**31), 2**31 - 1))
def test_every_date_comes_back_from_its_text(day: int) -> None:
    """Over the whole type."""
    assert time_of_text(text_of_day(day), DATE) == day


@given(moment=st.datetimes())
def test_near_times_are_those_of_datetime(moment: datetime) -> None:
    """Where Python's calendar reaches, it says the same."""
    us = (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert time_of_text(moment.isoformat(), LOCAL) == us
    assert time_of_text(moment.replace(tzinfo=UTC).isoformat(), TIMESTAMP) == us
    assert text_of_day((moment.date() - date(1970, 1, 1)).days) == moment.date().isoformat()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("-290308-12-21T19:59:05.224191Z", TIMESTAMP),
        ("+294247-01-10T04:00:54.775808Z", TIMESTAMP),
        ("+5881580-07-12", DATE),
        ("2023-02-29", DATE),
        ("10000", DATE),
        ("2024-01-01T00:00:00", TIMESTAMP),
        ("2024-01-01T00:00:00Z", LOCAL),
        ("", TIMESTAMP),
    ],
)
def test_other_texts_are_refused(text: str, kind: ColumnType) -> None:
    """Beyond the type, no day of the calendar, a zone too many or too few."""
    with pytest.raises(ValueError):  # noqa: PT011  # datetime's own messages among them
        time_of_text(text, kind)


@pytest.mark.parametrize("ending", ["json", "csv"])
def test_rows_of_far_times_are_read_back_from_a_port(ending: str, tmp_path: Path) -> None:
    """A damaged year among them is still an error."""
    columns = parse_columns("t timestamp, d date")
    file = tmp_path / f"part.{ending}"
    dedup = '{"verdict":"unique","window":0,"source":"a","position":0}'
    for year, is_sound in (("+294247", True), ("294247", True), ("+999999", False), ("+29424x", False)):
        time, day = f"{year}-01-10T04:00:54.775807Z", "-5877641-06-23"
        if ending == "json":
            file.write_text(f'{{"t":"{time}","d":"{day}","_dedup":{dedup}}}\n')
        else:
            quoted = dedup.replace('"', '""')
            file.write_text(f't,d,_dedup\n{time},{day},"{quoted}"\n')
        for column, value in zip(columns, (INT64_MAX, -(2**31)), strict=True):
            if is_sound:
                (row,) = judged_rows(local_place(file), (column,), TIMESTAMP)
                assert row.values == (value,)
            elif column.name == "t":
                with pytest.raises(IntegrityError, match="cannot be read as an output"):
                    judged_rows(local_place(file), (column,), TIMESTAMP)
