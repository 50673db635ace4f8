"""Values with the header of Confluent's serializer: which schemas are read, and what is said of others."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from deduper.arrow_columns import DeclaredColumn
from deduper.config.model import Config
from deduper.core.verdict import Admission
from deduper.sources.error_details import error_details
from deduper.sources.kafka.reading import record_format
from deduper.tasks.errors.detail import Examination
from deduper.tasks.readers.declared import Noted
from deduper.tasks.readers.reading_tasks import PartRead
from tests.deduper.kafka_configs import BASE, JSON_VALUE, kafka_source, loaded
from tests.deduper.sources.kafka.test_batch import Cluster, source_of

_SCHEMA = {"type": "record", "name": "C", "fields": [{"name": "k", "type": "int"}]}
_DATUM = b"\x0e"
_VALUES = [
    b"\0\0\0\0\x11" + _DATUM,
    b"\0\0\0\x01\x12" + _DATUM,
    b"\x01\0\0\0\x11" + _DATUM,
    b"\0\0\0\0\x11",
    b"",
]


def config_of(directory: Path, ids: object) -> Config:
    """A job whose values are in Avro."""
    value = f"    format: avro\n    schema_ids: {ids}\n    avro_schema: {json.dumps(_SCHEMA)}\n"
    text = BASE.replace(JSON_VALUE, value).replace("key: [user, id]", "key: k").replace("field: ts", "field: arrived")
    return loaded(text, directory)


def parsed(config: Config) -> Any:
    """The format, its answer to the values, and the numbers that it has found."""
    columns = tuple(map(DeclaredColumn.of, config.source.parsed_columns))
    avro: Any = record_format(kafka_source(config), columns, "UTC").value
    ends = np.cumsum([len(value) for value in _VALUES]).astype(np.int64)
    starts = ends - np.array([len(value) for value in _VALUES])
    data = np.frombuffer(b"".join(_VALUES), np.uint8)
    return avro.parse(data, starts, ends, [0]), avro.ids_in(data, starts, ends)


@pytest.mark.parametrize(
    ("ids", "sound", "found"), [("any", [7, 7], {17, 274}), ([17], [7, None], set()), ([274, 3], [None, 7], set())]
)
def test_which_schemas_are_read(tmp_path: Path, ids: object, sound: list[int | None], found: set[int]) -> None:
    """Those that are named, or all, whose numbers are noted then. A header alone is no value."""
    read, numbers = parsed(config_of(tmp_path, ids))
    assert read.columns[0].to_pylist() == [*sound, None, None, None]
    assert read.malformed.tolist() == [one is None for one in (*sound, None, None, None)]
    assert numbers == found


def test_an_error_says_the_number(tmp_path: Path) -> None:
    """Or that there is none."""
    examination = Examination(error_details(config_of(tmp_path, [17, 18])))
    raw = pa.array([base64.encodebytes(value).decode().rstrip() for value in _VALUES[1:4]])
    rows = pa.RecordBatch.from_arrays([raw, pa.nulls(3, pa.int32())], ["_raw", "_0"])
    found = examination.details(rows, np.full(3, int(Admission.MALFORMED), np.int8), ["clicks-0"] * 3).to_pylist()
    no_header = "the value does not begin with a schema's number, as Confluent's serializer writes it"
    assert found == ["the value has the schema of number 274; schema_ids are 17, 18", no_header, no_header]


def noted(*numbers: int) -> PartRead:
    """A part whose values name these schemas."""
    return PartRead(noted=Noted(1, schema_ids=frozenset(numbers)))


def test_a_second_number_is_told_and_each_further_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the setting that helps; up to five of them."""
    source = source_of(tmp_path, Cluster(), None)
    with caplog.at_level(logging.WARNING):
        for number in (17, 17, 3, 17, 5):
            source.noted([noted(number)])
    assert ["schemas 3, 17, and" in caplog.messages[0], "schemas 3, 5, 17, and" in caplog.messages[1]] == [True, True]
    assert len(caplog.messages) == 2
    assert "source.value.schema_ids" in caplog.text
    caplog.clear()
    for number in (7, 8, 9):
        source.noted([noted(number)])
    assert len(caplog.messages) == 2, "with five known ones no further one is told"
    source = source_of(tmp_path, Cluster(), None)
    caplog.clear()
    source.noted([noted(*range(100, 200))])
    source.noted([noted(200)])
    assert len(caplog.messages) == 1
