"""Loads, upserts, deletes and questions of CSV and JSON lines: as of Parquet; lines that are no record are errors."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deduper.errors import ExitCode
from deduper.table.batch import BAD_LINE, TextBatch
from deduper.table.errors import SchemaDriftError, SourceChangedError, TableUsageError
from deduper.table.operations.changes import run_change, run_load
from deduper.table.operations.questions import filter_exists
from deduper.table.settings import LoadedLoad, load_config
from tests.deduper.table.scene import Place, arrow
from tests.deduper.table.test_settings import headlines

pytestmark = pytest.mark.slow
SCHEMA = "k BIGINT, v STRING, d DATE"


def config(place: Place, form: str, more: str = "") -> LoadedLoad:
    """A load of the files of text in the folder `in`."""
    file = place.root.parent / "text.yaml"
    place.root.parent.mkdir(exist_ok=True)
    file.write_text(
        f"source: {{path: in, format: {form}, schema: '{SCHEMA}'}}\ntable: {{path: table, format: {place.format}}}\n"
        f"key: k\npartition_by: d\nduplicates: duplicates\nerrors: errors\n{more}",
        encoding="utf-8",
    )
    return load_config(file, environment={})


def lines_of(rows: list[tuple[int | None, str | None, str | None]], form: str) -> list[str]:
    """Rows as lines, with a header for CSV."""
    if form == "json":
        return [json.dumps(dict(zip("kvd", row, strict=True))) for row in rows]
    return ["k,v,d", *(",".join("" if value is None else str(value) for value in row) for row in rows)]


def put(place: Place, name: str, lines: list[str | bytes], *, zipped: bool = False) -> None:
    """A file of the source."""
    folder = place.root.parent / "in"
    folder.mkdir(exist_ok=True, parents=True)
    data = b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines)
    (folder / name).write_bytes(gzip.compress(data) if zipped else data)


def errors(place: Place) -> list[tuple[str, bytes | None]]:
    """(reason, line) of the port, sorted."""
    found: list[dict[str, Any]] = []
    for file in place.ports["errors"].glob("*.parquet"):
        found += [row["_load"] for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted((one["reason"], one["line"]) for one in found)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_load_of_text(form: str, place: Place) -> None:
    """New rows, repeats, rows that the table has, errors with their lines; the same table as of Parquet."""
    first = [(1, "a", "1970-01-01"), (2, None, "1970-01-02"), (1, "again", "1970-01-01"), (None, "x", "1970-01-01")]
    put(place, f"1.{form}.gz", [*lines_of(first, form)], zipped=True)
    bad: list[str | bytes] = ["", b"\xff\xfe", "x,y,z" if form == "csv" else '{"k": "x"}', '{"k": 1']
    put(place, f"2.{form}", [*lines_of([(3, "c", "1970-01-03")], form), *bad])
    receipt = run_load(config(place, form))
    assert (receipt.rows, receipt.inserted, receipt.repeats) == (9, 3, 1)
    assert receipt.errors == {"null_key": 1, "malformed": 4}
    assert place.held() == [(1, 0), (2, 1), (3, 2)]
    assert {row[1] for row in place.rows()} == {"a", None, "c"}
    assert errors(place) == sorted(
        [("null_key", None), *(("malformed", line.encode() if isinstance(line, str) else line) for line in bad)]
    )
    assert place.port("duplicates") == [(1, "same_load", None)]
    again = run_load(config(place, form))
    assert (again.inserted, again.found) == (0, 4)
    assert place.load([(1, "p", 0), (4, "p", 0)]).inserted == 1


@pytest.mark.parametrize("form", ["csv", "json"])
def test_upserts_deletes_and_questions(form: str, place: Place) -> None:
    """Lines that are no record change nothing, and are errors of each."""
    place.load([(key, "a", key % 2) for key in range(6)])
    put(place, "a.txt", [*lines_of([(0, "b", "1970-01-01"), (9, "b", "1970-01-01")], form), '"'])
    loaded = config(place, form)
    assert filter_exists(loaded.config.source.batch(), loaded).to_pylist() == [False, True, False]
    plan = run_change("upsert", loaded, execute=False)
    assert (plan.inserted, plan.updated, dict(plan.errors)) == (1, 1, {"malformed": 1})
    run_change("upsert", loaded, execute=True)
    assert (0, "b", 0) in place.rows()
    assert errors(place) == [("malformed", b'"')]
    run_change("delete", loaded, execute=True)
    assert place.held() == [(1, 1), (2, 0), (3, 1), (4, 0), (5, 1)]
    assert errors(place) == [("malformed", b'"')] * 2


def test_random_lines_against_a_list(tmp_path: Path) -> None:
    """Every line is a row: in the table once, or in a port; both forms give the same table."""
    rng = random.Random(5)
    places = [Place(tmp_path / form, "parquet") for form in ("csv", "json")]
    held: set[tuple[int, int]] = set()
    for turn in range(4):
        rows = [(rng.randrange(30), f"v{turn}", f"1970-01-0{rng.randint(1, 2)}") for _ in range(20)]
        bad = rng.randrange(4)
        for place in places:
            form = place.root.parent.name
            put(place, "a", [*lines_of(rows, form), *(["{"] * bad)])
            receipt = run_load(config(place, form))
            assert receipt.rows == 20 + bad
            assert receipt.inserted + receipt.repeats + receipt.found == 20
            assert receipt.errors == ({"malformed": bad} if bad else {})
        held |= {(key, int(day[-1]) - 1) for key, _, day in rows}
        assert places[0].held() == places[1].held() == sorted(held)
    assert sorted(places[0].rows()) == sorted(places[1].rows())


def test_a_header_that_is_not_the_schema(tmp_path: Path) -> None:
    """Fields are columns by their order; nothing is written."""
    place = Place(tmp_path, "delta")
    put(place, "a.csv", ["v,k,d", "1,2,1970-01-01"])
    with pytest.raises(SchemaDriftError, match="the header k, v, d is expected; the first line is v, k, d") as caught:
        run_load(config(place, "csv"))
    assert caught.value.exit_code is ExitCode.USAGE
    assert place.rows() == []
    put(place, "a.csv", [" K ,v,D\r", "1,2,1970-01-01\r"])
    assert run_load(config(place, "csv")).inserted == 1
    put(place, "a.csv", ["7,2,1970-01-01"])
    loaded = config(place, "csv")
    batch = TextBatch([tmp_path / "in/a.csv"], SCHEMA, "csv", header=False)
    assert filter_exists(batch, loaded).to_pylist() == [True]


def test_rounded_keys_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once a write, and of key columns alone: two records that differ in a digit behind the scale are one key."""
    place = Place(tmp_path, "delta")
    put(place, "a.csv", ["k,v,d", "1.00,1.004,1970-01-01"])
    config(place, "csv")
    file = tmp_path / "text.yaml"
    declared = file.read_text(encoding="utf-8").replace(SCHEMA, "k DECIMAL(10,2), v DECIMAL(10,2), d DATE")
    file.write_text(declared, encoding="utf-8")
    loaded = load_config(file, environment={})
    assert (run_load(loaded).inserted, caplog.messages) == (1, [])
    put(place, "b.csv", ["k,v,d", "1.004,1,1970-01-01", "2.001,1,1970-01-01"])
    assert run_load(loaded).inserted == 1
    (warning,) = caplog.messages
    assert "the key column k is a decimal(10,2), and a text of it has more digits" in warning


def test_columns_of_the_names_of_files(tmp_path: Path) -> None:
    """A column that a name gives has no field; lines of a file whose name does not match are errors."""
    place = Place(tmp_path, "delta")
    put(place, "w-1970-01-02.csv", ["k,v", "1,a"])
    put(place, "w-1970-01-03.csv", ["k,v", "1,b"], zipped=False)
    put(place, "other.csv", ["k,v", "2,c"])
    pattern = r"source: {path: in, name_pattern: 'w-(?P<d>[-\d]+)\.csv',"
    config(place, "csv")
    file = tmp_path / "text.yaml"
    file.write_text(file.read_text().replace("source: {path: in,", pattern))
    loaded = load_config(file, environment={})
    assert run_load(loaded).inserted == 2
    assert sorted(place.rows()) == [(1, "a", 1), (1, "b", 2)]
    assert [line for _, line in errors(place)] == [b"2,c"]
    assert headlines(file.read_text().replace("<d>", "<e>"), tmp_path) == [
        "1:34: source.name_pattern: the schema has no column `e`; its columns are k, v, d"
    ]


def test_lines_of_logs(tmp_path: Path) -> None:
    """Pairs by their names, and the fields of a web server's line; a column that no line has is refused."""
    place = Place(tmp_path, "delta")
    put(place, "a.log", ['k=1 v="a b" d=1970-01-02', "v=c k=2 d=1970-01-02", 'k="', "k=1 v=x d=1970-01-02"])
    report = run_load(config(place, "logfmt"))
    assert (report.inserted, sorted(place.rows())) == (2, [(1, "a b", 1), (2, "c", 1)])
    assert [line for _, line in errors(place) if line is not None] == [b'k="']
    text = (tmp_path / "text.yaml").read_text().replace("logfmt", "common_log")
    assert headlines(text, tmp_path) == [
        "1:48: source.schema: common_log has no field `k`; its fields are host, ident, user, time, request, method, "
        "target, protocol, status, bytes, rest"
    ]


def test_files_that_change_or_cannot_be_read(tmp_path: Path) -> None:
    """Nothing is committed."""
    place = Place(tmp_path, "delta")
    put(place, "a.json", ['{"k": 1, "v": "a", "d": "1970-01-01"}'])
    file = tmp_path / "in/a.json"
    batch = TextBatch([file], SCHEMA, "json", header=False)
    file.write_text("{}\n")
    with pytest.raises(SourceChangedError, match="changed while it was loaded"):
        list(batch.batches(["k"]))
    file.unlink()
    with pytest.raises(SourceChangedError, match="went while it was loaded"):
        list(batch.batches(["k"]))
    put(place, "b.json.gz", ["no gzip"])
    with pytest.raises(TableUsageError, match=r"b\.json\.gz: cannot be read as lines of text"):
        run_load(config(place, "json"))
    (tmp_path / "in/b.json.gz").rename(tmp_path / "in/b.json.snappy")
    with pytest.raises(TableUsageError, match=r"write it as \.gz"):
        run_load(config(place, "json"))
    (tmp_path / "in/b.json.snappy").unlink()
    put(place, "c.csv", [])
    (tmp_path / "in/c.csv").write_text("k,v,d\n1,a,1970-01-01\n", encoding="utf-16")
    with pytest.raises(TableUsageError, match=r"c\.csv: cannot be read as lines of text: its text is UTF-16"):
        run_load(config(place, "csv"))
    assert place.rows() == []


def test_the_columns_of_a_batch(tmp_path: Path) -> None:
    """Any of them in any order; the line is there where it is no record."""
    (tmp_path / "a").write_bytes(b'{"k": 1, "v": "a"}\n[\n')
    batch = TextBatch([tmp_path / "a"], SCHEMA, "json", header=True)
    assert batch.schema == arrow([]).schema
    (read,) = batch.batches(["v", BAD_LINE, "k"])
    assert read.to_pylist() == [{"v": "a", BAD_LINE: None, "k": 1}, {"v": None, BAD_LINE: b"[", "k": None}]
    assert read.schema.field(BAD_LINE).type == pa.binary()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("{path: in, format: csv}", "1:1: source.schema: files of csv have no types of their own; write the columns"),
        ("{path: in, schema: k BIGINT}", "1:20: source.schema: has no effect: Parquet has types of its own; remove it"),
        ("{path: in, format: xml}", "1:28: source.format: `xml` is not a valid choice"),
        ("{path: in, format: csv, schema: k BIGGINT}", "1:43: source.schema: `biggint` is not a type"),
    ],
)
def test_mistakes_have_their_place(source: str, found: str, tmp_path: Path) -> None:
    """File, line, column, what is wrong, what to write instead."""
    text = f"source: {source}\ntable: {{path: t}}\nkey: k\n"
    assert [line for line in headlines(text, tmp_path) if line.startswith(found)], headlines(text, tmp_path)


def test_a_nested_column(tmp_path: Path) -> None:
    """Is refused, with its place."""
    (tmp_path / "a.json").write_text("{}\n", encoding="utf-8")
    file = tmp_path / "load.yaml"
    file.write_text(
        "source: {path: a.json, format: json, schema: 'k BIGINT, n STRUCT<a: INT>'}\ntable: {path: t}\nkey: k\n",
        encoding="utf-8",
    )
    with pytest.raises(Exception, match=r"`n` is .*, which is not read from lines of text; declare it as STRING"):
        run_load(load_config(file, environment={}))
