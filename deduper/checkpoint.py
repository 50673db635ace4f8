"""What Spark's own checkpoint says about a batch of the file source, and whether the checkpoint can be trusted.

Spark numbers batches from 0 in every new checkpoint and gives `foreachBatch` no list of files. Both are found here:

    offsets/<batch id>      last line: {"logOffset": n}: the source's log up to and including entry number n
    sources/0/<n>           one JSON object a line: path (URI-encoded), timestamp (modification time, ms), batchId (= n)
    sources/0/<n>.compact   every tenth: all entries up to n

The files of batch b are those entries whose `batchId` lies in (logOffset of b-1, logOffset of b]. After a crash the
source's numbers and Spark's batch ids drift apart for good, so neither is ever derived from the other.

Spark syncs none of these files. One that is torn makes every start fail; `is_sound` finds that out beforehand, and
`set_aside` moves the checkpoint away so that a new one is begun: files that were judged are known to the store.

The source's log is written before the batch's offsets. A process that ends, or is taken over, between the two leaves
an entry that no batch names, and Spark gives its files together with those of the next entry: a batch larger than
`max_files_per_batch`, and larger with every such end. `forget_unplanned` takes such entries back at a start.

Every epoch has a checkpoint directory of its own, `<checkpoint>/<epoch, 6 digits>`: a start renames that of the epoch
before. An old owner that is still at work, or wakes, writes where nobody looks any more.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from deduper.errors import IntegrityError

_EPOCH_DIGITS = 6
_VERSION_LINE = "v1"
_CRC_MAGIC = b"crc\0"
_CRC_HEAD = struct.Struct(">4sI")


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as the source's log names it: `uri` URI-encoded, `modified_ms` since the epoch."""

    uri: str
    modified_ms: int

    @property
    def path(self) -> str:
        """The plain local path, decoded."""
        return unquote(re.sub("^file:(//)?", "", self.uri))


def files_of_batch(checkpoint: Path, batch_id: int) -> list[ListedFile]:
    """The files that Spark gave to a batch, in the order of the source: modification time, then path.

    Raises:
        IntegrityError: an offsets file or an entry of the source's log that the batch needs is absent or torn.
    """
    last = _log_offset(checkpoint / "offsets" / str(batch_id))
    first = _log_offset(checkpoint / "offsets" / str(batch_id - 1)) + 1 if batch_id > 0 else 0
    listed: list[ListedFile] = []
    for number in range(first, last + 1):
        listed.extend(file for entry_of, file in _source_entries(checkpoint, number) if entry_of == number)
    return sorted(listed, key=lambda file: (file.modified_ms, file.path))


def finished_files(checkpoint: Path) -> Iterator[ListedFile]:
    """All files of batches that Spark will not give again: the store must know every one of them.

    Those are the batches with a commit, and all before the newest one with offsets: of these Spark repeats one at most.
    """
    begun, committed = entry_numbers(checkpoint / "offsets"), entry_numbers(checkpoint / "commits")
    done = max(committed | {number - 1 for number in begun}, default=-1)
    if done < 0:
        return
    last = _log_offset(checkpoint / "offsets" / str(done))
    for number, file in _all_entries(checkpoint):
        if number <= last:
            yield file


def is_sound(checkpoint: Path) -> bool:
    """Whether every file that a start would read is whole. An absent or empty checkpoint is sound: it is begun anew."""
    try:
        for _ in _all_entries(checkpoint):
            pass
        if not is_sound_log(checkpoint):
            return False
        offsets = sorted(entry_numbers(checkpoint / "offsets"))
        for number in offsets[-2:]:
            _log_offset(checkpoint / "offsets" / str(number))
        for number in offsets[-1:]:
            files_of_batch(checkpoint, number)
        for _ in finished_files(checkpoint):
            pass
    except (IntegrityError, OSError):
        return False
    return True


def is_sound_log(checkpoint: Path) -> bool:
    """Whether what is the same for every source is whole: the query's id, and the newest commit.

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

    What lower epochs have written after they were overtaken is removed. Safe to repeat, and to race: of two starts
    one gets it, and the other's is empty, which costs it reading the list of files again.
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


def forget_unplanned(checkpoint: Path) -> int:
    """Remove the entries of the source's log that no batch names yet, so that Spark lists their files again.

    Of a sound checkpoint, and safe to repeat and to die in. A compact file that alone holds older entries stays.
    Gives how many entries were removed.
    """
    log = checkpoint / "sources" / "0"
    begun = entry_numbers(checkpoint / "offsets")
    planned = _log_offset(checkpoint / "offsets" / str(max(begun))) if begun else -1
    plain, compact = entry_numbers(log), entry_numbers(log, suffix=".compact")
    folded = max((number for number in compact if number <= planned), default=-1)
    is_whole_without = all(number in plain for number in range(folded + 1, planned + 1))
    removed = 0
    # From the end: the log never has a gap.
    for number in sorted((number for number in plain | compact if number > planned), reverse=True):
        if number in compact and not is_whole_without:
            break
        for name in (str(number), f"{number}.compact"):
            (log / name).unlink(missing_ok=True)
            (log / f".{name}.crc").unlink(missing_ok=True)
        removed += 1
    return removed


def set_aside(checkpoint: Path) -> Path:
    """Move a checkpoint out of the way, under the first free name beside it; nothing is deleted."""
    number = 1
    while (target := checkpoint.with_name(f"{checkpoint.name}.set-aside-{number}")).exists():
        number += 1
    checkpoint.rename(target)
    return target


def _source_entries(checkpoint: Path, number: int) -> Iterator[tuple[int, ListedFile]]:
    log = checkpoint / "sources" / "0"
    plain, compact = log / str(number), log / f"{number}.compact"
    if plain.exists():
        return _entries(plain)
    if compact.exists():
        return _entries(compact)
    # An entry that was folded into a later compact file and purged: the next compact file holds all earlier ones.
    later = min((n for n in entry_numbers(log, suffix=".compact") if n > number), default=None)
    if later is None:
        raise IntegrityError(f"{plain}: entry {number} of the file source's log is gone; set the checkpoint aside")
    return _entries(log / f"{later}.compact")


def _all_entries(checkpoint: Path) -> Iterator[tuple[int, ListedFile]]:
    """The source's whole log, as Spark reads it at a start: the newest compact file and what came after it."""
    log = checkpoint / "sources" / "0"
    newest = max(entry_numbers(log, suffix=".compact"), default=None)
    if newest is not None:
        yield from _entries(log / f"{newest}.compact")
    for number in sorted(entry_numbers(log)):
        if newest is None or number > newest:
            yield from _entries(log / str(number))


def _entries(file: Path) -> Iterator[tuple[int, ListedFile]]:
    lines = read_entry(file).split("\n")
    if lines[0] != _VERSION_LINE:
        raise IntegrityError(f"{file}: the first line is not {_VERSION_LINE!r}: torn, or of an unknown Spark")
    for line in lines[1:]:
        try:
            entry = json.loads(line)
            number, uri, modified_ms = entry["batchId"], entry["path"], entry["timestamp"]
            if (type(number), type(uri), type(modified_ms)) != (int, str, int):
                raise TypeError("batchId and timestamp are whole numbers, path is text")
            yield number, ListedFile(uri, modified_ms)
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise IntegrityError(f"{file}: not an entry of the file source: {line[:200]!r}") from exc


def _log_offset(file: Path) -> int:
    try:
        offset = json.loads(read_entry(file).rstrip("\n").rsplit("\n", 1)[-1])["logOffset"]
        if type(offset) is not int:
            raise TypeError("logOffset is a whole number")
        return offset
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
        raise IntegrityError(f"{file}: no offset of a file source in it: torn, absent, or of another source") from exc


def read_entry(file: Path) -> str:
    """The text of a file of a checkpoint, held against Hadoop's checksums beside it, without which Spark reads it too.

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
            raise IntegrityError(f"{file}: its bytes are not those of {file.name}'s checksum: torn")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise IntegrityError(f"{file}: no UTF-8: torn") from exc


def entry_numbers(directory: Path, suffix: str = "") -> set[int]:
    """The numbers that stand as names in a directory of a checkpoint, before the suffix; none when it is absent."""
    if not directory.is_dir():
        return set()
    names = (entry.name for entry in directory.iterdir())
    return {int(stem) for name in names if name.endswith(suffix) and (stem := name.removesuffix(suffix)).isdecimal()}
