"""Spark's checkpoint as it is found after a crash: what it holds for done, and whether a start can read it."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from deduper import checkpoint
from deduper.errors import IntegrityError


def write(path: Path, *lines: str) -> None:
    """A file of Spark's with Hadoop's checksums beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "\n".join(lines).encode()
    path.write_bytes(data)
    sums = (zlib.crc32(data[at : at + 512]) for at in range(0, len(data), 512))
    path.with_name(f".{path.name}.crc").write_bytes(
        b"crc\0" + struct.pack(">I", 512) + b"".join(struct.pack(">I", one) for one in sums)
    )


def entry(number: int) -> str:
    """The one file of an entry of the source's log."""
    return json.dumps({"path": f"file:///in/{number:02d}.json", "timestamp": 1000 + number, "batchId": number})


def offsets(root: Path, batch: int, last: int) -> None:
    """A batch up to and including an entry."""
    write(root / "offsets" / str(batch), "v1", '{"batchWatermarkMs":0}', json.dumps({"logOffset": last}))


def commits(root: Path, batch: int) -> None:
    """A batch noted as done."""
    write(root / "commits" / str(batch), "v1", '{"nextBatchWatermarkMs":0}')


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Nine batches of a file each, all committed."""
    write(tmp_path / "metadata", '{"id":"4247c54c-6fb5-4ef2-bf01-c9b8aa2e1b96"}')
    for number in range(9):
        write(tmp_path / "sources" / "0" / str(number), "v1", entry(number))
        offsets(tmp_path, number, number)
        commits(tmp_path, number)
    return tmp_path


def paths(root: Path) -> list[str]:
    """The files that are held for done."""
    return [file.path for file in checkpoint.finished_files(root)]


def names(*numbers: int) -> list[str]:
    """The paths of entries."""
    return [f"/in/{number:02d}.json" for number in numbers]


def test_files_of_committed_batches_are_done(root: Path) -> None:
    """Entries beyond the last batch are none of it."""
    write(root / "sources" / "0" / "9", "v1", entry(9))
    assert paths(root) == names(*range(9))


def test_a_compact_file_ahead_of_the_last_batch_hides_nothing(root: Path) -> None:
    """Spark folds its log before it begins the batch, and deletes what it folded after ten minutes."""
    write(root / "sources" / "0" / "9.compact", "v1", *map(entry, range(10)))
    for number in range(9):
        (root / "sources" / "0" / str(number)).unlink()
    assert paths(root) == names(*range(9))
    offsets(root, 9, 9)
    assert paths(root) == names(*range(9))
    assert [file.path for file in checkpoint.files_of_batch(root, 9)] == names(9)


def files(root: Path) -> list[str]:
    """All files of the source's log, checksums and all."""
    return sorted(path.name for path in (root / "sources" / "0").iterdir())


@pytest.mark.parametrize("number", ["9", "9.compact"])
def test_entries_that_no_batch_names_are_taken_back(root: Path, number: str) -> None:
    """Spark would give their files together with those of the next entry; without them it is as before them."""
    before = files(root)
    write(root / "sources" / "0" / number, "v1", *map(entry, range(10) if "." in number else [9]))
    write(root / "sources" / "0" / "10", "v1", entry(10))
    assert checkpoint.forget_unplanned(root) == 2
    assert files(root) == before
    assert checkpoint.forget_unplanned(root) == 0
    assert checkpoint.is_sound(root)


def test_entries_before_the_first_batch_are_taken_back(root: Path) -> None:
    """A process that ended before its first batch was planned."""
    for path in [*(root / "offsets").iterdir(), *(root / "commits").iterdir()]:
        path.unlink()
    assert checkpoint.forget_unplanned(root) == 9
    assert files(root) == []


def test_a_compact_file_that_alone_holds_older_entries_stays(root: Path) -> None:
    """What was judged must not be listed again; what came after it is still taken back."""
    write(root / "sources" / "0" / "9.compact", "v1", *map(entry, range(10)))
    for number in range(9):
        (root / "sources" / "0" / str(number)).unlink()
        (root / "sources" / "0" / f".{number}.crc").unlink()
    write(root / "sources" / "0" / "10", "v1", entry(10))
    assert checkpoint.forget_unplanned(root) == 1
    assert files(root) == [".9.compact.crc", "9.compact"]
    assert paths(root) == names(*range(9))


def test_nothing_is_taken_back_of_what_a_batch_names(root: Path, tmp_path: Path) -> None:
    """Not even when it is to be judged again; and of no checkpoint nothing."""
    before = files(root)
    (root / "commits" / "8").unlink()
    assert checkpoint.forget_unplanned(root) == 0
    assert files(root) == before
    assert checkpoint.forget_unplanned(tmp_path / "none") == 0


def test_batches_before_the_newest_one_are_done_without_commits(root: Path) -> None:
    """Spark repeats only the newest batch, whatever commits are gone."""
    for batch in range(2, 9):
        (root / "commits" / str(batch)).unlink()
    assert paths(root) == names(*range(8))


@pytest.mark.parametrize("torn", ["sources/0/9", "sources/0/8", "offsets/8", "commits/8", "metadata"])
def test_a_torn_file_that_a_start_reads_makes_it_unsound(root: Path, torn: str) -> None:
    """Also the entry that no batch has taken yet: Spark reads its whole log when it starts."""
    write(root / "sources" / "0" / "9", "v1", entry(9))
    assert checkpoint.is_sound(root)
    (root / torn).write_bytes(b"")
    assert not checkpoint.is_sound(root)


def test_bytes_that_differ_from_their_checksum_are_torn(root: Path) -> None:
    """Spark would refuse them at every start; without a checksum it takes what is there, and so do we."""
    other = json.dumps({"path": "file:///in/99.json", "timestamp": 1008, "batchId": 8})
    (root / "sources" / "0" / "8").write_text(f"v1\n{other}")
    assert not checkpoint.is_sound(root)
    with pytest.raises(IntegrityError, match="checksum"):
        checkpoint.files_of_batch(root, 8)
    (root / "sources" / "0" / ".8.crc").unlink()
    assert checkpoint.is_sound(root)


def test_commits_without_offsets_are_unsound(root: Path) -> None:
    """What was done cannot be told from them."""
    for path in (root / "offsets").iterdir():
        path.unlink()
    assert not checkpoint.is_sound(root)


def test_no_checkpoint_is_a_sound_one(tmp_path: Path) -> None:
    """It is begun anew, and holds nothing for done."""
    assert checkpoint.is_sound(tmp_path / "none")
    assert paths(tmp_path / "none") == []
