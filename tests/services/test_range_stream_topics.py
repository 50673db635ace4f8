"""Range streams between topics: the model's rows in every port, whatever dies, each once."""

from __future__ import annotations

import base64
import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from deduper.errors import IntegrityError, UsageError
from deduper.ranges.stream.rows import InputRows
from deduper.ranges.stream.runner import StreamRunner, owned_store
from tests.crash.range_stream import SETTINGS, windows
from tests.deduper.ranges.stream.stream_scene import Model, Row, event, ranged
from tests.services.kafka_broker import Broker
from tests.services.kafka_traffic import forget_before
from tests.services.range_topics import PORTS, TopicScene

pytestmark = [pytest.mark.services, pytest.mark.night]

Topics = Callable[..., str]
KILLS = (
    *("start.claimed=kill", "start.published=kill", "window.0.batch=kill@2", "ranges.1.read=kill@2"),
    *("ranges.3.port=kill@3", "log.linked=kill@2", "window.4.committed=kill", "kafka.initialised=kill@3"),
    *("kafka.begun=kill@2", "kafka.sent=kill@4", "kafka.offsets=kill@3", "kafka.committed=kill@2"),
    *("window.5.published=kill@2", "window.6.checked=kill"),
)


def answers_of(model: Model, scene: TopicScene) -> None:
    """Every port has the rows of the model, each once."""
    names = list(scene.job.aggregates)

    def answers(port: str) -> list[tuple[int, int, tuple[object, ...]]]:
        return [(row["event"], row["_window"], tuple(row[name] for name in names)) for row in scene.rows(port)]

    first = ((number, model.answered[number][1], found) for number, found in model.first.items())
    assert sorted(answers("output")) == sorted(first)
    assert sorted(answers("corrections")) == sorted((*at, found) for at, found in model.corrected.items())
    numbers = {"event": "event", "range": "campaign"}
    told = [
        (port, row["reason"], json.loads(row["record"])[numbers[row["side"]]], row["_window"])
        for port in ("late", "errors")
        for row in scene.rows(port)
    ]
    assert sorted(told) == sorted(model.told)


def scene_of(root: Path, broker: Broker, new_topic: Topics, made: list[tuple[list[Row], list[Row]]]) -> TopicScene:
    """All windows are sent, so that the same ones meet in each run."""
    scene = TopicScene(root, SETTINGS, broker=broker, new_topic=new_topic)
    for side, rows in zip(("events", "ranges"), zip(*made, strict=True), strict=True):
        scene.send(side, [row for window in rows for row in window])
    return scene


@pytest.mark.night
@pytest.mark.parametrize("storage", ["file", "objects"])
def test_killed_between_the_steps_and_resumed(
    storage: str, tmp_path: Path, broker: Broker, new_topic: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run that is killed in each start until no window is left: no row is missing, none is there twice."""
    monkeypatch.setattr(TopicScene, "storage", storage)
    made = windows(1, 20)
    scene = scene_of(tmp_path, broker, new_topic, made)
    model = Model(scene.job)
    for events, ranges in made:
        model.judge(events, ranges)
    for armed in KILLS:
        assert scene.in_a_process(armed) == -signal.SIGKILL, armed
    assert scene.in_a_process("") == 0
    assert scene.state().state.next_window == len(made)
    answers_of(model, scene)
    assert all(scene.rows(port) for port in PORTS)
    assert scene.leftovers() == []


def test_records_of_topics_are_rows_and_errors(tmp_path: Path, broker: Broker, new_topic: Topics) -> None:
    """Values that are no rows leave by `errors`; keys and headers of what is sent; a start continues at its offsets."""
    scene = TopicScene(tmp_path, {"max_windows": 1}, broker=broker, new_topic=new_topic)
    scene.send("events", [event(1, "a", 5), b'{"id": ', None, b"\xff", event(2, None, 5)])
    scene.run()
    assert scene.status.inputs["events"].offsets == {f"{scene.topics['events']}-0": 5}
    assert scene.answers() == {1: (None, 0)}
    assert [(row["side"], row["reason"], row["record"]) for row in scene.rows("errors")] == [
        ("event", "unparsable", '{"id": '),
        ("event", "tombstone", None),
        ("event", "unparsable", base64.b64encode(b"\xff").decode()),
        ("event", "null_id", '{"at":"2026-01-01T00:00:05.000000Z","event":2}'),
    ]
    scene.send("ranges", [ranged(1, "a", 0, 9, 10)])
    scene.send("events", [event(4, "a", 6)], is_aborted=True)
    scene.send("events", [event(3, "a", 6)], is_aborted=False)
    assert scene.run().windows == 1
    assert scene.run().windows == 0
    assert scene.answers() == {1: (None, 0), 3: (10, 1)}
    assert [(one.key, one.headers) for one in scene.records("output")] == [
        (b"a", (("dedup-window", b"0"),)),
        (b"a", (("dedup-window", b"1"),)),
    ]
    assert {one.key for one in scene.records("errors")} == {None}


def test_lost_offsets_and_another_kind_of_input_are_refused(tmp_path: Path, broker: Broker, new_topic: Topics) -> None:
    """Records that the broker has dropped before they were taken; a folder in place of topics."""
    scene = TopicScene(tmp_path, broker=broker, new_topic=new_topic)
    scene.send("events", [event(1, "a", 5)])
    assert scene.run().windows == 1
    scene.send("events", [event(2, "a", 5), event(3, "a", 5)])
    forget_before(broker, scene.topics["events"], {0: 2})
    with pytest.raises(IntegrityError, match=r"events: offsets are gone .* `events.data_loss: continue`"):
        scene.run()
    scene.settings = {"events": "in/events"}
    with pytest.raises(UsageError, match="were taken from topics, and are a folder now"):
        scene.run()


def test_brokers_that_are_away_are_waited_for(tmp_path: Path, broker: Broker, new_topic: Topics) -> None:
    """Killed when a window is planned, started again, which takes seconds: its rows come, and are sent, once."""
    scene = TopicScene(tmp_path, broker=broker, new_topic=new_topic)
    scene.send("events", [event(number, "a", 5) for number in range(5)])
    with owned_store(scene.job, take_over=False, wall_clock_us=lambda: 1) as owned:
        runner = StreamRunner(scene.job, owned, lambda: 1)
        take = runner.inputs["events"].take

        def without_broker() -> InputRows:
            broker.kill()
            back = threading.Thread(target=broker.start)
            back.start()
            try:
                return take()
            finally:
                back.join()

        runner.inputs["events"].take = without_broker  # type: ignore[method-assign]
        assert runner.plan()
        assert runner.run()[1] == {"events": 5, "events.answered": 5}
    assert sorted(scene.answers()) == list(range(5))
    assert len(scene.rows()) == 5
