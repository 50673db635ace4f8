"""A follower of a port over a rewind, without Spark: its offsets are of one history of the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from deduper.admin.move.rewind import rewind
from deduper.errors import IntegrityError
from deduper.query.published_windows import PublishedWindows, ReadAllAvailable, _StreamReader
from deduper.window.publishing import mark_published
from tests.deduper.published_store import WALL_US, PublishedStore

ALL = ReadAllAvailable()


def marked(store: PublishedStore, window: int) -> None:
    """A next owner of the store has published its windows up to this one."""
    opened = store.open()
    opened.log.claim_epoch("job:1", WALL_US)
    assert opened.config is not None
    mark_published(opened.config, opened.log, window)


@pytest.fixture
def store(tmp_path: Path) -> PublishedStore:
    """Four windows, published."""
    made = PublishedStore(tmp_path).make()
    marked(made, 3)
    return made


def follower(store: PublishedStore) -> _StreamReader:
    """A query that follows the unique port, as it starts."""
    source = PublishedWindows({"store": str(store.config_file), "port": "unique"})
    return source.streamReader(StructType())


def test_a_rewind_below_what_was_read_ends_the_follower(store: PublishedStore) -> None:
    """Also if as many windows were judged since, and for a batch that was planned before and comes again."""
    reader = follower(store)
    read = reader.latestOffset(reader.initialOffset(), ALL)
    assert read["next"] == 4
    assert len(reader.partitions(reader.initialOffset(), read)) >= 4
    rewind(store.open(), 1, now_us=WALL_US)
    for judged in (1, 2, 3, 9):  # right after the rewind; fewer windows; as many; more
        marked(store, judged)
        for one in (reader, follower(store)):
            with pytest.raises(IntegrityError, match="up to 3 were read, and those after 1 were undone since"):
                one.latestOffset(read, ALL)
            with pytest.raises(IntegrityError, match="read the port from its beginning, with a new checkpoint"):
                one.partitions(one.initialOffset(), read)


def test_a_rewind_to_what_was_read_and_a_restart_change_nothing(store: PublishedStore) -> None:
    """The windows that were read are still those of the store."""
    reader = follower(store)
    read = {**reader.latestOffset(reader.initialOffset(), ALL), "next": 2}  # by a limit
    rewind(store.open(), 1, now_us=WALL_US)
    assert reader.latestOffset(read, ALL)["next"] == 2
    for judged in (2, 5):
        marked(store, judged)
        read = reader.latestOffset(read, ALL)
        assert read["next"] == judged + 1
    assert reader.partitions(read, read) == []
