"""Files of any storage as streams."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from bucket_store.places.local import local_place
from bucket_store.places.place import Place
from bucket_store.places.reading import READ_BYTES, open_file
from tests.bucket_store.places.memory_names import MemoryNames, memory_place


@pytest.fixture(params=["file", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty directory, here and elsewhere."""
    return local_place(tmp_path) if request.param == "file" else memory_place()


def test_a_stream_gives_the_bytes_of_the_file(root: Place) -> None:
    """Whole, by lines, and after seeks, across the ends of ranges."""
    data = os.urandom(2 * READ_BYTES + 17) + b"\nlast"
    (root / "x").create(data)
    with open_file(root / "x") as stream:
        assert stream.read() == data
        assert stream.read(1) == b""
        assert stream.seek(-4, os.SEEK_END) == len(data) - 4
        assert stream.read() == b"last"
        stream.seek(READ_BYTES - 3)
        assert stream.read(10) == data[READ_BYTES - 3 : READ_BYTES + 7]
        stream.seek(0)
        assert b"".join(stream) == data
    with io.TextIOWrapper(open_file(root / "x"), encoding="latin-1") as text:
        assert text.read().endswith("\nlast")


def test_parquet_is_read_from_it(root: Place) -> None:
    """A footer is a read at the end."""
    table = pa.table({"a": list(range(1000)), "b": [str(number) for number in range(1000)]})
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    (root / "x.parquet").create(sink.getvalue())
    with open_file(root / "x.parquet") as stream:
        assert parquet.ParquetFile(stream).read(["b"]) == table.select(["b"])


def test_an_absent_file_is_an_error_by_name(root: Place) -> None:
    """As of `Place.read`."""
    with pytest.raises(FileNotFoundError):
        open_file(root / "x")


def test_small_reads_are_few_ranges() -> None:
    """Lines of a file elsewhere do not each cost a request."""
    names = MemoryNames()
    place = memory_place(names) / "x"
    place.create(b"line\n" * 10_000)
    with open_file(place) as stream:
        assert sum(1 for _ in stream) == 10_000
    assert sum(call == "read_range" for call, _ in names.calls) == 1
