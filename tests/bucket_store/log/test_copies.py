"""A store that was copied, moved or linked: which of them says that it is a copy."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.copies import original_of, warn_of_original
from bucket_store.places.local import local_place


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that was owned once."""
    log = CommitLog.create(local_place(tmp_path / "store"), {}, wall_us=5, snapshot_every=2)
    log.claim_epoch("me", 6)
    return log.root.local


def claimed(root: Path) -> CommitLog:
    """The log at this path, owned again; a snapshot stands between the claims."""
    log = CommitLog.open(local_place(root))
    log.claim_epoch("me", 7)
    return log


def test_a_copy_beside_its_original_says_so_until_it_is_owned(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only the copy says it, and names both."""
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    assert original_of(CommitLog.open(local_place(root))) is None
    assert original_of(CommitLog.open(local_place(copy))) == local_place(root)
    with caplog.at_level(logging.WARNING):
        warn_of_original(CommitLog.open(local_place(copy)))
    assert f"{copy} is a copy of the store {root}" in caplog.text
    assert original_of(claimed(copy)) is None
    assert original_of(CommitLog.open(local_place(copy))) is None
    assert original_of(claimed(root)) is None


def test_a_store_alone_is_no_copy(root: Path) -> None:
    """Moved, or seen by a link, or with another store in the place where it was."""
    moved = root.with_name("moved")
    root.rename(moved)
    assert original_of(CommitLog.open(local_place(moved))) is None
    root.symlink_to(moved)
    assert original_of(CommitLog.open(local_place(root))) is None
    assert original_of(CommitLog.open(local_place(moved))) is None
    root.unlink()
    CommitLog.create(local_place(root), {}, wall_us=5)
    assert original_of(CommitLog.open(local_place(moved))) is None


def test_a_store_without_a_path_in_its_claims_is_no_copy(tmp_path: Path) -> None:
    """Never owned, as one that was made a moment ago."""
    assert original_of(CommitLog.create(local_place(tmp_path / "store"), {}, wall_us=5)) is None
