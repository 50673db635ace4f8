"""Times of Kafka records, in ms, that have no µs in 64 bits: producers may write any number."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from deduper.config.kafka.sections import KafkaSource
from deduper.config.load import load_config
from deduper.config.model import Config
from deduper.core.verdict import INT64_MAX, Admission
from deduper.sources.kafka import partition_queue as queue
from deduper.sources.kafka.fetching import RangePart
from deduper.sources.kafka.reading import topic_reading
from deduper.tasks import layout
from tests.deduper.digest_cases import SALT
from tests.deduper.kafka_configs import BASE

_FAR = INT64_MAX // 1000 + 1


def config_of(folder: Path, field: str) -> Config:
    """Text values, and an expiry key that is the record's time or another column."""
    text = BASE[: BASE.index("  value:")] + "  value: {format: json, schema: 'id long, ts timestamp'}\n"
    text += BASE[BASE.index("  record:") :].replace("field: ts", f"field: {field}")
    text = text.replace("expired: {format: parquet, path: out/expired}", "expired: {format: parquet, path: out/e}")
    (folder / "job.yaml").write_text(text)
    return load_config(folder / "job.yaml", environment={})


@pytest.mark.parametrize(("field", "reason"), [("arrived", Admission.BAD_EXPIRY), ("ts", Admission.MALFORMED)])
def test_a_time_without_micros_is_an_error_and_null(tmp_path: Path, field: str, reason: Admission) -> None:
    """Never another time; the records beside it are judged."""
    config = config_of(tmp_path, field)
    reading = topic_reading(config, config.source, SALT)  # type: ignore[arg-type]  # of topics
    assert reading is not None
    times = [1000, _FAR, -_FAR, _FAR - 1]
    value = b'{"id":1,"ts":"2026-01-01T00:00:00Z"}'
    rows = [
        {"offset": number, "timestamp_ms": ms, "value": value, "key": b"u", "headers": []}
        for number, ms in enumerate(times)
    ]
    given = pa.RecordBatch.from_pylist(rows, queue.SCHEMA)
    part = RangePart("t", 0, 0, 4, 0, 100)
    read = reading.format.read(part, given, reading.declared.stored(()))
    records = reading._records(part, given, read, None)
    good = int(Admission.ADMITTED)
    assert records.column(layout.ADMISSION).to_pylist() == [good, int(reason), int(reason), good]
    if layout.parsed(4) in records.schema.names:
        micros = records.column(layout.parsed(4)).cast(pa.int64()).to_pylist()
        assert micros == [1_000_000, None, None, (_FAR - 1) * 1000]


def test_a_tombstone_that_is_judged_may_have_other_faults(tmp_path: Path) -> None:
    """Its key and its time are as any record's: keys that are no text are not one null key."""
    config = config_of(tmp_path, "arrived")
    assert isinstance(config.source, KafkaSource)
    for tombstones, expected in (
        ("judge", [Admission.INVALID_UTF8, Admission.BAD_EXPIRY, Admission.NULL_KEY]),
        ("error", [Admission.TOMBSTONE] * 3),
    ):
        source = config.source.model_copy(update={"tombstones": tombstones})
        reading = topic_reading(config.model_copy(update={"source": source}), source, SALT)
        rows = [
            {"offset": number, "timestamp_ms": ms, "value": None, "key": key, "headers": []}
            for number, (key, ms) in enumerate([(b"\xff", 1000), (b"u", _FAR), (b"u", 1000)])
        ]
        given = pa.RecordBatch.from_pylist(rows, queue.SCHEMA)
        part = RangePart("t", 0, 0, 3, 0, 100)
        records = reading._records(part, given, reading.format.read(part, given, reading.declared.stored(())), None)
        assert records.column(layout.ADMISSION).to_pylist() == [int(one) for one in expected]
