"""The report: its numbers are the store's, its page is whole by itself, and shows no secret and no record."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bucket_store.log.history import History, Sample
from deduper.admin.health import Health, State
from deduper.admin.open_store import OpenStore
from deduper.admin.report import charts
from deduper.admin.report.charts import Axis, Series
from deduper.admin.report.collect import Course, JobReport, Point, report_of
from deduper.admin.report.page import _axis as axis_of
from deduper.admin.report.page import page
from deduper.cli.views.status import render_over_time as render
from deduper.config.sections import PORTS
from deduper.testing import Row, Settings
from deduper.window.accessories import leak_watch
from tests.deduper.leaks.test_meter import settings_of, stream
from tests.deduper.small_service import Process, Trial, World, machine_of
from tests.deduper.window.test_leak_watch import run, texts

pytestmark = pytest.mark.slow
CANARY = "canary-7f3a"
MINUTE_US = 60_000_000
BEGIN_US = 1_767_225_600_000_000
VOID = {"meta", "rect", "line", "polyline", "polygon", "circle"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A job that measures every key."""
    monkeypatch.setattr(leak_watch, "_BITS", 0)
    world = World(tmp_path, Trial(settings_of("own_bucket"), shards=2))
    with machine_of(world):
        yield world


def opened(world: World, process: Process) -> OpenStore:
    """As `report` opens it."""
    return OpenStore(world.config.store.url, world.config, process.log, process.pieces)


@pytest.fixture
def report(world: World) -> JobReport:
    """Of eight windows, and one with the canary as a key."""
    process = Process(world)
    run(process, [*texts(stream(3)), [[Row((CANARY,), 420), Row((CANARY,), 420)]]])
    process.runner.close()
    return report_of(opened(world, process), now_us=BEGIN_US)


class _Checker(HTMLParser):
    """Finds elements that do not close, addresses, scripts, and charts without a text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []
        self.tags: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        given = dict(attrs)
        if tag in ("script", "link", "iframe", "img", "object", "embed"):
            self.problems.append(f"<{tag}>")
        self.problems += [name for name in given if name in ("src", "href", "action") or name.startswith("on")]
        if tag == "svg" and not (given.get("role") == "img" and given.get("aria-label")):
            self.problems.append("a chart without a text")
        if tag == "th" and "scope" not in given:
            self.problems.append("a heading without a scope")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.problems.append(f"</{tag}>")


def checked(text: str) -> _Checker:
    """The page, read."""
    checker = _Checker()
    checker.feed(text)
    assert checker.problems == []
    assert checker.open == []
    return checker


def test_the_course_adds_up_to_the_store(report: JobReport) -> None:
    """Every port, window by window; files, keys and the leak meter too."""
    (course,) = report.courses
    assert course.level == "window"
    assert [(point.first_window, point.next_window) for point in course.points] == [(at, at + 1) for at in range(9)]
    for port, count in report.counts.items():
        assert sum(point.counts[port] for point in course.points) == count
    assert sum(point.partitions["files"] for point in course.points) == 17
    assert course.points[-1].entries == report.entries
    assert report.leaks is not None
    assert course.points[-1].leaks["lookup"][0] == report.leaks.missed["lookup"].records > 0


def test_the_page_is_whole_by_itself(report: JobReport) -> None:
    """No script, no address, no request; every chart has a text, every element closes; it is small."""
    text = page(report)
    assert checked(text).tags["svg"] >= 7
    assert "prefers-color-scheme: dark" in text
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|url\(|@import", text)
    assert len(text) < 400_000
    assert f"{report.rows:,}" in text


def test_no_secret_and_no_record_is_in_it(report: JobReport, world: World) -> None:
    """Neither in the page nor in the summary nor in JSON."""
    shown = page(report) + json.dumps(report.to_json()) + "".join(map(str, render(report)))
    salt = Process(world).log.manifest.salt.hex()
    for hidden in (CANARY, salt, str(world.root)):
        assert hidden not in shown


def test_json_has_stable_keys(report: JobReport) -> None:
    """For programs."""
    answer = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert list(answer) == [
        "made",
        "version",
        "name",
        "store_id",
        "created",
        "key",
        "expiry",
        "lookup",
        "time",
        "windows",
        "rows",
        "counts",
        "reasons",
        "latest_point",
        "entries",
        "pieces",
        "bytes",
        "lateness",
        "distance",
        "age",
        "health",
        "leaks",
        "courses",
    ]
    (course,) = answer["courses"]
    assert list(course) == ["level", "points"]
    assert list(course["points"][0]) == [
        "first_window",
        "next_window",
        "wall_us",
        "counts",
        "seconds",
        "entries",
        "bytes",
        "watermark_lag_s",
        "partitions",
        "leaks",
    ]


def test_names_are_escaped(report: JobReport) -> None:
    """Names of jobs and columns are texts, whatever they are."""
    text = page(replace(report, name="<b>&", key=("<script>alert(1)</script>",)))
    checked(text)
    assert "&lt;b&gt;&amp;" in text


def test_a_store_without_history(tmp_path: Path) -> None:
    """Of an earlier release, or before the first window: the rest is shown."""
    world = World(tmp_path, Trial(Settings("never")))
    with machine_of(world):
        found = report_of(opened(world, Process(world)))
    assert found.courses == ()
    assert found.leaks is None
    text = page(found)
    checked(text)
    assert "No window has been recorded yet" in text
    assert render(found)


@pytest.mark.parametrize(
    ("hours", "levels"), [(0.1, ["window"]), (20, ["window", "minute"]), (24 * 9, ["minute", "hour"])]
)
def test_the_level_is_the_finest_that_has_it_all(tmp_path: Path, hours: float, levels: list[str]) -> None:
    """And before it the finer one of its end; never more than 121 points, and no record is lost."""
    world = World(tmp_path, Trial(settings_of("own_bucket")))
    with machine_of(world):
        process = Process(world)
    history = History(process.log.root, process.log.manifest.store_id, next_window=1 << 40)
    history.begin(Sample(BEGIN_US, 0, {"unique": 0}))
    count = int(hours * 60)
    for window in range(count):
        history.add(Sample(BEGIN_US + window * MINUTE_US, window + 1, {"unique": 7 * (window + 1), "seconds": window}))
    history.write()
    found = report_of(opened(world, process))
    assert [course.level for course in found.courses] == levels
    assert sum(point.counts["unique"] for point in found.courses[-1].points) == 7 * count
    assert all(len(course.points) <= 121 for course in found.courses)
    checked(page(found))


AXIS = Axis([0.25, 0.75], 0.5, ["one", "two & more"], [(0.25, "1"), (0.75, "2")])


def heights(text: str) -> list[float]:
    """Of the columns that are drawn."""
    drawn = re.sub(r'<g class="hover">.*?</g>', "", text, flags=re.DOTALL)
    return [float(height) for height in re.findall(r'<rect [^>]*height="([\d.]+)"', drawn)]


def test_columns_are_as_high_as_their_numbers() -> None:
    """On one another, by one axis; a title for each point."""
    text = charts.columns("T", "t", AXIS, [Series("a", "x", [1.0, 2.0]), Series("b", "y", [1.0, 0.0])], str)
    first, second, third = heights(text)
    assert second == pytest.approx(2 * first, abs=0.02)
    assert third == pytest.approx(first, abs=0.02)
    assert "two &amp; more\na: 2.0\nb: 0.0" in text
    checked(text)


def test_lines_leave_out_what_is_not_known() -> None:
    """One known point is a dot, two are a line; below 0 is below the line of 0; a band has both ends."""
    lone = charts.lines("T", "t", AXIS, [Series("a", "x", [None, 2.0])], str)
    assert "<circle" in lone
    assert "<polyline" not in lone
    text = charts.lines("T", "t", AXIS, [Series("a", "x", [-1.0, 1.0])], str, band=([-2.0, 0.5], [0.0, 3.0]))
    ((left, right),) = re.findall(r'<polyline [^>]*points="([^ ]+) ([^"]+)"', text)
    assert float(left.split(",")[1]) > float(right.split(",")[1])
    assert "<polygon" in text
    for each in (lone, text):
        checked(each)


@pytest.mark.parametrize("values", [[0.0, 0.0], [1e-9, 1e12], [5.0, 5.0]])
def test_any_numbers_can_be_drawn(values: list[float]) -> None:
    """None, and both very small and very large ones."""
    for draw in (charts.columns, charts.lines):
        text = draw("T", "t", AXIS, [Series("a", "x", values)], lambda value: f"{value:g}")
        checked(text)
        assert "nan" not in text


def test_an_outage_is_a_pause_on_the_axis_of_time() -> None:
    """Points are where they were in time; no line and no band goes through the pause, which says how long it was."""
    minutes = [0, 1, 2, 62, 63, 64]
    course = Course("window", tuple(point(at, BEGIN_US + minute * MINUTE_US) for at, minute in enumerate(minutes)))
    axis = axis_of(course)
    assert axis.pauses == [(3, "no window for 60 min")]
    assert axis.places[3] - axis.places[2] == pytest.approx(60 * (axis.places[1] - axis.places[0]))
    values = [1.0] * 6
    text = charts.lines("T", "t", axis, [Series("a", "x", values)], str, band=(values, values))
    assert [len(line.split()) for line in re.findall(r'<polyline [^>]*points="([^"]+)"', text)] == [3, 3]
    assert text.count("<polygon") == 2
    assert 'class="pause"' in text
    checked(text)


def test_windows_at_the_trigger_are_no_pauses() -> None:
    """A window that takes three times as long as others is none either."""
    seconds = [0, 10, 20, 50, 60, 70]
    course = Course("window", tuple(point(at, BEGIN_US + second * 10**6) for at, second in enumerate(seconds)))
    assert axis_of(course).pauses == []


def test_the_page_says_how_the_job_ended(report: JobReport) -> None:
    """The health of `status`, with the last end; each tile is a sentence."""
    ended = Health(State.NOT_RUNNING, "the last job ended 5 min ago with exit 1: /out: No space left on device")
    text = page(replace(report, health=ended))
    assert f'<p class="state other">{ended}</p>' in text
    tiles = re.findall(r"<em>(.*?)</em>", text)
    assert len(tiles) == 7
    assert all(tile.endswith(".") for tile in tiles)


def point(at: int, wall_us: int) -> Point:
    """A window."""
    return Point(at, at + 1, wall_us, dict.fromkeys(PORTS, 1), 1.0, at, at, None, {"files": 1}, {})


def test_a_store_without_a_config_file_has_a_page(world: World) -> None:
    """That of a query with `Deduper`: it has the name of its folder."""
    process = Process(world)
    run(process, texts(stream(3)))
    process.runner.close()
    found = report_of(OpenStore(world.config.store.url, None, process.log, process.pieces), now_us=BEGIN_US)
    assert (found.name, found.courses[-1].points[-1].entries) == (process.log.root.name, found.entries)
    checked(page(found))
