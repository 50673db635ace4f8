"""What a real HDFS refuses, and what a job says to it: rights, quotas, safe mode, damage, an unknown name service."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import threading

import pytest
from hdfs_native import Client, WriteOptions

from bucket_store.errors import CorruptionError, SpaceError, StorageAwayError
from bucket_store.pieces.piece_files import PieceFiles
from bucket_store.places.open import open_place
from bucket_store.places.outages import waiting
from bucket_store.places.place import NotPlacedError, Place
from deduper.errors import ExitCode, exit_code_of
from deduper.preflight.folders import reachable
from deduper.preflight.results import Failure
from tests.services.hdfs import Hdfs
from tests.services.test_hdfs_names import new_root

pytestmark = [pytest.mark.services, pytest.mark.night]


@pytest.fixture
def root(hdfs: Hdfs) -> Place:
    """An empty directory."""
    return new_root(hdfs)


def test_a_quota_is_no_room(hdfs: Hdfs, root: Place) -> None:
    """For a piece as for a record; the message says how to raise it."""
    hdfs.administer("-setSpaceQuota", "1", str(root.path))
    with pytest.raises(SpaceError, match=r"quota.*setSpaceQuota"):
        PieceFiles(root).append(shard=0, epoch=1, name="a", data=b"x")
    with pytest.raises(NotPlacedError, match=r"quota.*setSpaceQuota"):
        (root / "a").create(b"1")


_RUN = """
import sys
from bucket_store.places.open import open_place
try:
    (open_place(sys.argv[1]) / "a").create(b"1")
except OSError as error:
    print(type(error).__name__, error.errno, error.strerror)
"""


def test_missing_rights_are_named(root: Place) -> None:
    """With the user, the path, and what to do."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN, root.url],
        env={**os.environ, "HADOOP_USER_NAME": "guest"},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "NotPlacedError 13 HDFS: Permission denied: user=guest, access=WRITE" in done.stdout, done
    assert "hdfs dfs -chown" in done.stdout


def test_an_unknown_name_service_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the settings that are missing."""
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with pytest.raises(OSError, match=r"no NameNodes of it \(dfs.ha.namenodes.nosuch"):
        open_place("hdfs://nosuch/state").exists()


def test_a_block_that_is_corrupt_everywhere_is_damage(hdfs_pair: Hdfs) -> None:
    """In one replica it is read from the other; in both it is no outage: nothing waits, and the file is named."""
    root = new_root(hdfs_pair)
    data = secrets.token_bytes(5003)
    (root / "a").create(data)
    replicas = [
        path
        for path in hdfs_pair.directory.glob("data-*/current/BP*/current/finalized/**/blk_*")
        if path.suffix != ".meta" and path.read_bytes() == data
    ]
    assert len(replicas) == 2
    with waiting(60, threading.Event(), RuntimeError):
        for number, path in enumerate(replicas):
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
            if not number:
                assert (root / "a").read() == data
        with pytest.raises(
            CorruptionError, match=rf"{root.url}/a: .*none in its replicas, at the DataNodes 127"
        ) as found:
            (root / "a").read_range(100, 10)
    assert exit_code_of(found.value) is ExitCode.INTEGRITY


def test_datanodes_that_are_away_are_no_damage(hdfs_pair: Hdfs) -> None:
    """It is said whose bytes are missing."""
    root = new_root(hdfs_pair)
    (root / "a").create(b"1")
    for server in hdfs_pair.datanodes:
        server.kill()
    with pytest.raises(StorageAwayError, match=r"the DataNodes do not give the file's bytes: 127\.0\.0\.1:\d+") as away:
        (root / "a").read()
    assert away.value.missing == "reads"


def test_safe_mode_has_its_own_words(hdfs: Hdfs) -> None:
    """And is waited for, by a job."""
    root = new_root(hdfs)
    (root / "a").create(b"1")
    hdfs.administer("-safemode", "enter")
    try:
        with pytest.raises(StorageAwayError, match=r"safe mode.*-safemode get") as away:
            (root / "a").replace(b"2")
        assert away.value.missing == "takes changes"
        assert (root / "a").read() == b"1"
    finally:
        hdfs.administer("-safemode", "leave")


def test_a_full_quota_is_no_matter_of_rights(hdfs: Hdfs, root: Place) -> None:
    """The start's message has the command, and no other advice."""
    hdfs.administer("-setSpaceQuota", "1", str(root.path))
    (failure,) = reachable("store", root)
    assert isinstance(failure, Failure)
    assert re.search(r"cannot be written to: .*quota.*setSpaceQuota", str(failure.error))
    assert "give this user" not in str(failure.error)


def test_what_dead_processes_have_left_is_removed_before_a_start_writes(hdfs: Hdfs, root: Place) -> None:
    """Their open files may be all of the quota."""
    client = Client(hdfs.url)
    for number in range(3):
        client.inner.create(str(root.path / f".published.{number}.tmp"), WriteOptions()).write(b"x" * 1000)
    block = hdfs.settings["dfs.blocksize"]
    hdfs.administer("-setSpaceQuota", str(3 * int(block)), str(root.path))
    (failure,) = reachable("store", root)
    assert isinstance(failure, Failure)
    (found,) = reachable("store", root, is_unowned=True)
    assert not isinstance(found, Failure)
    assert root.listed() == []
