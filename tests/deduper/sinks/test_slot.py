"""A slot's part of a window goes out once and whole, whatever any call of the client does; without a broker.

The same against real brokers, which know more ways to fail, stands in `tests/services/test_kafka_publisher.py`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from pyarrow import parquet

from bucket_store import failpoints
from bucket_store.places.local import local_place
from deduper.config.kafka.options import KafkaOptionsError
from deduper.errors import IntegrityError
from deduper.kafka import calls as kafka_calls
from deduper.kafka.calls import HungError
from deduper.kafka.errors import (
    BrokerUnavailableError,
    KafkaDeniedError,
    ProducerFencedError,
    PublicationUnknownError,
    RecordRefusedError,
    TopicMissingError,
    TransactionTooLongError,
)
from deduper.kafka.retry import RetryDeadline, ThrottledLog
from deduper.sinks import position as kafka_position
from deduper.sinks import slot as kafka_slot
from deduper.sinks import transaction
from deduper.sinks.publish_state import OnUnknown, Position
from deduper.sinks.slot import CommittedWindow, Slot
from deduper.sinks.transaction import PublisherSettings, TransactionalSink
from tests.deduper.fake_kafka import FENCED, TIMED_OUT, Cluster, Producer, failure, hang, sending
from tests.deduper.sinks.test_staged_records import STAGED

SLOT = 2
GROUP = "clicks/5a5a/unique/2"
DAY_S = 86_400.0
STEPS = ["init", "list", "look", "begin", "flush", "offsets", "commit"]


@dataclass
class Time:
    """A clock that only waiting moves."""

    now: float = 0.0

    def sleep(self, seconds: float) -> None:
        """At once."""
        assert seconds >= 0
        self.now += max(seconds, 0.01)


@pytest.fixture
def time_(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The time of the slots and of their patience."""
    time = Time()
    waits = partial(RetryDeadline, clock=lambda: time.now, sleep=time.sleep)
    monkeypatch.setattr(kafka_slot, "RetryDeadline", waits)
    for module in (kafka_slot, transaction):
        monkeypatch.setattr(module.time, "monotonic", lambda: time.now)
    return time


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, time_: Time) -> Cluster:
    """A cluster that has the topic, with three partitions."""
    cluster = Cluster()
    monkeypatch.setattr(kafka_slot, "Producer", cluster.producer)
    monkeypatch.setattr(kafka_position, "Consumer", cluster.consumer)
    monkeypatch.setattr(transaction, "sending", sending)

    def at_once(call: Callable[[], Any], limit_s: float, what: str) -> Any:
        return call()

    monkeypatch.setattr(kafka_calls, "bounded", at_once)
    monkeypatch.setattr(transaction, "bounded", at_once)
    return cluster


def slot_of(*, deadline_s: float = 30, **changes: Any) -> Slot:
    """The writer 2 of the port `unique`."""
    settings = PublisherSettings(deadline_s=deadline_s, transaction_timeout_s=60, offsets_retention_s=7 * DAY_S)
    sink = TransactionalSink("clicks", "5a5a", "unique", "unique", {}, True, settings, None)
    return Slot(replace(sink, **changes), SLOT)


def rows(window: int, *keys: bytes | None) -> list[dict[str, Any]]:
    """Staged rows of the slot, with these keys."""
    return [
        {"key": key, "value": b"%d/%d" % (window, at), "headers": [], "timestamp_ms": 7, "slot": SLOT}
        for at, key in enumerate(keys)
    ]


@pytest.fixture
def staged(tmp_path: Path) -> Callable[..., CommittedWindow]:
    """Makes windows of three rows in two files; the second file holds a row of another slot too."""

    def make(window: int, *keys: bytes | None, **changes: Any) -> CommittedWindow:
        made = rows(window, *(keys or (None, b"k", None)))
        files = [tmp_path / f"{window}-{part}.parquet" for part in "ab"]
        parquet.write_table(pa.Table.from_pylist(made[:1], STAGED), files[0])
        other = {**made[0], "slot": 9, "value": b"another slot's"}
        parquet.write_table(pa.Table.from_pylist([other, *made[1:]], STAGED), files[1])
        given: dict[str, Any] = {"checksum": 1000 + window, "age_s": 1.0, "unknown": OnUnknown.REFUSE} | changes
        places = [local_place(file) for file in files]
        owners = {places[0]: {SLOT}, places[1]: {SLOT, 9}}
        return CommittedWindow(window, slots={SLOT: places}, owners=owners, **given)

    return make


def publish(slot: Slot, work: CommittedWindow) -> int | None:
    """A window's part."""
    return slot.publish(work, ThrottledLog())


def values(cluster: Cluster) -> list[bytes | None]:
    """What readers of committed records see."""
    return [sent.value for sent in cluster.visible]


def window_values(*windows: int, count: int = 3) -> list[bytes]:
    """What they are to see of these windows."""
    return [b"%d/%d" % (window, at) for window in windows for at in range(count)]


def steps(cluster: Cluster) -> list[str]:
    """The calls of the protocol, in order."""
    return [call for call in cluster.calls if call in STEPS]


def test_rows_and_offset_become_visible_together(cluster: Cluster, staged: Callable[..., CommittedWindow]) -> None:
    """All of the slot's rows, in order, as they were staged; the offset says which record they are of."""
    assert publish(slot_of(), staged(0)) == 3
    assert [(sent.key, sent.value, sent.timestamp, sent.headers) for sent in cluster.visible] == [
        (None, b"0/0", 7, []),
        (b"k", b"0/1", 7, []),
        (None, b"0/2", 7, []),
    ]
    position = Position.of(*cluster.offsets[GROUP], "here")
    assert (position.last, dict(position.checksums)) == (0, {0: 1000})


def test_the_steps_have_their_order(cluster: Cluster, staged: Callable[..., CommittedWindow]) -> None:
    """Look after init, never before; once a producer, not once a window."""
    slot = slot_of()
    publish(slot, staged(0))
    assert steps(cluster) == STEPS
    assert cluster.calls[0] == "producer"
    publish(slot, staged(1))
    assert steps(cluster)[len(STEPS) :] == ["begin", "flush", "offsets", "commit"]
    assert values(cluster) == window_values(0, 1)
    assert Position.of(*cluster.offsets[GROUP], "here").checksums == {0: 1000, 1: 1001}


def test_a_topic_that_was_made_again_is_said_with_the_windows_that_it_lacks(
    cluster: Cluster, staged: Callable[..., CommittedWindow], time_: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """Once; a new slot, and a producer that is replaced, say nothing as long as the offset is there.

    On a machine that has been up for long: the offset is as old as its last commit, not as the clock.
    """
    time_.now = 5 * DAY_S
    slot = slot_of()
    for window in (0, 1):
        publish(slot, staged(window))
        slot.discard()
    assert caplog.messages == []
    cluster.offsets.clear()
    for window in (2, 3):
        assert publish(slot, staged(window)) == 3
        slot.discard()
    (line,) = caplog.messages
    assert line.startswith(
        "port unique, topic unique, window 2, slot 2: its offset is gone: the topic, or the group, was deleted. "
        "A topic that was made again lacks the windows up to 1."
    )


def test_an_offset_that_may_have_expired_is_no_other_topic(
    cluster: Cluster, staged: Callable[..., CommittedWindow], time_: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """An idle job's offsets go after seven days; to judge its records again would repeat them."""
    slot = slot_of()
    publish(slot, staged(0))
    slot.discard()
    cluster.offsets.clear()
    time_.now += 8 * DAY_S
    assert publish(slot, staged(1)) == 3
    assert caplog.messages == []


def test_a_published_window_is_not_sent_again(cluster: Cluster, staged: Callable[..., CommittedWindow]) -> None:
    """Not by the one who published it, not by another."""
    slot = slot_of()
    publish(slot, staged(0))
    publish(slot, staged(1))
    before = list(cluster.visible)
    for one in (slot, slot_of()):
        assert publish(one, staged(0)) is None
        assert publish(one, staged(1)) is None
    assert cluster.visible == before
    assert cluster.calls.count("begin") == 2, "nothing is begun for it"


def test_a_window_without_rows_moves_the_offset(cluster: Cluster, staged: Callable[..., CommittedWindow]) -> None:
    """Or the next start would not know of it."""
    work = staged(0)
    assert publish(slot_of(), replace(work, slots={SLOT: []})) == 0
    assert (cluster.visible, cluster.offsets[GROUP][0]) == ([], 1)


@pytest.mark.parametrize(("keep_order", "partition"), [(True, 2), (False, 1)])
def test_rows_without_a_key_keep_together(
    cluster: Cluster, staged: Callable[..., CommittedWindow], keep_order: bool, partition: int
) -> None:
    """In the slot's own partition where order counts; else in another one from window to window. Keys decide alone."""
    publish(slot_of(keep_order=keep_order), staged(5))
    assert [sent.partition for sent in cluster.visible] == [partition, None, partition]


def test_partitions_are_counted_modulo(cluster: Cluster, staged: Callable[..., CommittedWindow]) -> None:
    """Slot 2 of a topic with two partitions."""
    cluster.partitions = 2
    publish(slot_of(), staged(0))
    assert cluster.visible[0].partition == 0


ABORTABLE = {"txn_requires_abort": True}
FATAL = {"fatal": True}


@pytest.mark.slow
@pytest.mark.parametrize("step", ["begin", "produce", "flush", "offsets", "commit"])
@pytest.mark.parametrize("flags", [ABORTABLE, FATAL, {}], ids=["abort", "fatal", "unknown"])
def test_after_a_failed_step_all_is_begun_again(
    cluster: Cluster, staged: Callable[..., CommittedWindow], step: str, flags: dict[str, bool]
) -> None:
    """After an abort by the same producer, else by another; it looks again, and each row is there once."""
    cluster.fail(step, failure(**flags))
    slot = slot_of()
    assert publish(slot, staged(0)) == 3
    assert values(cluster) == window_values(0)
    assert cluster.calls.count("look") == 2, "a failed check is repeated"
    # A producer with an open transaction tries to abort it, which is how it finds out whether it can go on.
    goes_on = step != "begin"
    assert len(cluster.producers) == (1 if goes_on else 2)
    assert [one.purged for one in cluster.producers] == [False] if goes_on else [True, False]
    assert publish(slot, staged(1)) == 3
    assert values(cluster) == window_values(0, 1)


@pytest.mark.parametrize("step", ["init", "list", "look", "offsets", "commit"])
def test_a_call_that_ran_out_of_its_time_is_repeated(
    cluster: Cluster, staged: Callable[..., CommittedWindow], step: str
) -> None:
    """The same call, no other: a commit that may have happened is never aborted."""
    cluster.fail(step, failure(TIMED_OUT, retriable=True))
    assert publish(slot_of(), staged(0)) == 3
    assert values(cluster) == window_values(0)
    # A look that got no answer asks once more whether it is a transaction that keeps it waiting.
    assert cluster.calls.count(step) == (3 if step == "look" else 2)
    assert "abort" not in cluster.calls


def test_a_commit_that_happened_and_was_not_answered(cluster: Cluster, staged: Callable[..., CommittedWindow]) -> None:
    """Whether the client can ask again, or only another one can find out."""
    cluster.fail("commit", failure(TIMED_OUT, retriable=True), done=True)
    assert publish(slot_of(), staged(0)) == 3
    cluster.fail("commit", failure(fatal=True), done=True)
    cluster.fail("abort", failure(fatal=True))
    assert publish(slot_of(), staged(1)) is None, "the look says that it is there"
    assert values(cluster) == window_values(0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [ABORTABLE, FATAL], ids=["abort", "fatal"])
def test_a_failure_that_comes_again_and_again_has_a_deadline(
    cluster: Cluster, staged: Callable[..., CommittedWindow], time_: Time, flags: dict[str, bool]
) -> None:
    """Of all the repetitions together; the error names the last cause, and the next call goes on."""
    for nth in range(1, 1000):
        cluster.fail("offsets", failure(**flags), nth=nth)
    with pytest.raises(BrokerUnavailableError, match="waited 2 s for the transaction to succeed: code -196"):
        publish(slot_of(deadline_s=2), staged(0))
    assert 2 <= time_.now < 3
    cluster.forget_faults()
    assert publish(slot_of(), staged(0)) == 3
    assert values(cluster) == window_values(0)


@pytest.mark.slow
def test_a_call_that_hangs_again_and_again_has_a_deadline(
    cluster: Cluster, staged: Callable[..., CommittedWindow], time_: Time
) -> None:
    """However many producers it takes."""
    for nth in range(1, 1000):
        cluster.fail("offsets", HungError("hangs"), nth=nth)
    with pytest.raises(BrokerUnavailableError, match="waited 2 s for the transaction to succeed: hangs"):
        publish(slot_of(deadline_s=2), staged(0))
    assert 2 <= time_.now < 3
    assert all(producer.purged for producer in cluster.producers)


@pytest.mark.parametrize("error", [failure(fatal=True), HungError("hangs")], ids=["fails", "hangs"])
def test_an_abort_that_fails_takes_another_producer(
    cluster: Cluster, staged: Callable[..., CommittedWindow], error: Exception
) -> None:
    """Which ends what the first one left open."""
    cluster.fail("flush", failure(**ABORTABLE))
    cluster.fail("abort", error)
    assert publish(slot_of(), staged(0)) == 3
    assert values(cluster) == window_values(0)
    assert [one.purged for one in cluster.producers] == [True, False]
    assert cluster.calls.count("begin") == 2, "the first one is not tried again"


@pytest.mark.parametrize(("is_done", "sent"), [(True, None), (False, 3)], ids=["happened", "did not"])
def test_a_commit_in_vain_takes_another_producer(
    cluster: Cluster, staged: Callable[..., CommittedWindow], monkeypatch: pytest.MonkeyPatch, is_done: bool, sent: int
) -> None:
    """It may wait for good for a coordinator that was killed and is back. What became of it, the next look tells."""
    monkeypatch.setattr(transaction, "_STUCK_S", -1.0)
    cluster.fail("commit", failure(TIMED_OUT, retriable=True), done=is_done)
    assert publish(slot_of(), staged(0)) == sent
    assert values(cluster) == window_values(0)
    assert [one.purged for one in cluster.producers] == [True, False]


def test_an_abort_in_vain_takes_another_producer(
    cluster: Cluster, staged: Callable[..., CommittedWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose init ends what the first one left open."""
    monkeypatch.setattr(transaction, "_STUCK_S", -1.0)
    cluster.fail("flush", failure(**ABORTABLE))
    for nth in range(1, 1000):
        cluster.fail("abort", failure(TIMED_OUT, retriable=True), nth=nth)
    assert publish(slot_of(), staged(0)) == 3
    assert values(cluster) == window_values(0)
    assert cluster.calls.count("abort") == 1


def overtake(cluster: Cluster) -> None:
    """Another producer of the same name is initialised."""
    other = cluster.producer({"transactional.id": GROUP})
    other.init_transactions(2.0)


@pytest.mark.parametrize("step", ["flush", "offsets", "commit"])
def test_who_was_overtaken_shows_nothing(cluster: Cluster, staged: Callable[..., CommittedWindow], step: str) -> None:
    """It gets an error, and its producer is of no more use."""
    cluster.act(step, lambda: overtake(cluster))
    slot = slot_of()
    with pytest.raises(ProducerFencedError, match=f"port unique, topic unique, window 0, slot 2: {GROUP}") as raised:
        publish(slot, staged(0))
    assert not isinstance(raised.value, TransactionTooLongError)
    assert values(cluster) == []
    assert "abort" not in cluster.calls
    assert cluster.producers[0].purged
    # An owner that has the highest epoch all the same calls again.
    assert publish(slot, staged(0)) == 3
    assert values(cluster) == window_values(0)


def test_who_was_overtaken_before_it_looked_does_not_send_again(
    cluster: Cluster, staged: Callable[..., CommittedWindow]
) -> None:
    """The other has published between its init and its look."""

    def publish_all() -> None:
        assert publish(slot_of(), staged(0)) == 3

    cluster.act("init", publish_all, done=True)
    slot = slot_of()
    assert publish(slot, staged(0)) is None, "it looks and finds the window"
    with pytest.raises(ProducerFencedError):
        publish(slot, staged(1))
    assert values(cluster) == window_values(0)


def test_a_fence_that_only_the_abort_shows(cluster: Cluster, staged: Callable[..., CommittedWindow]) -> None:
    """The failed step named another cause."""
    cluster.fail("flush", failure(**ABORTABLE))
    cluster.fail("abort", failure(FENCED, fatal=True))
    with pytest.raises(ProducerFencedError):
        publish(slot_of(), staged(0))


@pytest.mark.parametrize(("open_s", "is_too_long"), [(59.99, False), (60.0, True), (61.0, True)])
def test_a_transaction_that_was_open_for_too_long(
    cluster: Cluster, staged: Callable[..., CommittedWindow], time_: Time, open_s: float, is_too_long: bool
) -> None:
    """The broker has ended it and fenced its producer; the time tells which of the two fences it was."""
    time_.now = 1000.0
    cluster.act("flush", lambda: time_.sleep(open_s))
    cluster.fail("offsets", failure(FENCED, fatal=True))
    with pytest.raises(ProducerFencedError) as raised:
        publish(slot_of(), staged(0))
    assert isinstance(raised.value, TransactionTooLongError) == is_too_long
    if is_too_long:
        assert f"was open for {open_s:.0f} s, longer than transaction.timeout.ms (60 s)" in str(raised.value)


def test_a_transaction_that_was_aborted_is_open_no_more(
    cluster: Cluster, staged: Callable[..., CommittedWindow], time_: Time
) -> None:
    """A fence long after it has another cause."""
    cluster.fail("flush", failure(**ABORTABLE))
    cluster.act("look", lambda: time_.sleep(100), nth=2)
    cluster.fail("begin", failure(FENCED, fatal=True), nth=2)
    with pytest.raises(ProducerFencedError) as raised:
        publish(slot_of(), staged(0))
    assert not isinstance(raised.value, TransactionTooLongError)


def test_a_fence_outside_a_transaction_is_no_long_one(
    cluster: Cluster, staged: Callable[..., CommittedWindow], time_: Time
) -> None:
    """However long ago the last one was."""
    slot = slot_of()
    publish(slot, staged(0))
    time_.sleep(3600)
    cluster.fail("begin", failure(FENCED, fatal=True))
    with pytest.raises(ProducerFencedError) as raised:
        publish(slot, staged(1))
    assert not isinstance(raised.value, TransactionTooLongError)


@pytest.mark.parametrize("step", ["init", "flush", "offsets"])
def test_what_a_person_must_see_ends_it(cluster: Cluster, staged: Callable[..., CommittedWindow], step: str) -> None:
    """A right that is missing, a record that the topic refuses: nothing shows, and nothing is tried again."""
    cluster.fail(step, failure(KafkaError.MSG_SIZE_TOO_LARGE))
    slot = slot_of()
    with pytest.raises(RecordRefusedError, match=r"window 0, slot 2: .*max\.message\.bytes"):
        publish(slot, staged(0))
    assert cluster.calls.count("init") == 1
    assert values(cluster) == []
    assert publish(slot, staged(0)) == 3
    assert values(cluster) == window_values(0)


def test_options_that_the_client_does_not_take(cluster: Cluster, staged: Callable[..., CommittedWindow]) -> None:
    """Said as that."""
    cluster.fail("producer", failure(KafkaError._INVALID_ARG))
    with pytest.raises(KafkaOptionsError, match=r"slot 2: .*; correct the sink's options"):
        publish(slot_of(), staged(0))


def test_a_topic_that_is_not_there(cluster: Cluster, staged: Callable[..., CommittedWindow], time_: Time) -> None:
    """Waited for some seconds, since it may just have been made; then it is named."""
    cluster.topic_errors = [KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "none")] * 200
    with pytest.raises(TopicMissingError, match=r"no such topic; create it, or correct sinks\.unique\.topic"):
        publish(slot_of(), staged(0))
    assert 5 < time_.now < 6
    cluster.topic_errors = [KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "none")] * 2
    assert publish(slot_of(), staged(0)) == 3


def test_a_topic_of_which_something_else_is_wrong(
    cluster: Cluster, staged: Callable[..., CommittedWindow], time_: Time
) -> None:
    """It may pass until the deadline; a right that is missing does not."""
    cluster.topic_errors = [KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "no leader")] * 60
    assert publish(slot_of(), staged(0)) == 3
    assert time_.now > 6
    cluster.topic_errors = [KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "no leader")] * 1000
    with pytest.raises(BrokerUnavailableError, match="waited 30 s for the transaction to succeed: topic unique: no le"):
        publish(slot_of(), staged(1))
    cluster.topic_errors = [KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no")]
    with pytest.raises(KafkaDeniedError, match=r"slot 2: not allowed"):
        publish(slot_of(), staged(1))


def test_the_partitions_of_a_recreated_topic_are_counted_again(
    cluster: Cluster, staged: Callable[..., CommittedWindow]
) -> None:
    """Under a producer that goes on: rows without a key go where there are partitions now."""
    slot = slot_of()
    publish(slot, staged(0))
    cluster.partitions = 1
    cluster.fail("flush", failure(KafkaError._UNKNOWN_PARTITION, **ABORTABLE))
    assert publish(slot, staged(1)) == 3
    assert cluster.visible[3].partition == 0
    assert values(cluster) == window_values(0, 1)


def test_a_producer_that_has_lost_a_connection_since_is_not_used_again(
    cluster: Cluster, staged: Callable[..., CommittedWindow]
) -> None:
    """Such a one tends to hang; what was published is not sent again by the other one."""
    slot = slot_of()
    publish(slot, staged(0))
    cluster.producers[0].words.append(KafkaError(KafkaError._TRANSPORT, "connection lost"))
    assert publish(slot, staged(0)) is None
    assert publish(slot, staged(1)) == 3
    assert [one.purged for one in cluster.producers] == [True, False]
    assert values(cluster) == window_values(0, 1)


def test_a_call_that_hangs_takes_another_producer(
    cluster: Cluster,
    staged: Callable[..., CommittedWindow],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The one that is known to: whether it has done its work, the next look tells."""
    monkeypatch.setattr(kafka_calls, "bounded", BOUNDED)
    monkeypatch.setattr(transaction, "_OFFSETS_HUNG_S", 0.1)
    cluster.act("offsets", hang)
    with caplog.at_level(logging.WARNING):
        assert publish(slot_of(), staged(0)) == 3
    assert values(cluster) == window_values(0)
    assert [one.purged for one in cluster.producers] == [True, False]
    assert "the call neither answers nor ends" in caplog.text


BOUNDED = kafka_calls.bounded


@pytest.mark.parametrize("room", [1, 2, 5])
def test_a_queue_that_is_full_is_waited_for(
    cluster: Cluster, staged: Callable[..., CommittedWindow], room: int
) -> None:
    """Until half of it is sent; no record is left out or sent twice."""
    cluster.room = room
    keys = [b"%d" % number for number in range(12)]
    assert publish(slot_of(), staged(0, *keys)) == 12
    assert values(cluster) == window_values(0, count=12)


def test_a_record_that_does_not_fit_into_the_queue(cluster: Cluster, staged: Callable[..., CommittedWindow]) -> None:
    """An empty queue refuses it: however long one waits, it would again."""
    cluster.room = 0
    slot = slot_of()
    with pytest.raises(RecordRefusedError, match=r"a record of 3 bytes does not fit .* raise kafka\.buffer\.memory"):
        publish(slot, staged(0))
    assert (values(cluster), cluster.calls.count("abort")) == ([], 1)
    cluster.room = 10
    assert publish(slot, staged(0)) == 3


@pytest.mark.parametrize("step", ["produce", "flush"])
def test_why_a_transaction_has_failed_is_found_out(
    cluster: Cluster, staged: Callable[..., CommittedWindow], step: str
) -> None:
    """A record that was refused on its way: produce and flush themselves only say that nothing goes on."""
    refused = failure(KafkaError.MSG_SIZE_TOO_LARGE, **ABORTABLE)
    cluster.act(step, lambda: setattr(cluster.producers[0], "failed", refused))
    with pytest.raises(RecordRefusedError, match=r"max\.message\.bytes"):
        publish(slot_of(), staged(0))
    assert (values(cluster), cluster.calls.count("abort")) == ([], 1)


def test_brokers_that_take_no_records_are_waited_for_until_the_deadline(
    cluster: Cluster, staged: Callable[..., CommittedWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost, and the next call goes on."""
    slot = slot_of()
    monkeypatch.setattr("tests.deduper.fake_kafka.Producer.flush", lambda self, timeout: len(self))
    with pytest.raises(BrokerUnavailableError, match="waited 30 s for the brokers to take 3 records: no answer"):
        publish(slot, staged(0))
    monkeypatch.undo()
    assert values(cluster) == []
    assert cluster.calls.count("abort") == 1


def test_brokers_that_take_records_slowly_are_waited_for(
    cluster: Cluster, staged: Callable[..., CommittedWindow], monkeypatch: pytest.MonkeyPatch, time_: Time
) -> None:
    """Every record that they take restarts the deadline."""

    def slowly(producer: Producer, timeout: float) -> int:
        time_.sleep(20)
        if len(asked) % 2 and len(producer):
            producer.deliver_one()
        asked.append(timeout)
        return len(producer)

    asked: list[float] = []
    monkeypatch.setattr(Producer, "flush", slowly)
    assert publish(slot_of(), staged(0)) == 3
    assert time_.now > 100
    assert values(cluster) == window_values(0)


def test_an_error_before_there_is_a_transaction_aborts_none(
    cluster: Cluster, staged: Callable[..., CommittedWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to abort, and the brokers would refuse."""

    def break_off(name: str) -> None:
        if name == "kafka.initialised":
            raise KeyboardInterrupt

    monkeypatch.setattr(failpoints, "hit", break_off)
    with pytest.raises(KeyboardInterrupt):
        publish(slot_of(), staged(0))
    assert (cluster.calls.count("abort"), cluster.producers[0].purged) == (0, True)


def test_staged_files_that_are_gone(cluster: Cluster, staged: Callable[..., CommittedWindow]) -> None:
    """Lost when nobody has published them; published by another, who removed them: fenced."""
    work = staged(1)
    work.slots[SLOT][1].remove()
    slot = slot_of()
    with pytest.raises(IntegrityError, match="committed and not published, but its staged files are gone"):
        publish(slot, work)
    assert (values(cluster), cluster.producers[0].purged, cluster.calls.count("abort")) == ([], True, 1)

    def publish_meanwhile(last: int) -> None:
        cluster.offsets[GROUP] = (
            Position(last, {last: 1000 + last}).offset,
            Position(last, {last: 1000 + last}).metadata,
        )

    cluster.act("begin", lambda: publish_meanwhile(0))
    with pytest.raises(IntegrityError):
        publish(slot, work)
    for last in (1, 2):
        cluster.offsets.clear()
        cluster.act("begin", partial(publish_meanwhile, last))
        with pytest.raises(ProducerFencedError, match="published by another process"):
            publish(slot, work)


def test_another_error_leaves_nothing_open(
    cluster: Cluster,
    staged: Callable[..., CommittedWindow],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing of Kafka's: the transaction is aborted, or left to the next init when that fails too."""
    armed = iter([True])

    def break_off(name: str) -> None:
        if name == "kafka.part" and next(armed, False):
            raise KeyboardInterrupt

    monkeypatch.setattr(failpoints, "hit", break_off)
    slot = slot_of()
    caplog.set_level(logging.DEBUG, logger="deduper.sinks.slot")
    with pytest.raises(KeyboardInterrupt):
        publish(slot, staged(0))
    assert (cluster.calls.count("abort"), cluster.producers[0].purged) == (1, True)
    assert "not aborted" not in caplog.text
    armed = iter([True])
    cluster.fail("abort", failure(fatal=True))
    with pytest.raises(KeyboardInterrupt):
        publish(slot, staged(0))
    assert "not aborted" in caplog.text
    assert publish(slot, staged(0)) == 3
    assert values(cluster) == window_values(0)


@pytest.mark.parametrize(
    ("age_s", "is_asked"), [(1.0, False), (7 * DAY_S - 3600, False), (7 * DAY_S - 3599, True), (9 * DAY_S, True)]
)
def test_a_window_that_the_cluster_may_have_forgotten(
    cluster: Cluster, staged: Callable[..., CommittedWindow], age_s: float, is_asked: bool
) -> None:
    """Nobody knows whether it was published: refused until the operator answers, and the answer is obeyed."""
    work = staged(0, age_s=age_s)
    if not is_asked:
        assert publish(slot_of(), work) == 3
        return
    with pytest.raises(PublicationUnknownError, match=f"committed {age_s / DAY_S:.1f} days ago"):
        publish(slot_of(), work)
    assert publish(slot_of(), replace(work, unknown=OnUnknown.SKIP)) is None
    assert values(cluster) == []
    assert publish(slot_of(), replace(work, unknown=OnUnknown.PUBLISH)) == 3
    assert publish(slot_of(), work) is None


def test_a_window_whose_staged_files_are_all_gone(cluster: Cluster, staged: Callable[..., CommittedWindow]) -> None:
    """Their removal follows the mark: without an offset it may have been published, and can only be skipped."""
    work = staged(0, age_s=math.inf)
    for place in work.owners:
        place.local.unlink()
    with pytest.raises(
        PublicationUnknownError,
        match=r"staged files are gone, .* once with --unpublished skip \(a Deduper",
    ):
        publish(slot_of(), work)
    assert publish(slot_of(), replace(work, unknown=OnUnknown.SKIP)) is None
    with pytest.raises(IntegrityError, match="its staged files are gone"):
        publish(slot_of(), replace(work, unknown=OnUnknown.PUBLISH))
    assert values(cluster) == []


def test_a_window_older_than_what_the_offset_remembers(
    cluster: Cluster, staged: Callable[..., CommittedWindow]
) -> None:
    """However young: the group knows later ones only."""
    cluster.offsets[GROUP] = 6, Position(5, {5: 1005, 4: 1004}).metadata
    with pytest.raises(PublicationUnknownError, match="only windows from 4 on"):
        publish(slot_of(), staged(3))
    with pytest.raises(IntegrityError, match="window 5 was published from the record with checksum"):
        publish(slot_of(), staged(5, checksum=7))
    assert values(cluster) == []


def test_a_slot_says_what_it_waits_for(
    cluster: Cluster, staged: Callable[..., CommittedWindow], caplog: pytest.LogCaptureFixture
) -> None:
    """With what the client said last of its connections."""

    def refuse() -> None:
        cluster.producers[0].words.append(KafkaError(KafkaError._TRANSPORT, "connection refused"))
        raise failure(TIMED_OUT, retriable=True)

    for nth in range(1, 10):
        cluster.act("init", refuse, nth=nth)
    with caplog.at_level(logging.WARNING):
        assert publish(slot_of(), staged(0)) == 3
    assert "window 0, slot 2: waiting for the transaction coordinator for 1 s (connection refused)" in caplog.text


@pytest.fixture(autouse=True)
def no_failpoints_are_armed() -> Iterator[None]:
    """As in a job."""
    yield
    assert not failpoints._ARMED
