"""`rewind`: the store as it was after a window, so that everything since is judged once more.

Only exact or not at all: the log must still have the records since that window, and the disk every piece and every
file of sources that the store named then. What has left the store since keeps its bytes for a grace, and longer while
no job runs.

a  claim an epoch, as a start does
b  copy the pieces and the files of sources that have left the store since (an owner that slept may still delete them,
   and a retired piece is never named again), and read back all pieces
c  one rebase record: the state after the window counts
d  discard what lower epochs have staged and the marks they have prepared: from here on an owner that slept before its
   renames, or before it put a mark in place, finds nothing to rename
e  move the outputs of later windows into `<port>/_rewound/<epoch>/`: their names are to be used again
f  set the marks back to the window

Broken off before c, nothing has changed. Between c and f a start is refused, since its ports are newer than the store;
the same command finishes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from bucket_store import failpoints
from bucket_store.errors import StoreError
from bucket_store.log.marks import PUBLISHED_NAME, read_published
from bucket_store.log.records import (
    ArchiveRef,
    CommitRecord,
    JudgedRef,
    LogSnapshot,
    LogState,
    RebaseRecord,
    SourcesRef,
)
from bucket_store.log.sources_archive import files_of, folded_name, path_of
from bucket_store.log.sources_file import FOLDED_DIRECTORY, read_named, sources_name
from bucket_store.log.state import fold
from bucket_store.pieces.piece import PieceRef, piece_name
from bucket_store.pieces.reader import decode_named
from bucket_store.places.new_file import create_own
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.admin.move.key_sum import KeySum, sum_of_all
from deduper.admin.move.owning import OwnedStore, owning, with_pieces
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.config.model import Config
from deduper.errors import IntegrityError, UsageError
from deduper.sinks import staging
from deduper.sinks.names import PUBLISHED, is_of_file, topic_of
from deduper.window.completeness import replay_is_open
from deduper.window.publishing import mark_places, mark_published
from deduper.window.rewound import later_files, rewound_to

ASIDE = "_rewound"
_RENAMING = ("file", "hdfs")


@dataclass(frozen=True, slots=True)
class RewindReport(AsJson):
    """What is undone, and the proof: sums over the pieces of then and over those that the store has now.

    `outputs` are the published files of later windows, each with its port. `before` and `after` are None in a plan.
    """

    json_names = (
        *("is_executed", "to_window", "windows_undone", "pieces", "pieces_copied", "outputs", "before", "after"),
    )

    to_window: int
    windows_undone: int
    pieces: int
    pieces_copied: int
    outputs: tuple[str, ...]
    before: KeySum | None = None
    after: KeySum | None = None

    @property
    def is_executed(self) -> bool:
        """The store is as it was."""
        return self.after is not None


def plan_rewind(store: OpenStore, window: int) -> RewindReport:
    """What `rewind` is to do. Changes nothing.

    Raises:
        UsageError: it cannot be exact, or a port is no file; the message says why.
    """
    _config(store)
    state = store.log.state
    if _is_unfinished(store, window):
        return RewindReport(window, 0, 0, 0, tuple(map(str, _later_files(store, window))))
    then = _state_after(store, window)
    copied = list(_left_since(then, state))
    for ref in copied:
        _demand_bytes(store, ref)
    _demand_sources(store, then)
    return RewindReport(
        to_window=window,
        windows_undone=state.next_window - 1 - window,
        pieces=sum(map(len, then.pieces.values())),
        pieces_copied=len(copied),
        outputs=tuple(map(str, _later_files(store, window))),
    )


def rewind(store: OpenStore, window: int, *, now_us: int | None = None) -> RewindReport:
    """Go back to a window, in the steps at the top.

    Raises:
        UsageError: as `plan_rewind`.
        OwnerAliveError: a job runs on the store.
        IntegrityError: the copied pieces have other keys; nothing was changed.
        FencedError: a job has taken the store meanwhile.
    """
    plan_rewind(store, window)
    with owning(store, now_us) as owned:
        planned = plan_rewind(store, window)
        report = planned if _is_unfinished(store, window) else _Rewinding(owned, window).run(planned)
        _clear_ports(owned, window)
        return report if report.is_executed else replace(report, before=KeySum(), after=KeySum())


class _Rewinding:
    """Steps b and c of one run."""

    def __init__(self, owned: OwnedStore, window: int) -> None:
        self._owned = owned
        self._store = owned.store
        self._window = window

    def run(self, planned: RewindReport) -> RewindReport:
        store = self._store
        then, now = _state_after(store, self._window), store.log.state
        moved = {ref: self._copy(ref) for ref in _left_since(then, now)}
        then = self._with_own_sources(then, set(files_of(now)))
        before = sum((_sum(store, ref) for refs in then.pieces.values() for ref in refs), KeySum())
        pieces = {shard: tuple(moved.get(ref, ref) for ref in refs) for shard, refs in then.pieces.items()}
        after = sum((_sum(store, ref) for refs in pieces.values() for ref in refs), KeySum())
        if before != after:
            raise IntegrityError(f"{store.root}: the copied pieces hold {after}, not {before}; nothing was changed")
        state = replace(with_pieces(then, pieces), outputs={}, published_through=self._window, notes=now.notes)
        self._owned.rebase(
            replace(state, windows=then.windows),
            action="rewind",
            to_window=self._window,
            windows=[self._window + 1, now.next_window - 1],
        )
        return replace(planned, before=before, after=after)

    def _with_own_sources(self, then: LogState, kept: set[PurePosixPath]) -> LogState:
        """The state with copies of the files of sources that the store names no more."""
        sources = {
            window: ref
            if ref.inline or path_of(ref) in kept
            else replace(ref, name=self._copy_sources(path_of(ref), ref, sources_name(window, self._owned.epoch, 0)))
            for window, ref in then.sources.items()
        }
        archives = tuple(
            ref
            if path_of(ref) in kept
            else replace(ref, name=self._copy_sources(path_of(ref), ref, self._folded_name(ref.last_window, "archive")))
            for ref in then.archives
        )
        judged = then.judged
        if judged is not None and (path := PurePosixPath(FOLDED_DIRECTORY, judged.name)) not in kept:
            name = self._folded_name(judged.through_window, "judged")
            judged = replace(judged, name=self._copy_sources(path, judged, name))
        return replace(then, sources=sources, archives=archives, judged=judged)

    def _copy_sources(self, path: PurePosixPath, ref: SourcesRef | ArchiveRef | JudgedRef, name: str) -> str:
        data = read_named(self._store.root / path, ref.length, ref.checksum)
        create_own(self._store.root / path.parent / name, data)
        return name

    def _folded_name(self, through_window: int, kind: str) -> str:
        return folded_name(through_window, self._owned.epoch, kind)

    def _copy(self, ref: PieceRef) -> PieceRef:
        data = self._store.pieces.read(ref)
        name = piece_name(window=ref.first_window, epoch=self._owned.epoch, attempt=0, shard=ref.shard)
        place = self._store.pieces.append(shard=ref.shard, epoch=self._owned.epoch, name=name, data=data)
        failpoints.hit("rewind.copied")
        return replace(ref, file=place.file, name=name, offset=place.offset)


def _clear_ports(owned: OwnedStore, window: int) -> None:
    """Steps d to f."""
    store, config = owned.store, _config(owned.store)
    for mark in mark_places(config, store.log):
        mark.remove_prepared(below_epoch=owned.epoch)
    staging.discard_abandoned(config, owned.epoch, names=store.root.names)
    for file in _later_files(store, window):
        store.log.check_owner()
        aside = file.parent / ASIDE / f"{owned.epoch:06d}"
        aside.make_directories()
        file.rename(aside / file.name)
        aside.sync()
        file.parent.sync()
        failpoints.hit("rewind.moved")
    mark_published(config, store.log, window)


def _config(store: OpenStore) -> Config:
    if store.config is None:
        raise UsageError("rewind moves outputs, and needs the job's config file for that")
    if store.config.topic_ports:
        port = next(iter(store.config.topic_ports))
        raise UsageError(f"port {port} is a topic: what was sent cannot be taken back, so a rewind would send it twice")
    if store.config.function_ports:
        port = store.config.function_ports[0]
        raise UsageError(
            f"port {port} is a function: what was handed over cannot be taken back, so a rewind would do it twice"
        )
    for port, place in store.ports.items():
        if place.names.scheme not in _RENAMING:
            raise UsageError(f"port {port}: {place}: outputs on this storage cannot be set aside by renaming")
    return store.config


def _is_unfinished(store: OpenStore, window: int) -> bool:
    """Whether the last rewind went back to this window, no other was judged since, and its outputs are left."""
    if rewound_to(store.log.state) != window:
        return False
    marks = [store.root / PUBLISHED_NAME, *(port / PUBLISHED for port in store.ports.values())]
    found = [read_published(mark) for mark in marks]
    return any(mark is not None and mark.window > window for mark in found) or any(_later_files(store, window))


def _state_after(store: OpenStore, window: int) -> LogState:
    """The state right after a window's commit.

    Raises:
        UsageError: it is not the log's any more, another rebase stands between, the window is one of a replay, before
            its last, or the outputs of a later window were not written to the ports of today.
    """
    last = store.log.state.next_window - 1
    if not 0 <= window < last:
        raise UsageError(f"--to {window}: write a window from 0 to {last - 1}; the newest one is {last}")
    state: LogState | None = None
    then: LogState | None = None
    later: list[CommitRecord] = []
    for record in store.log.records():
        if isinstance(record.body, LogSnapshot):
            state = fold(LogState(), record)
            continue
        follows = state is not None and record.number == state.next_number
        state = fold(state, record) if state is not None and follows else None
        if isinstance(record.body, RebaseRecord):
            then = None
        if isinstance(record.body, CommitRecord):
            later.append(record.body)
            if record.body.window == window:
                then, later = state, []
    if then is None:
        raise UsageError(f"--to {window}: the log has no whole run of records since then; restore a copy instead")
    if replay_is_open(then):
        raise UsageError(
            f"--to {window}: window {window} is one of a replay, whose slices are removed at its end, so the rest "
            "could not be judged: go back to the replay's last window or a later one, or make the replay again in a "
            "new store"
        )
    for commit in later:
        _demand_ports(store, commit)
    return then


def _demand_ports(store: OpenStore, commit: CommitRecord) -> None:
    """The outputs of a later window can be taken back: all are files, in folders that are ports' now."""
    for output in commit.outputs:
        topic, final = topic_of(output), output.final
        if topic is not None:
            raise UsageError(
                f"rows of window {commit.window} went to topic {topic.topic}: what was sent cannot be taken back, so a "
                "rewind would write them twice"
            )
        if not is_of_file(output):
            raise UsageError(
                f"rows of window {commit.window} went to the function of port {output.port}: what was handed over "
                "cannot be taken back, so a rewind would do it twice"
            )
        port = store.ports.get(output.port)
        is_here = port is not None and (port / PurePosixPath(final).name).exists()
        if not is_here and open_place(final).parent not in store.ports.values() and open_place(final).exists():
            raise UsageError(f"{final}: an output of window {commit.window} is in no port of this config: move it away")


def _left_since(then: LogState, now: LogState) -> Iterator[PieceRef]:
    live = {ref for refs in now.pieces.values() for ref in refs}
    return (ref for refs in then.pieces.values() for ref in refs if ref not in live)


def _demand_bytes(store: OpenStore, ref: PieceRef) -> None:
    try:
        _sum(store, ref)
    except (StoreError, OSError) as error:
        raise UsageError(
            f"a piece of windows {ref.first_window} to {ref.last_window} has left the store since, and its bytes are "
            "gone; restore a copy instead"
        ) from error


def _demand_sources(store: OpenStore, then: LogState) -> None:
    for path in files_of(then):
        if not (store.root / str(path)).exists():
            raise UsageError(f"{path}, which lists judged files, is gone since then; restore a copy instead")


def _later_files(store: OpenStore, window: int) -> Iterator[Place]:
    return later_files(store.ports.values(), store.log.manifest.store_id, window)


def _sum(store: OpenStore, ref: PieceRef) -> KeySum:
    blocks = decode_named(ref, store.pieces.read(ref), store.log.manifest.store_id)
    return sum_of_all(blocks, ref.first_window)
