"""What must hold of a disk after a fault: at the moment of it, and when the next owner has run to the source's end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bucket_store.errors import StoreMissingError
from bucket_store.filesystem import FileSystem, listed
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.marks import PUBLISHED_NAME, Published, read_intents, read_published
from bucket_store.log.records import LogState
from bucket_store.log.sources_archive import SourcesReader
from bucket_store.log.sources_file import DIRECTORY as SOURCES_DIRECTORY
from bucket_store.pieces.piece import decode_piece
from bucket_store.places.local import local_place
from deduper.sinks.names import PUBLISHED, STAGING, FinalName, is_data_file, staging_homes
from deduper.sources.files.judged import KnownFiles
from deduper.testing import Answer
from tests.faults.crash_disk import Disk, Machine, Nodes
from tests.faults.service import Process, Rows, Scene


class Violation(AssertionError):
    """An invariant that does not hold."""


def demand(what: str, expected: object, found: object) -> None:
    """Raise unless they are equal."""
    if expected != found:
        raise Violation(f"{what}: expected {expected}, found {found}")


def public_windows(scene: Scene, fs: FileSystem) -> set[int]:
    """The windows of which a file is public in any port."""
    return {window for _, window, _ in _public(scene, fs)}


def check_moment(scene: Scene, fs: FileSystem, acknowledged: int, seen: set[int]) -> None:
    """What holds at once after a fault, before anybody has repaired anything.

    `acknowledged` windows had been committed, as far as their owner knew; files of the windows `seen` had been public.
    """
    root = scene.config.store.path
    try:
        state: LogState = CommitLog.open(local_place(root, fs)).state
    except StoreMissingError:
        state = LogState()
    if state.next_window < acknowledged:
        raise Violation(f"{acknowledged} windows were acknowledged, {state.next_window} are left")
    public = list(_public(scene, fs))
    early = {window for _, window, _ in public} | seen
    if early and max(early) >= state.next_window:
        raise Violation(f"window {max(early)} was public, committed are only those below {state.next_window}")
    out: Counter[tuple[str, int]] = Counter()
    for port, window, rows in public:
        out[port, window] += len(rows)
        demand(f"rows of window {window} in port {port}", _of_port(scene, window, port), rows)
    for where, mark in _marks(scene, fs).items():
        for window in range(0 if mark is None else mark.window + 1):
            for port in scene.config.file_ports:
                expected = len(_of_port(scene, window, port))
                demand(f"mark of {where}: rows of window {window} in port {port}", expected, out[port, window])


def visible(scene: Scene, fs: FileSystem) -> dict[str, object]:
    """All that others can see of a service: what is public, how far the marks say one may read, what is committed.

    Whether a snapshot that is due stands in the log already is nothing that anybody sees: any process may place it.
    """
    return {
        "public": sorted(_public(scene, fs), key=lambda file: file[:2]),
        "marks": _marks(scene, fs),
        "state": replace(CommitLog.open(local_place(scene.config.store.path, fs)).state, next_number=0),
    }


def check_end(scene: Scene, process: Process) -> None:
    """Everything, when a process has run to the end of the source after any number of faults."""
    fs, root = process.fs, scene.config.store.path
    log = CommitLog.open(local_place(root, fs))
    state = log.state
    demand("the state of a fresh reader", process.log.state, state)
    demand("windows", len(scene.batches), state.next_window)
    _check_outputs(scene, fs, state)
    _check_pieces(scene, process, state)
    _check_orphans(scene, process, state)
    files = [file.path for files in scene.batches for file in files]
    demand("source files that are not known", [], KnownFiles(scene.config.source, log).new(files))
    reader = SourcesReader(local_place(root, fs), state)
    origins = {piece.first_window for pieces in state.pieces.values() for piece in pieces}
    for window in range(state.next_window):
        partitions = reader.of(window)
        if partitions is None:
            demand(f"window {window}, whose sources are forgotten, has pieces", False, window in origins)
        else:
            names = [partition.name for partition in partitions]
            demand(f"sources of window {window}", [file.path for file in scene.batches[window]], names)


def _check_outputs(scene: Scene, fs: FileSystem, state: LogState) -> None:
    found: dict[tuple[str, int], Rows] = {}
    for port, window, rows in _public(scene, fs):
        if (port, window) in found:
            raise Violation(f"window {window} is twice in port {port}")
        found[port, window] = rows
    totals: Counter[str] = Counter()
    for window in range(len(scene.batches)):
        for port in scene.config.file_ports:
            expected = _of_port(scene, window, port)
            totals[port] += len(expected)
            demand(f"rows of window {window} in port {port}", expected, found.pop((port, window), {}))
    demand("files of windows that there are not", {}, found)
    demand("totals", dict(totals), {port: state.totals.get(port, 0) for port in totals})
    last = len(scene.batches) - 1
    for where, mark in _marks(scene, fs).items():
        demand(f"mark of {where}", last, None if mark is None else mark.window)


def _marks(scene: Scene, fs: FileSystem) -> dict[str, Published | None]:
    paths = {port: sink.path / PUBLISHED for port, sink in scene.config.file_ports.items()}
    paths["the store"] = scene.config.store.path / PUBLISHED_NAME
    return {where: read_published(local_place(path, fs)) for where, path in paths.items()}


def _check_pieces(scene: Scene, process: Process, state: LogState) -> None:
    entries: Counter[int] = Counter()
    for refs in state.pieces.values():
        for ref in refs:
            data = process.pieces.read(ref)
            header, buckets = decode_piece(data, file=ref.file, offset=ref.offset)
            demand("piece", ref, header.to_ref(file=ref.file, name=ref.name, offset=ref.offset))
            entries[ref.first_window] += sum(len(bucket.digests) for bucket in buckets)
    if scene.plan.lookup == "own_bucket":
        dead = {window for refs in [state.windows] for window in range(len(scene.batches)) if window not in refs}
        for window in range(len(scene.batches)):
            unique = len(_of_port(scene, window, "unique"))
            if window not in dead and entries[window] > unique:
                raise Violation(f"window {window}: {unique} unique rows, {entries[window]} entries")
            if scene.plan.deletion_batch > 1:
                demand(f"entries of window {window}", unique, entries[window])


def _check_orphans(scene: Scene, process: Process, state: LogState) -> None:
    fs, root = process.fs, scene.config.store.path
    named = {(ref.file, ref.name) for refs in state.pieces.values() for ref in refs}
    named |= {(retired.ref.file, retired.ref.name) for retired in state.retired}
    lying = [(piece.file, piece.name) for piece in process.pieces.pieces()]
    demand("pieces that lie twice", len(lying), len(set(lying)))
    # Pieces that the last deletion record released are purged, and the next record would say so.
    demand("pieces named and not lying", set(), {(r.file, r.name) for p in state.pieces.values() for r in p} - {*lying})
    demand("pieces that no record names", set(), {*lying} - named)
    for home in (place.local for place in staging_homes(scene.config)):
        demand(f"staged in {home}", [], listed(fs, home / STAGING))
    files = sorted(ref.name for ref in state.sources.values() if not ref.inline)
    demand("sources files", files, listed(fs, root / SOURCES_DIRECTORY))
    epochs = [intent.epoch for intent in read_intents(local_place(root, fs))]
    if len(epochs) > 2:
        raise Violation(
            f"intents of {epochs}: a start leaves that of the one before, which it may repeat, and no other"
        )


def _public(scene: Scene, fs: FileSystem) -> Iterator[tuple[str, int, Rows]]:
    """Port, window and rows of every file that readers of the ports would read."""
    for port, sink in scene.config.file_ports.items():
        for name in listed(fs, sink.path):
            if is_data_file(name):
                final = FinalName.of(name)
                if final is None:
                    raise Violation(f"{sink.path / name}: not a file of this store")
                yield port, final.window, _rows(fs, sink.path / name)


def _rows(fs: FileSystem, path: Path) -> Rows:
    rows: Rows = {}
    try:
        lines = [json.loads(line) for line in fs.read(path).splitlines()]
    except ValueError as error:
        raise Violation(f"{path} is torn: {error}") from error
    for line in lines:
        if line["row"] in rows:
            raise Violation(f"{path}: {line['row']} twice")
        port, reason, first = line["answer"]
        rows[line["row"]] = port, reason, None if first is None else tuple(first)
    return rows


def _of_port(scene: Scene, window: int, port: str) -> Rows:
    if window >= len(scene.expected):
        return {}
    answers: dict[str, Answer] = scene.expected[window]
    return {name: answer for name, answer in answers.items() if answer[0] == port}


def seen_at(scene: Scene, nodes: Nodes) -> set[int]:
    """The windows that a reader could see at a moment of a run."""
    return public_windows(scene, Machine(Disk(dict(nodes))))
