"""Fingerprints of the records of topics: by the value's bytes, or by columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from deduper.config.kafka.sections import KafkaSource
from deduper.config.load import load_config
from deduper.sources.kafka import topic_reading as reading_module
from deduper.sources.kafka.fetching import RangePart
from deduper.sources.kafka.partition_queue import SCHEMA
from deduper.sources.kafka.reading import topic_reading
from deduper.tasks import layout
from tests.deduper.kafka_configs import BASE

VALUES = [
    b'{"id": 1, "ts": "2026-05-01T12:00:00Z", "tags": ["a"]}',
    b'{"ts": "2026-05-01T12:00:00Z", "id": 1, "tags": ["a"]}',  # the same members in another order
    b'{"id": 1, "ts": "2026-05-01T12:00:00Z", "tags": ["b"]}',
    b'{"id": 1, "ts": "2026-05-02T12:00:00Z", "tags": ["a"]}',
]


def fingerprints(setting: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Those of records with one key, each with a header, an offset and a timestamp of its own."""
    file = folder / "job.yaml"
    file.write_text(BASE.replace("key: [user, id]", f"key: [user, id]\nfingerprint: {setting}\non_conflict: error"))
    config = load_config(file, environment={})
    source = config.source
    assert isinstance(source, KafkaSource)
    count = len(VALUES)
    headers: Any = [[{"name": b"trace-id", "value": str(number).encode()}] for number in range(count)]
    columns = [
        pa.array(np.arange(count)),
        pa.array(np.arange(count) * 1000),
        pa.array(VALUES),
        pa.array([b"u"] * count),
        pa.array(headers, SCHEMA.field("headers").type),
    ]
    monkeypatch.setattr(
        reading_module, "fetched", lambda *_: iter([pa.RecordBatch.from_arrays(columns, schema=SCHEMA)])
    )
    reading = topic_reading(config, source, b"a salt of 16 byt")
    (records,) = reading.records(RangePart("clicks", 0, 0, count, 0, 1))
    assert records.column(layout.RAW).to_pylist() == [value.decode() for value in VALUES], "any may become an error"
    found: list[int] = records.column(layout.FINGERPRINT).to_pylist()
    return found


@pytest.mark.parametrize(
    ("setting", "groups"),
    [
        ("value", [0, 1, 2, 3]),
        ("all", [0, 1, 2, 3]),  # the header is a column
        ("{except: [trace]}", [0, 0, 2, 3]),
        ("{except: [trace, ts]}", [0, 0, 2, 0]),
        ("{columns: [tags]}", [0, 0, 2, 0]),
        ("{columns: [arrived]}", [0, 1, 2, 3]),
    ],
)
def test_what_a_topics_payload_is(
    setting: str, groups: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of one group have one fingerprint; `all` and `except` leave out where and when a record arrived."""
    found = fingerprints(setting, tmp_path, monkeypatch)
    assert [found.index(one) for one in found] == groups
