"""Values of topics that are lines of logs: the same format as in files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from deduper.arrow_columns import DeclaredColumn
from deduper.sources.kafka.reading import record_format
from deduper.text import block
from deduper.text.format import TextFormat
from tests.deduper.kafka_configs import BASE, JSON_VALUE, kafka_source, loaded


def test_a_value_is_a_line(tmp_path: Path) -> None:
    """Of logfmt here; what is none is malformed."""
    value = "    format: logfmt\n    schema: 'id long, ts timestamp'\n"
    source = kafka_source(loaded(BASE.replace(JSON_VALUE, value), tmp_path))
    columns = tuple(map(DeclaredColumn.of, source.parsed_columns))
    text = record_format(source, columns, "UTC").value
    assert isinstance(text, TextFormat)
    values = [b"ts=2024-01-06T10:00:00Z id=7 msg=x", b'id="']
    ends = np.cumsum([len(one) for one in values]).astype(np.int64)
    parsed = block.parse(b"".join(values), ends - [len(one) for one in values], ends, text, [0, 1])
    assert parsed.columns[0].to_pylist() == [7, None]
    assert parsed.columns[1].to_pylist() == [datetime(2024, 1, 6, 10, tzinfo=UTC), None]
    assert parsed.malformed.tolist() == [False, True]
