"""Every copy of a key, as the job judged it: by outputs, duplicates and the store; and what is missing is said."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from bucket_store.places.local import local_place
from deduper.admin.keys.explain import Explanation, explain, since
from deduper.cli.views.contents import ScanProgress
from deduper.cli.views.contents import render_explanation as render
from deduper.columns import parse_columns
from deduper.config.kafka.sections import KafkaSink
from deduper.core.digests import KeyValue
from deduper.errors import UsageError
from deduper.sinks import published
from deduper.sinks.published import SoughtKey, find_rows
from deduper.testing import Row, Settings
from tests.deduper.admin.test_forecast import KEYS, opened, rows_of
from tests.deduper.cli.test_terminal import check_lines, printed, words
from tests.deduper.published_store import Kind, PublishedStore
from tests.deduper.small_service import BEGIN_US, SECOND, Process, Trial, World, machine_of
from tests.deduper.window.test_state_machine import trials
from tests.tiers import examples

pytestmark = pytest.mark.slow
Told = set[tuple[str, str, int, str | None]]


def told(found: Explanation) -> Told:
    """Verdict, reason, window and place of every copy."""
    return {(copy.verdict, copy.reason, copy.window, copy.place) for copy in found.copies}


def judged(world: World, key: tuple[Any, ...]) -> Told:
    """The same, as the job's tasks said it."""
    answers = set()
    for (window, _, _), said in world.judged.items():
        for path, of_file in zip(said.paths, said.answers, strict=True):
            for position, (port, reason, _) in enumerate(of_file):
                if world.rows[path][position].key == key:
                    answers.add((port, reason, window, f"{path}:{position}"))
    return answers


@pytest.mark.night(but=["event_time", "category"])
@pytest.mark.parametrize("by", ["never", "event_time", "ordered", "processing_time", "category"])
@settings(max_examples=examples(15), deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_copy_is_told_as_it_was_judged(by: str, data: st.DataObject) -> None:
    """For every kind of expiry, with and without first copies; nulls are keys too."""
    trial = replace(data.draw(trials(by)), ports=True)
    rows = rows_of(by, trial)
    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root), trial)
        with machine_of(world):
            process = Process(world)
            for window in data.draw(st.lists(st.lists(rows, min_size=1, max_size=6), min_size=1, max_size=4)):
                process.offer(world.put([window[:3], window[3:]]))
                world.now_us += SECOND
            store = opened(world)
            for key in KEYS:
                found = explain(store, (key,))
                assert told(found) == judged(world, (key,))
                assert [line for line in found.unread if "could not be parsed" not in line] == []
                assert found.rows == sum(map(len, world.rows.values()))


def small_world(root: Path) -> World:
    """Key `a` three times in two windows, and others."""
    world = World(root, Trial(Settings("never"), ports=True))
    with machine_of(world):
        process = Process(world)
        for keys in (("a", "b"), ("a", "c", "a")):
            process.offer(world.put([[Row((key,)) for key in keys]]))
            world.now_us += SECOND
    return world


def test_a_first_copy_is_known_after_its_file_was_taken_away(tmp_path: Path) -> None:
    """By its duplicates, and by the store alone; the answer says what is missing."""
    world = small_world(tmp_path)
    for file in (tmp_path / "out" / "unique").glob("*.parquet"):
        file.unlink()
    found = explain(opened(world), ("a",))
    assert told(found) == {
        ("unique", "", 0, f"{tmp_path}/in/00000:0"),
        ("duplicate", "earlier_window", 1, f"{tmp_path}/in/00001:0"),
        ("duplicate", "earlier_window", 1, f"{tmp_path}/in/00001:2"),
    }
    assert [copy.known_by for copy in found.copies] == ["duplicate", "output", "output"]
    assert found.copies[1].first == {"window": 0, "place": f"{tmp_path}/in/00000:0"}
    assert found.unread == (f"unique: 3 of 3 rows are not in {tmp_path}/out/unique: taken away by a reader",)
    (alone,) = explain(opened(world), ("b",)).copies
    assert (alone.known_by, alone.place, alone.when) == ("store", f"{tmp_path}/in/00000:1", "2033-05-18T03:33:20Z")
    assert explain(opened(world), ("d",)).copies == ()


def test_a_topic_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """Its copies are missing in the answer; here the source is none, so its records cannot be told by key."""
    store = opened(small_world(tmp_path))
    assert store.config is not None
    sinks = store.config.sinks.model_copy(
        update={"duplicate": KafkaSink.model_construct(format="kafka", topic="copies")}
    )
    store = replace(store, config=store.config.model_copy(update={"sinks": sinks}))
    found = explain(store, ("a",))
    assert {copy.verdict for copy in found.copies} == {"unique"}
    assert found.unread == ("duplicate: topic copies was not read: the source is no topic",)


def test_since_leaves_out_earlier_windows(tmp_path: Path) -> None:
    """Those that began before it, in the store too."""
    world = small_world(tmp_path)
    found = explain(opened(world), ("a",), since_us=BEGIN_US + SECOND)
    assert {copy.window for copy in found.copies} == {1}
    assert found.unread == ()
    assert since("2h", now_us=7_200_000_001) == 1
    assert since("1970-01-01T00:00:01Z") == since("1970-01-01T00:00:01") == 1_000_000
    with pytest.raises(UsageError, match="--since soon: write a time as"):
        since("soon")


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_every_format_of_a_port_is_searched(kind: str, tmp_path: Path) -> None:
    """The same rows; texts beyond ASCII, an empty one and a null too."""
    job = PublishedStore(tmp_path, Kind(format=kind, key="[k, t]")).make()
    wanted = [row for rows in job.rows.values() for row in rows]
    for row in [*wanted[:5], *(row for row in wanted if row["k"] in (None, "", "é"))][:12]:
        found = explain(job.open(), (row["k"], row["t"]))
        (copy, *others) = found.copies
        assert others == []
        assert copy.known_by == "output"
        assert copy.record == {"v": 'line\nend, "quoted" '}
    assert explain(job.open(), ("key 1", 10**9)).copies == ()
    unread = explain(job.open(), ("key 1", 1)).unread
    assert any(line.startswith("duplicate: ") and line.endswith(" are not kept (format: none)") for line in unread)


@pytest.mark.parametrize(
    ("kind", "values", "sought", "rows"),
    [
        ("string", ["a", None, "b", "a"], "a", [0, 3]),
        ("string", ["a", None, "b", None], None, [1, 3]),
        ("binary", [b"\xff", b"", None], b"\xff", [0]),
        ("bigint", [5, -5, None], -5, [1]),
        ("boolean", [True, False, None], False, [1]),
        ("double", [0.0, -0.0, float("nan"), 1.5], 0.0, [0, 1]),
        ("double", [0.0, float("nan"), None, float("nan")], float("nan"), [1, 3]),
        ("date", [date(2024, 1, 1), None, date(2025, 1, 1)], date(2025, 1, 1), [2]),
        ("decimal(5,2)", [Decimal("1.50"), Decimal("2.00"), None], Decimal("1.5"), [0]),
        ("timestamp", [datetime(2024, 1, 1, tzinfo=UTC), None], datetime(2024, 1, 1, tzinfo=UTC), [0]),
        ("timestamp_ntz", [datetime(2024, 1, 1), None], datetime(2024, 1, 1), [0]),  # noqa: DTZ001 - no zone is meant
    ],
)
def test_a_row_group_is_read_only_if_its_bounds_allow_the_key(
    kind: str, values: list[Any], sought: KeyValue, rows: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups of one row: nothing is missed, and bounds exclude most."""
    (column,) = parse_columns(f"k {kind}")
    types = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_(), "date": pa.date32()}
    types |= {"binary": pa.binary(), "double": pa.float64(), "decimal": pa.decimal128(5, 2)}
    types |= {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
    dedup = [{"verdict": "unique", "window": number} for number in range(len(values))]
    file = tmp_path / "f.parquet"
    table = pa.table({"k": pa.array(values, types[column.type.name]), "_dedup": dedup})
    parquet.write_table(table, file, row_group_size=1)
    read: list[bool] = []
    has_key = published.has_key

    def counted(*arguments: Any) -> Any:
        read.append(True)
        return has_key(*arguments)

    monkeypatch.setattr(published, "has_key", counted)
    count, found = find_rows(local_place(file), SoughtKey((column,), (sought,)), (column,))
    assert (count, [row.row for row in found]) == (len(values), rows)
    # Bounds say nothing of NaN.
    assert len(read) == (len(values) - values.count(None) if isinstance(sought, float) else len(rows))


def test_the_store_alone_says_whether_a_key_is_remembered(tmp_path: Path) -> None:
    """Without the config, which names the outputs, or by wish; the answer says what it is without."""
    store = opened(small_world(tmp_path))
    of_both = explain(store, ("a",))
    quick = explain(store, ("a",), only_store=True)
    assert (quick.stored.is_remembered, quick.copies) == (True, ())
    assert quick.stored.entries == of_both.stored.entries
    assert quick.unread == ("outputs: left out by --only-store",)
    without = explain(replace(store, config=None), ("a",))
    assert (without.stored.next, without.copies) == ((), ())
    assert without.unread == ("outputs: name the config: it says where they are",)
    assert not any(line.startswith("copies") for line in printed(render(without), 80))


def test_an_explanation_suits_a_terminal(tmp_path: Path) -> None:
    """And says of every copy why."""
    found = explain(opened(small_world(tmp_path)), ("a",))
    lines = printed(render(found), 80)
    assert words(lines) <= words(printed(render(found), 300))
    check_lines([line for line in lines if "/" not in line], 80)
    assert lines[0] == "key         k = a"
    assert lines[2] == "remembered  yes"
    at = lines.index("copies    3: 1 unique, 2 duplicate")
    assert lines[at + 1] == "searched  5 rows in 3 files"
    assert any(line.startswith("  why         its first copy is in an earlier window") for line in lines)


def test_a_long_search_reports_and_a_short_one_does_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On standard error, every few seconds."""
    now = np.array([0.0])
    monkeypatch.setattr("deduper.cli.views.contents.time.monotonic", lambda: float(now[0]))
    progress = ScanProgress()
    progress(1, 4)
    now[0] = 2
    progress(1, 4)
    progress(2, 4)
    now[0] = 8
    progress(3, 4)
    progress.end()
    assert capsys.readouterr().err == "read 1 B of 4 B, 25%\nread 3 B of 4 B, 75%\n"
