"""Spark's checkpoint as it is found after a crash: whether a start can read it, and whose it is."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from deduper.errors import IntegrityError
from deduper.sources import checkpoint


def write(path: Path, *lines: str) -> None:
    """A file of Spark's with Hadoop's checksums beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "\n".join(lines).encode()
    path.write_bytes(data)
    sums = (zlib.crc32(data[at : at + 512]) for at in range(0, len(data), 512))
    path.with_name(f".{path.name}.crc").write_bytes(
        b"crc\0" + struct.pack(">I", 512) + b"".join(struct.pack(">I", one) for one in sums)
    )


def offsets(root: Path, batch: int) -> None:
    """A batch that was begun."""
    write(root / "offsets" / str(batch), "v1", '{"batchWatermarkMs":0}', json.dumps({"clicks": {"0": batch}}))


def commits(root: Path, batch: int) -> None:
    """A batch noted as done."""
    write(root / "commits" / str(batch), "v1", '{"nextBatchWatermarkMs":0}')


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Nine batches, all committed."""
    write(tmp_path / "metadata", '{"id":"4247c54c-6fb5-4ef2-bf01-c9b8aa2e1b96"}')
    for number in range(9):
        offsets(tmp_path, number)
        commits(tmp_path, number)
    return tmp_path


def test_a_whole_checkpoint_and_none_are_sound(root: Path) -> None:
    """None is rebuilt."""
    assert checkpoint.is_sound_log(root)
    assert checkpoint.is_sound_log(root / "none")


def test_an_empty_metadata_or_commit_is_unsound(root: Path) -> None:
    """Spark syncs none of them, and fails at every start over an empty one."""
    for torn in ("metadata", "commits/8"):
        whole = (root / torn).read_bytes()
        sums = (root / torn).with_name(f".{Path(torn).name}.crc")
        sums.unlink()
        (root / torn).write_bytes(b"")
        assert not checkpoint.is_sound_log(root), torn
        (root / torn).write_bytes(whole)
    assert checkpoint.is_sound_log(root)


def test_bytes_that_differ_from_their_checksum_are_torn(root: Path) -> None:
    """Spark would refuse them at every start; without a checksum it takes what is there, and so do we."""
    (root / "commits" / "8").write_text('v1\n{"nextBatchWatermarkMs":1}')
    with pytest.raises(IntegrityError, match="checksum"):
        checkpoint.is_sound_log(root)
    (root / "commits" / ".8.crc").unlink()
    assert checkpoint.is_sound_log(root)


def test_commits_without_offsets_are_unsound(root: Path) -> None:
    """They do not show the work done."""
    for path in (root / "offsets").iterdir():
        path.unlink()
    assert not checkpoint.is_sound_log(root)
