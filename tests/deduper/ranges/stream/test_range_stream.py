"""A stream of events and ranges: each event once, with what is known of the ranges by its window."""

from __future__ import annotations

import base64
import csv
import importlib
import itertools
import json
import re
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from bucket_store.errors import CorruptionError, FencedError, SettingsChangedError
from deduper.admin.open_store import open_store
from deduper.config.problems import ConfigError
from deduper.errors import DeduperError, IntegrityError, UsageError
from deduper.ranges.stream.folders import FolderInput
from deduper.ranges.stream.ranges import merged_from
from deduper.ranges.stream.runner import StreamRunner, owned_store
from deduper.ranges.stream.settings import PortFolder, StreamJob
from tests.deduper.ranges.stream.stream_scene import DDL, EVENTS, OWN, RANGES, Model, Row, Scene, event, instant, ranged
from tests.tiers import is_night

pytestmark = pytest.mark.usefixtures("storage")


def told(scene: Scene, port: str) -> list[tuple[str, str, int, int]]:
    """(port, reason, number of the row, window) of a port of reasons."""
    return [
        (
            port,
            row["reason"],
            json.loads(row["record"])["event" if row["side"] == "event" else "campaign"],
            row["_window"],
        )
        for row in scene.rows(port)
    ]


def test_the_classic_example(tmp_path: Path) -> None:
    """The first table of docs/range-aggregates.md, with ranges that come before, with and after their events."""
    scene = Scene(tmp_path)
    scene.ranges.publish([ranged(1, "1", 0, 3600, 10), ranged(2, "1", 1860, 2100, 20), ranged(3, "1", 2280, 3000, 30)])
    scene.events.publish([event(1, "1", 1800), event(2, "1", 2700)], [event(3, "2", 1860)])
    scene.ranges.publish([ranged(4, "1", 3600, 4500, 40), ranged(5, "2", 0, 3600, 50)])
    scene.events.publish([event(4, "1", 3600), event(5, "2", 3600)])
    report = scene.run()
    assert scene.answers() == {1: (10, 1), 2: (40, 2), 3: (None, 0), 4: (50, 2), 5: (50, 1)}
    assert report.windows == 2
    assert [row["_window"] for row in scene.rows()] == [0, 0, 0, 1, 1]
    assert "_dedup" not in scene.rows()[0]
    assert scene.status.inputs["events"].window == 1
    assert scene.leftovers() == []
    assert scene.run().windows == 0


def test_the_first_window_waits_for_both_inputs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a file of ranges nobody knows what a sum of nothing is; the log names the folder that is waited for."""
    scene = Scene(tmp_path)
    scene.events.publish([event(1, "a", 5)])
    assert scene.run().windows == 0
    assert caplog.text.count("waiting for the first window of ranges") == 1
    caplog.clear()
    scene.ranges.publish([ranged(1, "a", 0, 9)])
    assert scene.run().windows == 1
    assert "waiting for" not in caplog.text
    scene.events.publish([event(2, "a", 6)])
    assert scene.run().windows == 1
    assert scene.answers() == {1: (1, 1), 2: (1, 1)}


def test_a_range_is_closed_exactly_one_period_after_its_end(tmp_path: Path) -> None:
    """
    0          50  51          150
    |--range 1--|               clock after the first events
                   e2: 1 behind the period's end, answered; e3 at 50: exactly a period old, expired
    """
    scene = Scene(tmp_path)
    scene.ranges.publish([ranged(1, "a", 0, 50), ranged(2, "a", 0, 51)])
    scene.events.publish([event(1, "a", 150)])
    scene.events.publish([event(2, "a", 51), event(3, "a", 50)])
    scene.ranges.publish([ranged(3, "a", 0, 50), ranged(4, "a", 0, 51), ranged(5, "a", 151, 160)])
    scene.run()
    assert scene.answers() == {1: (None, 0), 2: (2, 2)}
    assert sorted(told(scene, "late")) == [("late", "closed", 3, 1), ("late", "expired", 3, 1), ("late", "late", 4, 1)]


@pytest.mark.parametrize("late_ranges", ["port", "correct"])
def test_no_range_is_late_before_the_first_answer(tmp_path: Path, late_ranges: str) -> None:
    """A range that is open at its start begins before every event; once one was answered without it, it is late."""
    scene = Scene(tmp_path, {**RETRACTING, "late_ranges": late_ranges}, ("json", "json"))
    scene.ranges.publish([ranged(1, "a", None, 20), ranged(2, "a", None, 20)])
    scene.run()
    scene.ranges.publish([ranged(2, None, None, None, op="withdrawn"), ranged(3, "a", None, None)])
    scene.events.publish([event(1, "a", 10)])
    scene.run()
    assert (scene.answers(), told(scene, "late")) == ({1: (2, 2)}, [])
    scene.ranges.publish([ranged(4, "a", None, 20), ranged(3, None, None, None, op="withdrawn")])
    scene.run()
    late = sorted((reason, number) for _, reason, number, _ in told(scene, "late"))
    assert late == [("late", 4), ("late_retraction", 3)]


def test_windows_without_rows_do_not_wait(tmp_path: Path) -> None:
    """A job of duplicates alone publishes window after window, and no file of the port."""
    scene = Scene(tmp_path)
    source = scene.job.events
    assert isinstance(source, PortFolder)
    taking = FolderInput("events", source, None, 1)
    for _ in range(3):
        scene.events.publish()
    assert (taking.plan(), taking.waiting) == (False, 0)
    scene.events.publish([event(1, "a", 5)])
    scene.events.publish()
    scene.events.publish([event(2, "a", 6)])
    scene.events.publish()
    for left in (1, 0):
        assert (taking.plan(), taking.waiting) == (True, left + 1)
        taking.take()
        taking.committed()
        assert taking.waiting == left
    assert taking.position == [scene.events.store, 6]
    scene.events.publish()
    assert (taking.plan(), taking.waiting) == (False, 0)


def test_bad_rows_have_their_reasons(tmp_path: Path) -> None:
    """Events and ranges alike; good rows of the same files are answered."""
    scene = Scene(tmp_path, {"longest": "1000s"})
    scene.ranges.publish(
        [
            ranged(1, None, 0, 9),
            ranged(2, "a", 9, 0),
            ranged(3, "a", 0, 1001),
            ranged(4, "a", 0, None),
            ranged(5, "a", 0, 1000),
        ]
    )
    scene.events.publish([event(1, None, 5), event(2, "a", None), event(3, "a", 5)])
    scene.run()
    assert scene.answers() == {3: (1, 1)}
    assert sorted(told(scene, "errors")) == [
        ("errors", "null_id", 1, 0),
        ("errors", "null_id", 1, 0),
        ("errors", "null_time", 2, 0),
        ("errors", "start_after_end", 2, 0),
        ("errors", "too_long", 3, 0),
        ("errors", "too_long", 4, 0),
    ]


def test_a_late_range_corrects_what_is_remembered(tmp_path: Path) -> None:
    """By `correct`: each answered event that it covers, once, and no other one."""
    scene = Scene(tmp_path, {"late_ranges": "correct"})
    scene.ranges.publish([ranged(1, "a", 0, 1000, 10)])
    scene.events.publish([event(1, "a", 50), event(2, "a", 60), event(3, "b", 60), event(4, "a", 120)])
    scene.ranges.publish([ranged(2, "a", 55, 70, 1), ranged(3, "a", 58, 65, 2), ranged(4, "a", 10, 30, 5)])
    scene.events.publish([event(5, "a", 61)])
    scene.run()
    assert scene.answers() == {1: (10, 1), 2: (13, 3), 3: (None, 0), 4: (10, 1), 5: (13, 3)}
    assert [(row["event"], row["_window"]) for row in scene.rows("corrections")] == [(2, 1)]
    assert [row["event"] for row in scene.rows()] == [1, 2, 3, 4, 5]
    assert told(scene, "late") == [("late", "late", 4, 1)]


RETRACTING: Row = {"retraction": {"column": "op", "value": "withdrawn"}, "range_key": ("campaign",)}


@pytest.mark.parametrize("aggregates", [{"points": "sum(points)"}, {"points": "sum(points)", "most": "max(points)"}])
def test_a_retraction_withdraws_all_ranges_of_its_key(aggregates: Row, tmp_path: Path) -> None:
    """Also one of its own window that came before it, and none that comes after it; one without a range is an error."""
    scene = Scene(tmp_path, {**RETRACTING, "aggregates": aggregates, "late_ranges": "correct"})
    scene.ranges.publish([ranged(1, "a", 0, 90, 10), ranged(2, "a", 0, 90, 20)])
    scene.events.publish([event(1, "a", 50)])
    scene.ranges.publish(
        [
            *(
                ranged(1, None, None, None, op="withdrawn"),
                ranged(1, "a", 0, 90, 3),
                ranged(7, None, None, None, op="withdrawn"),
            ),
            *(ranged(3, "a", 0, 90, 100), ranged(3, None, None, None, op="withdrawn")),
        ]
    )
    scene.events.publish([event(2, "a", 51)])
    scene.ranges.publish([ranged(1, None, None, None, op="withdrawn"), ranged(2, None, None, None, op="withdrawn")])
    scene.events.publish([event(3, "a", 52)])
    scene.run()
    first = {row["event"]: row["points"] for row in scene.rows()}
    assert first == {1: 30, 2: 23, 3: None}
    assert {number: found[0] for number, found in scene.answers().items()} == {1: None, 2: None, 3: None}
    assert told(scene, "errors") == [("errors", "unknown_range", 7, 1)]


def test_a_retraction_is_late_by_what_it_withdraws_itself(tmp_path: Path) -> None:
    """The first withdraws a range that an event has been answered without; the second only one of its own window."""
    scene = Scene(tmp_path, RETRACTING)
    scene.ranges.publish([ranged(1, "a", 0, 90)])
    scene.events.publish([event(1, "a", 50)])
    gone = ranged(1, None, None, None, op="withdrawn")
    scene.ranges.publish([gone, ranged(1, "a", 0, 90), {**gone, "points": 2}])
    scene.run()
    assert [json.loads(row["record"])["points"] for row in scene.rows("late")] == [1]


def test_a_withdrawn_range_of_another_level_does_not_count_for_one_s_own(tmp_path: Path) -> None:
    """The range and its retraction lie in two levels, as after a start too."""
    scene = Scene(tmp_path, {**RETRACTING, "aggregates": {"n": f"{OWN}:different"}, "late_ranges": "correct"})
    scene.ranges.publish([ranged(number, "a", 0, 90, 1, float(number)) for number in range(9)])
    scene.events.publish([event(1, "a", 50)])
    scene.ranges.publish([ranged(3, None, None, None, op="withdrawn")])
    scene.events.publish([event(2, "a", 50)])
    assert scene.run().windows == 2
    assert scene.status.levels == 2
    assert scene.answers() == {1: (8,), 2: (8,)}
    scene.events.publish([event(3, "a", 50)])
    scene.run()
    assert scene.answers()[3] == (8,)


@pytest.mark.parametrize(
    ("kind", "value", "asks"),
    [
        *((pa.bool_(), True, True), (pa.bool_(), "true", True), (pa.bool_(), False, False)),
        *((pa.float64(), 1.0, 1), (pa.float64(), 1, 1), (pa.int32(), 7, 7), (pa.string(), 7, "7")),
        (pa.date32(), "2026-01-02", date(2026, 1, 2)),
    ],
)
def test_a_retraction_is_known_by_a_value_of_its_column_s_type(
    kind: pa.DataType, value: object, asks: object, tmp_path: Path
) -> None:
    """However the settings write it; a null is none."""
    scene = Scene(tmp_path, {"retraction": {"column": "mark", "value": value}, "range_key": ("campaign",)})
    scene.ranges.schema = RANGES.append(pa.field("mark", kind))
    scene.ranges.publish([ranged(1, "a", 0, 90, 10) | {"mark": None}, ranged(2, "a", 0, 90, 20) | {"mark": None}])
    scene.events.publish([event(1, "a", 50)])
    scene.ranges.publish([ranged(1, None, None, None) | {"mark": asks}])
    scene.events.publish([event(2, "a", 50)])
    scene.run()
    assert scene.answers() == {1: (30, 2), 2: (20, 1)}


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.bool_(), "withdrawn"), (pa.int64(), 1.5), (pa.float64(), "nan"), (pa.null(), "x")]
)
def test_a_value_of_retractions_that_the_column_cannot_have(kind: pa.DataType, value: object, tmp_path: Path) -> None:
    """Files of Parquet say so at the first window, and nothing is answered."""
    scene = Scene(tmp_path, {"retraction": {"column": "mark", "value": value}})
    scene.ranges.schema = RANGES.append(pa.field("mark", kind))
    scene.ranges.publish([ranged(1, "a", 0, 90, 10) | {"mark": None}])
    scene.events.publish([event(1, "a", 50)])
    with pytest.raises(UsageError, match=f"`mark` of ranges is {kind}, and the `value` of `retraction`, `{value}`"):
        scene.run()
    assert scene.rows() == []


def test_events_that_are_remembered_keep_their_types(tmp_path: Path) -> None:
    """A column of another type says so and what to do; one more is no hindrance."""
    scene = Scene(tmp_path, {"late_ranges": "correct", "max_windows": 2})
    scene.ranges.publish([ranged(1, "a", 0, 90, 10)])
    scene.events.publish([event(1, "a", 50)])
    scene.run()
    scene.events.schema = EVENTS.append(pa.field("page", pa.string()))
    scene.events.publish([event(2, "a", 50) | {"page": "x"}])
    scene.run()
    scene.events.schema = EVENTS.set(2, pa.field("event", pa.string()))
    scene.events.publish([event(3, "a", 50) | {"event": "3"}])
    scene.ranges.publish([ranged(2, "a", 0, 90, 1)])
    with pytest.raises(UsageError, match=r"remembered: .*event has incompatible types.*; cast it back, or begin"):
        scene.run()
    assert scene.answers() == {1: (10, 1), 2: (10, 1)}
    scene.events.schema = EVENTS
    scene.events.publish([event(4, "a", 50)])
    with pytest.raises(UsageError, match=r"disagree on their columns: .*event.*write `max_windows: 1`"):
        scene.run()


OF_ONE_S_OWN = """
from numba import njit
from deduper.ranges.aggregate.aggregates import Own

less = njit(lambda state, value: state - value)
doubled = Own("points", 0, njit(lambda state, value: state + value), less, njit(lambda state: 2 * state), "bigint")
broken = Own("points", 0.0, lambda state, value: state + 1 / value, less, lambda state: state, "double")
"""


@pytest.mark.slow
def test_aggregates_of_one_s_own_that_fail_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says which, and after a correction answers the same events; a compiled one beside them."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> None:
        (tmp_path / "shop_sums.py").write_text(text)
        sys.modules.pop("shop_sums", None)
        importlib.invalidate_caches()

    write(OF_ONE_S_OWN)
    scene = Scene(tmp_path, {"aggregates": {name: f"shop_sums:{name}" for name in ("doubled", "broken")}})
    scene.ranges.publish([ranged(1, "a", 0, 90, 2), ranged(2, "a", 0, 40, 0), ranged(3, "a", 45, 45, 5)])
    scene.events.publish([event(1, "a", 50)])
    assert scene.run().windows == 1
    scene.events.publish([event(2, "a", 40), event(3, "b", 40)])
    with pytest.raises(DeduperError, match="aggregate `broken`: its functions have raised ZeroDivisionError"):
        scene.run()
    assert scene.answers() == {1: (4, 0.5)}
    write(OF_ONE_S_OWN.replace("1 / value, less", "value * 1.0, less"))
    assert scene.run().windows == 1
    assert scene.answers() == {1: (4, 0.5), 2: (4, 2.0), 3: (0, 0.0)}
    assert scene.leftovers() == []
    write(OF_ONE_S_OWN.replace('broken = Own("points"', 'broken = Own("weight"'))
    with pytest.raises(SettingsChangedError, match="shop_sums:broken of points as double"):
        scene.run()


def test_an_answer_of_another_type_names_its_aggregate(tmp_path: Path) -> None:
    """A text where a number was promised."""
    scene = Scene(tmp_path, {"aggregates": {"n": f"{OWN}:text"}})
    scene.ranges.publish([ranged(1, "a", 0, 90)])
    scene.events.publish([event(1, "a", 50)])
    with pytest.raises(DeduperError, match="aggregate `n`: its functions have raised ArrowInvalid"):
        scene.run()
    assert scene.rows() == []


_SECONDS = st.integers(0, 300)
_WEIGHTS = st.none() | st.sampled_from([0.1, 0.2, -0.3, 1e16, 2.0**-40, 3.0])


@st.composite
def windows(draw: st.DrawFn) -> list[tuple[list[Row], list[Row]]]:
    """Windows of events and ranges, with bad rows and retractions among them."""
    found = []
    number = 0
    for _ in range(draw(st.integers(1, 7))):
        events, ranges = [], []
        for _ in range(draw(st.integers(0, 5))):
            number += 1
            events.append(event(number, draw(st.sampled_from(["a", "b", "a", "b", None])), draw(_SECONDS)))
        for _ in range(draw(st.integers(0, 5))):
            start, end = draw(st.none() | _SECONDS), draw(st.none() | _SECONDS)
            identity, op = draw(st.sampled_from(["a", "b"])), draw(st.sampled_from(["new", "new", "new", "withdrawn"]))
            points = draw(st.none() | st.integers(-5, 5))
            ranges.append(ranged(draw(st.integers(1, 8)), identity, start, end, points, draw(_WEIGHTS), op))
        found.append((events, ranges))
    return found


@pytest.mark.slow
@pytest.mark.night(but=["file-lists", "objects-bests"])
@pytest.mark.parametrize(
    "aggregates",
    [
        {"points": "sum(points)", "offers": "count", "mean": "mean(weight)", "spread": "variance(weight)"},
        {"least": "min(weight)", "most": "max(points)", "sum": "sum(weight)"},
        {"last": "last(weight)", "best": "top_k(points, 2)", "all": "list(weight)", "values": "set(points)"},
        {
            "different": f"{OWN}:different",
            "sum": "sum(points)",
            "sizes": f"{OWN}:sizes",
        },
    ],
    ids=["sums", "bests", "lists", "own"],
)
@settings(
    max_examples=60 if is_night() else 8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_every_answer_is_that_of_all_ranges_known(
    aggregates: Row, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Rows in any order, a new start for each window, levels that merge: the model's rows in every port."""
    late = data.draw(st.sampled_from(["correct", "port"]))
    scene = Scene(tmp_path_factory.mktemp("stream"), {**RETRACTING, "aggregates": aggregates, "late_ranges": late})
    model = Model(scene.job)
    # The first window has a file of both.
    for events, ranges in [([event(0, "a", 0)], [ranged(0, "a", 0, 20, 7, 0.1)]), *data.draw(windows())]:
        if not events and not ranges:
            continue
        if events:
            scene.events.publish(events)
        if ranges:
            scene.ranges.publish(ranges)
        model.judge(events, ranges)
        scene.run()
    names = list(aggregates)
    assert {row["event"]: tuple(row[name] for name in names) for row in scene.rows()} == model.first
    found = {(row["event"], row["_window"]): tuple(row[name] for name in names) for row in scene.rows("corrections")}
    assert found == model.corrected
    assert sorted([*told(scene, "late"), *told(scene, "errors")]) == sorted(model.told)
    assert scene.leftovers() == []


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_lines_of_text_are_answered_as_parquet_is(kind: str, tmp_path: Path) -> None:
    """Late ranges, retractions, bad rows; and lines that are no rows, each in `errors` with its text."""
    more = {"aggregates": {"points": "sum(points)", "last": "last(points)", "all": "list(weight)"}}
    scene = Scene(tmp_path, {**RETRACTING, "late_ranges": "correct", **more}, (kind, "json"))
    model = Model(scene.job)
    for number in range(4):
        at = 40.25 * number
        events = [event(2 * number, "a", at), event(2 * number + 1, [None, 'b,"é\\'][number % 2], at - 30)]
        ranges = [
            ranged(number, "a", at - 60, at + 30, number or None, 0.5),
            ranged(number + 10, 'b,"é\\', at, None, 7),
            ranged(number - 1, None, None, None, None, op="withdrawn"),
        ]
        scene.events.publish(events)
        scene.ranges.publish(ranges)
        model.judge(events, ranges)
    broken = [b'{"id": 1, "at"', b"\xff\xfe"] if kind == "json" else [b'a,"2026', b"\xff\xfe,,"]
    (last,) = scene.events.folder.glob(f"*-000000000003-0000.{kind}")
    last.write_bytes(last.read_bytes() + b"\n".join(broken))
    report = scene.run()
    names = list(scene.job.aggregates)
    assert {row["event"]: tuple(row[name] for name in names) for row in scene.rows()} == model.first
    found = {(row["event"], row["_window"]): tuple(row[name] for name in names) for row in scene.rows("corrections")}
    assert found == model.corrected
    assert found
    unparsable = [row for row in scene.rows("errors") if row["reason"] == "unparsable"]
    texts = [broken[0].decode(), base64.b64encode(broken[1]).decode()]
    assert unparsable == [{"side": "event", "reason": "unparsable", "record": text, "_window": 3} for text in texts]
    assert report.counts["events.unparsable"] == 2
    others = [row for row in scene.rows("errors") if row not in unparsable]
    assert len(others) + len(scene.rows("late")) == len(model.told)
    assert scene.leftovers() == []


def test_ports_of_csv_are_written_as_those_of_jobs(tmp_path: Path) -> None:
    """A line a row, lists as JSON, a null as nothing."""
    scene = Scene(tmp_path, {"aggregates": {"points": "sum(points)", "all": "list(points)"}}, ("parquet", "csv"))
    scene.ranges.publish([ranged(1, "a", 0, 9, 2), ranged(2, "a", 0, 9, 3)])
    scene.events.publish([event(1, "a", 5), event(2, "b", 5), event(3, None, 5)])
    scene.run()
    (file,) = (tmp_path / "out/output").glob("*.csv")
    rows = [[row[name] for name in ("event", "points", "all", "_window")] for row in csv.DictReader(file.open())]
    assert rows == [["1", "5", "[2,3]", "0"], ["2", "", "[]", "0"]]
    (file,) = (tmp_path / "out/errors").glob("*.csv")
    assert [row["reason"] for row in csv.DictReader(file.open())] == ["null_id"]


def test_declared_columns_need_no_first_file(tmp_path: Path) -> None:
    """A sum of nothing has the type of the declared column."""
    scene = Scene(tmp_path, kinds=("json", "json"))
    scene.events.publish([event(1, "a", 5)])
    assert scene.run().windows == 1
    scene.ranges.publish([ranged(1, "a", 0, 9)])
    scene.events.publish([event(2, "a", 6)])
    assert scene.run().windows == 1
    assert scene.answers() == {1: (None, 0), 2: (1, 1)}


def test_levels_grow_at_least_fourfold() -> None:
    """A million ranges that come by a thousand are a few levels, and each is moved a few tens of times."""
    rows: list[int] = []
    moved = 0
    for _ in range(1000):
        rows.append(1000)
        first = merged_from(rows, 4)
        if first < len(rows) - 1:
            moved += sum(rows[first:])
        rows[first:] = [sum(rows[first:])]
        assert len(rows) <= 6
        assert all(one >= 4 * other for one, other in itertools.pairwise(rows))
    assert moved < 32 * 1_000_000


def test_levels_do_not_grow_beyond_their_bound() -> None:
    """Remembered events: a full level stays as it is."""
    assert merged_from([100, 60, 50], 1, 100) == 2
    assert merged_from([100, 40, 50], 1, 100) == 1


def test_a_damaged_piece_stops_the_start(tmp_path: Path) -> None:
    """Each byte that was changed, and a piece that is gone."""
    scene = Scene(tmp_path)
    scene.ranges.publish([ranged(1, "a", 0, 90, 10)])
    scene.events.publish([event(1, "a", 50)])
    scene.run()
    (name,) = (scene.store / "ranges").listed()
    piece = scene.store / "ranges" / name
    whole = piece.read()
    for at in (0, 9, 200, len(whole) - 1):
        piece.replace(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptionError, match="piece"):
            scene.run()
    piece.remove()
    with pytest.raises(CorruptionError, match="no file"):
        scene.run()
    piece.create(whole)
    scene.run()
    assert scene.status.open_ranges == 1


def test_inputs_and_settings_that_do_not_continue(tmp_path: Path) -> None:
    """Another job's folder, a job that was put back, other types, another period: each is refused."""
    scene = Scene(tmp_path)
    scene.ranges.publish([ranged(1, "a", 0, 90, 10)])
    scene.events.publish([event(1, "a", 50)])
    scene.events.publish([event(2, "a", 51)])
    scene.run()
    scene.settings = {"period": "99s"}
    with pytest.raises(SettingsChangedError, match="period"):
        scene.run()
    scene.settings = {}
    scene.events.mark(0)
    with pytest.raises(IntegrityError, match=r"start that job.* try again; .* rewound"):
        scene.run()
    scene.events.mark(1)
    scene.events.store = "cc" * 16
    scene.events.mark(5)
    with pytest.raises(UsageError, match="cccccccc"):
        scene.run()


def test_commands_for_the_stores_of_jobs_refuse_a_stream(tmp_path: Path) -> None:
    """None of them may move, clean or read what is no job's."""
    scene = Scene(tmp_path)
    scene.run()
    with pytest.raises(UsageError, match="only `deduper status` shows it"):
        open_store(scene.store.url)
    file = tmp_path / "points.yaml"
    file.write_text(json.dumps(scene.written))
    with pytest.raises(UsageError, match="a range stream's file; only `deduper status` shows it"):
        open_store(str(file))


TYPED_RANGES: Row = {"format": "json", "path": "in/ranges", "schema": DDL["ranges"]}
TOPIC: Row = {"format": "kafka", "bootstrap_servers": "h:1"}
AVRO: Row = {
    "format": "avro",
    "avro_schema": json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "id", "type": {"type": "array", "items": "int"}}]}
    ),
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"aggregates": {"points": "first(points)"}}, "`first(points)` is not an aggregate; write one of count, sum"),
        ({"aggregates": {"n": "gone:n"}}, "aggregates.n: `gone:n` cannot be imported: ModuleNotFoundError: No module"),
        ({"aggregates": {"n": f"{OWN}:x"}}, "cannot be imported: AttributeError: module"),
        ({"aggregates": {"n": f"{OWN}:_add"}}, "own_aggregates:_add` is no `Own`; write `_add = Own(…)` there"),
        (
            {"aggregates": {"n": f"{OWN}:nested"}},
            "its type `array<struct<a:int>>` is not one of a column; write `type=",
        ),
        (
            {"aggregates": {"n": f"{OWN}:mistyped"}},
            "aggregates.n: its type `int64`: `int64` is not a type; write `type=",
        ),
        (
            {"ranges": TYPED_RANGES, "retraction": {"column": "campaign", "value": True}},
            "retraction.value: `campaign` of ranges is int64, and the `value` of `retraction`, `true`, is none",
        ),
        ({"retraction": {"column": "op", "value": None}}, "retraction.value: has no value"),
        ({"late_ranges": "correct"}, "late_ranges: correct"),
        ({"late": "out/output"}, "late: is the folder of `output`"),
        ({"period": None}, "period"),
        ({"events": {"format": "json", "path": "in/events"}}, "files of json have no types of their own"),
        ({"events": {"path": "in/events", "schema": "id string"}}, "Parquet has types of its own"),
        (
            {"ranges": {"format": "json", "path": "in/ranges", "schema": "id array<int>"}},
            "column `id` is of type array<int>",
        ),
        (
            {"events": {"format": "kafka", "topics": ["in"], "bootstrap_servers": "h:1", "value": {"format": "avro"}}},
            "avro_schema: is missing",
        ),
        ({"events": {**TOPIC, "topics": ["in"], "value": AVRO}}, "column `id` is of type array<int>"),
        (
            {
                "events": {
                    **TOPIC,
                    "topics": ["in"],
                    "value": {"format": "json", "schema": "id string"},
                    "order": "time",
                    "slack": "1h",
                }
            },
            "events.order: a range stream reads partitions as they come; remove it and `slack`",
        ),
        ({"output": {"format": "kafka", "topic": "out"}}, "the brokers are missing"),
        (
            {name: {"format": "kafka", "topic": "t", "bootstrap_servers": "h:1"} for name in ("output", "late")},
            "late: is the topic of `output`",
        ),
        (
            {
                "events": {**TOPIC, "topic_pattern": "points-.*", "value": {"format": "json", "schema": "id string"}},
                "output": {"format": "kafka", "topic": "points-out"},
            },
            "output.topic: is a topic of `events`",
        ),
        ({"store": None}, "store: has no value"),
        ({"store": "file:"}, "store: `file:` is not a place"),
        ({"store": "rocksdb:state"}, "store: `rocksdb:` is no place of a stream's store"),
        ({"store": "s3a://bucket/points"}, "store: `s3a:` is not the name of an object store here"),
        ({"store": "s3://key:secret@bucket/points"}, "store: is not the URL of an object store"),
        ({"store": "hdfs:///points"}, "is not the URL of a folder in HDFS"),
        ({"store": "hdfs://h:1/out", "late": "hdfs://h:1/out"}, "late: is the folder of `store`"),
        ({"store": "hdfs://h:1/out", "late": "hdfs://H:1/x/../out/late"}, "late: overlaps `store`"),
        ({"store": "out/output/store"}, "overlaps `store`"),
        ({"events": "out/late/events"}, "overlaps `events`"),
        ({"late": "s3://bucket/late"}, "late: a port of files cannot be in an object store"),
        ({"events": "s3://bucket/unique"}, "events: a port of files cannot be in an object store"),
    ],
)
def test_mistakes_in_the_settings_have_their_places(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    """File, line, setting, and what to write."""
    scene = Scene(tmp_path)
    file = tmp_path / "points.yaml"
    file.write_text(json.dumps({**scene.written, **changed}))
    with pytest.raises(ConfigError) as caught:
        StreamJob.load(file, environment={})
    assert message in "\n".join(problem.headline for problem in caught.value.problems)
    assert all(problem.place.line == 1 and problem.write for problem in caught.value.problems)


def test_settings_in_the_docs_are_valid(tmp_path: Path) -> None:
    """Those of folders, and over them those of topics."""
    text = (Path(__file__).parents[4] / "docs/range-aggregates.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text.partition("## On a stream")[2], re.DOTALL)
    folders, topics = (YAML(typ="safe").load(block) for block in blocks[:2])
    for written in (folders, folders | topics):
        (tmp_path / "points.yaml").write_text(json.dumps(written))
        assert StreamJob.load(tmp_path / "points.yaml", environment={}).aggregates == {
            "points": "sum(points)",
            "offers": "count",
        }


def test_the_clock_is_that_of_the_windows_before(tmp_path: Path) -> None:
    """Rows of one window do not expire one another, in whatever order they lie."""
    scene = Scene(tmp_path)
    scene.ranges.publish([ranged(1, "a", 0, 90, 10)])
    scene.events.publish([event(1, "a", 5000), event(2, "a", 50)])
    scene.run()
    assert scene.answers() == {1: (None, 0), 2: (10, 1)}
    at = instant(5000)
    assert at is not None
    assert scene.status.clock_us == int(at.timestamp() * 1e6)


def test_an_owner_that_was_overtaken_publishes_nothing(tmp_path: Path) -> None:
    """Whatever step it slept at: its window is the new owner's, once."""
    scene = Scene(tmp_path)
    scene.ranges.publish([ranged(1, "a", 0, 90, 10)])
    scene.events.publish([event(1, "a", 50)])
    with owned_store(scene.job, take_over=False, wall_clock_us=lambda: 1) as owned:
        sleeper = StreamRunner(scene.job, owned, lambda: 1)
        judge = sleeper._judge.judge

        def overtaken(*arguments: Any) -> Any:
            judged = judge(*arguments)
            assert scene.run(take_over=True).windows == 1
            return judged

        sleeper._judge.judge = overtaken  # type: ignore[method-assign]
        assert sleeper.plan()
        with pytest.raises(FencedError):
            sleeper.run()
    assert [(row["event"], row["_window"]) for row in scene.rows()] == [(1, 0)]
    scene.events.publish([event(2, "a", 51)])
    assert scene.run().windows == 1
    assert scene.answers() == {1: (10, 1), 2: (10, 1)}
    assert scene.leftovers() == []


def test_an_idle_owner_notices_that_it_was_overtaken(tmp_path: Path) -> None:
    """It has no window to make, and would follow its inputs for ever beside the new owner."""
    scene = Scene(tmp_path)
    with owned_store(scene.job, take_over=False, wall_clock_us=lambda: 1) as owned:
        idle = StreamRunner(scene.job, owned, lambda: 1)
        assert not idle.plan()
        scene.run(take_over=True)
        with pytest.raises(FencedError):
            idle.plan()
