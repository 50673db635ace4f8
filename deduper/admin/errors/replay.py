"""Sends error records through the job once more, exactly once; SEMANTICS.md has the steps. Of topics: `replay_topic`.

A store's `replays/<6 digits>` is a frame (`bucket_store.framing`) around a JSON object, placed by link, never changed:

    selected    [{"reason": text, "again": bool, "files": [name of a file of the error port]}]; of Parquet with
                "source": the file of the source, whose rows alone were selected
    folder      the source's folder
    files       [{"hidden": path, "final": path, "rows": int}], below that folder

A replay exists from its record on. Its hidden files get their final names then, or at the next call. A rename was done
or was not, so no other record is needed.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from bucket_store import failpoints
from bucket_store.errors import FencedError
from bucket_store.filesystem import LOCAL, FileSystem
from bucket_store.framing import frame, unframe
from bucket_store.places.place import Place
from deduper.admin.errors.new_files import LineFiles, NewFiles, is_replayed
from deduper.admin.errors.parquet_rows import ParquetCopies, ParquetFiles, RowsNotFound, RowsNotFoundError
from deduper.admin.errors.replay_files import DIRECTORY
from deduper.admin.errors.rows import REASONS, Windows, error_files, error_port, read_errors
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.config.files import FilesSource
from deduper.config.kafka.sections import KafkaSink, KafkaSource
from deduper.core.verdict import Admission
from deduper.errors import IntegrityError, UsageError
from deduper.sinks.names import FinalName
from deduper.sinks.publish_state import OnUnknown

_MAGIC, _VERSION = b"BSREPLAY", 1
_LOCK = "lock"
_NUMBER = re.compile(r"\d{6}")
_BOM: Final = "\ufeff".encode()
_NO_RECORDS: Final = ("file_missing", "file_unreadable", "file_header")

Selected = dict[tuple[str, bool, str | None], set[str]]
"""Files of the error port by reason, by whether their rows had been replayed before, and by the source's file.

None for the source's file: those of all.
"""


@dataclass(frozen=True, slots=True)
class ReplayReport(AsJson):
    """The answer of `replay-errors`.

    `number` is that of the replay, None if there was nothing to send, nothing was to be done, or the source has topics.
    `rows` are the selected ones by reason, `files` the new files of the source. `completed`: files of an interrupted
    replay that have got their names. `left_out`: rows without a record by reason, rows that were replayed before, and
    rows that were not found again, which `not_found` has with the reason for each.
    """

    is_done: bool
    number: int | None
    rows: dict[str, int]
    files: tuple[str, ...]
    completed: tuple[str, ...]
    left_out: dict[str, int]
    not_found: tuple[RowsNotFound, ...] = ()


def replay_errors(
    store: OpenStore,
    windows: Windows,
    reasons: Collection[str] = (),
    *,
    again: bool = False,
    mended_files: bool = False,
    unpublished: OnUnknown = OnUnknown.REFUSE,
    dry_run: bool = False,
    fs: FileSystem = LOCAL,
) -> ReplayReport:
    """Replay the error rows of these windows and reasons, of all reasons if none is given. Safe to repeat.

    `again` selects the rows that were replayed before and have failed again. `mended_files` takes a row of a Parquet
    file from the file as it is now. `unpublished` answers for topics where the cluster has forgotten whether a
    transaction was committed. `dry_run` writes nothing. `fs` is that of the source's files.

    Raises:
        UsageError: the errors of this job cannot be replayed; the text says why.
        FencedError, ProducerFencedError: another call is running.
        IntegrityError: a file of the error port or a record of a replay is not what it should be.
        PublicationUnknownError: see `unpublished`.
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

        sent = replay_topic(
            store,
            topics,
            port,
            windows,
            reasons,
            folder=store.root / DIRECTORY,
            again=again,
            unpublished=unpublished,
            dry_run=dry_run,
        )
        return ReplayReport(not dry_run, None, dict(sent.rows), (), (), dict(sent.left_out))
    source = _source(store, topics, reasons)
    if mended_files and source.is_text:
        raise UsageError("`--mended-files` is for Parquet: a line is sent as it was read, from the error port")

    def select(writing: LineFiles | ParquetCopies | None) -> _Selection:
        selecting = _Selecting(store, windows, reasons, again, _taken(store.root), _Selection())
        if source.is_text:
            assert not isinstance(writing, ParquetCopies)
            selecting.lines(writing)
        else:
            assert not isinstance(writing, LineFiles)
            selecting.parquet(ParquetFiles(store, source, mended=mended_files), writing)
        return selecting.found

    def report(number: int | None, files: tuple[str, ...] = (), completed: tuple[str, ...] = ()) -> ReplayReport:
        left_out, not_found = dict(selection.left_out), tuple(selection.not_found)
        return ReplayReport(not dry_run, number, dict(selection.rows), files, completed, left_out, not_found)

    if dry_run:
        selection = select(None)
        return report(None)
    replays = store.root / DIRECTORY
    replays.make_directories()
    with _locked(fs, _lock(store, source)):
        completed = _complete(fs, source, read_replays(store.root))
        number = max(read_replays(store.root), default=0) + 1
        new_files = NewFiles(fs, source, store.log.manifest.store_id[:8], number)
        writing = LineFiles(new_files) if source.is_text else ParquetCopies(new_files)
        selection = select(writing)
        if not selection.rows:
            return report(None, completed=completed)
        files = writing.finish()
        record = {"selected": _written(selection.selected), "folder": str(source.folder), "files": files}
        failpoints.hit("replay.written")
        body = json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogateescape")
        (replays / f"{number:06d}").create(frame(_MAGIC, _VERSION, body))
        failpoints.hit("replay.recorded")
        placed = _complete(fs, source, {number: record})
        return report(number, placed, completed)


def _source(store: OpenStore, source: FilesSource, reasons: Collection[str]) -> FilesSource:
    """The source of files that errors are sent to; raises UsageError if they cannot be."""
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


@contextmanager
def replays_held(store: OpenStore, fs: FileSystem = LOCAL) -> Iterator[None]:
    """No replay of files is made while the `with` block runs.

    Raises:
        FencedError: one is being made.
    """
    source = None if store.config is None else store.config.source
    if not isinstance(source, FilesSource) or error_port(store) is None:
        yield
        return
    lock = _lock(store, source)
    if store.root.names.scheme == "file":
        (store.root / DIRECTORY).make_directories()
    elif not fs.exists(lock.parent):
        yield  # without the source's folder no replay can be made
        return
    with _locked(fs, lock):
        yield


def replays_after(store: OpenStore, window: int) -> tuple[int, ...]:
    """The replays that have taken rows of later windows. Raises as `read_replays`."""
    return tuple(
        number
        for number, record in sorted(read_replays(store.root).items())
        if any(
            (name := FinalName.of(file)) is not None and name.window > window
            for one in record["selected"]
            for file in one["files"]
        )
    )


def undo_replay(store: OpenStore, number: int, fs: FileSystem = LOCAL) -> None:
    """As if the replay was broken off before its record: its rows may be selected again. Safe to repeat.

    Called for a replay that only windows which are undone have judged. Its files are hidden again; the next replay
    into their folders removes them.
    """
    assert store.config is not None
    assert isinstance(store.config.source, FilesSource)
    record = read_replays(store.root)[number]
    for folder in dict.fromkeys((store.config.source.folder, Path(record["folder"]))):
        for file in record["files"]:
            if fs.exists(folder / file["final"]):
                fs.replace(folder / file["final"], folder / file["hidden"])
                fs.fsync_dir((folder / file["final"]).parent)
    failpoints.hit("replay.undone")
    (store.root / DIRECTORY / f"{number:06d}").remove()
    (store.root / DIRECTORY).sync()


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
    not_found: list[RowsNotFound] = field(default_factory=list)

    def add(self, reason: str, again: bool, source: str | None, port_file: str, rows: int = 1) -> None:
        """Rows of a file of the port. `source` is named where each file of the source has its own fate."""
        self.rows[reason] += rows
        self.selected.setdefault((reason, again, source), set()).add(port_file)


@dataclass(frozen=True, slots=True)
class _Selecting:
    """Step 2, file after file of the port: rows are selected, and written where that is wanted."""

    store: OpenStore
    windows: Windows
    reasons: Collection[str]
    again: bool
    taken: Selected
    found: _Selection

    def lines(self, writing: LineFiles | None) -> None:
        """Records that are lines of text: the error port has each of them whole."""
        for _, port_file, rows in self._open_rows(raw=True):
            for row in rows:
                if row["raw"] is None:
                    self.found.left_out[row["reason"]] += 1
                    continue
                self.found.add(row["reason"], self.again, None, port_file)
                if writing is not None:
                    writing.add(row["source"], _bytes_of(row))

    def parquet(self, files: ParquetFiles, writing: ParquetCopies | None) -> None:
        """Rows of Parquet files: they are read once more from the files of the source."""
        for window, port_file, rows in self._open_rows(raw=False):
            by_source: dict[str, dict[int, str]] = {}
            for row in rows:
                by_source.setdefault(row["source"], {})[row["position"]] = row["reason"]
            for source, reasons in by_source.items():
                try:
                    table = files.rows(window, source, sorted(reasons))
                except RowsNotFoundError as exc:
                    self.found.left_out[exc.kind] += len(reasons)
                    self.found.not_found.append(RowsNotFound(source, window, tuple(sorted(reasons)), str(exc)))
                    continue
                for reason, count in Counter(reasons.values()).items():
                    self.found.add(reason, self.again, source, port_file, count)
                if writing is not None:
                    writing.add(source, table)

    def _open_rows(self, *, raw: bool) -> Iterator[tuple[int, str, Iterator[dict[str, Any]]]]:
        """(window, file of the port, its rows that may be selected)."""
        port = error_port(self.store)
        assert port is not None
        for window, path in error_files(self.store, self.windows):
            batches = read_errors(path, raw=raw)
            try:
                first = list(islice(batches, 1))
            except FileNotFoundError:
                continue  # a reader has taken it; from here on it is open
            rows = (row for batch in chain(first, batches) for row in batch.to_pylist())
            yield window, path.name, (row for row in rows if self._is_open(row, path.name))

    def _is_open(self, row: Mapping[str, Any], port_file: str) -> bool:
        reason, was_replayed = row["reason"], is_replayed(row["source"])
        if self.reasons and reason not in self.reasons:
            return False
        if any(port_file in self.taken.get((reason, was_replayed, of), ()) for of in (None, row["source"])):
            return False
        if reason in _NO_RECORDS:
            self.found.left_out[reason] += 1
        elif was_replayed != self.again:
            self.found.left_out["not replayed before" if self.again else "replayed before"] += 1
        return reason not in _NO_RECORDS and was_replayed == self.again


def _taken(root: Place) -> Selected:
    """What earlier replays have selected."""
    taken: Selected = {}
    for record in read_replays(root).values():
        for one in record["selected"]:
            taken.setdefault((one["reason"], one["again"], one.get("source")), set()).update(one["files"])
    return taken


def _bytes_of(row: Mapping[str, Any]) -> bytes:
    """The line of a record as it was read, without its end."""
    is_text = row["reason"] != Admission.INVALID_UTF8.reason
    line: bytes = row["raw"].encode() if is_text else base64.b64decode(row["raw"])
    # The mark belongs to its file, and not to the record.
    return line.removeprefix(_BOM) if row["position"] == 0 else line


def _written(selected: Selected) -> list[dict[str, Any]]:
    return [
        {"reason": reason, "again": again, "files": sorted(names)} | ({} if source is None else {"source": source})
        for (reason, again, source), names in sorted(
            selected.items(), key=lambda item: (*item[0][:2], item[0][2] or "")
        )
    ]
