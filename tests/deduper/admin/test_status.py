"""What `status` tells of a store."""

from __future__ import annotations

import io
import os
import platform
import subprocess
import time
from pathlib import Path

import pytest
from rich.console import Console

from bucket_store.errors import StoreMissingError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.heartbeat import HeartBeat
from bucket_store.log.marks import PUBLISHED_NAME, Published, prepare_published
from bucket_store.places.local import local_place
from deduper.admin.open_store import open_store
from deduper.admin.status import store_status
from deduper.cli.views.status import render
from deduper.config.problems import ConfigError
from deduper.core.statistics import SpanCounts, Statistics
from deduper.errors import UsageError
from deduper.window.policy import STATISTICS
from tests.deduper.store_samples import BEGIN_US, HOUR_US, SeenKey, Window, make_store, write_config

BUCKET = BEGIN_US // HOUR_US

WINDOWS = [
    Window([SeenKey((f"u{n}", n), BUCKET, BEGIN_US, n) for n in range(10)], BEGIN_US, {"duplicate": 5}),
    Window([SeenKey(("a", 1), BUCKET, BEGIN_US)], BEGIN_US + HOUR_US, {"error": 3}, {"malformed": 2, "null_key": 1}),
    Window(latest_point=BEGIN_US + HOUR_US, counts={"expired": 1}, reasons={"older_than_period": 1}),
]


def test_lateness_and_distances_that_windows_have_counted(tmp_path: Path) -> None:
    """Upper ends of buckets, for programs and people; what was not counted is left out."""
    late = SpanCounts.of([(0, 50), (20e6, 48), (90 * 86_400e6, 2)])
    file = write_config(tmp_path)
    counted = Statistics(lateness=late, distance=SpanCounts.of([(4e6, 1)])).to_wire()
    make_store(file, [Window(latest_point=BEGIN_US, extra={STATISTICS: counted})])
    status = store_status(open_store(str(file)), last=1)
    assert status.spans == {
        "lateness": {"count": 100, "mean_s": 155529.6, "half_s": 0.0, "most_s": None},
        "distance": {"count": 1, "mean_s": 4.0, "half_s": 5.0, "most_s": 5.0},
    }
    console = Console(file=io.StringIO(), width=100)
    for part in render(status, verbose=True):
        console.print(part)
    lines = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert ["late", "by", "half", "0", "s,", "99", "%", "more", "than", "30d"] in lines
    assert ["copies", "apart", "half", "up", "to", "5s,", "99", "%", "up", "to", "5s"] in lines


def test_everything_a_store_holds(tmp_path: Path) -> None:
    """Keys are stable, times and points ready to print."""
    file = write_config(tmp_path)
    make_store(file, WINDOWS)
    found = store_status(open_store(str(file)), last=2).to_json()
    sizes = found.pop("bytes_on_disk")
    assert sizes["pieces"] > 0
    assert sizes["log"] > 0
    assert sizes["total"] == sum(size for part, size in sizes.items() if part != "total")
    assert found.pop("bytes_per_key") == round(sizes["pieces"] / 11, 1)
    assert len(found.pop("store_id")) == 32
    assert len(found.pop("incarnation")) == 16
    assert found.pop("settings")["key"] == ["user string", "id bigint"]
    assert found.pop("pieces") in (2, 3)
    assert found.pop("health")["state"] == "not running"
    assert found.pop("since_window_s") > found.pop("behind_s") - 3600
    assert found.pop("rates") == {"unique": 5.5, "duplicate": 2.5, "expired": 0.0, "error": 1.5}
    assert found.pop("leaks") is None, "no job has measured"
    assert found.pop("spans") == {}, "nor counted"
    assert found.pop("profile") == {"windows": [], "shares": {}, "task_shares": {}}
    assert found == {
        "url": f"file:{tmp_path}/state",
        "created": "2024-12-31T00:00:00Z",
        "epoch": 1,
        "owner": None,
        "running": False,
        "last_end": None,
        "windows": 3,
        "last_commit": "2024-12-31T00:00:02Z",
        "latest_point": "2024-12-31T01:00:00Z",
        "expiry_point": "2024-12-30T01:00:00Z",
        "published_through": None,
        "unpublished": [0, 1, 2],
        "rows": 20,
        "counts": {"unique": 11, "duplicate": 5, "expired": 1, "error": 3},
        "reasons": {"malformed": 2, "null_key": 1, "older_than_period": 1},
        "entries": 11,
        "retired_pieces": 0,
        "last_windows": [
            {
                "window": 1,
                "epoch": 1,
                "begun": "2024-12-31T00:00:01Z",
                "rows": 4,
                "unique": 1,
                "duplicate": 0,
                "expired": 0,
                "error": 3,
                "latest_point": "2024-12-31T01:00:00Z",
            },
            {
                "window": 2,
                "epoch": 1,
                "begun": "2024-12-31T00:00:02Z",
                "rows": 1,
                "unique": 0,
                "duplicate": 0,
                "expired": 1,
                "error": 0,
                "latest_point": "2024-12-31T01:00:00Z",
            },
        ],
        "history": {"complete_since": None, "complete": False, "seed_open": False},
        "waiting_files": None,
        "lag": None,
    }


def test_published_is_what_the_mark_or_the_log_says_whichever_is_further(tmp_path: Path) -> None:
    """The mark may be lost, and the log learns of it only with the next record."""
    file = write_config(tmp_path)
    make_store(file, WINDOWS, published=1)
    assert store_status(open_store(str(file)), last=0).published_through == 1
    assert store_status(open_store(str(file)), last=0).unpublished == (2, 3)
    mark = Published(open_store(str(file)).log.manifest.store_id, 2, 1)
    path = tmp_path / "state" / PUBLISHED_NAME
    prepare_published(local_place(path), mark).put()
    assert store_status(open_store(str(file)), last=0).unpublished == (3,)


def test_an_owner_is_running_while_its_heart_beats(tmp_path: Path) -> None:
    """Its name stays when it died without a word."""
    file = write_config(tmp_path)
    make_store(file, WINDOWS)
    HeartBeat(local_place(tmp_path / "state"), "host:7").beat()
    status = store_status(open_store(str(file)), last=0)
    assert (status.owner, status.is_running) == ("host:7", True)


def test_an_owner_of_this_machine_whose_process_is_gone_is_not_running(tmp_path: Path) -> None:
    """However recent its last beat is."""
    file = write_config(tmp_path)
    make_store(file, WINDOWS)
    gone = subprocess.Popen(["true"])
    gone.wait()
    for pid, runs in ((os.getpid(), True), (gone.pid, False)):
        HeartBeat(local_place(tmp_path / "state"), f"{platform.node()}:{pid}").beat()
        assert store_status(open_store(str(file)), last=0).is_running is runs


@pytest.mark.parametrize(("count", "windows"), [(0, []), (1, [39]), (3, [37, 38, 39]), (99, list(range(40)))])
def test_the_newest_windows_are_found_from_the_end_of_the_log(count: int, windows: list[int], tmp_path: Path) -> None:
    """None, some, or all there are."""
    file = write_config(tmp_path)
    make_store(file, [Window(latest_point=BEGIN_US)] * 40)
    assert [commit.window for commit in open_store(str(file)).log.last_commits(count)] == windows


def test_a_status_can_be_read_by_a_person(tmp_path: Path) -> None:
    """The same numbers, with thousands separated and unpublished windows named."""
    file = write_config(tmp_path)
    make_store(file, WINDOWS)
    console = Console(width=160, file=io.StringIO())
    console.print(*render(store_status(open_store(str(file)), last=5), verbose=True))
    text = console.file.getvalue()
    for part in (f"file:{tmp_path}/state", "windows 0, 1, 2", "11 keys", "2024-12-31T01:00:00Z", "55.0%", "null_key"):
        assert part in text


def test_a_store_that_has_seen_nothing_has_a_status(tmp_path: Path) -> None:
    """No windows, no keys, nothing to divide by."""
    file = write_config(tmp_path)
    make_store(file, [])
    status = store_status(open_store(str(file)), last=5)
    assert (status.windows, status.rows, status.bytes_per_key, status.latest_point) == (0, 0, None, None)
    assert render(status)


def test_files_that_no_window_has_judged_wait(tmp_path: Path) -> None:
    """An empty one waits for its writer, not for the job."""
    file = write_config(tmp_path)
    make_store(file, WINDOWS)
    assert store_status(open_store(str(file)), last=0).waiting_files is None  # there is no folder to list
    for number, text in enumerate(("{}", "", "{}")):
        path = tmp_path / "in" / f"{number}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    status = store_status(open_store(str(file)), last=0)
    assert status.waiting_files == 2
    assert status.health.why.endswith(
        "; the next start publishes 3 windows (0 to 2); 2 files wait"
        "; unusual: 15% of the newest rows are errors (malformed)"
    )


def test_a_job_that_starts_again_and_again_says_so(tmp_path: Path) -> None:
    """Whether it runs at the moment or not; starts of long ago do not count."""
    file = write_config(tmp_path)
    make_store(file, WINDOWS)
    log, now_us = CommitLog.open(local_place(tmp_path / "state")), time.time_ns() // 1000
    for minutes in (50, 40, 20, 10, 2, 1):
        log.claim_epoch("host:7", now_us - minutes * 60_000_000)
    HeartBeat(local_place(tmp_path / "state"), "host:7").beat()
    assert store_status(open_store(str(file)), last=0).health.why.endswith("; 4 starts in 30 min")


def test_a_config_that_does_not_fit_the_store_needs_a_person(tmp_path: Path) -> None:
    """Its job would not start, so this is the first thing to say."""
    file = write_config(tmp_path)
    make_store(file, WINDOWS)
    file.write_text(file.read_text(encoding="utf-8").replace("shards: 2", "shards: 3"), encoding="utf-8")
    health = store_status(open_store(str(file)), last=0).health
    assert str(health).startswith("needs a person: the config and the store differ in shards")


def test_what_is_no_store_says_so(tmp_path: Path) -> None:
    """A config without a store yet, a folder of other things, no file at all."""
    file = write_config(tmp_path)
    with pytest.raises(StoreMissingError):
        open_store(str(file))
    with pytest.raises(UsageError, match="this folder holds no store"):
        open_store(str(tmp_path))
    with pytest.raises(ConfigError, match="there is no such file"):
        open_store(str(tmp_path / "other.yaml"))
