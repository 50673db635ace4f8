"""Pieces on a real HDFS: the contract of every backend, and what its processes' deaths become."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hdfs_native import Client

from bucket_store.errors import CorruptionError, SpaceError, StoreError
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece_files import PieceFiles
from bucket_store.pieces.store import PieceStore
from bucket_store.places.hdfs import HdfsNames, hdfs_place
from tests.bucket_store.pieces.test_store import (
    listed,
    test_a_missing_or_short_piece_is_corruption,
    test_a_reader_sees_what_was_appended_after_it_opened,
    test_bytes_come_back_whole_and_by_range,
    test_deleting_is_by_piece_and_can_be_repeated,
    test_listing_shows_everything_that_lies_there,
    test_threads_append_side_by_side,
    test_travels_by_its_url,
)
from tests.services.hdfs import Hdfs
from tests.services.test_hdfs_names import ONE_AND_TWO, new_root, no_hang

pytestmark = [pytest.mark.services, pytest.mark.night]

CONTRACT = (
    test_a_missing_or_short_piece_is_corruption,
    test_a_reader_sees_what_was_appended_after_it_opened,
    test_bytes_come_back_whole_and_by_range,
    test_deleting_is_by_piece_and_can_be_repeated,
    test_listing_shows_everything_that_lies_there,
    test_threads_append_side_by_side,
    test_travels_by_its_url,
)


@pytest.fixture(params=ONE_AND_TWO)
def pieces(request: pytest.FixtureRequest) -> Iterator[PieceStore]:
    """An empty store, with one DataNode and with two; in place of the contract's own backends."""
    store = open_backend(new_root(request.getfixturevalue(request.param)).url)
    yield store
    store.close()


@pytest.fixture
def pair(hdfs_pair: Hdfs) -> PieceFiles:
    """An empty store on two DataNodes."""
    return PieceFiles(new_root(hdfs_pair))


def test_a_piece_is_a_file_of_its_owners_alone(pair: PieceFiles, hdfs_pair: Hdfs) -> None:
    """Mode 0600, by shard and epoch; deleting takes the files that are not to be kept."""
    kept, gone = (pair.append(shard=3, epoch=2, name=name, data=b"x") for name in "ab")
    assert re.fullmatch(r"pieces/0003/000002-a~[0-9a-f]{8}\.piece", kept.file)
    root = hdfs_place(pair.url)
    status = Client(hdfs_pair.url).get_file_info(str((root / kept.file).path))
    assert status.permission == 0o600
    assert status.replication == 2
    assert pair.delete([kept, gone], keep={kept.file}, writing_epoch=2) == ()
    assert listed(pair) == ["a"]


def test_a_piece_without_a_clear_answer_is_written_again(pair: PieceFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under another name of a file; the late one is deleted, and would else be an orphan."""
    begin = HdfsNames.begin

    def late(names: HdfsNames, path: PurePosixPath, data: bytes, *_: object, **named: Any) -> None:
        begin(names, path, data[:10], **named)
        monkeypatch.undo()
        raise TimeoutError(errno.ETIMEDOUT, "late")

    monkeypatch.setattr(HdfsNames, "begin", late)
    where = pair.append(shard=0, epoch=1, name="a", data=b"x" * 500)
    assert pair.read(where) == b"x" * 500
    give_up = time.monotonic() + 30
    while (found := {(each.file, each.name, each.length) for each in pair.pieces()}) != {(where.file, "a", 500)}:
        assert time.monotonic() < give_up, found
        time.sleep(0.1)


def test_a_refusal_is_not_tried_again(pair: PieceFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota is no room."""
    tried = []

    def full(names: HdfsNames, path: PurePosixPath, *_: object, **__: object) -> None:
        tried.append(path)
        raise OSError(errno.EDQUOT, "HDFS: the quota is exceeded")

    monkeypatch.setattr(HdfsNames, "begin", full)
    with pytest.raises(SpaceError, match="quota"):
        pair.append(shard=0, epoch=1, name="a", data=b"x")
    assert len(tried) == 1


_APPEND = """
import os, sys
from bucket_store.errors import StoreError
from bucket_store.pieces.open import open_backend
pieces = open_backend(sys.argv[1])
for number in range(1000):
    name, data = f"p{number:04d}", (b"%04d" % number) * 500_000
    try:
        where = pieces.append(shard=0, epoch=1, name=name, data=data)
    except StoreError as error:
        print("failed", error, flush=True)
        continue
    print(where.file, where.name, where.offset, where.length, flush=True)
"""


def _written(pieces: PieceFiles, kill: Any, more: int = 6) -> list[tuple[str, str, int, int]]:
    """The pieces of a process that appends 2 MB each, while a DataNode dies under it."""
    with subprocess.Popen([sys.executable, "-c", _APPEND, pieces.url], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        found: list[tuple[str, str, int, int]] = []
        wanted = 3
        failures: list[str] = []
        while len(found) < wanted + more:
            with no_hang():
                words = writer.stdout.readline().split()
            assert words, "the writer ended"
            if words[0] == "failed":
                failures.append(" ".join(words))
                assert len(failures) < 4, failures  # the NameNode misses a dead DataNode after 12 s
            else:
                found.append((words[0], words[1], int(words[2]), int(words[3])))
            if len(found) == wanted and kill is not None:
                kill()
                kill = None
        writer.send_signal(signal.SIGKILL)
    return found


def test_a_datanode_dies_while_pieces_are_written(hdfs_pair: Hdfs, pair: PieceFiles) -> None:
    """The writer goes on, and every piece that was written is read whole."""
    found = _written(pair, hdfs_pair.datanodes[1].kill)
    stored = {(each.file, each.name): each for each in pair.pieces()}
    for file, name, offset, length in found:
        piece = stored[file, name]
        assert (piece.offset, piece.length) == (offset, length)
        with no_hang():
            assert pair.read(piece) == name[1:].encode() * 500_000


def test_the_namenode_is_back_after_twenty_seconds(hdfs_pair: Hdfs, pair: PieceFiles) -> None:
    """Meanwhile each append is an error within a minute; afterwards all is there, and it goes on."""
    first = pair.append(shard=0, epoch=1, name="a", data=b"a" * 1000)
    hdfs_pair.namenode.kill()
    killed = time.monotonic()
    with no_hang(), pytest.raises(StoreError, match="HDFS"):
        pair.append(shard=0, epoch=1, name="b", data=b"b" * 1000)
    with no_hang(), pytest.raises(OSError, match="HDFS"):
        pair.read(first)
    time.sleep(max(0.0, 20 - (time.monotonic() - killed)))
    hdfs_pair.start()
    with no_hang():
        second = pair.append(shard=0, epoch=1, name="c", data=b"c" * 1000)
    assert [pair.read(first), pair.read(second)] == [b"a" * 1000, b"c" * 1000]


def test_what_a_piece_costs_the_namenode(hdfs_pair: Hdfs, pair: PieceFiles) -> None:
    """A new file is at most 5 calls and 5 edits, however large; a read is one call, and no edit."""
    where = pair.append(shard=0, epoch=1, name="a", data=b"a" * 1000)
    before = _settled(hdfs_pair)
    for number in range(10):
        pair.append(shard=0, epoch=1, name=f"p{number}", data=b"x" * 1000)
    between = _settled(hdfs_pair)
    for _ in range(10):
        pair.read(where)
    after = _settled(hdfs_pair)
    appended = {name: between[name] - before.get(name, 0) for name in between if between[name] != before.get(name, 0)}
    assert appended.pop("transactions") <= 50
    assert sum(appended.values()) <= 50, appended
    read = {name: after[name] - between.get(name, 0) for name in after if after[name] != between.get(name, 0)}
    read.pop("RenewLease", None)  # by the client, from time to time
    assert read == {"GetBlockLocations": 10}


def _settled(cluster: Hdfs) -> dict[str, int]:
    """Counts that are not from JMX's cache, which is ten seconds old at most."""
    time.sleep(11)
    return cluster.operations()


def test_damage_is_corruption(pair: PieceFiles) -> None:
    """A file that is gone is named; none is read beyond its end."""
    where = pair.append(shard=0, epoch=1, name="a", data=os.urandom(1000))
    hdfs_place(pair.url).remove_tree()
    with pytest.raises(CorruptionError, match=Path(where.file).name):
        pair.read(where)
