"""A start names the output topics that were deleted and made again while no job ran."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bucket_store.log.records import OutputFile
from deduper.kafka.errors import BrokerUnavailableError, TopicMissingError
from deduper.sinks import topics
from deduper.sinks.names import TopicPlace
from deduper.sinks.topics import KnownTopic, compared, known_topics, topics_extra
from tests.deduper.kafka_configs import BASE, loaded
from tests.deduper.sinks.test_topic_age import Ages


class Cluster:
    """Ids of topics by name; without one there is no answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: dict[str, str] = {}
        self.asked: list[str] = []
        monkeypatch.setattr(topics, "topic_id", self._id)

    def _id(self, client: Any, topic: str, answer_s: float) -> str:
        assert answer_s <= 5
        if not self.ids:
            raise BrokerUnavailableError(f"topic {topic}: no answer")
        if topic not in self.ids:
            raise TopicMissingError(f"the cluster has no topic {topic}")
        self.asked.append(topic)
        return self.ids[topic]


def started(directory: Path, extra: dict[str, Any], next_window: int) -> topics.KafkaPorts:
    """The ports of a start on a store whose newest commit has this extra."""
    log: Any = SimpleNamespace(
        state=SimpleNamespace(next_window=next_window, extra=extra),
        manifest=SimpleNamespace(store_id="5a" * 16),
        last_commits=lambda count: [],
    )
    ports = topics.KafkaPorts(loaded(BASE, directory).topic_ports, 60.0, log, Ages())
    ports.compare_topics()
    return ports


def test_a_topic_that_was_made_again_is_named_with_what_it_may_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, by the first start that finds it; the same topic, and a first start, are no warning."""
    cluster = Cluster(monkeypatch)
    cluster.ids["unique"] = "A"
    first = started(tmp_path, {}, 0).extra()
    assert started(tmp_path, first, 9).extra() == first == {"topics": {"unique": ["unique", "A", 0]}}
    assert caplog.messages == []
    cluster.ids["unique"] = "B"
    second = started(tmp_path, first, 9).extra()
    (line,) = caplog.messages
    assert line.startswith("port unique: topic unique was deleted and made again: of the windows 0 to 8 those")
    assert started(tmp_path, second, 12).extra() == second == {"topics": {"unique": ["unique", "B", 9]}}
    assert len(caplog.messages) == 1


def test_without_an_answer_the_topics_are_compared_after_the_next_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once. Until then commits repeat what the newest one says."""
    cluster = Cluster(monkeypatch)
    before = {"topics": {"unique": ["unique", "A", 0]}}
    with caplog.at_level(logging.INFO, topics.logger.name):
        ports = started(tmp_path, before, 3)
        assert ports.extra() == before
        assert (
            "port duplicate: whether topic duplicate was made again is not known: topic duplicate: no answer"
            in caplog.text
        )
    cluster.ids["unique"] = "B"
    file = tmp_path / "0.parquet"
    file.touch()
    for window in (3, 4):
        ports.publish(window, [(OutputFile("unique", str(file), "", 0, 0, 1), TopicPlace("unique", (0,), "clicks"))])
    assert cluster.asked == ["unique"]
    assert "of the windows 0 to 2 those" in caplog.text
    assert ports.extra() == {"topics": {"unique": ["unique", "B", 3]}}


def test_a_late_answer_counts_from_the_first_window_of_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has sent that window to this topic before the answer."""
    cluster = Cluster(monkeypatch)
    ports = started(tmp_path, {}, 3)
    cluster.ids["unique"] = "A"
    (tmp_path / "0.parquet").touch()
    sent = OutputFile("unique", str(tmp_path / "0.parquet"), "", 0, 0, 1)
    cast("Any", ports._log.state).next_window = 4
    ports.publish(3, [(sent, TopicPlace("unique", (0,), "clicks"))])
    assert ports.extra() == {"topics": {"unique": ["unique", "A", 3]}}


def test_what_is_no_topic_of_now_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port without a topic; a port with another one; what another release may have written."""
    Cluster(monkeypatch).ids["unique"] = "A"
    found = started(tmp_path, {"topics": {"error": ["e", "E", 0], "unique": ["old", "O", 0]}}, 4)
    assert found.extra() == {"topics": {"unique": ["unique", "A", 4]}}
    assert known_topics({"topics": {"unique": ["u", 5, 0]}}) == {}
    assert topics_extra({}) == {}
    assert compared(KnownTopic("t", "A", 3), "t", "B", 3) == (KnownTopic("t", "B", 3), None)
