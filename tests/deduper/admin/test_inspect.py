"""What a store tells of a key, a bucket and a window."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from bucket_store.errors import CorruptionError
from deduper.admin.inspect import bucket_of, inspect_bucket, inspect_window
from deduper.admin.keys.stored import stored_key
from deduper.admin.keys.values import parse_key
from deduper.admin.open_store import open_store
from deduper.cli.views.contents import render_window
from deduper.columns import parse_columns
from deduper.core.categories import CategoryState
from deduper.core.digests import KeyValue
from deduper.errors import CheckFailedError, UsageError
from tests.deduper.published_store import Kind, PublishedStore
from tests.deduper.store_samples import BEGIN_US, HOUR_US, SeenKey, Window, make_store, write_config

BUCKET = BEGIN_US // HOUR_US


def seen(user: str | None, number: int, *, hours: int, row: int = 0) -> SeenKey:
    """A key whose expiry key is that many hours, and a minute, after BEGIN_US."""
    return SeenKey((user, number), BUCKET + hours, BEGIN_US + hours * HOUR_US + 60_000_000, row)


def test_a_remembered_key_names_its_first_copy_and_its_end(tmp_path: Path) -> None:
    """Window, file, row, expiry key; and when the latest point will have passed its bucket."""
    file = write_config(tmp_path)
    make_store(
        file,
        [
            Window([seen(f"u{n}", n, hours=0, row=n) for n in range(50)], BEGIN_US + HOUR_US),
            Window([seen("a", 1, hours=1, row=7), seen(None, 2, hours=1, row=9)], BEGIN_US + 2 * HOUR_US),
        ],
    )
    report = stored_key(open_store(str(file)), ("a", 1))
    (entry,) = report.to_json()["entries"]
    assert report.is_remembered
    assert entry["piece"].startswith("000000000001-000001-000-")
    del entry["piece"]
    assert entry == {
        "window": 1,
        "bucket": BUCKET + 1,
        "expiry_key": "2024-12-31T01:01:00Z",
        "source": "in/1.json",
        "row": 7,
        "live": True,
        "until": "the latest point reaches 2025-01-01T02:00:00Z",
    }
    assert stored_key(open_store(str(file)), (None, 2)).is_remembered
    assert all(stored_key(open_store(str(file)), (f"u{n}", n)).entries[0].row == n for n in range(50))
    unknown = stored_key(open_store(str(file)), ("u1", 2))
    assert (unknown.is_remembered, unknown.entries) == (False, ())


def test_another_piece_in_the_place_of_the_named_one_is_not_believed(tmp_path: Path) -> None:
    """A sound piece of the same length lies where the log names one: corruption, as it is for a job."""
    file = write_config(tmp_path)
    make_store(file, [Window([seen("a", 1, hours=0)], BEGIN_US + HOUR_US)])
    (tmp_path / "other").mkdir()
    make_store(other := write_config(tmp_path / "other"), [Window([seen("a", 1, hours=0)], BEGIN_US + HOUR_US)])
    store, foreign = open_store(str(file)), open_store(str(other))
    (refs,), (foreign_refs,) = store.log.state.pieces.values(), foreign.log.state.pieces.values()
    place, data = store.root.local / refs[0].file, foreign.pieces.read(foreign_refs[0])
    whole = place.read_bytes()
    place.write_bytes(whole[: refs[0].offset] + data + whole[refs[0].offset + len(data) :])
    with pytest.raises(CorruptionError, match="identity of piece"):
        inspect_bucket(store, BUCKET)


@pytest.mark.parametrize(
    ("lookup", "latest_us", "is_live"),
    [
        # The bucket ends at 01:00. Own bucket: dead once the expiry point has reached its end.
        ("own_bucket", BEGIN_US + 25 * HOUR_US - 1, True),
        ("own_bucket", BEGIN_US + 25 * HOUR_US, False),
        # All live: dead once the expiry point has reached 00:01, the key's own time.
        ("all_live", BEGIN_US + 24 * HOUR_US + 59_999_999, True),
        ("all_live", BEGIN_US + 24 * HOUR_US + 60_000_000, False),
    ],
)
def test_the_edge_of_life_is_the_one_of_judging(lookup: str, latest_us: int, is_live: bool, tmp_path: Path) -> None:
    """One µs decides, on both sides of the edge."""
    file = write_config(tmp_path, expiry=f"{{by: event_time, field: ts, period: 24h, span: 1h, lookup: {lookup}}}")
    make_store(file, [Window([seen("a", 1, hours=0)], latest_us)])
    assert stored_key(open_store(str(file)), ("a", 1)).is_remembered is is_live


def test_without_a_config_nothing_is_said_about_the_end(tmp_path: Path) -> None:
    """The period is no part of the store; what is stored is shown all the same."""
    make_store(write_config(tmp_path), [Window([seen("a", 1, hours=0)], BEGIN_US)])
    for target in (str(tmp_path / "state"), f"file:{tmp_path}/state"):
        report = stored_key(open_store(target), ("a", 1))
        assert report.is_remembered is None
        assert report.entries[0].until == "unknown without a config: the period is not part of the store"


@pytest.mark.parametrize(
    ("expiry", "bucket", "expiry_key", "shown", "until"),
    [
        ("{by: never}", 0, 5, None, "for ever"),
        ("{by: ordered, field: n, period: 100, span: 10}", 2, 25, 25, "the latest point reaches 130"),
        ("{by: category, field: day, live_categories: 2}", 3, 0, None, "category tue is dropped"),
        (
            "{by: processing_time, period: 1h}",
            0,
            BEGIN_US,
            "2024-12-31T00:00:00Z",
            "the wall clock reaches 2024-12-31T01:00:00Z",
        ),
    ],
)
def test_every_kind_of_expiry_tells_its_own_end(
    expiry: str, bucket: int, expiry_key: int, shown: object, until: str, tmp_path: Path
) -> None:
    """For ever, a number, a category, the wall clock."""
    file = write_config(tmp_path, expiry=expiry)
    state = CategoryState(5, (("tue", 3), ("wed", 4)), ("mon",))
    latest = {"ordered": 30, "processing_time": BEGIN_US}.get(expiry.split(":")[1].split(",")[0].strip(" }"))
    make_store(file, [Window([SeenKey(("a", 1), bucket, expiry_key)], latest, extra={"categories": state.to_wire()})])
    (entry,) = stored_key(open_store(str(file)), ("a", 1), now_us=BEGIN_US).entries
    assert (entry.expiry_key, entry.until, entry.is_live) == (shown, until, True)


def test_a_key_seen_by_a_clock_far_ahead_tells_its_end_by_the_right_one(tmp_path: Path) -> None:
    """The latest point has gone on for 20 minutes since the clock came back, so 40 of the hour are left."""
    file = write_config(tmp_path, expiry="{by: processing_time, period: 1h}")
    far_us, minutes_20 = BEGIN_US + 75 * 365 * 86_400_000_000, 1_200_000_000
    make_store(file, [Window([SeenKey(("a", 1), 0, far_us)], far_us + minutes_20)])
    (entry,) = stored_key(open_store(str(file)), ("a", 1), now_us=BEGIN_US).entries
    assert (entry.until, entry.is_live) == ("the wall clock reaches 2024-12-31T00:40:00Z", True)


def test_a_dropped_category_is_forgotten(tmp_path: Path) -> None:
    """Its place is below the live ones."""
    file = write_config(tmp_path, expiry="{by: category, field: day, live_categories: 2}")
    state = CategoryState(5, (("tue", 3), ("wed", 4)), ("mon",))
    make_store(file, [Window([SeenKey(("a", 1), 2, 0)], extra={"categories": state.to_wire()})])
    store = open_store(str(file))
    report = stored_key(store, ("a", 1))
    assert (report.is_remembered, report.entries[0].until) == (False, "category mon was dropped")
    assert inspect_bucket(store, 3).holds == "category tue"
    assert inspect_bucket(store, 2).holds == "a category that is not live"


def test_a_bucket_is_shown_over_all_shards_and_windows(tmp_path: Path) -> None:
    """Entries, and the least and greatest expiry key, from headers alone."""
    file = write_config(tmp_path)
    make_store(
        file,
        [
            Window([seen(f"u{n}", n, hours=n % 2) for n in range(40)], BEGIN_US),
            Window([seen("late", 1, hours=1)], BEGIN_US),
        ],
    )
    store = open_store(str(file))
    report = inspect_bucket(store, BUCKET + 1)
    assert report.entries == 21
    assert {(part.shard, part.first_window) for part in report.pieces} >= {(0, 0), (1, 0)}
    assert report.holds == "2024-12-31T01:00:00Z up to, not including, 2024-12-31T02:00:00Z"
    assert report.to_json()["pieces"][0]["least_expiry_key"] == "2024-12-31T01:01:00Z"
    assert inspect_bucket(store, -1).to_json()["pieces"] == []
    assert bucket_of(store, "2024-12-31T01:59:59Z") == bucket_of(store, "2024-12-31 02:30+01:00") == BUCKET + 1
    assert bucket_of(store, "-5") == -5
    with pytest.raises(
        UsageError, match="`soon` is no bucket key; write a whole number, or a time as 2024-12-31T23:00Z"
    ):
        bucket_of(store, "soon")


def test_a_window_s_record_is_shown_in_full(tmp_path: Path) -> None:
    """Every field, times and points ready to read."""
    file = write_config(tmp_path)
    make_store(
        file,
        [Window(latest_point=None), Window([seen("a", 1, hours=0)], BEGIN_US, {"error": 2}, {"malformed": 2})],
    )
    record = inspect_window(open_store(str(file)), 1)
    assert record["begun"] == "2024-12-31T00:00:01Z"
    assert record["counts"] == {"unique": 1, "duplicate": 0, "expired": 0, "error": 2}
    assert record["reasons"] == {"malformed": 2}
    assert (record["latest_point"], record["greatest_expiry_key"]) == ("2024-12-31T00:00:00Z", "2024-12-31T00:01:00Z")
    assert [piece["entries"] for piece in record["pieces"]] == [1]
    assert record["sources"][0]["name"] == "in/1.json"
    assert record["outputs"][0]["final"] == "out/1.parquet"
    assert "query id" in str(render_window(record)[0])
    assert "query id" not in str(render_window({**record, "query_id": ""})[0])
    with pytest.raises(CheckFailedError, match="window 2 is not committed; the newest window is 1"):
        inspect_window(open_store(str(file)), 2)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "5", "5"),
        ("string", "", ""),
        ("bigint", "-5", -5),
        ("boolean", "True", True),
        ("double", "1e3", 1000.0),
        ("decimal(5,2)", "1.50", Decimal("1.50")),
        ("date", "2024-12-31", date(2024, 12, 31)),
        ("timestamp", "2024-12-31T00:00:00Z", datetime(2024, 12, 31, tzinfo=UTC)),
        ("timestamp", "2024-12-31 01:00+01:00", datetime(2024, 12, 31, tzinfo=UTC)),
        ("timestamp", "2024-12-31", datetime(2024, 12, 31, tzinfo=UTC)),
        ("timestamp_ntz", "2024-12-31T00:00", datetime(2024, 12, 31)),  # noqa: DTZ001 - a clock without a zone is meant
        ("binary", "0x00ff", b"\x00\xff"),
        ("string", r"\N", None),
    ],
)
def test_key_values_are_typed_by_their_columns(kind: str, text: str, value: KeyValue) -> None:
    """As the schema says, and a null by its marker."""
    assert parse_key([text], parse_columns(f"k {kind}"), null=r"\N") == [value]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("bigint", "x", "column k: `x` is no bigint; write a whole number"),
        ("boolean", "yes", "column k: `yes` is no boolean; write true or false"),
        ("date", "31.12.", "column k: `31.12.` is no date; write 2024-12-31"),
        ("decimal(5,2)", "x", "column k: `x` is no decimal(5,2); write digits such as 12.50"),
        ("binary", "xyz", "column k: `xyz` is no binary; write hexadecimal digits such as 0x00ff"),
        (
            "timestamp_ntz",
            "2024-12-31T00:00Z",
            "column k: `2024-12-31T00:00Z` is no timestamp_ntz; write 2024-12-31T23:59:59 without a zone",
        ),
    ],
)
def test_what_is_no_value_of_its_column_says_what_to_write(kind: str, text: str, message: str) -> None:
    """With the column's name."""
    with pytest.raises(UsageError) as caught:
        parse_key([text], parse_columns(f"k {kind}"), null=r"\N")
    assert str(caught.value) == message


def test_too_few_values_name_the_columns() -> None:
    """So that the next try is right."""
    with pytest.raises(UsageError) as caught:
        parse_key(["a"], parse_columns("user string, id long"), null=r"\N")
    assert (
        str(caught.value)
        == "the key has 2 columns (user string, id bigint), and 1 value was given; give one for each, in this order"
    )


def test_a_record_of_a_topic_is_named_by_its_offset(tmp_path: Path) -> None:
    """Positions in a piece count from where the window began in the partition."""
    kind = Kind("{by: never}", first_position=1 << 40)
    store = PublishedStore(tmp_path, kind).make(windows=1)
    rows = store.rows[0]
    key = next(row["k"] for row in rows if row["k"])
    ordinal, position = min((number % 2, number // 2) for number, row in enumerate(rows) if row["k"] == key)
    (entry,) = stored_key(store.open(), (key,)).entries
    assert entry.row == (1 << 40) + position
    assert entry.source == str(tmp_path / "in" / f"w0-{ordinal}.json")
