"""A replay of a topic commits in time, however few records of it are selected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bucket_store.places.local import local_place
from deduper.admin.errors import replay_topic
from deduper.admin.errors.rows import Windows
from deduper.kafka import resend as kafka_resend
from deduper.kafka.errors import ProducerFencedError, TransactionTooLongError
from deduper.kafka.resend import Offsets, Resend
from deduper.sinks.publish_state import OnUnknown
from deduper.sources.kafka.whole_topic import TopicRecord
from tests.deduper.fake_kafka import FENCED, failure

BATCH_S = 4.0


@dataclass
class Sending:
    """In place of `Resend`: each batch of the topic takes `BATCH_S`."""

    now: float = 0.0
    since: float | None = None
    open_s: float = 0.0
    sent: list[int] = field(default_factory=list)
    commits: list[tuple[float, int]] = field(default_factory=list)

    def __call__(self, *_: object) -> Sending:
        return self

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to abort."""

    def read(self) -> None:
        """A batch was read."""
        self.now += BATCH_S
        self.open_s = 0.0 if self.since is None else self.now - self.since

    def positions(self, group: str) -> Offsets:
        """None."""
        return {}

    def send(self, topic: str, partition: int, *, value: bytes, **_: object) -> None:
        """A record more."""
        self.since = self.now if self.since is None else self.since
        self.sent.append(int(value))

    def commit(self, positions: dict[str, Offsets]) -> None:
        """How long it was open, and where the first group has come."""
        self.commits.append((self.open_s, next(iter(positions.values())).get(0, 0)))
        self.since, self.open_s = None, 0.0


def test_a_transaction_is_committed_while_nothing_is_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records 0 and 50 of 100 batches are of the reason; the second is sent by a transaction of its own."""
    sending = Sending()

    def topic(*_: object) -> Iterator[tuple[Any, int]]:
        for number in range(100):
            sending.read()
            yield None, number

    def record(_: object, number: int) -> list[TopicRecord]:
        reason = b"malformed" if number in (0, 50) else b"tombstone"
        headers = (("dedup-reason", reason), ("dedup-window", b"0"), ("dedup-origin", b"in-0@7"))
        return [TopicRecord(0, number, 1, None, str(number).encode(), headers)]

    for name, stand_in in {
        "Resend": sending,
        "topic_id": lambda *_: "one",
        "whole_topic": topic,
        "records_of": record,
        "librdkafka_options": lambda *_: {},
    }.items():
        monkeypatch.setattr(replay_topic, name, stand_in)
    store: Any = SimpleNamespace(log=SimpleNamespace(manifest=SimpleNamespace(store_id="5a" * 16)))
    source: Any = SimpleNamespace(bootstrap_servers="b", reads=lambda name: name == "in")
    sink: Any = SimpleNamespace(
        bootstrap_servers="b", options={}, topic="errors", dedup_headers=("reason", "window", "origin")
    )
    found = replay_topic.replay_topic(
        store,
        source,
        sink,
        Windows(),
        ["malformed"],
        folder=local_place(tmp_path),
        again=False,
        unpublished=OnUnknown.REFUSE,
        dry_run=False,
    )
    assert (found.rows, sending.sent) == ({"malformed": 2}, [0, 50])
    assert [position for _, position in sending.commits] == [1, 51, 51]
    assert max(open_s for open_s, _ in sending.commits) == 3 * BATCH_S


@pytest.mark.parametrize(("open_s", "error"), [(59.0, ProducerFencedError), (60.0, TransactionTooLongError)])
def test_a_fence_after_the_timeout_is_slowness(
    monkeypatch: pytest.MonkeyPatch, open_s: float, error: type[ProducerFencedError]
) -> None:
    """The brokers fence a producer whose transaction was open for too long, as if another had taken over."""
    now = [0.0]

    def refuse(*_: object) -> None:
        raise failure(FENCED, fatal=True)

    producer = SimpleNamespace(
        init_transactions=lambda _: None,
        begin_transaction=lambda: None,
        commit_transaction=refuse,
        abort_transaction=refuse,
    )
    monkeypatch.setattr(kafka_resend, "Producer", lambda *_, **__: producer)
    monkeypatch.setattr(kafka_resend.time, "monotonic", lambda: now[0])
    producer.produce = lambda *_, **__: None
    with Resend({}, "name", "errors") as resend:
        assert resend.open_s == 0
        resend.send("in", 0, key=None, value=b"", headers=[], timestamp_ms=1)
        now[0] = open_s
        assert resend.open_s == open_s
        with pytest.raises(ProducerFencedError, match="was open for 60 s" if open_s >= 60 else "taken over") as raised:
            resend.commit({})
    assert type(raised.value) is error
