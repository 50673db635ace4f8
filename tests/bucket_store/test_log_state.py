"""The fold: what the records say together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import HealthCheck, given, settings
from log_samples import commit, envelope, logs, piece

from bucket_store.errors import CorruptionError
from bucket_store.log_record import ClaimRecord, CollationRecord, CommitRecord, DeletionRecord
from bucket_store.log_state import LogState, RetiredPiece, deletable, fold, fold_all
from bucket_store.log_values import Body, LogRecord, Snapshot, SourcesRef


def folded(*bodies: Body) -> LogState:
    """The state after birth, a claim of epoch 1, and these."""
    return fold_all(
        LogState(), [envelope(number, body) for number, body in enumerate((ClaimRecord(1, "me", 5), *bodies))]
    )


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records=logs())
def test_a_snapshot_stands_for_all_records_below_it(records: list[LogRecord]) -> None:
    """From whatever snapshot a reader starts, and one by one or at once, the state is the same."""
    state = fold_all(LogState(), records)
    assert reduce(fold, records, LogState()) == state
    for number in range(0, len(records), 4):
        assert fold_all(LogState(), records[number:]) == state
        snapshot = records[number].body
        assert isinstance(snapshot, Snapshot)
        assert snapshot.state == fold_all(LogState(), records[:number])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
    live |= {ref for body in bodies if isinstance(body, CollationRecord) for ref in body.added}
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
    assert state.sources == _sources_left(records)
    assert {(gone.ref, gone.at_number) for gone in state.retired} == {(ref, at) for ref, at in left if at > purged}
    if made:
        assert (state.latest_point, state.extra) == (made[-1].latest_point, made[-1].extra)


def _sources_left(records: list[LogRecord]) -> dict[int, SourcesRef]:
    """Step by step, from what is live and retired after each record."""
    left: dict[int, SourcesRef] = {}
    state = LogState()
    for record in records:
        before, state = state, fold(state, record)
        if isinstance(record.body, CommitRecord) and record.body.sources is not None:
            left[record.body.window] = record.body.sources
        marks = state.published_through, state.purged_through
        if marks == (before.published_through, before.purged_through) or not left or left[max(left)].is_kept:
            continue
        with_bytes = [ref for refs in state.pieces.values() for ref in refs] + [gone.ref for gone in state.retired]
        oldest = min((ref.first_window for ref in with_bytes), default=state.next_window)
        gone = [window for window in left if window <= state.published_through and window < oldest]
        for window in gone:
            if not left[window].is_kept:
                del left[window]
    return left


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


def test_a_window_is_known_while_one_of_its_pieces_is_live() -> None:
    """Deleting one shard's piece of two keeps it."""
    state = folded(commit(0), DeletionRecord((piece(0, 1),), 90, 0))
    assert list(state.windows) == [0]
    assert state.pieces == {0: (piece(0, 0),)}


def test_collation_puts_the_merged_piece_where_its_windows_were() -> None:
    """Ascending by first window, before the pieces of later windows; the windows' own entries go."""
    merged = piece(0, 0, last=1)
    state = folded(commit(0), commit(1), commit(2), CollationRecord((piece(0, 0), piece(1, 0)), (merged,), 90))
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


def test_sources_that_alone_say_what_was_judged_stay() -> None:
    """For ever: the file may come again."""
    state = folded(commit(0, pieces=()), commit(1, pieces=()))
    assert sorted(fold(state, envelope(3, commit(2, pieces=()), published=1)).sources) == [0, 1, 2]


def test_the_wall_clock_of_the_log_never_goes_back() -> None:
    """The next intent's clock must not be less than the last committed one."""
    assert folded(commit(0, wall_us=50), commit(1, wall_us=40)).last_wall_us == 50


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
        (2, CollationRecord((piece(5),), (), 9)),
        (2, Snapshot(LogState(next_number=3))),
        (1, Snapshot(LogState(next_number=1))),
    ],
)
def test_a_record_that_cannot_follow_is_corruption(number: int, body: Body) -> None:
    """A number, window or epoch out of turn, a piece that leaves without being there, twice the same one."""
    with pytest.raises(CorruptionError, match="out of turn"):
        fold(folded(commit(0)), envelope(number, body))


def test_retired_bytes_may_go_after_the_grace_and_the_last_view() -> None:
    """Both sides of both edges: below the oldest view's position, and the grace wholly past."""
    state = folded(commit(0), DeletionRecord((piece(0, 0),), 90, 0))
    assert deletable(state, oldest_view=2, now_us=1000, grace_us=10) == ()
    assert deletable(state, oldest_view=3, now_us=99, grace_us=10) == ()
    assert deletable(state, oldest_view=3, now_us=100, grace_us=10) == state.retired


def test_retired_bytes_go_in_the_order_of_the_records_though_the_clock_went_back() -> None:
    """What is told as gone up to a record's number is gone up to that number."""
    state = folded(commit(0), DeletionRecord((piece(0, 0),), 90, 0), DeletionRecord((piece(0, 1),), 80, 0))
    assert deletable(state, oldest_view=9, now_us=95, grace_us=10) == ()
    assert deletable(state, oldest_view=9, now_us=100, grace_us=10) == state.retired
