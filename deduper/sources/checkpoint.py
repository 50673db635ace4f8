"""Spark's checkpoint of a stream: its owner, and whether it is sound; `sources.kafka.checkpoint` reads its offsets.

Spark syncs none of its files. A torn one makes every start fail; `is_sound_log` and the checks of the source find that
out before, and `move_away` renames the checkpoint so that a new one is begun: the store has a record of everything
that was judged.

Every epoch has a checkpoint directory of its own, `<checkpoint>/<epoch, 6 digits>`: a start renames that of the epoch
before. An old owner that still runs, or resumes, writes into a directory that is no longer read.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
import zlib
from pathlib import Path

from deduper.errors import IntegrityError

_EPOCH_DIGITS = 6
_VERSION_LINE = "v1"
_CRC_MAGIC = b"crc\0"
_CRC_HEAD = struct.Struct(">4sI")


def is_sound_log(checkpoint: Path) -> bool:
    """Whether the files common to all sources are whole: the query's id, and the newest commit.

    Raises:
        OSError, IntegrityError: it is not.
    """
    commits = sorted(entry_numbers(checkpoint / "commits"))
    if not entry_numbers(checkpoint / "offsets"):
        return not commits
    if not read_entry(checkpoint / "metadata").strip():
        return False
    return all(read_entry(checkpoint / "commits" / str(number)).startswith(_VERSION_LINE) for number in commits[-1:])


def take_over(root: Path, epoch: int) -> Path:
    """The checkpoint directory of an epoch, renamed from that of the last epoch that had one; else not there yet.

    Checkpoints that lower epochs have written after they were overtaken are removed. Safe to repeat, and to race: of
    two starts one gets it; the other's is empty, and it begins at the judged offsets.
    """
    own = root / f"{epoch:0{_EPOCH_DIGITS}d}"
    earlier = sorted((path for path in root.glob("*") if _is_below(path, epoch)), key=lambda path: int(path.name))
    if earlier and not own.exists():
        with contextlib.suppress(FileNotFoundError):
            earlier.pop().rename(own)
    for path in earlier:
        shutil.rmtree(path, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    return own


def newest(root: Path) -> Path | None:
    """The checkpoint directory of the last epoch that has one."""
    return max(
        (path for path in root.glob("*") if path.name.isdecimal()), key=lambda path: int(path.name), default=None
    )


def _is_below(path: Path, epoch: int) -> bool:
    return path.name.isdecimal() and int(path.name) < epoch


def move_away(checkpoint: Path) -> Path:
    """Rename a checkpoint to the first free name beside it; nothing is deleted. Gives the new path."""
    number = 1
    while (target := checkpoint.with_name(f"{checkpoint.name}.set-aside-{number}")).exists():
        number += 1
    checkpoint.rename(target)
    return target


def read_entry(file: Path) -> str:
    """The text of a file of a checkpoint, checked by Hadoop's checksums beside it if they are there, as Spark does.

    `.<name>.crc`: "crc\\0", bytes a checksum (u32, big endian), then the CRC32 of each so many bytes, big endian.
    """
    data = file.read_bytes()
    try:
        sums = file.with_name(f".{file.name}.crc").read_bytes()
    except FileNotFoundError:
        sums = b""
    if len(sums) > _CRC_HEAD.size and sums.startswith(_CRC_MAGIC):
        _, each = _CRC_HEAD.unpack_from(sums)
        steps = range(0, len(data), each or max(1, len(data)))  # 0 bytes a checksum is damage too
        expected = b"".join(struct.pack(">I", zlib.crc32(data[at : at + each])) for at in steps)
        if sums[_CRC_HEAD.size :] != expected:
            raise IntegrityError(f"{file}: its bytes do not match its checksums: torn")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise IntegrityError(f"{file}: no UTF-8: torn") from exc


def entry_numbers(directory: Path, suffix: str = "") -> set[int]:
    """The numbers among the names in a directory of a checkpoint, before the suffix; none when it is absent."""
    if not directory.is_dir():
        return set()
    names = (entry.name for entry in directory.iterdir())
    return {int(stem) for name in names if name.endswith(suffix) and (stem := name.removesuffix(suffix)).isdecimal()}
