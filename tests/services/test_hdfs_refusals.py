"""What a real NameNode refuses, and what a job says to it: rights, a quota, an unknown name service."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bucket_store.errors import SpaceError
from bucket_store.pieces.hdfs_backend import HdfsPieces
from bucket_store.places.open import open_place
from bucket_store.places.place import NotPlacedError, Place
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
        HdfsPieces(root.url).append(shard=0, epoch=1, name="a", data=b"x")
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
