"""Sends error records through the job once more, exactly once; SEMANTICS.md has the steps. Of topics: `replay_topic`.

A store's `replays/<6 digits>` is a frame (`bucket_store.framing`) around a JSON object, placed by link, never changed:

    selected    [{"reason": text, "again": bool, "files": [name of a file of the error port]}]
    folder      the source's folder
    files       [{"hidden": path, "final": path, "rows": int}], below that folder

A replay exists from its record on. Its hidden files get their final names then, or at the next call. A rename was done
or was not, so no other record is needed.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from wcmatch import glob

from bucket_store import failpoints
from bucket_store.errors import FencedError
from bucket_store.filesystem import LOCAL, FileSystem, listed, make_directories, write_at
from bucket_store.framing import frame, unframe
from bucket_store.places.place import Place
from deduper.admin.errors.rows import REASONS, Windows, error_files, error_port, read_errors
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.config.files import FilesSource
from deduper.config.kafka import KafkaSink, KafkaSource
from deduper.core.verdict import Admission
from deduper.errors import IntegrityError, UsageError
from deduper.sources.files.listing import is_pattern

DIRECTORY: Final = "replays"
_MAGIC, _VERSION = b"BSREPLAY", 1
_LOCK = "lock"
_NUMBER = re.compile(r"\d{6}")
_REPLAYED = re.compile(r"deduper-replay-[0-9a-f]{8}-\d{6}-\d{4}\.")
_PART_BYTES = 256 << 20
_BOM: Final = "\ufeff".encode()
_NO_RECORDS: Final = ("file_missing", "file_unreadable")
_PATTERN = glob.BRACE | glob.DOTMATCH | glob.NODOTDIR | glob.FORCEUNIX

Selected = dict[tuple[str, bool], set[str]]
"""Files of the error port by reason, and by whether their rows had been replayed before."""


@dataclass(frozen=True, slots=True)
class ReplayReport(AsJson):
    """The answer of `replay-errors`.

    `number` is that of the replay, None if there was nothing to send, nothing was to be done, or the source has topics.
    `rows` are the selected ones by reason, `files` the new files of the source. `completed`: files of an interrupted
    replay that have got their names. `left_out`: rows without a record by reason, and rows that were replayed before.
    """

    is_done: bool
    number: int | None
    rows: dict[str, int]
    files: tuple[str, ...]
    completed: tuple[str, ...]
    left_out: dict[str, int]


def replay_errors(
    store: OpenStore,
    windows: Windows,
    reasons: Collection[str] = (),
    *,
    again: bool = False,
    dry_run: bool = False,
    fs: FileSystem = LOCAL,
) -> ReplayReport:
    """Replay the error rows of these windows and reasons, of all reasons if none is given. Safe to repeat.

    `again` selects the rows that were replayed before and have failed again. `dry_run` writes nothing. `fs` is that of
    the source's files.

    Raises:
        UsageError: the errors of this job cannot be replayed; the text says why.
        FencedError, ProducerFencedError: another call is running.
        IntegrityError: a file of the error port or a record of a replay is not what it should be.
    """
    if store.config is None:
        raise UsageError("name the job's config file: a store alone does not know its source")
    topics, port = store.config.source, store.config.sinks.error
    if isinstance(topics, KafkaSource):
        if not isinstance(port, KafkaSink):
            raise UsageError(
                f"the error port is `{port.format}`: errors of topics are sent again from an error port that is a "
                "topic, where they have their key and headers"
            )
        _require_reasons(reasons)
        from deduper.admin.errors.replay_topic import replay_topic  # it loads Kafka's client, which is an extra

        sent = replay_topic(store, topics, port, windows, reasons, again=again, dry_run=dry_run)
        return ReplayReport(not dry_run, None, dict(sent.rows), (), (), dict(sent.left_out))
    source = _source(store, topics, reasons)
    if dry_run:
        selection = _selection(store, windows, reasons, again=again, writing=None)
        return ReplayReport(False, None, dict(selection.rows), (), (), dict(selection.left_out))
    replays = store.root / DIRECTORY
    replays.make_directories()
    with _locked(fs, _lock(store, source)):
        completed = _complete(fs, source, read_replays(store.root))
        number = max(read_replays(store.root), default=0) + 1
        writing = _Writing(fs, source, store.log.manifest.store_id[:8], number)
        selection = _selection(store, windows, reasons, again=again, writing=writing)
        if not selection.rows:
            return ReplayReport(True, None, {}, (), completed, dict(selection.left_out))
        files = writing.finish()
        record = {"selected": _written(selection.selected), "folder": str(source.folder), "files": files}
        failpoints.hit("replay.written")
        body = json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogateescape")
        (replays / f"{number:06d}").create(frame(_MAGIC, _VERSION, body))
        failpoints.hit("replay.recorded")
        placed = _complete(fs, source, {number: record})
        return ReplayReport(True, number, dict(selection.rows), placed, completed, dict(selection.left_out))


def _source(store: OpenStore, source: FilesSource, reasons: Collection[str]) -> FilesSource:
    """The source of files that errors are sent to; raises UsageError if they cannot be."""
    if not source.is_text:
        raise UsageError(
            "errors of Parquet files are not sent again: their rows have the columns as they were read, not the file's "
            "own. Put a copy of each file (`_dedup.source`) into the source's folder under another name; what was "
            "judged before leaves as duplicates, or expired"
        )
    if source.folder == Path(source.path) and source.folder.is_file():
        raise UsageError(f"{source.path} is one file: a source that takes more files is needed")
    if error_port(store) is None:
        assert store.config is not None
        sink = store.config.sinks.error.format
        raise UsageError(f"the error port is `{sink}`: only rows of files (parquet, json, csv) can be sent again")
    _require_reasons(reasons)
    wanted = sorted(set(reasons) & set(_NO_RECORDS))
    if wanted:
        raise UsageError(f"rows of {wanted[0]} are no records: put the file into the source under another name")
    return source


def _require_reasons(reasons: Collection[str]) -> None:
    unknown = sorted(set(reasons) - set(REASONS))
    if unknown:
        raise UsageError(f"`{unknown[0]}` is no reason of an error; reasons are {', '.join(REASONS)}")


def _lock(store: OpenStore, source: FilesSource) -> Path:
    """The lock of a replay: in a store of this machine, else beside the source's files, which are of this machine."""
    if store.root.names.scheme == "file":
        return store.root.local / DIRECTORY / _LOCK
    return source.folder / f".deduper-replay-{store.log.manifest.store_id[:8]}.{_LOCK}"


@contextmanager
def _locked(fs: FileSystem, path: Path) -> Iterator[None]:
    with fs.open(path, write=True, create=True) as lock:
        if not lock.try_lock():
            raise FencedError(f"{path}: another `replay-errors` is running")
        yield


def read_replays(root: Place) -> dict[int, dict[str, Any]]:
    """The replays of a store by number.

    Raises:
        CorruptionError, UnknownFormatError: a record is damaged, or of a later release.
    """
    records = {}
    for name in (root / DIRECTORY).listed():
        if _NUMBER.fullmatch(name):
            path = root / DIRECTORY / name
            body = unframe(path.read(), magic=_MAGIC, version=_VERSION, file=str(path))
            records[int(name)] = json.loads(body.decode("utf-8", "surrogateescape"))
    return records


def _complete(fs: FileSystem, source: FilesSource, records: Mapping[int, Mapping[str, Any]]) -> tuple[str, ...]:
    """Step 4: give the hidden files of these replays their names; gives those that had none."""
    placed, folders = [], set()
    for number, record in sorted(records.items()):
        for file in record["files"]:
            hidden, final = source.folder / file["hidden"], source.folder / file["final"]
            if not fs.exists(hidden):
                if fs.exists(Path(record["folder"]) / file["hidden"]):
                    raise UsageError(
                        f"replay {number} was interrupted when the source was {record['folder']}: set `source.path` "
                        "back for one call, or move its files"
                    )
                continue
            if fs.exists(final):
                raise IntegrityError(f"{final}: the name of a replayed file is taken by another file; move that away")
            fs.replace(hidden, final)
            failpoints.hit("replay.renamed")
            placed.append(str(final))
            folders.add(final.parent)
    for folder in sorted(folders):
        fs.fsync_dir(folder)
    return tuple(placed)


@dataclass(slots=True)
class _Selection:
    """What is replayed: rows by reason, and the files of the port they are in; and what is left out."""

    rows: Counter[str] = field(default_factory=Counter)
    selected: Selected = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)


def _selection(
    store: OpenStore,
    windows: Windows,
    reasons: Collection[str],
    *,
    again: bool,
    writing: _Writing | None,
) -> _Selection:
    """Select rows, and write them where that is wanted, file after file of the port."""
    port = error_port(store)
    assert port is not None
    taken: Selected = {}
    for record in read_replays(store.root).values():
        for one in record["selected"]:
            taken.setdefault((one["reason"], one["again"]), set()).update(one["files"])
    found = _Selection()
    for _, path in error_files(store, windows):
        batches = read_errors(path, raw=True)
        try:
            first = list(islice(batches, 1))
        except FileNotFoundError:
            continue  # a reader has taken it; from here on it is open
        for batch in chain(first, batches):
            for row in batch.to_pylist():
                reason, was_replayed = row["reason"], _REPLAYED.search(Path(row["source"]).name) is not None
                if (reasons and reason not in reasons) or path.name in taken.get((reason, was_replayed), ()):
                    continue
                if reason in _NO_RECORDS or row["raw"] is None:
                    found.left_out[reason] += 1
                elif was_replayed != again:
                    found.left_out["not replayed before" if again else "replayed before"] += 1
                else:
                    found.rows[reason] += 1
                    found.selected.setdefault((reason, again), set()).add(path.name)
                    if writing is not None:
                        writing.add(row["source"], _bytes_of(row))
    return found


def _bytes_of(row: Mapping[str, Any]) -> bytes:
    """The line of a record as it was read, without its end."""
    is_text = row["reason"] != Admission.INVALID_UTF8.reason
    line: bytes = row["raw"].encode() if is_text else base64.b64decode(row["raw"])
    # The mark belongs to its file, and not to the record.
    return line.removeprefix(_BOM) if row["position"] == 0 else line


def _written(selected: Selected) -> list[dict[str, Any]]:
    return [
        {"reason": reason, "again": again, "files": sorted(names)}
        for (reason, again), names in sorted(selected.items())
    ]


@dataclass(slots=True)
class _Part:
    """A file of a replay that is being written; `hidden` and `final` are below the source's folder."""

    hidden: Path
    final: Path
    size_bytes: int = 0
    rows: int = 0


class _Writing:
    """Step 3: records into hidden files beside the place where they are to stand, one a folder and 256 MB."""

    def __init__(self, fs: FileSystem, source: FilesSource, store: str, number: int) -> None:
        self._fs = fs
        self._source = source
        self._name = f"deduper-replay-{store}-{number:06d}"
        self._hidden = f".deduper-replay-{store}-"
        self._parts: list[_Part] = []
        self._open: dict[Path, _Part] = {}
        self._buffers: dict[Path, bytearray] = {}

    def add(self, source: str, line: bytes) -> None:
        """A record of this file of the source."""
        folder = self._folder(source)
        part = self._open.get(folder)
        if part is None or part.size_bytes >= _PART_BYTES:
            self._flush(folder)
            part = self._open[folder] = self._begin(folder, source)
        buffer = self._buffers.setdefault(folder, bytearray())
        buffer += line + b"\n"
        part.size_bytes += len(line) + 1
        part.rows += 1
        if len(buffer) >= _PART_BYTES // 256:
            self._flush(folder)

    def finish(self) -> list[dict[str, Any]]:
        """The files, whole and durable under their hidden names, as the record names them."""
        for folder in list(self._open):
            self._flush(folder)
        for part in self._parts:
            with self._fs.open(self._source.folder / part.hidden, write=True) as file:
                file.sync()
        for folder in sorted({part.hidden.parent for part in self._parts}):
            self._fs.fsync_dir(self._source.folder / folder)
        return [{"hidden": str(part.hidden), "final": str(part.final), "rows": part.rows} for part in self._parts]

    def _folder(self, source: str) -> Path:
        """The folder of a file of the source, below the source's; of a source that has moved, its partition folders."""
        parent = Path(source).parent
        if parent.is_relative_to(self._source.folder):
            return parent.relative_to(self._source.folder)
        return Path(*[part for part in parent.parts if "=" in part])

    def _begin(self, folder: Path, source: str) -> _Part:
        absolute = self._source.folder / folder
        make_directories(self._fs, absolute)
        if folder not in self._open:
            for name in listed(self._fs, absolute):
                if name.startswith(self._hidden):
                    self._fs.remove(absolute / name)  # of a call that was interrupted before its record
        final = folder / self._final_name(absolute, Path(source).name)
        part = _Part(folder / f"{self._hidden}{secrets.token_hex(8)}.tmp", final)
        self._parts.append(part)
        if self._source.header:
            names = [column.name for column in self._source.parsed_columns]
            head = self._source.delimiter.join(f'"{name.replace(chr(34), 2 * chr(34))}"' for name in names)
            self._buffers[folder] = bytearray(head.encode() + b"\n")
            part.size_bytes = len(self._buffers[folder])
        return part

    def _final_name(self, folder: Path, original: str) -> str:
        name = f"{self._name}-{len(self._parts):04d}.{self._source.file_format}"
        stem, dot, ending = original.partition(".")
        for ending in (".gz", ".bz2", ".zst", ".deflate", ".lz4", ".snappy"):
            original = original.removesuffix(ending)
        ending = original.rpartition(".")[2]
        behind = f"{stem}-{self._name}-{len(self._parts):04d}.{ending if dot else self._source.file_format}"
        for candidate in (name, behind):
            if self._takes(folder / candidate):
                return candidate
        raise UsageError(
            f"a new file {folder / behind} would not match the source's path {self._source.path}: widen the pattern, "
            f"such as {self._source.folder}/*"
        )

    def _takes(self, path: Path) -> bool:
        """Whether the source reads a file of this name."""
        if not is_pattern(self._source.path):
            return True
        above = [path, *path.parents]
        return any(glob.globmatch(str(one), self._source.path, flags=_PATTERN) for one in above)

    def _flush(self, folder: Path) -> None:
        buffer = self._buffers.pop(folder, None)
        if buffer:
            part = self._open[folder]
            with self._fs.open(self._source.folder / part.hidden, write=True, create=True) as file:
                write_at(file, bytes(buffer), file.size())
