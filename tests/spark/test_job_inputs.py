"""Odd input through the real job: every record leaves by one port, with its place and, as an error, its text."""

from __future__ import annotations

import base64
import gzip
import os
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from deduper.sources.files import batch
from deduper.sources.files.seen_folders import SeenFolders
from deduper.sources.files.source_file import ListedFile, SourceFile, stat_files
from deduper.tasks import write as write_task
from tests.spark.harness import PORTS, Job

pytestmark = pytest.mark.spark

Rows = dict[tuple[str, int], dict[str, Any]]
"""The rows of all ports by (file name, position)."""


def rows_by_place(job: Job) -> Rows:
    """Every row of every port; fails when two rows say they are the same record, or the store counted others."""
    found: Rows = {}
    for port in PORTS:
        rows = job.rows(port)
        for row in rows:
            place = (os.path.basename(row["_dedup"]["source"]), row["_dedup"]["position"])  # noqa: PTH119 - a text
            assert place not in found, f"{place} left twice"
            assert row["_dedup"]["verdict"] == port
            assert row["_dedup"]["raw"] is None or port == "error", place
            assert row["_dedup"]["raw"] is not None or port != "error" or place[0].endswith(".parquet"), place
            found[place] = row
        assert len(rows) == sum(getattr(progress, port) for progress in job.progress)
    return found


def put(job: Job, name: str, content: bytes) -> Path:
    """A file of these bytes, later than all before it."""
    path = job.add_file([], name)
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return path


def parquet_bytes(table: pa.Table, **options: Any) -> bytes:
    """The table as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue())


def outcome(row: dict[str, Any]) -> str:
    """`unique`, or the reason a row has for leaving elsewhere."""
    return row["_dedup"]["reason"] or row["_dedup"]["verdict"]


@pytest.fixture(scope="module")
def module_job(tmp_path_factory: pytest.TempPathFactory, session: SparkSession) -> Callable[..., Job]:
    """Jobs that several tests look at."""

    def make(name: str, **settings: Any) -> Job:
        return Job(tmp_path_factory.mktemp(name), session, settings)

    return make


# -- JSON ------------------------------------------------------------------------------------------------------------

_JSON_SCHEMA = "k string, n int, d double, b boolean, ts timestamp, `ключ` string"
_LONG = "x" * 3_000_000

_JSON: list[tuple[str | bytes, str | dict[str, Any]]] = [
    # Whole records: what must be in the row.
    ('{"k":"plain","n":1}', {"k": "plain", "n": 1}),
    ('{"k":"crlf"}\r', {"k": "crlf"}),
    ('  {"k":"blanks"} \t \r', {"k": "blanks"}),
    ('{"k":"} behind blanks"} \r\r\t', {"k": "} behind blanks"}),
    ('{"k":"extra","zzz":{"deep":[1,{"a":"}{"}]}}', {"k": "extra", "n": None}),
    ('{"k":"ünï 😀","ключ":"значение"}', {"k": "ünï 😀", "ключ": "значение"}),
    ('{"k":"\\u00e9\\ud83d\\ude00"}', {"k": "é😀"}),
    ('{"k":"first","k":"last"}', {"k": "last"}),
    ("{'k':'single }{ quotes'}", {"k": "single }{ quotes"}),
    ('{"k":"}{"}', {"k": "}{"}),
    ('{"k":"\\"}{\\""}', {"k": '"}{"'}),
    ('{"k":"},123]"}', {"k": "},123]"}),
    ('{"k":"tail\\\\"}', {"k": "tail\\"}),
    ('{"k":"{\\"a\\":1}{\\"b\\":2}"}', {"k": '{"a":1}{"b":2}'}),
    ('{"k":"long","ключ":"' + _LONG + '"}', {"ключ": _LONG}),
    ('{"k":"long brace","ключ":"}' + _LONG + '"}', {"ключ": "}" + _LONG}),
    ('{"k":"null char \\u0000"}', {"k": "null char \x00"}),
    ('{"k":12.5}', {"k": "12.5"}),
    ('{"k":""}', {"k": ""}),
    ('{"k":"plain"}', "same_window"),
    # No record, or none that can be judged: the reason.
    ("{}", "null_key"),
    ('{"n":1}', "null_key"),
    ('{"k":null}', "null_key"),
    ('{"K":"another case"}', "null_key"),
    ("", "malformed"),
    ("  \t", "malformed"),
    ("\r", "malformed"),
    ("not json", "malformed"),
    ('{"k":"cut', "malformed"),
    ('{"k":"cut","ключ":"' + _LONG, "malformed"),
    ('[{"k":"array"}]', "malformed"),
    ('[{"k":"two"},{"k":"two more"}]', "malformed"),
    ('"text"', "malformed"),
    ("12", "malformed"),
    ("null", "malformed"),
    ('{"k":"nul\x00"}', "malformed"),
    ('{"k":"tab\t"}', "malformed"),
    ('\ufeff{"k":"a mark inside the file"}', "malformed"),
    ('{"k":"a","n":"1"}', "malformed"),
    ('{"k":"a","n":1.5}', "malformed"),
    ('{"k":"a","n":2147483648}', "malformed"),
    ('{"k":"a","n":99999999999999999999}', "malformed"),
    ('{"k":"a","b":"true"}', "malformed"),
    ('{"k":"a","ts":"yesterday"}', "malformed"),
    ('{"k":"a","ts":"2026-02-30T00:00:00Z"}', "malformed"),
    # Something behind the object.
    ('{"k":"a"}{"k":"b"}', "malformed"),
    ('{"k":"a"} {"k":"b"}', "malformed"),
    ('{"k":"a"},{"k":"b"}', "malformed"),
    ('{"k":"a"}\r{"k":"b"}', "malformed"),
    ('{"k":"a"},', "malformed"),
    ('{"k":"a"}}', "malformed"),
    ('{"k":"a"}]', "malformed"),
    ('{"k":"a"}],"x":[1', "malformed"),
    ('{"k":"a"},1]', "malformed"),
    ('{"k":"a"} junk', "malformed"),
    ('{"k":"a"} junk }', "malformed"),
    ('{"k":"a"}"}', "malformed"),
    ('{"k":"a"}\x00', "malformed"),
    ('{"k":"a"}\x0b', "malformed"),
    ('{"k":"a"}\u00a0', "malformed"),
    ('{"k":"a"} \r}', "malformed"),
    ('{"k":"a"} \r} \r', "malformed"),
    ("}", "malformed"),
    ("{", "malformed"),
    ('{"k":"}{"}{"k":"b"}', "malformed"),
    # Bytes that no text holds.
    (b'{"k":"\xff\xfe"}', "invalid_utf8"),
    (b'{"k":"a"}\xc3', "invalid_utf8"),
    (b'{"k":"a"\xf0}', "invalid_utf8"),
    (b'{"k":"\xed\xa0\x80"}', "invalid_utf8"),
]


_NESTED_SCHEMA = "k string, deep struct<xs:array<struct<z:int>>>, `ключ` string"
_NESTED: list[tuple[str | bytes, str | dict[str, Any]]] = [
    ('{"k":"deep blanks","deep":{"xs":[{"z":1}]}}\r', {"deep": {"xs": [{"z": 1}]}}),
    ('{"k":"nested","deep":{"xs":[{"z":1},{"z":2}]}}', {"deep": {"xs": [{"z": 1}, {"z": 2}]}}),
    ('{"k":"}","deep":{"xs":[]}}', {"k": "}", "deep": {"xs": []}}),
    ('{"k":"long deep","deep":{"xs":[]},"ключ":"}' + _LONG + '"}', {"ключ": "}" + _LONG}),
    ('{"k":"a","deep":{"xs":[{"z":"one"}]}}', "malformed"),
    ('{"k":"a","deep":{"xs":[{"z":1}]}}{"k":"b"}', "malformed"),
]


@pytest.fixture(scope="module")
def json_rows(module_job: Callable[..., Job]) -> Rows:
    """Each line above in a file of its own kind, judged in one window."""
    job = module_job("json", source={"schema": _JSON_SCHEMA}, store={"shards": 3})
    job.add_file([line for line, _ in _JSON], "odd.json")
    job.add_file([b'\xef\xbb\xbf{"k":"marked"}', b'{"k":"after the mark"}'], "marked.json")
    put(job, "no-end.json", b'{"k":"one"}\n{"k":"no line end"}')
    job.add_file([], "empty.json")
    job.run()
    return rows_by_place(job)


def test_every_line_leaves_once_with_its_place(json_rows: Rows) -> None:
    """No line is dropped or made into two, whatever is in it; an empty file has none."""
    lines = [("odd.json", number) for number in range(len(_JSON))]
    assert set(json_rows) == {*lines, *(("marked.json", n) for n in (0, 1)), *(("no-end.json", n) for n in (0, 1))}


@pytest.mark.parametrize("number", range(len(_JSON)), ids=[f"{line[:50]!r}" for line, _ in _JSON])
def test_a_json_line_is_read_whole_or_is_an_error(json_rows: Rows, number: int) -> None:
    """Its values, or the reason with the text as it stands in the file."""
    check(*_JSON[number], json_rows["odd.json", number])


def test_lines_with_nested_columns(new_job: Callable[..., Job]) -> None:
    """The same of them."""
    job = new_job(source={"schema": _NESTED_SCHEMA})
    job.add_file([line for line, _ in _NESTED], "odd.json")
    job.run()
    rows = rows_by_place(job)
    assert len(rows) == len(_NESTED)
    for number, (line, expected) in enumerate(_NESTED):
        check(line, expected, rows["odd.json", number])


def check(line: str | bytes, expected: str | dict[str, Any], row: dict[str, Any]) -> None:
    """A line's row has its values, or the reason and the text."""
    if isinstance(expected, dict):
        assert outcome(row) == "unique"
        assert {name: row[name] for name in expected} == expected
        return
    assert outcome(row) == expected
    if row["_dedup"]["verdict"] == "error":
        raw = row["_dedup"]["raw"]
        assert (base64.b64decode(raw) if isinstance(line, bytes) else raw) == line


def test_a_byte_order_mark_is_no_part_of_the_first_record(json_rows: Rows) -> None:
    """A file that an editor saved with a mark is read like one without."""
    assert [json_rows["marked.json", n]["k"] for n in (0, 1)] == ["marked", "after the mark"]


def test_a_last_line_without_an_end_is_a_line(json_rows: Rows) -> None:
    """A file need not end with a line end."""
    assert json_rows["no-end.json", 1]["k"] == "no line end"


# -- CSV -------------------------------------------------------------------------------------------------------------

_CSV: list[tuple[str | bytes, str | dict[str, Any]]] = [
    ("plain,1,2.5,x", {"k": "plain", "n": 1, "d": 2.5, "s": "x"}),
    ("crlf,1,2.5,x\r", {"k": "crlf", "s": "x"}),
    ("crs,1,2.5,x\r\r", {"k": "crs", "s": "x"}),
    ('"quoted","1","2.5","x"\r', {"k": "quoted", "n": 1, "s": "x"}),
    ("few\r", {"k": "few", "s": None}),
    ('"with, comma",1,2.5,"say ""hi"""', {"k": "with, comma", "s": 'say "hi"'}),
    ('"back\\slash",1,2.5,"\\"', {"k": "back\\slash", "s": "\\"}),
    ("nulls,,,", {"k": "nulls", "n": None, "d": None, "s": None}),
    ("ünï 😀,1,2.5,", {"k": "ünï 😀"}),
    ('in"ner,1,2.5,x', {"k": 'in"ner'}),
    (" spaces ,1,2.5, x ", {"k": " spaces ", "s": " x "}),
    ("#no comment,1,2.5,x", {"k": "#no comment"}),
    (f"long,1,2.5,{_LONG}", {"s": _LONG}),
    ("plain,2,2.5,y", "same_window"),
    (",1,2.5,x", "null_key"),
    ('"",1,2.5,x', "null_key"),
    ("", "malformed"),
    ("\r", "malformed"),
    ("some,1", {"k": "some", "n": 1, "d": None, "s": None}),
    ("fewer", {"k": "fewer", "n": None, "d": None, "s": None}),
    ('"f,e,w",1', {"k": "f,e,w", "n": 1, "d": None, "s": None}),
    ('"f""e,w",1', {"k": 'f"e,w', "n": 1, "d": None, "s": None}),
    ("many,1,2.5,x,y", "malformed"),
    ("type,one,2.5,x", "malformed"),
    ("type,1.0,2.5,x", "malformed"),
    ("overflow,2147483648,2.5,x", "malformed"),
    # A field with a line end is two lines, and so two records; the first is not whole.
    ('embedded,1,2.5,"first line', "malformed"),
    ('second line"', {"k": 'second line"', "n": None}),
    ('"open,1,2.5,x', "malformed"),
    (b"\xff,1,2.5,x", "invalid_utf8"),
]


@pytest.fixture(scope="module")
def csv_rows(module_job: Callable[..., Job]) -> Rows:
    """Each line above behind a header."""
    source = {"file_format": "csv", "schema": "k string, n int, d double, s string", "header": True}
    job = module_job("csv", source=source)
    job.add_file(["k,n,d,s", *(line for line, _ in _CSV)], "odd.csv")
    job.add_file(["k,n,d,s"], "header-only.csv")
    job.run()
    return rows_by_place(job)


@pytest.mark.parametrize("number", range(len(_CSV)), ids=[f"{line[:50]!r}" for line, _ in _CSV])
def test_a_csv_line_is_read_whole_or_is_an_error(csv_rows: Rows, number: int) -> None:
    """Its values, or the reason with the text; its position counts the header."""
    assert len(csv_rows) == len(_CSV)
    check(*_CSV[number], csv_rows["odd.csv", number + 1])


@pytest.mark.parametrize("delimiter", ["\t", "\\", "ß"])
def test_any_character_parts_the_fields(new_job: Callable[..., Job], delimiter: str) -> None:
    """A delimiter that is a sign of a pattern language elsewhere is one character here; no header, one mark."""
    job = new_job(source={"file_format": "csv", "schema": "k string, t long", "delimiter": delimiter})
    job.add_file([f"\ufeffa{delimiter}1", f'"b{delimiter}"{delimiter}2', f"a{delimiter}3"], "in.csv")
    job.run()
    assert {place[1]: (row["k"], row["t"]) for place, row in rows_by_place(job).items()} == {
        0: ("a", 1),
        1: (f"b{delimiter}", 2),
        2: ("a", 3),
    }
    assert [row["t"] for row in job.rows("duplicate")] == [3]


# -- files -----------------------------------------------------------------------------------------------------------

_ODD_NAMES = [
    "with space.json",
    "100%.json",
    "%41.json",
    "star*.json",
    "question?.json",
    "brackets[1].json",
    "braces{a,b}.json",
    "ünï-日本-😀.json",
    "hash#1.json",
    "plus+.json",
    "new\nline.json",
    "quotes'\".json",
    "~.json",
    "12:00:00.json",
    "back\\slash.json",
    "$HOME.json",
]


def test_names_are_only_names(new_job: Callable[..., Job]) -> None:
    """No character of a file's name is a pattern, an escape or a fragment; each file's rows carry it as it is."""
    job = new_job()
    for name in _ODD_NAMES:
        job.add_records([{"k": name}, {"k": "same"}], name)
    job.run()
    rows = rows_by_place(job)
    assert set(rows) == {(name, number) for name in _ODD_NAMES for number in (0, 1)}
    assert all(rows[name, 0]["k"] == name for name in _ODD_NAMES)
    assert [row["_dedup"]["first_seen"]["source"] for row in job.rows("duplicate")] == (
        [str(job.directory / "in" / _ODD_NAMES[0])] * (len(_ODD_NAMES) - 1)
    )


def after_listing(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Does something once, between the moment a window's files are known and the moment they are read."""
    pending = [act]

    def stat_then_act(listed: Sequence[ListedFile], folders: SeenFolders) -> list[SourceFile]:
        files = stat_files(listed, folders)
        while pending:
            pending.pop()()
        return files

    monkeypatch.setattr(batch, "stat_files", stat_then_act)


@pytest.mark.parametrize("way", ["driver", "tasks"])
def test_files_that_break_leave_as_errors_and_harm_no_other(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, ways: Counter[str], way: str
) -> None:
    """Cut, gone, gone early and rewritten files in one window with whole ones; a cut one gives its whole lines."""
    if way == "tasks":
        monkeypatch.setattr(write_task, "_WRITER_BYTES", 1)
    job = new_job(store={"shards": 3})
    inside = job.directory / "in"
    good = job.add_records({"k": f"{n}"} for n in range(50))
    put(job, "packed.json.gz", gzip.compress(b'{"k":"packed"}\n{"k":"0"}\n'))
    long = b"".join(b'{"k":"cut %d %s"}\n' % (n, os.urandom(50).hex().encode()) for n in range(2000))
    packed = gzip.compress(long)[:-500]
    whole = zlib.decompressobj(31).decompress(packed).count(b"\n")
    cut = put(job, "cut.json.gz", packed)
    no_gzip = job.add_file(['{"k":"plain text"}'], "no-gzip.json.gz")
    gone = job.add_records([{"k": "gone"}], "go[n]e %{*}.json")
    rewritten = job.add_records([{"k": "old"}, {"k": "old too"}], "rewritten.json")
    job.add_records([{"k": "last"}, {"k": "packed"}], "last.json")

    def act() -> None:
        gone.unlink()
        rewritten.write_text('{"k":"new"}\nnonsense\n{"k":"last"}\n')

    after_listing(monkeypatch, act)
    assert job.run().windows == 1
    assert set(ways) == {way}
    rows = rows_by_place(job)
    outcomes = {place: outcome(row) for place, row in rows.items()}
    assert outcomes == {
        **{(good.name, n): "unique" for n in range(50)},
        ("packed.json.gz", 0): "unique",
        ("packed.json.gz", 1): "same_window",
        **{("cut.json.gz", n): "unique" for n in range(whole)},
        ("cut.json.gz", whole): "file_unreadable",
        ("no-gzip.json.gz", 0): "file_unreadable",
        (gone.name, 0): "file_missing",
        **{("rewritten.json", n): "file_changed" for n in (0, 1, 2)},
        ("last.json", 0): "unique",
        ("last.json", 1): "same_window",
    }
    for file, place in ((cut, whole), (no_gzip, 0), (gone, 0)):
        assert str(file) in rows[file.name, place]["_dedup"]["raw"]
    assert [rows["rewritten.json", n]["_dedup"]["raw"] for n in range(3)] == ['{"k":"new"}', "nonsense", '{"k":"last"}']
    assert sorted(path.name for path in inside.iterdir() if path.suffix == ".json") == [
        good.name,
        "last.json",
        "rewritten.json",
    ]


def test_files_that_are_all_gone_are_a_window_of_errors(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when nothing is left to read; what comes later is judged."""
    job = new_job()
    files = [job.add_records([{"k": "a"}]) for _ in range(3)]
    real = batch.stat_files

    def gone_before_stat(listed: Sequence[ListedFile], folders: SeenFolders) -> list[SourceFile]:
        for file in files:
            file.unlink(missing_ok=True)
        return real(listed, folders)

    monkeypatch.setattr(batch, "stat_files", gone_before_stat)
    job.run()
    assert {place: outcome(row) for place, row in rows_by_place(job).items()} == {
        (file.name, 0): "file_missing" for file in files
    }
    job.add_records([{"k": "a"}])
    job.run()
    assert [row["k"] for row in job.rows("unique")] == ["a"]


@pytest.mark.parametrize("path", ["in/*/part-*.json", "in/{a,b}/"])
def test_a_glob_names_the_files(new_job: Callable[..., Job], path: str) -> None:
    """Folders and files by pattern; hidden files and what does not match are not read."""
    job = new_job(source={"path": path})
    for folder in ("a", "b"):
        (job.directory / "in" / folder).mkdir(parents=True)
        for name in ("part-1.json", "part-2.json", ".part-3.json", "_part-4.json"):
            job.add_records([{"k": f"{folder}/{name}"}], f"{folder}/{name}")
    job.add_records([{"k": "beside"}], "part-9.json")
    job.run()
    names = [f"{folder}/part-{n}.json" for folder in "ab" for n in (1, 2)]
    assert sorted(row["k"] for row in job.rows("unique")) == names


# -- Parquet ---------------------------------------------------------------------------------------------------------


def test_parquet_files_good_and_bad(new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows have their numbers over all row groups; a file that is no such table is one error tuple."""
    job = new_job(source={"file_format": "parquet", "schema": "k string, t long, s struct<x:int>"})

    def keys(prefix: str) -> pa.Table:
        return pa.table({"k": [f"{prefix}{n}" for n in range(1000)], "t": pa.array(range(1000), pa.int64())})

    put(job, "groups.parquet", parquet_bytes(keys("g"), row_group_size=100))
    put(job, "empty.parquet", parquet_bytes(keys("").slice(0, 0)))
    put(job, "no-column.parquet", parquet_bytes(pa.table({"k": ["no column"]})))
    put(job, "no-key.parquet", parquet_bytes(pa.table({"t": pa.array([1, 2], pa.int64())})))
    put(job, "wrong-type.parquet", parquet_bytes(pa.table({"k": ["wrong"], "t": ["text"]})))
    put(job, "narrow.parquet", parquet_bytes(pa.table({"k": ["narrow"], "t": pa.array([7], pa.int32())})))
    put(job, "cut.parquet", parquet_bytes(keys("c"))[:-1000])
    whole = parquet_bytes(keys("h"), compression="none", use_dictionary=False)
    put(job, "hole.parquet", whole[:4] + bytes(3000) + whole[3004:])
    put(job, "zero.parquet", b"")  # nothing is in it, and nothing comes out
    gone = put(job, "gone.parquet", parquet_bytes(keys("gone").slice(0, 1)))
    rewritten = put(job, "rewritten.parquet", parquet_bytes(keys("old").slice(0, 1)))

    def act() -> None:
        gone.unlink()
        pq.write_table(pa.table({"k": ["new", "g0"], "t": pa.array([1, 2], pa.int64())}), rewritten)

    after_listing(monkeypatch, act)
    job.run()
    rows = rows_by_place(job)
    outcomes = {place: outcome(row) for place, row in rows.items()}
    assert {place: outcomes.pop(place) for place in list(outcomes) if place[0] == "groups.parquet"} == {
        ("groups.parquet", n): "unique" for n in range(1000)
    }
    assert all(rows["groups.parquet", n]["t"] == n for n in range(1000))
    assert outcomes == {
        ("no-column.parquet", 0): "unique",
        ("no-key.parquet", 0): "null_key",
        ("no-key.parquet", 1): "null_key",
        ("wrong-type.parquet", 0): "file_unreadable",
        ("narrow.parquet", 0): "unique",
        ("cut.parquet", 0): "file_unreadable",
        ("hole.parquet", 0): "file_unreadable",
        ("gone.parquet", 0): "file_missing",
        ("rewritten.parquet", 0): "file_changed",
        ("rewritten.parquet", 1): "file_changed",
    }
