"""Sends error records of topics through the job once more, exactly once; SEMANTICS.md has the steps.

The position of each reason is the committed offset of a consumer group, and goes into the transaction that sends. Notes
in the store keep it for longer than the cluster does: see `replay_notes`.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial

from bucket_store import failpoints
from bucket_store.places.place import Place
from deduper.admin.errors.replay_notes import ReplayNotes
from deduper.admin.errors.rows import REASONS, Windows
from deduper.admin.open_store import OpenStore
from deduper.config.kafka.options import connection_options, librdkafka_options
from deduper.config.kafka.sections import KafkaSink, KafkaSource
from deduper.config.kafka.values import DEDUP_HEADERS
from deduper.errors import UsageError
from deduper.kafka.resend import Offsets, Resend, group_positions
from deduper.kafka.retention import may_have_expired
from deduper.kafka.topic_ends import topic_id
from deduper.sinks.publish_state import OnUnknown
from deduper.sources.kafka.whole_topic import TopicRecord, records_of, whole_topic

REPLAYED = "dedup-replay"
"""The header of a record that was sent again."""
_NEEDED = ("reason", "window", "origin")
_RECORDS = 10_000
"""Records of one transaction."""
_OPEN_S = 10.0
"""A transaction that is open for so long is committed: the brokers abort it after a minute."""
_ORIGIN = re.compile(r"(.+)-(\d+)@\d+")


@dataclass(slots=True)
class TopicReplay:
    """What was sent, or would be: records by reason; and what was left out, by why."""

    rows: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)


def replay_topic(
    store: OpenStore,
    source: KafkaSource,
    sink: KafkaSink,
    windows: Windows,
    reasons: Collection[str],
    *,
    folder: Place,
    again: bool,
    unpublished: OnUnknown,
    dry_run: bool,
) -> TopicReplay:
    """Replay the error records of these windows and reasons, of all reasons if none is given. Safe to repeat.

    `folder` is for the notes. `unpublished` is the operator's answer where nothing tells whether the last transaction
    was committed.

    Raises:
        UsageError: the errors of this job cannot be replayed, or windows are left out in the middle; the text says why.
        PublicationUnknownError: see `unpublished`.
        ProducerFencedError: a later call has taken over.
        TransactionTooLongError: a transaction was open for more than a minute.
        BrokerUnavailableError, KafkaDeniedError, TopicMissingError: by the brokers.
    """
    _require(source, sink)
    store_id = store.log.manifest.store_id[:8]
    groups = {reason: _group(store_id, reason, again=again) for reason in reasons or REASONS}
    client = librdkafka_options(sink.bootstrap_servers, connection_options(sink.options))

    def work(positions: dict[str, Offsets]) -> _Work:
        return _Work(source, sink, windows, positions, again=again)

    def notes() -> ReplayNotes:
        topic = sink.topic
        return ReplayNotes(folder, topic, topic_id(client, topic), partial(may_have_expired, client), unpublished)

    if dry_run:
        noted = notes()
        found = {name: group_positions(client, group, sink.topic) for name, group in groups.items()}
        return _counted(work({name: noted.position(groups[name], offsets) for name, offsets in found.items()}), client)
    sending = librdkafka_options(sink.bootstrap_servers, sink.options)
    with Resend(sending, f"deduper-replay-{store_id}", sink.topic) as resend:
        noted = notes()  # not before the producer of an earlier call is fenced
        positions = {reason: noted.position(group, resend.positions(group)) for reason, group in groups.items()}
        if windows != Windows():
            _counted(work(positions), client)  # refuses windows in the middle before anything is sent
        now, done, waiting = work(positions), TopicReplay(), 0
        for one in _selected(now, client, done):
            if one is not None:
                record, topic, partition = one
                resend.send(
                    topic,
                    partition,
                    key=record.key,
                    value=record.value,
                    headers=[*_own_headers(record, sink), (REPLAYED, store_id.encode())],
                    timestamp_ms=record.timestamp_ms,
                )
                waiting += 1
            if waiting >= _RECORDS or resend.open_s > _OPEN_S:
                _commit(resend, noted, groups, now)
                waiting = 0
        _commit(resend, noted, groups, now)
        noted.finish()
        return done


def _counted(work: _Work, client: dict[str, str]) -> TopicReplay:
    found = TopicReplay()
    deque(_selected(work, client, found), 0)
    return found


def _commit(resend: Resend, notes: ReplayNotes, groups: dict[str, str], work: _Work) -> None:
    reached = {groups[reason]: dict(offsets) for reason, offsets in work.reached.items()}
    notes.before(reached)
    failpoints.hit("replay.sent")
    resend.commit(reached)
    notes.after(reached)
    failpoints.hit("replay.committed")


def _require(source: KafkaSource, sink: KafkaSink) -> None:
    if sink.bootstrap_servers != source.bootstrap_servers:
        raise UsageError(
            "errors are sent again within one cluster: the error port has other brokers than the source. Produce its "
            "records into the source's topic"
        )
    missing = [name for name in _NEEDED if name not in sink.dedup_headers]
    if missing:
        raise UsageError(
            f"the error port adds no header `dedup-{missing[0]}`: take `{missing[0]}` into sinks.error.dedup_headers; "
            "records that are there already cannot be sent again by this command"
        )


def _group(store_id: str, reason: str, *, again: bool) -> str:
    return f"deduper-replay-{store_id}-{reason}{'-again' if again else ''}"


class _Work:
    """One pass over the topic: which records are selected, and how far each reason's group has come."""

    def __init__(
        self, source: KafkaSource, sink: KafkaSink, windows: Windows, positions: dict[str, Offsets], *, again: bool
    ) -> None:
        self.source = source
        self.sink = sink
        self.windows = windows
        self.again = again
        self.positions = positions
        self.reached: dict[str, Offsets] = {reason: dict(offsets) for reason, offsets in positions.items()}

    @property
    def starts(self) -> Offsets:
        """The first offset to read of each partition: those that every group has a position in."""
        shared = set.intersection(*(set(offsets) for offsets in self.positions.values()))
        return {number: min(offsets[number] for offsets in self.positions.values()) for number in shared}


def _selected(work: _Work, client: dict[str, str], found: TopicReplay) -> Iterator[tuple[TopicRecord, str, int] | None]:
    """The records to send with their topic and partition, and None after each batch that was read.

    Whenever it gives something, `work.reached` counts all that it has given as sent.
    """
    ended: set[tuple[str, int]] = set()
    for part, batch in whole_topic(client, work.sink.topic, work.starts):
        for record in records_of(part, batch):
            reason = record.header("dedup-reason")
            if reason not in work.positions:
                continue
            if record.offset < work.positions[reason].get(record.partition, 0) or (reason, record.partition) in ended:
                continue
            window = int(record.header("dedup-window") or 0)
            was_replayed = any(name == REPLAYED for name, _ in record.headers)
            if was_replayed == work.again and window not in work.windows:
                if window < work.windows.first:
                    raise UsageError(
                        f"errors of window {window} wait before window {work.windows.first}: they would never be sent. "
                        f"Write --window ..{'' if work.windows.last is None else work.windows.last}, or send them first"
                    )
                ended.add((reason, record.partition))
                continue
            place = None
            if was_replayed != work.again:
                found.left_out["not replayed before" if work.again else "replayed before"] += 1
            else:
                place = _place(work.source, record)
                if place is None:
                    found.left_out["of no topic of the source"] += 1
            work.reached[reason][record.partition] = record.offset + 1
            if place is not None:
                found.rows[reason] += 1
                yield record, *place
        yield None


def _place(source: KafkaSource, record: TopicRecord) -> tuple[str, int] | None:
    """The topic and partition that a record was read from; None where the source does not read it."""
    origin = _ORIGIN.fullmatch(record.header("dedup-origin") or "")
    return (origin[1], int(origin[2])) if origin and source.reads(origin[1]) else None


def _own_headers(record: TopicRecord, sink: KafkaSink) -> list[tuple[str, bytes | None]]:
    """The headers without those that this job has appended, which are the last ones, each name once."""
    ours = {f"dedup-{name.replace('_', '-')}" for name in sink.dedup_headers or DEDUP_HEADERS}
    headers = list(record.headers)
    while headers and headers[-1][0] in ours:
        ours.discard(headers.pop()[0])
    return headers
