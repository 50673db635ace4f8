"""What Spark's own checkpoint says about a batch of the file source, and whether the checkpoint can be trusted.

Spark numbers batches from 0 in every new checkpoint and gives `foreachBatch` no list of files. Both are found here:

    offsets/<batch id>      last line: {"logOffset": n}: the source's log up to and including entry number n
    sources/0/<n>           one JSON object a line: path (URI-encoded), timestamp (modification time, ms), batchId (= n)
    sources/0/<n>.compact   every tenth: all entries up to n

The files of batch b are those entries whose `batchId` lies in (logOffset of b-1, logOffset of b]. After a crash the
source's numbers and Spark's batch ids drift apart for good, so neither is ever derived from the other.

Spark syncs none of these files. One that is torn makes every start fail; `is_sound` finds that out beforehand, and
`set_aside` moves the checkpoint away so that a new one is begun: files that were judged are known to the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from deduper.errors import IntegrityError

_VERSION_LINE = "v1"


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
    """All files of batches that the checkpoint holds for done: the store must know every one of them."""
    commits = _numbers(checkpoint / "commits")
    if not commits:
        return
    last = _log_offset(checkpoint / "offsets" / str(max(commits)))
    compacts = _numbers(checkpoint / "sources" / "0", suffix=".compact")
    plain = _numbers(checkpoint / "sources" / "0")
    newest_compact = max((n for n in compacts if n <= last), default=None)
    if newest_compact is not None:
        for _, file in _entries(checkpoint / "sources" / "0" / f"{newest_compact}.compact"):
            yield file
    for number in sorted(plain):
        if number <= last and (newest_compact is None or number > newest_compact):
            for _, file in _entries(checkpoint / "sources" / "0" / str(number)):
                yield file


def is_sound(checkpoint: Path) -> bool:
    """Whether every file that a start would read is whole. An absent or empty checkpoint is sound: it is begun anew."""
    offsets = _numbers(checkpoint / "offsets")
    if not offsets:
        return True
    try:
        if not (checkpoint / "metadata").read_text().strip():
            return False
        for number in sorted(offsets)[-2:]:
            _log_offset(checkpoint / "offsets" / str(number))
        for number in sorted(_numbers(checkpoint / "commits"))[-1:]:
            if not (checkpoint / "commits" / str(number)).read_text().startswith(_VERSION_LINE):
                return False
        files_of_batch(checkpoint, max(offsets))
        for _ in finished_files(checkpoint):
            pass
    except (IntegrityError, OSError, UnicodeDecodeError):
        return False
    return True


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
    later = min((n for n in _numbers(log, suffix=".compact") if n > number), default=None)
    if later is None:
        raise IntegrityError(f"{plain}: entry {number} of the file source's log is gone; set the checkpoint aside")
    return _entries(log / f"{later}.compact")


def _entries(file: Path) -> Iterator[tuple[int, ListedFile]]:
    lines = file.read_text(encoding="utf-8").split("\n")
    if lines[0] != _VERSION_LINE:
        raise IntegrityError(f"{file}: the first line is not {_VERSION_LINE!r}: torn, or of an unknown Spark")
    for line in lines[1:]:
        try:
            entry = json.loads(line)
            yield entry["batchId"], ListedFile(entry["path"], entry["timestamp"])
        except (ValueError, KeyError, TypeError) as exc:
            raise IntegrityError(f"{file}: not an entry of the file source: {line[:200]!r}") from exc


def _log_offset(file: Path) -> int:
    try:
        return int(json.loads(file.read_text(encoding="utf-8").rstrip("\n").rsplit("\n", 1)[-1])["logOffset"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise IntegrityError(f"{file}: no offset of a file source in it: torn, absent, or of another source") from exc


def _numbers(directory: Path, suffix: str = "") -> set[int]:
    if not directory.is_dir():
        return set()
    names = (entry.name for entry in directory.iterdir())
    return {int(stem) for name in names if name.endswith(suffix) and (stem := name.removesuffix(suffix)).isdecimal()}
