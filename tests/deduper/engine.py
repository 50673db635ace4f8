"""The service without Spark: windows of rows in, the same answers as the oracle's out.

Everything that judges is the real thing: digests, clocks, places, `judge_shard`. What Spark and the driver do around
it is acted out: parsing, cutting a source partition into Arrow batches, scrambling rows in the exchange, committing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, Protocol

import numpy as np

from bucket_store.log.records import LogState
from bucket_store.pieces.piece import Entries
from bucket_store.tables.matches import Matches
from deduper.core.categories import CategoryState, arrange
from deduper.core.clock import POSITION_BITS, ClockRules, PartitionClock, batch_clock
from deduper.core.digests import shards_of
from deduper.core.judge import ShardOutcome, ShardRows, judge_shard
from deduper.core.lookups import JudgeRules
from deduper.core.verdict import (
    DUPLICATE_REASONS,
    VERSION_REASON,
    Admission,
    TupleVerdict,
    expiry_point,
    first_live_bucket,
)
from deduper.testing import Answer, Row, Settings
from deduper.window.policy import processing_point
from tests.deduper.digest_oracle import key_digest

SALT = b"a salt of 16 byt"
BUCKETS = 64


@dataclass(frozen=True)
class Shape:
    """What must not change an answer: shards, Arrow batch sizes, the order in which rows reach a shard, first_seen."""

    shards: int = 1
    arrow_rows: int = 1000
    seed: int = 0
    keep_first_seen: bool = True
    conflicts: Literal["unseen", "duplicate", "error", "unique"] = "unseen"
    secure: bool = False


class Memory(Protocol):
    """What a window leaves behind, and what the next may ask of it."""

    def find(self, shard: int) -> Callable[[int, Any], Any]: ...
    def commit(
        self, window: int, entries: list[Entries | None], live_from_bucket: int | None, point: int | float | None
    ) -> None: ...


class DictMemory:
    """Every entry in one dict; one entry for a key wherever keys are looked for in all live buckets."""

    def __init__(self, one_table: bool) -> None:
        self._one_table = one_table
        self._entries: list[dict[tuple[int, int, int], tuple[Any, int, int, int]]] = []

    def find(self, shard: int) -> Callable[[int, Any], Any]:
        entries = self._entries[shard] if shard < len(self._entries) else {}

        def look_up(bucket: int, digests: Any) -> Matches:
            assert all(tuple(a) < tuple(b) for a, b in zip(digests[:-1].tolist(), digests[1:].tolist(), strict=True))
            hits = [entries.get((bucket, hi, lo)) for hi, lo in digests.tolist()]
            plain = [hit or (None, 0, 0, 0) for hit in hits]
            return Matches(
                np.array([hit is not None for hit in hits], np.bool_),
                np.array([expiry or 0 for expiry, *_ in plain]),
                np.array([origin for _, origin, _, _ in plain], np.int64),
                np.array([window for _, _, window, _ in plain], np.uint32),
                np.array([fingerprint for *_, fingerprint in plain], np.uint64),
            )

        return look_up

    def commit(
        self, window: int, entries: list[Entries | None], live_from_bucket: int | None, point: int | float | None
    ) -> None:
        while len(self._entries) < len(entries):
            self._entries.append({})
        for known, new in zip(self._entries, entries, strict=True):
            if new is not None:
                self._add(known, new, window)
            for memory, (expiry, *_) in list(known.items()):
                is_dead = point is not None and expiry is not None and expiry <= point
                if is_dead if self._one_table else live_from_bucket is not None and memory[0] < live_from_bucket:
                    del known[memory]

    def _add(self, known: dict[tuple[int, int, int], tuple[Any, int, int, int]], new: Entries, window: int) -> None:
        buckets = np.repeat(new.bucket_keys, np.diff(new.bucket_starts)).tolist()
        pairs = new.digests.tolist()
        triples = list(zip(buckets, *zip(*pairs, strict=True), strict=True))
        assert triples == sorted(set(triples)), "entries are sorted by (bucket, hi, lo), each once"
        for index, (bucket, hi, lo) in enumerate(triples):
            expiry = None if new.expiry is None else new.expiry[index].item()
            origin = 0 if new.origin is None else int(new.origin[index])
            memory = (0 if self._one_table else bucket, hi, lo)
            if memory in known:
                assert self._one_table, "a bucket remembers a key once"
                assert expiry > known[memory][0], "a renewed key is a later one"
            fingerprint = 0 if new.fingerprint is None else int(new.fingerprint[index])
            of_window = window if new.window is None else int(new.window[index])
            known[memory] = (expiry, origin, of_window, fingerprint)


class Engine:
    """One store and the stream before it."""

    def __init__(
        self, settings: Settings, types: list[str], shape: Shape, memory: Memory | None = None, *, floats: bool = False
    ) -> None:
        self.settings, self.types, self.shape, self.floats = settings, types, shape, floats
        self.all_live = settings.lookup == "all_live" or settings.by == "processing_time"
        self.memory = memory or DictMemory(self.all_live)
        self.window = 0
        self.latest: Any = None
        self.moved_us = 0
        self.categories = CategoryState()
        self.outcomes: list[ShardOutcome] = []
        self._digests: dict[str, tuple[int, int]] = {}

    @property
    def rules(self) -> JudgeRules:
        """The rules of a look-up, but for the latest point."""
        s = self.settings
        return JudgeRules(
            by=s.by,  # type: ignore[arg-type]
            lookup_all_live=self.all_live,
            float_domain=self.floats,
            period=s.period,
            span=s.span,
            buckets=BUCKETS,
            keep_first_seen=self.shape.keep_first_seen,
            latest=None,
            has_fingerprint=self.shape.conflicts != "unseen",
            refuses_conflicts=self.shape.conflicts == "error",
            most_versions=s.max_versions if self.shape.conflicts == "unique" else 0,
        )

    def judge(self, partitions: list[list[Row]], now_us: int) -> list[list[Answer]]:
        """Judges and commits one window; the answers have the shape of the rows."""
        s = self.settings
        rows = [row for part in partitions for row in part]
        order = np.array(
            [p << POSITION_BITS | i for p, part in enumerate(partitions) for i in range(len(part))], np.int64
        )
        admission = np.array([self._parsed(row) for row in rows], np.uint8)
        digests = np.array([self._digest(row) for row in rows], np.uint64).reshape(-1, 2)
        fingerprints = np.array([1 + (row.payload or 0) for row in rows], np.uint64)
        number = np.float64 if self.floats else np.int64
        has_clock = s.by in ("event_time", "ordered")
        expiry = np.array([row.expiry if has_clock and row.expiry is not None else 0 for row in rows], number)
        latest_before = has_latest = category = None
        rules = self.rules
        if has_clock and s.clock == "arrival":
            admission, latest_before, has_latest = self._run_clocks(partitions, order, expiry, admission, now_us)
        elif has_clock:
            admission = batch_clock(self._clock_rules(now_us), expiry, admission)
            rules = replace(rules, latest=self.latest)
        elif s.by == "processing_time":
            rules = replace(rules, latest=self._processing_point(now_us))
        elif s.by == "category":
            category, admission = self._places(rows, order, admission)
        find = self.memory.find
        in_shard = shards_of(digests, self.shape.shards)
        scramble = random.Random(self.shape.seed)
        answers: list[Any] = [None] * len(rows)
        self.outcomes = []
        for shard in range(self.shape.shards):
            index = np.flatnonzero(in_shard == shard)
            index = np.array(scramble.sample(index.tolist(), index.size), np.int64)

            def part(column: Any, index: Any = index) -> Any:
                return None if column is None else column[index]

            shard_rows = ShardRows(
                digests=digests[index],
                order=order[index],
                admission=admission[index],
                expiry=expiry[index] if has_clock else None,
                latest_before=part(latest_before),
                has_latest=part(has_latest),
                category=part(category),
                fingerprint=fingerprints[index] if rules.has_fingerprint else None,
            )
            outcome = judge_shard(shard_rows, rules, self.window, find(shard))
            self.outcomes.append(outcome)
            for row, answer in zip(index.tolist(), self._answers(outcome), strict=True):
                answers[row] = answer
        self._commit(now_us)
        flat = iter(answers)
        return [list(islice(flat, len(part))) for part in partitions]

    def _digest(self, row: Row) -> tuple[int, int]:
        name = repr(row.key)
        if name not in self._digests:
            self._digests[name] = key_digest(row.key, self.types, SALT, secure=self.shape.secure)
        return self._digests[name]

    def _processing_point(self, now_us: int) -> int:
        return processing_point(LogState(latest_point=self.latest, latest_moved_us=self.moved_us), now_us)

    def _parsed(self, row: Row) -> Admission:
        s = self.settings
        if s.null_keys == "error" and None in row.key:
            return Admission.NULL_KEY
        if s.by not in ("never", "processing_time") and row.expiry is None:
            return Admission.NULL_EXPIRY
        return Admission.ADMITTED

    def _clock_rules(self, now_us: int) -> ClockRules:
        s = self.settings
        return ClockRules(
            float_domain=self.floats,
            period=s.period,
            max_ahead_of_now_us=s.ahead,
            max_jump=s.jump,
            now_us=now_us,
            latest=self.latest,
            quiet_us=now_us - self.moved_us if s.by == "event_time" else 0,
        )

    def _run_clocks(self, partitions: list[list[Row]], order: Any, expiry: Any, admission: Any, now_us: int) -> Any:
        clock = PartitionClock(self._clock_rules(now_us))
        columns = []
        begin = 0
        for rows in partitions:
            end = begin + len(rows)
            while begin < end:
                cut = min(end, begin + self.shape.arrow_rows)
                columns.append(clock.run(order[begin:cut], expiry[begin:cut], admission[begin:cut]))
                begin = cut
        if not columns:
            return admission, expiry, np.zeros(0, np.bool_)
        return [np.concatenate(column) for column in zip(*columns, strict=True)]

    def _places(self, rows: list[Row], order: Any, admission: Any) -> tuple[Any, Any]:
        admitted = np.flatnonzero(admission == Admission.ADMITTED)
        values = list(dict.fromkeys(rows[at].expiry for at in admitted.tolist()))
        ids = np.array([values.index(row.expiry) if row.expiry in values else 0 for row in rows], np.int32)
        first = [order[next(at for at in admitted.tolist() if ids[at] == number)] for number in range(len(values))]
        self.categories, places = arrange(
            self.categories,
            values,
            np.array(first, np.int64),
            lambda: (ids[admitted], order[admitted]),
            self.settings.live_categories,
            self.settings.remember_dropped,
        )
        return places.places(ids, order, admission)

    def _answers(self, outcome: ShardOutcome) -> list[Answer]:
        answers: list[Answer] = []
        for index, verdict in enumerate(outcome.verdict.tolist()):
            first = None
            reason = Admission(int(outcome.admission[index])).reason
            is_conflict = bool(outcome.is_conflict[index])
            if verdict == TupleVerdict.DUPLICATE or is_conflict:
                if verdict == TupleVerdict.DUPLICATE:
                    reason = DUPLICATE_REASONS[int(outcome.copies[index])]
                elif verdict == TupleVerdict.UNIQUE:
                    reason = VERSION_REASON
                if outcome.first_window[index] >= 0:
                    origin = int(outcome.first_origin[index])
                    expiry = outcome.first_expiry[index].item()
                    position = origin & (1 << POSITION_BITS) - 1
                    first = int(outcome.first_window[index]), origin >> POSITION_BITS, position, expiry
            answers.append((TupleVerdict(verdict).port, reason, first))
        return answers

    def _commit(self, now_us: int) -> None:
        s = self.settings
        admitted = [outcome.max_admitted for outcome in self.outcomes if outcome.max_admitted is not None]
        if s.by in ("event_time", "ordered") and admitted and (self.latest is None or max(admitted) > self.latest):
            self.latest, self.moved_us = max(admitted), now_us
        if s.by == "processing_time":
            self.latest, self.moved_us = self._processing_point(now_us), now_us
        latest = self.latest
        live_from = self.categories.first_live_place if s.by == "category" else None
        if s.by not in ("never", "category"):
            live_from = first_live_bucket(latest, s.period, s.span)
        point = expiry_point(latest, s.period) if self.all_live else None
        self.memory.commit(self.window, [outcome.entries for outcome in self.outcomes], live_from, point)
        self.window += 1


def comparable(answers: list[list[Answer]], settings: Settings, *, keep_first_seen: bool) -> list[list[Answer]]:
    """The oracle's answers as the engine can give them.

    Without first_seen no duplicate names its first copy; where tuples have no expiry key the engine gives 0 for it.
    """

    def seen(answer: Answer) -> Answer:
        port, reason, first = answer
        if first is None or not keep_first_seen:
            return port, reason, None
        window, partition, position, expiry = first
        return port, reason, (window, partition, position, 0 if settings.by in ("never", "category") else expiry)

    return [[seen(answer) for answer in part] for part in answers]
