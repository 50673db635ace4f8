"""PURE. The fold of records: from one state of the log to the next.

The state is a function of the records alone, so every reader has the same one, and a snapshot of it may replace all
records below it. That is why the envelopes of records say what to forget (published outputs, purged pieces).

The wall clock of the state is the greatest that a record carried, until a claim, a deletion or a compaction carries one
that is earlier by more than `log.wall_clock.TOLERANCE_US`: the machine's clock was far ahead and is right again. A
commit cannot show this: it may repeat an old intent's.

A record that cannot follow the state (a number, a window or an epoch out of turn, a piece that leaves without being
there) is a CorruptionError: no writer of ours places one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from bucket_store.errors import CorruptionError
from bucket_store.log.codec import record_name
from bucket_store.log.records import (
    ArchiveRef,
    ClaimRecord,
    CommitRecord,
    CompactionRecord,
    DeletionRecord,
    LogRecord,
    LogSnapshot,
    LogState,
    OutputFile,
    RebaseRecord,
    RetiredPiece,
    SourcesFoldRecord,
    SourcesRef,
    WindowInfo,
)
from bucket_store.log.wall_clock import is_far_ahead
from bucket_store.pieces.piece import PieceRef

__all__ = ["LogState", "RetiredPiece", "WindowInfo", "deletable", "first_origin", "fold", "fold_all", "live_files"]

_LINEAGE_KEPT = 100
"""Tables this many owners old are still of use; it takes 3 KB in every view and snapshot."""
_NOTES_KEPT = 100
_IDLE_KEPT = 3
"""Claims without a window show only that tasks of their owners are late: a job without work makes many."""


def fold(state: LogState, record: LogRecord) -> LogState:
    """The state after one more record. `state` is unchanged. See `fold_all`."""
    return fold_all(state, (record,))


def fold_all(state: LogState, records: Iterable[LogRecord]) -> LogState:
    """The state after these records, each the next after the one before; a snapshot may follow anything below it.

    Copies the state once, not once a record. Raises CorruptionError for a record out of turn.
    """
    folding = _Folding(state)
    for record in records:
        folding.add(record)
    return folding.result()


def deletable(state: LogState, *, oldest_view: int, now_us: int, grace_us: int) -> tuple[RetiredPiece, ...]:
    """The retired pieces whose bytes may be deleted now, oldest first.

    Those that left the store in a record below `oldest_view`, the log position of the oldest batch that still runs, and
    at least `grace_us` before `now_us`. None after one that must stay, whatever the clock did in between: so all pieces
    that left up to the last one's record are among them, and that number may go to `CommitLog.forget_retired`.
    """
    return tuple(
        takewhile(lambda piece: piece.at_number < oldest_view and piece.wall_us + grace_us <= now_us, state.retired)
    )


def live_files(state: LogState) -> frozenset[str]:
    """The files that hold live pieces: `keep` of `PieceStore.delete`."""
    return frozenset(ref.file for refs in state.pieces.values() for ref in refs)


def named_pieces(state: LogState) -> set[tuple[str, str]]:
    """(file, name) of the pieces that the log names: live ones, and retired ones whose bytes may be there."""
    named = {(ref.file, ref.name) for refs in state.pieces.values() for ref in refs}
    return named | {(retired.ref.file, retired.ref.name) for retired in state.retired}


def first_origin(
    published_through: int, pieces: Mapping[int, Sequence[PieceRef]], retired: Iterable[RetiredPiece]
) -> int:
    """The first window whose sources may still be needed: one that has bytes, or is not published yet."""
    first_live = (refs[0].first_window for refs in pieces.values())
    first_retired = (piece.ref.first_window for piece in retired)
    return min((published_through + 1, *first_live, *first_retired))


class _Folding:
    """A state under change, with dicts of its own."""

    def __init__(self, state: LogState) -> None:
        self._start(state)

    def _start(self, state: LogState) -> None:
        self._plain = state
        self._totals = Counter(state.totals)
        self._reasons = Counter(state.reason_totals)
        self._pieces: dict[int, list[PieceRef]] = {shard: list(refs) for shard, refs in state.pieces.items()}
        self._windows: dict[int, WindowInfo] = dict(state.windows)
        self._outputs: dict[int, tuple[OutputFile, ...]] = dict(state.outputs)
        self._sources: dict[int, SourcesRef] = dict(state.sources)
        self._archives: list[ArchiveRef] = list(state.archives)
        self._retired: list[RetiredPiece] = list(state.retired)

    def result(self) -> LogState:
        return replace(
            self._plain,
            totals=dict(self._totals),
            reason_totals=dict(self._reasons),
            pieces={shard: tuple(refs) for shard, refs in self._pieces.items()},
            windows=self._windows,
            outputs=self._outputs,
            sources=self._sources,
            archives=tuple(self._archives),
            retired=tuple(self._retired),
        )

    def add(self, record: LogRecord) -> None:
        body = record.body
        if isinstance(body, LogSnapshot):
            _demand(record, "number of the snapshot's state", record.number, body.state.next_number)
            if record.number < self._plain.next_number:
                raise _out_of_turn(record, "number", f"{self._plain.next_number} or above", record.number)
            self._start(body.state)
            if not body.state.lineage:
                self._begin_lineage(record)
        _demand(record, "number", self._plain.next_number, record.number)
        match body:
            case ClaimRecord():
                self._add_claim(record, body)
            case CommitRecord():
                self._add_commit(record, body)
            case DeletionRecord():
                self._retire(record, body.pieces, body.wall_us)
                self._drop_windows(body.pieces)
            case CompactionRecord():
                self._retire(record, body.merged, body.wall_us)
                self._add_pieces(body.added)
                self._drop_windows(body.merged)
            case SourcesFoldRecord():
                self._fold_sources(record, body)
            case RebaseRecord():
                self._rebase(record, body)
        self._plain = replace(self._plain, next_number=record.number + 1)
        self._forget(record)

    def _add_claim(self, record: LogRecord, claim: ClaimRecord) -> None:
        if claim.epoch <= self._plain.epoch:
            raise _out_of_turn(record, "epoch of the claim", f"above {self._plain.epoch}", claim.epoch)
        first = self._plain.next_window
        idle = [branch for branch in self._plain.lineage if branch[0] == first]
        lineage = (*(branch for branch in self._plain.lineage if branch[0] != first), *idle[-_IDLE_KEPT:])
        self._plain = replace(
            self._plain,
            epoch=claim.epoch,
            lineage=(*lineage, (first, record.nonce))[-_LINEAGE_KEPT:],
            root=claim.root,
        )
        self._set_wall_clock(claim.wall_us)

    def _begin_lineage(self, record: LogRecord) -> None:
        self._plain = replace(self._plain, lineage=((-1, record.nonce),))

    def _add_commit(self, record: LogRecord, commit: CommitRecord) -> None:
        _demand(record, "epoch of the commit", self._plain.epoch, commit.epoch)
        _demand(record, "window of the commit", self._plain.next_window, commit.window)
        self._plain = replace(
            self._plain,
            next_window=commit.window + 1,
            latest_point=commit.latest_point,
            latest_moved_us=commit.latest_moved_us,
            last_wall_us=max(self._plain.last_wall_us, commit.wall_us),
            extra=commit.extra,
        )
        # Not Counter +=, which drops the names whose count is zero.
        self._totals.update(commit.counts)
        self._reasons.update(commit.reasons)
        self._add_pieces(commit.pieces)
        if commit.pieces:
            self._windows[commit.window] = WindowInfo(commit.buckets, commit.timestamp, commit.counts, commit.wall_us)
        if commit.outputs:
            self._outputs[commit.window] = commit.outputs
        if commit.sources is not None:
            self._sources[commit.window] = commit.sources

    def _fold_sources(self, record: LogRecord, body: SourcesFoldRecord) -> None:
        through = body.through_window
        folded = -1 if self._plain.judged is None else self._plain.judged.through_window
        if not folded <= through < self._plain.next_window:
            expected = f"from {folded} to {self._plain.next_window - 1}"
            raise _out_of_turn(record, "last window of the fold", expected, through)
        for window in list(takewhile(lambda window: window <= through, self._sources)):
            del self._sources[window]
        if body.archive is not None:
            self._archives.append(body.archive)
        if body.judged is not None:
            self._plain = replace(self._plain, judged=body.judged)
        self._set_wall_clock(body.wall_us)

    def _rebase(self, record: LogRecord, body: RebaseRecord) -> None:
        before, base = self._plain, body.state
        _demand(record, "number of the new base", record.number, base.next_number)
        if not 0 <= base.next_window <= before.next_window or base.published_through >= base.next_window:
            expected = f"up to {before.next_window}, published below it"
            raise _out_of_turn(record, "next window", expected, f"{base.next_window}, {base.published_through}")
        live = {ref for refs in base.pieces.values() for ref in refs}
        left = [ref for refs in self._pieces.values() for ref in refs if ref not in live]
        retired = [*self._retired, *(RetiredPiece(ref, record.number, body.wall_us) for ref in left)]
        self._start(
            replace(
                base,
                epoch=before.epoch,
                root=before.root,
                last_wall_us=before.last_wall_us,
                purged_through=before.purged_through,
                notes=base.notes[-_NOTES_KEPT:],
            )
        )
        self._retired = retired
        # No table of the windows before holds the same keys.
        self._begin_lineage(record)
        self._set_wall_clock(body.wall_us)

    def _add_pieces(self, added: tuple[PieceRef, ...]) -> None:
        for ref in added:
            refs = self._pieces.setdefault(ref.shard, [])
            refs.append(ref)
            if len(refs) > 1 and _span(refs[-2]) > _span(ref):
                refs.sort(key=_span)

    def _retire(self, record: LogRecord, leaving: tuple[PieceRef, ...], wall_us: int) -> None:
        self._set_wall_clock(wall_us)
        gone = set(leaving)
        found = 0
        for shard in {ref.shard for ref in leaving}:
            before = self._pieces.get(shard, [])
            after = [ref for ref in before if ref not in gone]
            found += len(before) - len(after)
            if after:
                self._pieces[shard] = after
            else:
                self._pieces.pop(shard, None)
        _demand(record, "live pieces that leave", len(leaving), found)
        self._retired.extend(RetiredPiece(ref, record.number, wall_us) for ref in leaving)

    def _set_wall_clock(self, wall_us: int) -> None:
        """The wall clock of a record that was placed when the clock was read."""
        last_us = self._plain.last_wall_us
        if is_far_ahead(last_us, wall_us):
            last_us = wall_us
            # They left before this record; by the clock that was ahead their grace would never end.
            self._retired = [replace(piece, wall_us=min(piece.wall_us, wall_us)) for piece in self._retired]
        self._plain = replace(self._plain, last_wall_us=max(last_us, wall_us))

    def _drop_windows(self, left: tuple[PieceRef, ...]) -> None:
        """Drops the windows of these pieces that have no live piece of the window alone."""
        live_alone = {
            ref.first_window for refs in self._pieces.values() for ref in refs if ref.first_window == ref.last_window
        }
        for window in {ref.first_window for ref in left} - live_alone:
            self._windows.pop(window, None)

    def _forget(self, record: LogRecord) -> None:
        # A rebase may go back behind windows that were published.
        is_rebase = isinstance(record.body, RebaseRecord)
        stated = self._plain.published_through if is_rebase else record.published_through
        published = max(self._plain.published_through, stated)
        purged = max(self._plain.purged_through, record.purged_through)
        if published > self._plain.published_through:
            for window in [window for window in self._outputs if window <= published]:
                del self._outputs[window]
        if purged > self._plain.purged_through:
            self._retired = [piece for piece in self._retired if piece.at_number > purged]
        has_moved = (published, purged) != (self._plain.published_through, self._plain.purged_through)
        self._plain = replace(self._plain, published_through=published, purged_through=purged)
        if has_moved:
            self._forget_sources()

    def _forget_sources(self) -> None:
        """Forgets the sources of published windows older than all bytes; see FORMAT.md, Sources files."""
        end = first_origin(self._plain.published_through, self._pieces, self._retired)
        # Both ascend, so none that stays is visited.
        for archive in list(takewhile(lambda archive: archive.last_window < end, self._archives)):
            self._archives.remove(archive)
        if not self._sources or self._sources[next(reversed(self._sources))].is_kept:
            return
        for window in list(takewhile(lambda window: window < end, self._sources)):
            if not self._sources[window].is_kept:
                del self._sources[window]


def _span(ref: PieceRef) -> tuple[int, int]:
    return ref.first_window, ref.last_window


def _demand(record: LogRecord, what: str, expected: int, found: int) -> None:
    if expected != found:
        raise _out_of_turn(record, what, expected, found)


def _out_of_turn(record: LogRecord, what: str, expected: object, found: object) -> CorruptionError:
    return CorruptionError(
        f"{what} out of turn", file=f"log/{record_name(record.number)}", offset=0, expected=expected, found=found
    )
