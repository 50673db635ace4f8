"""What the commit record says of rows for topics, and that none of them is missing from it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bucket_store.places.local import local_place
from deduper.config.load import load_config
from deduper.sinks.names import TopicPlace
from deduper.tasks.write import StagedFile
from deduper.window.attempt import Judgement, _disagreement
from tests.deduper.kafka_configs import BASE

COUNTS = (5, 3, 0, 1)


@pytest.mark.parametrize("job", ["clicks", "a.b-c_1"])
@pytest.mark.parametrize("slots", [(0,), (0, 7, 12)])
def test_a_topic_and_its_writers_read_back(job: str, slots: tuple[int, ...]) -> None:
    """With the job's name."""
    place = TopicPlace("some.topic-1", slots, job)
    assert TopicPlace.of(str(place)) == place


@pytest.mark.parametrize(
    "name", ["/data/out/x.parquet", "kafka:t", "kafka:t?slots=1", "kafka:t?job=a&slots=", "kafka:t?job=&slots=1"]
)
def test_what_is_no_topic(name: str) -> None:
    """A file's name, or a torn one."""
    assert TopicPlace.of(name) is None


@pytest.mark.parametrize(("port", "rows"), [("unique", 4), ("duplicate", 4), ("unique", 0)])
def test_rows_that_are_missing_from_a_topic_port(tmp_path: Path, port: str, rows: int) -> None:
    """As many rows are staged for a topic as were judged, or the window is not committed."""
    (tmp_path / "job.yaml").write_text(BASE)
    config = load_config(tmp_path / "job.yaml")
    counts = dict(zip(("unique", "duplicate", "expired", "error"), COUNTS, strict=True))

    def problem(changed: dict[str, int]) -> str | None:
        receipt = SimpleNamespace(counts=COUNTS)
        receipts = {0: receipt} | {
            shard: SimpleNamespace(counts=(0, 0, 0, 0)) for shard in range(1, config.store.shards)
        }
        staged = {name: [StagedFile(name, local_place("x"), count, 0, 0)] for name, count in (counts | changed).items()}
        judgement: Any = Judgement(*cast(Any, (None, None, receipts, staged, None)), rows=sum(COUNTS))
        return _disagreement(config, cast("Any", judgement))

    assert problem({}) is None
    assert problem({port: rows}) == f"port {port}: {counts[port]} rows judged, {rows} rows staged"
