"""Published files by their names, opened for readers."""

from __future__ import annotations

import contextlib
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from bucket_store.places.local import local_place
from bucket_store.places.new_file import FileWriter
from deduper.columns import parse_columns
from deduper.config.files import FileSink
from deduper.errors import IntegrityError
from deduper.file_formats import ENDINGS, PORT_FORMATS, PortFormat, format_of_name
from deduper.sinks.names import Attempt, FinalName, final_name
from deduper.sinks.published import (
    SoughtKey,
    csv_texts,
    find_rows,
    format_of,
    published_files,
    rows_where,
    said_of_rows,
)
from deduper.tasks.row_files import RowFormats, rows_of


@pytest.mark.parametrize(("ending", "form"), ENDINGS.items())
def test_a_name_says_its_format(ending: str, form: PortFormat) -> None:
    """As it was published."""
    name = final_name("ab" * 16, Attempt(7, 1, 0), 3, ending)
    assert format_of_name(name) == form
    assert FinalName.of(name) == FinalName("abababab", 7, 3, form)


@pytest.mark.parametrize("name", ["a", "a.orc", "json", "a.json.bz2"])
def test_another_ending_is_no_format(name: str, tmp_path: Path) -> None:
    """No reader takes such a file for one of CSV, and none is published under it."""
    with pytest.raises(IntegrityError, match="no ending of a port's format"):
        format_of(local_place(tmp_path / name))
    assert FinalName.of(f"abababab-000000000007-0003{name[1:]}") is None


def test_the_files_of_every_port_have_a_format() -> None:
    """By the settings: what they name can be written and read back."""
    assert [ENDINGS[FileSink(format=one, path="/out").ending] for one in PORT_FORMATS] == list(PORT_FORMATS)


@pytest.mark.parametrize(("ending", "form"), ENDINGS.items())
def test_what_is_written_is_read_back_and_counted(ending: str, form: PortFormat, tmp_path: Path) -> None:
    """Line ends of values too. Of CSV, whose fields have such line ends, no rows are counted."""
    file, texts = local_place(tmp_path / f"a.{ending}"), ["a", "b\nc", "\n"]
    said = pa.array([{"n": n} for n in range(3)])
    rows = pa.table({"k": texts, "_dedup": said})
    with contextlib.closing(FileWriter(file)) as opened:
        written = RowFormats({"unique": ending}).begin("unique", opened, rows)
        written.write(rows)
        assert written.finish() == 3
    assert pa.Table.from_batches(said_of_rows(file, pa.schema([("n", pa.int64())])))["n"].to_pylist() == [0, 1, 2]
    assert rows_of(file, file.read().count(b"\n")) == (None if form == "csv" else 3)


def test_texts_of_csv(tmp_path: Path) -> None:
    """Null and empty text are two; line ends and quotes stand in a field; an empty file has no rows."""
    file = local_place(tmp_path / "a.csv")
    file.local.write_text('k,v,_dedup\n,"","{""n"":1}"\n"a\nb","""c""","{""n"":2}"\n')
    assert csv_texts(file, ["k", "v"]) == {"k": [None, "a\nb"], "v": ["", '"c"']}
    (batch,) = said_of_rows(file, pa.schema([("n", pa.int64()), ("m", pa.string())]))
    assert batch.to_pylist() == [{"n": 1, "m": None}, {"n": 2, "m": None}]
    file.local.write_text("")
    assert csv_texts(file, ["k"]) == {"k": []}


def test_times_beyond_pythons_are_read_as_a_json_port_has_them(tmp_path: Path) -> None:
    """Of columns, of lists, of `_dedup`, and in the bounds of a row group; the values beside them are Python's own."""
    file = local_place(tmp_path / "a.parquet")
    days = pa.array([19_000, 5_000_000, None], pa.int32()).view(pa.date32())
    times = pa.array([0, 1, 300_000_000_000_000_000], pa.timestamp("us", "UTC"))
    expiry = pa.array([0, -300_000_000_000_000_000, None], pa.timestamp("us", "UTC"))
    reasons = pa.array(["conflict", "conflict", "unknown"])
    first = pa.StructArray.from_arrays([pa.array([7, 8, 9]), expiry], ["window", "expiry"])
    dedup = pa.StructArray.from_arrays([reasons, first], ["reason", "first_seen"])
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], days)
    rows = pa.table({"d": days, "t": times, "l": lists, "b": [b"x", b"y", b"z"], "_dedup": dedup})
    parquet.write_table(rows, file.local)
    columns = parse_columns("d date, t timestamp, l array<date>, b binary")

    near, far = rows_where(file, columns, "reason", ["conflict"])
    assert (near.record["d"], near.record["l"], near.record["b"]) == (date(2022, 1, 8), [date(2022, 1, 8)], b"x")
    assert near.record["t"].isoformat() == near.dedup["first_seen"]["expiry"].isoformat() == "1970-01-01T00:00:00+00:00"
    assert (far.record["d"], far.record["l"], far.record["b"]) == ("+15659-07-15", ["+15659-07-15"], b"y")
    assert far.dedup == {"reason": "conflict", "first_seen": {"window": 8, "expiry": "-7537-05-18T18:40:00.000000Z"}}

    assert find_rows(file, SoughtKey(columns[:1], (date(2022, 1, 8),)), columns) == (3, [near])
    (last,) = find_rows(file, SoughtKey(columns[:1], (None,)), columns)[1]
    assert (last.record["d"], last.record["t"]) == (None, "+11476-08-15T05:20:00.000000Z")


def test_the_files_of_a_store_in_a_folder(tmp_path: Path) -> None:
    """By their names alone, in their order; no folder, or a file of its name, has none."""
    mine, other = "ab" * 16, "cd" * 16
    names = [final_name(mine, Attempt(window, 1, 0), 0, "json") for window in (7, 12)]
    for name in (*reversed(names), final_name(other, Attempt(1, 1, 0), 0, "json"), "_published", ".hidden", "a.json"):
        (tmp_path / name).write_text("x")
    found = published_files(local_place(tmp_path), mine)
    assert [(file.window, file.path.path.name) for file in found] == [(7, names[0]), (12, names[1])]
    assert published_files(local_place(tmp_path / "none"), mine) == []
    assert published_files(local_place(tmp_path / "a.json"), mine) == []
