"""A query of a user's from a topic to topics, by Spark's source and a `Deduper`: each record once, whatever fails."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bucket_store import failpoints
from deduper import Deduper, JsonSink, Never, TopicSink
from tests.services.kafka_broker import Broker
from tests.services.kafka_traffic import Record, read, send

pytestmark = [pytest.mark.services, pytest.mark.spark]

Topics = Callable[..., str]


@pytest.mark.night(but=["window.4.committed"])
@pytest.mark.parametrize("point", ["window.4.committed", "window.5.published"])
def test_from_topic_to_topics_each_record_once(
    point: str,
    broker: Broker,
    new_topic: Topics,
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys, values, headers and times as they were; a failure between commit and mark repeats nothing."""
    source, unique, duplicate = new_topic("in", 2), new_topic("unique", 2), new_topic("duplicate")
    dedup = Deduper(f"file:{tmp_path}/state", key="k", expiry=Never(), shards=2)
    write = dedup.into(
        unique=TopicSink(unique, broker.bootstrap, preserve_order=True),
        duplicate=TopicSink(duplicate, broker.bootstrap, {"kafka.compression.type": "zstd"}),
        expired=None,
        error=tmp_path / "error",
    )

    def drain() -> None:
        stream = session.readStream.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
        stream = stream.option("subscribe", source).option("startingOffsets", "earliest")
        rows = stream.option("includeHeaders", "true").load().withColumn("k", F.col("value").cast("string"))
        query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    def sent(*keys: str) -> list[Record]:
        records = [Record(key.encode(), key=b"of " + key.encode(), headers=[("h", key.encode())]) for key in keys]
        return send(broker.plain(), source, records)

    sent("a", "b", "a", "c")
    drain()
    sent("c", "d")
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_ARMED", {point: failpoints._Armed(point, "raise")})
        # The rows go out beside the next batch: a failure then is raised by that, or by `close`.
        with contextlib.suppress(StreamingQueryException, failpoints.FailpointError):
            drain()
            dedup.close()
    sent("e", "d")
    drain()
    dedup.close()
    found = read(broker.plain(), unique)
    assert Counter(record.value for record in found) == Counter(dict.fromkeys((b"a", b"b", b"c", b"d", b"e"), 1))
    for record in found:
        assert record.key == b"of " + (record.value or b"")
        assert ("h", record.value) in (record.headers or [])
        assert ("dedup-verdict", b"unique") in (record.headers or [])
    assert Counter(record.value for record in read(broker.plain(), duplicate)) == Counter([b"a", b"c", b"d"])


def test_rows_without_a_value_are_sent_as_json(
    broker: Broker, new_topic: Topics, session: SparkSession, tmp_path: Path
) -> None:
    """Whatever their columns, as in files of JSON; a text `key` is the record's."""
    unique = new_topic("unique")
    others = "X'00ff' bytes, map('a', 1.50) of, CAST(NULL AS INT) gone, timestamp_micros(1767323045000006) at"
    rows = session.sql(f"SELECT 7 id, 'x' key, named_struct('n', array(1, 2)) inner, {others}")
    lines = tmp_path / "lines"
    for number, port in enumerate((TopicSink(unique, broker.bootstrap), JsonSink(lines))):
        with Deduper(f"file:{tmp_path}/state{number}", key="id", expiry=Never(), shards=1) as dedup:
            dedup.into(unique=port, duplicate=None, expired=None, error=None)(rows, 0)
    (record,) = read(broker.plain(), unique)
    assert record.value is not None
    assert (record.key, record.value[:41]) == (b"x", b'{"id":7,"key":"x","inner":{"n":[1,2]},"by')
    (file,) = lines.glob("*.json")
    in_file = json.loads(file.read_text())
    del in_file["_dedup"]
    assert json.loads(record.value) == in_file
