"""The fold: what the records say together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import HealthCheck, given, settings

from bucket_store.errors import CorruptionError
from bucket_store.lineage import history_at
from bucket_store.log.records import (
    ArchiveRef,
    Body,
    ClaimRecord,
    CommitRecord,
    CompactionRecord,
    DeletionRecord,
    JudgedRef,
    LogRecord,
    LogSnapshot,
    RebaseRecord,
    SourcesFoldRecord,
    SourcesRef,
)
from bucket_store.log.state import LogState, RetiredPiece, deletable, fold, fold_all, live_files
from bucket_store.log.wall_clock import TOLERANCE_US as DAY_US
from tests.bucket_store.log_samples import commit, envelope, logs, piece
from tests.tiers import examples

FAR_US = 4_070_908_800_000_000  # 2099


def folded(*bodies: Body) -> LogState:
    """The state after birth, a claim of epoch 1, and these."""
    return fold_all(
        LogState(), [envelope(number, body) for number, body in enumerate((ClaimRecord(1, "me", 5), *bodies))]
    )


@pytest.mark.slow
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(records=logs())
def test_a_snapshot_stands_for_all_records_below_it(records: list[LogRecord]) -> None:
    """From whatever snapshot a reader starts, and one by one or at once, the state is the same."""
    state = fold_all(LogState(), records)
    assert reduce(fold, records, LogState()) == state
    for number in range(0, len(records), 4):
        assert fold_all(LogState(), records[number:]) == state
        snapshot = records[number].body
        assert isinstance(snapshot, LogSnapshot)
        assert snapshot.state == fold_all(LogState(), records[:number])


@pytest.mark.slow
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(records=logs())
def test_the_state_is_what_a_plain_reading_of_the_records_says(records: list[LogRecord]) -> None:
    """Against a model that knows nothing of snapshots: windows, sums, live and retired pieces, outputs, sources."""
    state = fold_all(LogState(), records)
    bodies = [record.body for record in records]
    made = [body for body in bodies if isinstance(body, CommitRecord)]
    left = [
        (ref, record.number)
        for record in records
        for ref in getattr(record.body, "merged", ()) + (getattr(record.body, "pieces", ()) if _deletes(record) else ())
    ]
    live = {ref for body in made for ref in body.pieces}
    live |= {ref for body in bodies if isinstance(body, CompactionRecord) for ref in body.added}
    live -= {ref for ref, _ in left}
    published = max(record.published_through for record in records)
    purged = max(record.purged_through for record in records)

    assert (state.next_number, state.next_window) == (len(records), len(made))
    assert state.epoch == max((body.epoch for body in bodies if isinstance(body, ClaimRecord)), default=0)
    assert Counter(state.totals) == sum((Counter(body.counts) for body in made), Counter())
    assert Counter(state.reason_totals) == sum((Counter(body.reasons) for body in made), Counter())
    assert {ref for refs in state.pieces.values() for ref in refs} == live
    assert all(refs and list(refs) == sorted(refs, key=lambda r: r.first_window) for refs in state.pieces.values())
    assert set(state.windows) == {ref.first_window for ref in live if ref.first_window == ref.last_window}
    assert state.outputs == {body.window: body.outputs for body in made if body.outputs and body.window > published}
    assert (state.sources, state.archives) == _sources_left(records)
    judged = [body.judged for body in bodies if isinstance(body, SourcesFoldRecord) and body.judged is not None]
    assert state.judged == (judged[-1] if judged else None)
    assert {(gone.ref, gone.at_number) for gone in state.retired} == {(ref, at) for ref, at in left if at > purged}
    if made:
        assert (state.latest_point, state.extra) == (made[-1].latest_point, made[-1].extra)


def _sources_left(records: list[LogRecord]) -> tuple[dict[int, SourcesRef], tuple[ArchiveRef, ...]]:
    """Step by step, from what is live and retired after each record."""
    left: dict[int, SourcesRef] = {}
    archives: list[ArchiveRef] = []
    state = LogState()
    for record in records:
        before, state = state, fold(state, record)
        if isinstance(record.body, CommitRecord) and record.body.sources is not None:
            left[record.body.window] = record.body.sources
        if isinstance(record.body, SourcesFoldRecord):
            left = {window: ref for window, ref in left.items() if window > record.body.through_window}
            archives += [record.body.archive] if record.body.archive is not None else []
        marks = state.published_through, state.purged_through
        if marks == (before.published_through, before.purged_through):
            continue
        with_bytes = [ref for refs in state.pieces.values() for ref in refs] + [gone.ref for gone in state.retired]
        oldest = min((ref.first_window for ref in with_bytes), default=state.next_window)
        archives = [
            ref for ref in archives if not (ref.last_window <= state.published_through and ref.last_window < oldest)
        ]
        if not left or left[max(left)].is_kept:
            continue
        gone = [window for window in left if window <= state.published_through and window < oldest]
        for window in gone:
            if not left[window].is_kept:
                del left[window]
    return left, tuple(archives)


def _deletes(record: LogRecord) -> bool:
    return isinstance(record.body, DeletionRecord)


def test_folding_changes_no_earlier_state() -> None:
    """States are values: a reader may keep one while the log goes on."""
    before = folded(commit(0))
    copy = replace(before, pieces=dict(before.pieces), windows=dict(before.windows), totals=dict(before.totals))
    fold_all(before, [envelope(2, commit(1)), envelope(3, DeletionRecord((piece(0, 0),), 9, 0))])
    assert before == copy


def test_counts_of_zero_stay_in_the_totals() -> None:
    """A port that nothing left by shows 0, not nothing."""
    assert folded(commit(0), commit(1)).totals == {"unique": 6, "duplicate": 4, "expired": 0, "error": 2}


def test_a_deleted_piece_is_retired_until_it_is_purged() -> None:
    """It leaves the live ones at once, and the retired ones when a record says that its bytes are gone."""
    state = folded(commit(0), DeletionRecord((piece(0, 0), piece(0, 1)), 90, 0))
    assert state.pieces == {}
    assert state.windows == {}
    assert state.retired == (RetiredPiece(piece(0, 0), 2, 90), RetiredPiece(piece(0, 1), 2, 90))
    assert fold(state, envelope(3, commit(1), purged=1)).retired == state.retired
    assert fold(state, envelope(3, commit(1), purged=2)).retired == ()


def test_pieces_that_a_rebase_does_not_name_are_retired() -> None:
    """After those that were retired before it."""
    before = folded(commit(0), DeletionRecord((piece(0, 0),), 90, 0), commit(1))
    base = replace(before, pieces={1: before.pieces[1]}, next_number=4)
    after = fold(before, envelope(4, RebaseRecord(base, 95)))
    assert after.pieces == base.pieces
    assert after.retired == (*before.retired, RetiredPiece(piece(1, 0), 4, 95))


def test_a_window_is_known_while_one_of_its_pieces_is_live() -> None:
    """Deleting one shard's piece of two keeps it."""
    state = folded(commit(0), DeletionRecord((piece(0, 1),), 90, 0))
    assert list(state.windows) == [0]
    assert state.pieces == {0: (piece(0, 0),)}


def test_compaction_puts_the_merged_piece_where_its_windows_were() -> None:
    """Ascending by first window, before the pieces of later windows; the windows' own entries go."""
    merged = piece(0, 0, last=1)
    state = folded(commit(0), commit(1), commit(2), CompactionRecord((piece(0, 0), piece(1, 0)), (merged,), 90))
    assert state.pieces[0] == (merged, piece(2, 0))
    assert sorted(state.windows) == [0, 1, 2]  # shard 1 still has its own pieces of 0 and 1


def test_outputs_are_kept_until_a_record_says_that_they_are_published() -> None:
    """Marks never go back: a later record with a lower one brings nothing back."""
    state = folded(commit(0), commit(1))
    assert sorted(state.outputs) == [0, 1]
    state = fold(state, envelope(3, commit(2), published=0))
    assert sorted(state.outputs) == [1, 2]
    state = fold(state, envelope(4, commit(3), published=-1))
    assert (sorted(state.outputs), state.published_through) == ([1, 2, 3], 0)


def test_sources_are_forgotten_with_the_bytes_of_their_keys() -> None:
    """Published is not enough, nor is deleted: a reader of an older view may still find an origin."""
    sources = {window: SourcesRef(f"{window}", 1, 2, 3, is_kept=False) for window in range(4)}
    state = folded(*(commit(window, sources=sources[window]) for window in range(3)))
    gone = DeletionRecord((piece(0, 0), piece(0, 1), piece(1, 0)), 90, 1)
    state = fold(state, envelope(4, gone, published=2))
    assert sorted(state.sources) == [0, 1, 2]
    state = fold(state, envelope(5, commit(3, sources=sources[3]), published=2, purged=4))
    assert sorted(state.sources) == [1, 2, 3], "one piece of window 1 lives"
    state = fold(state, envelope(6, DeletionRecord((piece(1, 1), piece(2, 0), piece(2, 1)), 90, 2), published=2))
    state = fold(state, envelope(7, DeletionRecord((piece(3, 0), piece(3, 1)), 90, 3), purged=7))
    assert sorted(state.sources) == [3], "window 3 is not published"


def test_a_fold_takes_the_place_of_the_windows_files() -> None:
    """Up to its window; its archive goes with the bytes of the last key that it can tell of, its table stays."""
    archive, judged = ArchiveRef("a", 0, 1, 2, 3), JudgedRef("j", 1, 2, 3, 4)
    state = folded(commit(0), commit(1), commit(2), SourcesFoldRecord(1, archive, judged, 90))
    assert (sorted(state.sources), state.archives, state.judged) == ([2], (archive,), judged)
    assert [state.sources_of(window) for window in range(4)] == [archive, archive, state.sources[2], None]
    pieces = tuple(piece(window, shard) for window in (0, 1) for shard in (0, 1))
    state = fold(state, envelope(5, DeletionRecord(pieces, 90, 1), published=2))
    assert state.archives == (archive,)
    state = fold(state, envelope(6, commit(3), published=2, purged=5))
    assert (state.archives, state.judged) == ((), judged)


def test_sources_that_alone_say_what_was_judged_stay() -> None:
    """Until a fold: the file may come again."""
    state = folded(commit(0, pieces=()), commit(1, pieces=()))
    assert sorted(fold(state, envelope(3, commit(2, pieces=()), published=1)).sources) == [0, 1, 2]


def test_the_wall_clock_of_the_log_never_goes_back() -> None:
    """The next intent's clock must not be less than that of any record before."""
    assert folded(commit(0, wall_us=50), commit(1, wall_us=40)).last_wall_us == 50
    first = commit(0, wall_us=50)
    for wall_us, last in [(60, 60), (40, 50)]:
        assert folded(first, DeletionRecord((piece(0, 0),), wall_us, 0)).last_wall_us == last
        merged = CompactionRecord((piece(0, 0),), (piece(0, 0, tag="-1"),), wall_us)
        assert folded(first, merged).last_wall_us == last


def test_the_files_that_a_deletion_must_keep_are_those_of_live_pieces() -> None:
    """Of every shard; of retired ones no more."""
    state = folded(commit(0), commit(1), DeletionRecord((piece(0, 0),), 90, 0))
    assert live_files(state) == {piece(0, 1).file, piece(1, 0).file, piece(1, 1).file}


@pytest.mark.parametrize(("back_us", "last_us"), [(DAY_US, FAR_US), (DAY_US + 1, FAR_US - DAY_US - 1)])
def test_a_wall_clock_far_ahead_ends_with_the_first_record_of_the_right_one(back_us: int, last_us: int) -> None:
    """Of a claim, a deletion or a compaction, which are placed when their clock is read."""
    now_us = FAR_US - back_us
    ahead = folded(commit(0, wall_us=FAR_US))
    bodies: tuple[Body, ...] = (
        ClaimRecord(9, "me", now_us),
        DeletionRecord((), now_us, -1),
        CompactionRecord((), (), now_us),
    )
    for body in bodies:
        assert fold(ahead, envelope(ahead.next_number, body)).last_wall_us == last_us


def test_a_commit_by_an_old_intent_does_not_set_the_wall_clock_back() -> None:
    """A batch is repeated by its own wall clock, however many days the job was down."""
    assert folded(commit(0, wall_us=FAR_US), commit(1, wall_us=40)).last_wall_us == FAR_US


def test_pieces_retired_by_a_clock_far_ahead_count_as_retired_at_its_end() -> None:
    """Their grace ends by the right clock; that of pieces retired before and after it is their own."""
    pieces = [piece(window) for window in range(3)]
    state = folded(*(commit(window, pieces=(pieces[window],), wall_us=50) for window in range(3)))
    for ref, wall_us in zip(pieces, (60, FAR_US, 90), strict=True):
        state = fold(state, envelope(state.next_number, DeletionRecord((ref,), wall_us, ref.last_window)))
    assert [left.wall_us for left in state.retired] == [60, 90, 90]
    left = [deletable(state, oldest_view=99, now_us=now_us, grace_us=10) for now_us in (70, 99, 100)]
    assert [len(gone) for gone in left] == [1, 1, 3]


@pytest.mark.parametrize(
    ("number", "body"),
    [
        (3, commit(1)),
        (1, commit(1)),
        (2, commit(2)),
        (2, commit(0)),
        (2, commit(1, epoch=2)),
        (2, ClaimRecord(1, "me", 5)),
        (2, DeletionRecord((piece(5),), 9, 0)),
        (2, DeletionRecord((piece(0), piece(0)), 9, 0)),
        (2, CompactionRecord((piece(5),), (), 9)),
        (2, SourcesFoldRecord(1, None, None, 9)),
        (2, SourcesFoldRecord(-2, None, None, 9)),
        (2, RebaseRecord(LogState(next_number=2, next_window=2), 9)),
        (2, RebaseRecord(LogState(next_number=2, next_window=1, published_through=1), 9)),
        (2, RebaseRecord(LogState(next_number=3, next_window=1), 9)),
        (2, LogSnapshot(LogState(next_number=3))),
        (1, LogSnapshot(LogState(next_number=1))),
    ],
)
def test_a_record_that_cannot_follow_is_corruption(number: int, body: Body) -> None:
    """A number, window or epoch out of turn, a piece that leaves without being there, twice the same one."""
    with pytest.raises(CorruptionError, match="out of turn") as raised:
        fold(folded(commit(0)), envelope(number, body))
    assert f"log/{number:020d}" in str(raised.value)
    assert "at byte 0" in str(raised.value)


def test_a_snapshot_of_another_number_is_named_as_that() -> None:
    """What is wrong is the state inside, not the record's place."""
    with pytest.raises(CorruptionError, match="number of the snapshot's state out of turn: expected 2, found 3"):
        fold(folded(commit(0)), envelope(2, LogSnapshot(LogState(next_number=3))))


def test_retired_bytes_may_go_after_the_grace_and_the_last_view() -> None:
    """Both sides of both edges: below the oldest view's position, and the grace wholly past."""
    state = folded(commit(0), DeletionRecord((piece(0, 0),), 90, 0))
    assert deletable(state, oldest_view=2, now_us=1000, grace_us=10) == ()
    assert deletable(state, oldest_view=3, now_us=99, grace_us=10) == ()
    assert deletable(state, oldest_view=3, now_us=100, grace_us=10) == state.retired


def test_retired_bytes_go_in_the_order_of_the_records_though_the_clock_went_back() -> None:
    """Pieces reported as gone up to a record's number are gone up to that number."""
    state = folded(commit(0), DeletionRecord((piece(0, 0),), 90, 0), DeletionRecord((piece(0, 1),), 80, 0))
    assert deletable(state, oldest_view=9, now_us=95, grace_us=10) == ()
    assert deletable(state, oldest_view=9, now_us=100, grace_us=10) == state.retired


def nonce(number: int) -> bytes:
    """The nonce of the record with this number."""
    return number.to_bytes(16)


def log_of(*bodies: Body) -> list[LogRecord]:
    """A log of these records after the birth, each with a nonce of its own."""
    return [LogRecord(number, 1, nonce(number), -1, -1, body) for number, body in enumerate((BIRTH, *bodies))]


BIRTH = LogSnapshot(LogState())


def test_windows_are_known_by_the_claim_that_committed_the_last_of_them() -> None:
    """The birth's nonce for none; of claims without a window between only the next commit's counts."""
    records = log_of(
        ClaimRecord(1, "a", 5), commit(0, 1), commit(1, 1), ClaimRecord(2, "b", 5), ClaimRecord(3, "c", 5), commit(2, 3)
    )
    lineage = fold_all(LogState(), records).lineage
    assert [history_at(lineage, window) for window in range(4)] == [nonce(0), nonce(1), nonce(1), nonce(5)]
    # A reader that saw less knows the same of what it saw.
    for end in range(1, len(records)):
        state = fold_all(LogState(), records[:end])
        assert all(history_at(state.lineage, at) == history_at(lineage, at) for at in range(state.next_window + 1))


def test_two_copies_know_their_common_windows_alike_and_no_others() -> None:
    """Both go on with the same epochs and numbers."""
    both = log_of(ClaimRecord(1, "a", 5), commit(0, 1))
    known = []
    for copy in (100, 200):
        own = [
            LogRecord(3 + at, 2, nonce(copy + at), -1, -1, body)
            for at, body in enumerate((ClaimRecord(2, "b", 5), commit(1, 2)))
        ]
        lineage = fold_all(LogState(), [*both, *own]).lineage
        known.append([history_at(lineage, window) for window in range(3)])
    assert known[0][:2] == known[1][:2]
    assert known[0][2] != known[1][2]


def test_expiry_begins_no_lineage() -> None:
    """The keys of earlier windows are as they were, but for dead ones."""
    bodies = (ClaimRecord(1, "a", 5), commit(0, 1), DeletionRecord((piece(0, 0),), 9, 0))
    assert fold_all(LogState(), log_of(*bodies)).lineage == ((-1, nonce(0)), (0, nonce(1)))


def test_a_lineage_does_not_grow_for_ever() -> None:
    """The newest claims stay: a hundred, and four of those that committed nothing."""
    idle = log_of(*(ClaimRecord(epoch, "a", 5) for epoch in range(1, 20)))
    assert fold_all(LogState(), idle).lineage == ((-1, nonce(0)), *((0, nonce(number)) for number in range(16, 20)))
    busy = [body for epoch in range(1, 200) for body in (ClaimRecord(epoch, "a", 5), commit(epoch - 1, epoch))]
    lineage = fold_all(LogState(), log_of(*busy)).lineage
    assert len(lineage) == 100
    assert lineage[-1] == (198, nonce(397))
    assert history_at(lineage, 99) == b""


def test_a_snapshot_of_version_1_begins_a_lineage() -> None:
    """What was committed below it is known by its nonce."""
    state = replace(fold_all(LogState(), log_of(ClaimRecord(1, "a", 5), commit(0, 1))), lineage=(), root="")
    after = fold_all(LogState(), [LogRecord(3, 1, nonce(3), -1, -1, LogSnapshot(state))])
    assert after.lineage == ((-1, nonce(3)),)
