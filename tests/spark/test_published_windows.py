"""Following a port by whole windows: each row once, whatever is half done in the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from deduper import Deduper, Never, UsageError
from deduper.query.published_windows import PublishedWindows

pytestmark = pytest.mark.spark


@pytest.fixture
def port(session: SparkSession, tmp_path: Path) -> Deduper:
    """A store with three windows of two new keys each."""
    session.dataSource.register(PublishedWindows)
    dedup = Deduper(f"file:{tmp_path}/state", key="k", expiry=Never(), shards=1)
    write = dedup.into(unique=tmp_path / "unique", duplicate=None, expired=None, error=None)
    for number in range(3):
        write(session.createDataFrame([(f"{number}a",), (f"{number}b",), ("0a",)], "k string"), number)
    dedup.close()
    return dedup


def follow(session: SparkSession, tmp_path: Path, **options: Any) -> list[list[str]]:
    """What a query that follows the port gets until it is drained: keys by batch."""
    got: list[list[str]] = []

    def take(rows: DataFrame, _: int) -> None:
        got.append(sorted(row.k for row in rows.collect()))

    stream = session.readStream.format("deduper").option("store", f"file:{tmp_path}/state").option("port", "unique")
    query = stream.options(**options).load().writeStream.foreachBatch(take)
    query.option("checkpointLocation", str(tmp_path / "reader")).trigger(availableNow=True).start().awaitTermination()
    return got


def test_a_port_is_followed_window_by_window(session: SparkSession, port: Deduper, tmp_path: Path) -> None:
    """With a limit a batch has so many windows; a window that has no mark is not there."""
    newest = max((tmp_path / "unique").glob("*.parquet"))
    half = newest.with_name(newest.name.replace("000000000002", "000000000003"))
    half.write_bytes(newest.read_bytes())
    assert follow(session, tmp_path, maxWindowsPerTrigger=1) == [["0a", "0b"], ["1a", "1b"], ["2a", "2b"]]
    half.unlink()
    dedup = Deduper(f"file:{tmp_path}/state", key="k", expiry=Never(), shards=1)
    write = dedup.into(unique=tmp_path / "unique", duplicate=None, expired=None, error=None)
    write(session.createDataFrame([("3a",), ("0a",)], "k string"), 3)
    dedup.close()
    assert follow(session, tmp_path) == [["3a"]]
    rows = session.read.format("deduper").option("store", f"file:{tmp_path}/state").option("port", "unique").load()
    assert rows.count() == 7
    assert {row.window for row in rows.select("_dedup.window").collect()} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": "unique"}, "option store is missing"),
        ({"store": "{store}", "port": "uniques"}, "write one of unique"),
        ({"store": "{store}", "port": "duplicate"}, "is `format: none`; only folders of Parquet"),
        ({"store": "{store}", "port": "unique", "maxWindows": "3"}, "option maxwindows is unknown"),
        ({"store": "{store}", "port": "unique", "maxWindowsPerTrigger": "0"}, "a whole number of windows"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str, port: Deduper, tmp_path: Path) -> None:
    """Before anything is read."""
    del port
    filled = {name: value.replace("{store}", f"file:{tmp_path}/state") for name, value in options.items()}
    with pytest.raises(UsageError, match=message):
        PublishedWindows(filled)
