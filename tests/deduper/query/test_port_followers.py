"""A follower of a port over a rewind, without Spark: its offsets are of one history of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

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


def follower(store: PublishedStore, **options: str) -> _StreamReader:
    """A query that follows the unique port, as it starts."""
    source = PublishedWindows({"store": str(store.config_file), "port": "unique", **options})
    return source.streamReader(T.StructType())


def batch_reader(store: PublishedStore) -> Any:
    """A batch job over the unique port."""
    return PublishedWindows({"store": str(store.config_file), "port": "unique"}).reader(T.StructType())


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


def test_a_mark_that_is_lost_or_old_is_no_rewind(store: PublishedStore) -> None:
    """A power cut may take it, or the whole folder is away; the job's next start sets it again."""
    reader = follower(store)
    read = reader.latestOffset(reader.initialOffset(), ALL)
    mark = store.directory / "out" / "unique" / "_published"
    whole = mark.read_bytes()
    mark.write_bytes(b"")
    for starts in (lambda: follower(store).latestOffset(read, ALL), lambda: batch_reader(store).partitions()):
        with pytest.raises(IntegrityError, match="no mark says which windows are whole, and those up to 2 were: bring"):
            starts()
    mark.write_bytes(whole)
    assert len(batch_reader(store).partitions()) >= 4
    with pytest.raises(IntegrityError, match=r"up to 8 were read, and the mark says 3: it is an old one"):
        follower(store).latestOffset({**read, "next": 9}, ALL)


def test_a_port_that_gets_another_folder_is_not_followed(store: PublishedStore) -> None:
    """The windows that were not read yet lie in the first one; unless it was moved as a whole."""
    reader = follower(store)
    read = {**reader.latestOffset(reader.initialOffset(), ALL), "next": 2}
    config = store.config_file
    config.write_text(config.read_text().replace("out/unique", "out/other"))
    (store.directory / "out" / "unique").rename(store.directory / "out" / "other")
    with pytest.raises(IntegrityError, match=f"the checkpoint is of {read['folder']}, where windows may lie that"):
        follower(store).latestOffset(read, ALL)
    moved = follower(store, movedFrom=read["folder"])
    end = moved.latestOffset(read, ALL)
    assert (end["next"], end["folder"]) == (4, str(store.directory / "out" / "other"))
    assert len(moved.partitions(read, end)) >= 2
    assert len(follower(store).partitions(end, end)) == 0


def test_windows_from_before_a_change_of_columns_are_read(store: PublishedStore) -> None:
    """By name: one that is new is null, one that is gone is left out, a wider type holds the values."""
    schema = T.StructType(
        [
            T.StructField("more", T.DateType()),
            T.StructField("t", T.DoubleType()),
            T.StructField("k", T.StringType()),
        ]
    )
    reader = PublishedWindows({"store": str(store.config_file), "port": "unique"}).reader(schema)
    before = [row for window in store.rows.values() for row in window]
    read = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert {(row["more"], row["t"], row["k"]) for row in read} <= {(None, row["t"], row["k"]) for row in before}
    assert read
    narrow = T.StructType([T.StructField("v", T.IntegerType())])
    reader = PublishedWindows({"store": str(store.config_file), "port": "unique"}).reader(narrow)
    with pytest.raises(IntegrityError, match="column `v` is string, and the port has int32 now: read the windows"):
        list(reader.read(reader.partitions()[0]))


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
