"""Values of the log side for tests: one of everything, strategies for random ones, and whole random logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from bucket_store.errors import NotCommittedError
from bucket_store.log.codec import record_name
from bucket_store.log.commit_log import CommitLog
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
    OutputFile,
    SourcesFoldRecord,
    SourcesRef,
)
from bucket_store.log.state import LogState, fold
from bucket_store.pieces.piece import PieceRef
from bucket_store.places.local import local_place
from bucket_store.places.place import Place
from tests.bucket_store.faulty_files import FaultyFiles

NONCE = bytes(range(16))


def piece(window: int, shard: int = 0, *, last: int | None = None, tag: str = "") -> PieceRef:
    """A piece of one window, or of the windows up to `last`."""
    name = f"{window:012d}-000001-000-{shard:04d}-0000abcd{tag}"
    return PieceRef(
        shard=shard,
        file=f"pieces/{name}",
        name=name,
        offset=0,
        length=4096,
        checksum=2**64 - 1 - window,
        first_window=window,
        last_window=window if last is None else last,
        entries=100,
        min_bucket=-3,
        max_bucket=8,
        max_expiry=1_700_000_000_000_000,
    )


def commit(window: int, epoch: int = 1, **changes: Any) -> CommitRecord:
    """A commit of one window with two pieces and two outputs."""
    fields: dict[str, Any] = {
        "window": window,
        "epoch": epoch,
        "attempt": 0,
        "query_id": "q",
        "batch_id": window + 7,
        "wall_us": 1_700_000_000_000_000 + window,
        "settings_hash": "5e77",
        "latest_point": 1000 + window,
        "latest_moved_us": 1_700_000_000_000_000,
        "counts": {"unique": 3, "duplicate": 2, "expired": 0, "error": 1},
        "reasons": {"malformed": 1},
        "pieces": (piece(window, 0), piece(window, 1)),
        "outputs": (
            OutputFile("unique", f"_staging/{window}-1-0/a", f"a-{window}", 10, 2**63, 3),
            OutputFile("duplicate", f"_staging/{window}-1-0/b", f"b-{window}", 11, 5, 2),
        ),
        "buckets": (-3, 8),
        "timestamp": 1000 + window,
        "sources": SourcesRef(f"{window:012d}-000001-000", 2, 2**64 - 1, 120),
        "extra": {"live": ["oslo", "rome"]},
    }
    return CommitRecord(**(fields | changes))


def envelope(number: int, body: Body, *, published: int = -1, purged: int = -1, epoch: int = 1) -> LogRecord:
    """A record with a fixed nonce."""
    return LogRecord(number, epoch, NONCE, published, purged, body)


def new_log(root: Path | Place, *, snapshot_every: int = 1000, fs: Any = None) -> CommitLog:
    """A store with epoch 1 claimed."""
    place = local_place(root) if isinstance(root, Path) else root
    CommitLog.create(place, {"shards": 2}, wall_us=5, snapshot_every=snapshot_every)
    log = CommitLog.open(place if fs is None else local_place(place.local, fs))
    assert log.claim_epoch("first", 6) == 1
    return log


def advance(log: CommitLog, windows: int) -> None:
    """Commit that many more windows."""
    for _ in range(windows):
        log.place(commit(log.state.next_window, log.epoch or 0))


def die_after_the_due_snapshot(root: Path) -> None:
    """A claimer that places the snapshot before its claim, and never the claim."""
    due = CommitLog.open(local_place(root)).state.next_number
    files = FaultyFiles(lambda _, name, path: "before" if (name, path.name) == ("link", record_name(due + 1)) else None)
    with pytest.raises(NotCommittedError):
        CommitLog.open(local_place(root, files)).claim_epoch("second", 7)  # type: ignore[arg-type]


expiry_keys = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
points = st.none() | expiry_keys
u64 = st.integers(0, 2**64 - 1)
texts = st.text("aZ0/-é☃\0", max_size=6)  # a small alphabet: building the one of all Unicode takes seconds
counts = st.dictionaries(st.sampled_from(["unique", "duplicate", "expired", "error"]), st.integers(0, 2**40))
outputs = st.lists(st.builds(OutputFile, texts, texts, texts, u64, u64, u64), max_size=2).map(tuple)
sources = st.none() | st.builds(SourcesRef, texts, st.integers(0, 2**32 - 1), u64, u64, st.booleans())
extras = st.dictionaries(
    texts, st.recursive(st.none() | st.integers(-9, 9) | texts, st.lists, max_leaves=4), max_size=2
)


@st.composite
def piece_refs(draw: st.DrawFn, window: int, shard: int) -> PieceRef:
    """A random piece of one window, named so that no other piece of the log equals it."""
    return PieceRef(
        shard,
        draw(texts),
        f"{window}-{shard}",
        draw(u64),
        draw(u64),
        draw(u64),
        window,
        window,
        draw(st.integers(1, 2**40)),
        draw(st.integers(-(2**63), 2**63 - 1)),
        draw(st.integers(-(2**63), 2**63 - 1)),
        draw(points),
    )


@st.composite
def commits(draw: st.DrawFn, window: int, epoch: int) -> CommitRecord:
    """A random commit of this window in this epoch."""
    shards = draw(st.sets(st.integers(0, 3)))
    return CommitRecord(
        window=window,
        epoch=epoch,
        attempt=draw(st.integers(0, 3)),
        query_id=draw(texts),
        batch_id=draw(u64),
        wall_us=draw(st.integers(0, 2**60)),
        settings_hash=draw(texts),
        latest_point=draw(points),
        latest_moved_us=draw(st.none() | st.integers(0, 2**60)),
        counts=draw(counts),
        # Like the counts, rows of one window: their sum over a log stays far below 64 bits.
        reasons=draw(st.dictionaries(texts, st.integers(0, 2**40), max_size=2)),
        pieces=tuple(draw(piece_refs(window, shard)) for shard in sorted(shards)),
        outputs=draw(outputs),
        buckets=tuple(draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3))),
        timestamp=draw(points),
        sources=draw(sources),
        extra=draw(extras),
    )


@st.composite
def folds(draw: st.DrawFn, state: LogState, number: int) -> SourcesFoldRecord:
    """A random fold of sources after this state."""
    first = 0 if state.judged is None else state.judged.through_window
    through = draw(st.integers(first, state.next_window - 1))
    named = [window for window in state.sources if window <= through]
    archive = ArchiveRef(f"{number}.archive", named[0], named[-1], draw(u64), draw(u64)) if named else None
    judged = JudgedRef(f"{number}.judged", through, draw(u64), draw(u64), draw(u64))
    return SourcesFoldRecord(through, archive, draw(st.none() | st.just(judged)), draw(st.integers(0, 2**60)))


@st.composite
def logs(draw: st.DrawFn, max_records: int = 24) -> list[LogRecord]:
    """A random log from record 0 on, with a snapshot at every fourth number."""
    state = LogState()
    records: list[LogRecord] = []
    for number in range(draw(st.integers(1, max_records))):
        live = [ref for refs in state.pieces.values() for ref in refs]
        kinds = ["claim", "commit", "commit", "commit"] + (["deletion", "compaction"] if live else [])
        kinds += ["fold"] if state.next_window else []
        kind = draw(st.sampled_from(kinds))
        body: Body
        if number % 4 == 0:
            body = LogSnapshot(state)
        elif state.epoch == 0 or kind == "claim":
            epoch = state.epoch + draw(st.integers(1, 3))
            body = ClaimRecord(epoch, draw(texts), draw(st.integers(0, 2**60)), draw(texts))
        elif kind == "commit":
            body = draw(commits(state.next_window, state.epoch))
        elif kind == "deletion":
            leaving = draw(st.lists(st.sampled_from(live), unique=True, min_size=1))
            through = max(piece.last_window for piece in leaving)
            body = DeletionRecord(tuple(leaving), draw(st.integers(0, 2**60)), through)
        elif kind == "fold":
            body = draw(folds(state, number))
        else:
            shard = draw(st.sampled_from(sorted(state.pieces)))
            merged = state.pieces[shard][: draw(st.integers(1, 4))]
            added = piece(merged[0].first_window, shard, last=merged[-1].last_window, tag=f"-{number}")
            body = CompactionRecord(merged, (added,), draw(st.integers(0, 2**60)))
        record = LogRecord(
            number,
            state.epoch,
            draw(st.binary(min_size=16, max_size=16)),
            draw(st.integers(-1, state.next_window - 1)),
            draw(st.integers(-1, number - 1)),
            body,
        )
        records.append(record)
        state = fold(state, record)
    return records
