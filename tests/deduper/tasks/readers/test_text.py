"""Files of lines of text become records without Spark: blocks, compression, texts of errors, files that change."""

from __future__ import annotations

import base64
import bz2
import errno
import gzip
import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import parse_columns
from deduper.core.clock import ClockRules
from deduper.core.verdict import Admission
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.tasks.layout import RecordLayout
from deduper.tasks.read import ReadTask
from deduper.tasks.readers import text
from deduper.tasks.readers.declared import Declared, ExpiryKind
from deduper.tasks.readers.file_parts import FileChanged, FileGone, FilePart, FileReason, MisheadedFile, UnreadableFile
from deduper.tasks.readers.path_columns import PathRule
from deduper.tasks.readers.reading_tasks import PartRead, read_file
from deduper.tasks.readers.text import TextReading
from tests.deduper.digest_cases import SALT
from tests.deduper.digest_oracle import key_digest

ADMITTED, MALFORMED, INVALID = Admission.ADMITTED, Admission.MALFORMED, Admission.INVALID_UTF8

LINES = [
    b'{"k":"a","t":1}',
    b"",
    b'{"k":"\xc3\xbc","t":2}\r',
    b"{",
    b'{"k":"\xff","t":3}',
    b'{"t":4}',
    b'{"k":"b"}',
    b'{"k":"\\u00fc","t":5,"more":[{}]}',
]
ADMISSIONS = [ADMITTED, MALFORMED, ADMITTED, MALFORMED, INVALID, Admission.NULL_KEY, Admission.NULL_EXPIRY, ADMITTED]
CONTENT = b"\n".join(LINES) + b"\n"


def zst(data: bytes) -> bytes:
    """One frame."""
    packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return packed


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zst,
    ".deflate": zlib.compress,
}


@pytest.fixture
def reading(tmp_path: Path) -> TextReading:
    """Of records whose key is `k`, and whose expiry key is `t`."""
    columns = parse_columns("k string, t bigint, `n` int")
    declared = tuple(map(DeclaredColumn.of, columns))
    layout = RecordLayout.of(pa.int64(), [column.arrow for column in declared])
    return TextReading(Declared(declared, (0,), 1, "whole", 1, True, layout, SALT, PathRule(tmp_path)))


def part_of(reading: TextReading, content: bytes, name: str = "a.json") -> FilePart:
    """A file of these bytes, as it was listed."""
    path = reading.declared.path_rule.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return reading.part(0, stat_files([ListedFile(str(path), 0)])[0])


def read(reading: TextReading, part: FilePart, clock: ClockRules | None = None) -> pa.Table:
    """All records of a file; their number is that of its lines."""
    records, batches = reading.records(part, clock), []
    while True:
        try:
            batches.append(next(records))
        except StopIteration as end:
            rows = end.value.rows
            break
    assert rows == sum(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches) if batches else pa.table({"_admission": [], "_0": []})


def read_bytes(reading: TextReading, content: bytes, name: str = "a.json") -> pa.Table:
    """The records of a file of these bytes."""
    return read(reading, part_of(reading, content, name))


def admissions(table: pa.Table) -> list[Admission]:
    """Of all records."""
    return [Admission(admission) for admission in table["_admission"].to_pylist()]


def test_every_line_is_one_record(reading: TextReading) -> None:
    """In their order, with their places; what is wrong with a line comes before what its record lacks."""
    found = read_bytes(reading, CONTENT)
    assert admissions(found) == ADMISSIONS
    assert found["_order"].to_pylist() == list(range(len(LINES)))
    assert found["_0"].to_pylist() == ["a", None, "ü", None, None, None, "b", "ü"]
    assert found["_1"].to_pylist() == [1, None, 2, None, None, 4, None, 5]
    assert found["_hi"][2] == found["_hi"][7]
    assert found.column_names == ["_hi", "_lo", "_order", "_admission", "_expiry", "_raw", "_0", "_1", "_2"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_file_of_wide_letters_is_unreadable(reading: TextReading, encoding: str, name: str) -> None:
    """Whole: as UTF-8 its lines are texts with zeros, which are records of CSV. Bytes before good lines are not."""
    content = ("\ufeff" + CONTENT.decode(errors="replace")).encode(encoding)
    content = gzip.compress(content) if name.endswith(".gz") else content
    with pytest.raises(UnreadableFile, match="UTF-16 or UTF-32"):
        read_bytes(reading, content, name)
    assert admissions(read_bytes(reading, b"\xff\xfe" + CONTENT)) == [INVALID, *ADMISSIONS[1:]]


def test_an_error_keeps_its_text(reading: TextReading) -> None:
    """As it stands in the file; bytes that no text holds as Base64."""
    raw = read_bytes(reading, CONTENT)["_raw"].to_pylist()
    for line, admission, text_of_it in zip(LINES, ADMISSIONS, raw, strict=True):
        if admission is ADMITTED:
            assert text_of_it is None
        else:
            assert text_of_it == (base64.b64encode(line) if admission is INVALID else line).decode()


@pytest.mark.slow
@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_blocks_may_end_anywhere(
    reading: TextReading, monkeypatch: pytest.MonkeyPatch, mark: bytes, end: bytes
) -> None:
    """Inside a line, a sign, a mark, or before a line end; a last line needs no end."""
    part = part_of(reading, mark + b"\n".join(LINES) + end)
    whole = read(reading, part)
    assert admissions(whole) == ADMISSIONS
    for size in range(1, part.size_bytes + 2):
        monkeypatch.setattr(text, "_BLOCK_BYTES", size)
        assert read(reading, part).equals(whole)


def test_batches_have_a_limit(reading: TextReading, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many lines a block has."""
    part = part_of(reading, CONTENT)
    whole = read(reading, part)
    monkeypatch.setattr(text, "_BATCH_ROWS", 3)
    assert [batch.num_rows for batch in reading.records(part)] == [3, 3, 2]
    assert read(reading, part).equals(whole)


@pytest.mark.parametrize(
    ("content", "expected", "raw"),
    [
        (b"", [], []),
        (b"\n", [MALFORMED], [""]),
        (b"\r\n", [MALFORMED], ["\r"]),
        (b"\n\n", [MALFORMED, MALFORMED], ["", ""]),
        (b"\xef\xbb\xbf", [], []),
        (b"\xef\xbb\xbf\n", [MALFORMED], [""]),
        (b'\xef\xbb\xbf\xef\xbb\xbf{"k":"a","t":1}', [ADMITTED], [None]),
        (b'\xef\xbb\xbf{"k":"a","t":1}', [ADMITTED], [None]),
        (b'\xef\xbb\xbf{"k":"a"}\n', [Admission.NULL_EXPIRY], ['{"k":"a"}']),
        (b'{"k":"a","t":1}\n\xef\xbb\xbf{"k":"a","t":1}', [ADMITTED, MALFORMED], [None, '\ufeff{"k":"a","t":1}']),
        (b"\xef\xbb", [INVALID], ["77s="]),
        (b'{"k":"a","t":1}\r', [ADMITTED], [None]),
    ],
)
def test_edges_of_a_file(reading: TextReading, content: bytes, expected: list[Admission], raw: list[Any]) -> None:
    """A mark belongs to the file and not to its first record; line ends are `\\n` alone."""
    found = read_bytes(reading, content)
    assert admissions(found) == expected
    assert expected == [] or found["_raw"].to_pylist() == raw


def test_a_long_line_is_a_line(reading: TextReading, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many blocks; but not without a limit."""
    monkeypatch.setattr(text, "_BLOCK_BYTES", 1000)
    long = b'{"k":"' + b"x" * 50_000 + b'","t":1}'
    part = part_of(reading, b"\n".join([*LINES, long, *LINES]))
    found = read(reading, part)
    assert admissions(found) == [*ADMISSIONS, ADMITTED, *ADMISSIONS]
    assert found["_0"][len(LINES)].as_py() == "x" * 50_000
    monkeypatch.setattr(text, "_LONGEST_LINE", 30_000)
    with pytest.raises(UnreadableFile, match="a line of more than 30000 bytes"):
        read(reading, part)


# -- compression -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("suffix", PACKED)
def test_a_compressed_file_is_read_to_its_end(
    reading: TextReading, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one piece or of several, that end inside a line too; blocks of any size."""
    pack = PACKED[suffix]
    whole = read_bytes(reading, CONTENT * 3)
    for pieces in ([CONTENT * 3], [CONTENT, CONTENT, CONTENT], [CONTENT, CONTENT[:17], CONTENT[17:] + CONTENT]):
        part = part_of(reading, b"".join(map(pack, pieces)), f"a.json{suffix}")
        for size in (1, 7, 1 << 20):
            monkeypatch.setattr(text, "_BLOCK_BYTES", size)
            assert read(reading, part).equals(whole)
    assert part.decoded_bytes > part.size_bytes


def unpacked_so_far(packed: bytes, suffix: str) -> bytes:
    """What other decoders have of a file that ends early."""
    found = b""
    while packed:
        decoder: Any = bz2.BZ2Decompressor() if suffix == ".bz2" else zlib.decompressobj(31 if suffix == ".gz" else 15)
        found += decoder.decompress(packed)
        packed = decoder.unused_data
    return found


@pytest.mark.slow
@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_compressed_file_that_is_cut_off_gives_its_whole_lines(
    reading: TextReading, suffix: str, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it was cut, but between two pieces; then one error. Without a whole line the file is one error."""
    packed = [PACKED[suffix](CONTENT)] * pieces
    whole = b"".join(packed)
    lines = read_bytes(reading, CONTENT * 2)
    for length in range(len(whole) - len(packed[-1]) + 1, len(whole)):
        monkeypatch.setattr(text, "_BLOCK_BYTES", (1 << 20, 7, 50)[length % 3])
        try:
            found = read_bytes(reading, whole[:length], f"a.json{suffix}")
        except UnreadableFile:
            count = 0
        else:
            count = found.num_rows - 1
            assert found.slice(0, count).drop_columns("_raw").equals(lines.slice(0, count).drop_columns("_raw"))
            assert found["_order"].to_pylist() == list(range(count + 1))
            assert admissions(found)[-1] is Admission.FILE_UNREADABLE
            cut = f": it was cut off behind line {count}, and the lines up to there were judged"
            assert found["_raw"][-1].as_py().endswith(cut)
        if suffix != ".zst":
            assert count == unpacked_so_far(whole[:length], suffix).count(b"\n")
        assert count >= len(LINES) * (pieces - 1)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_damaged_compressed_file_is_unreadable(reading: TextReading, suffix: str, pieces: int) -> None:
    """As is one that is none, or has something behind it: lines before the damage may be wrong."""
    whole = PACKED[suffix](CONTENT) * pieces
    for content in (CONTENT, whole + b"more than nothing", whole + bytes(512), b""):
        with pytest.raises(UnreadableFile):
            read_bytes(reading, content, f"a.json{suffix}")


@pytest.mark.parametrize("suffix", [".snappy", ".lz4", ".LZ4"])
def test_what_is_not_unpacked(reading: TextReading, suffix: str) -> None:
    """By its name, before anything is read: a part of it would be taken for the whole."""
    with pytest.raises(UnreadableFile, match=f"where a {suffix.lower()} file was cut off cannot be seen"):
        part_of(reading, CONTENT, f"a.json{suffix}")


def test_names_that_only_look_compressed(reading: TextReading) -> None:
    """They are text for Hadoop too, for which the case of a suffix does not count."""
    for name in ("gz", "a.gz.json", "a.zip", "a.zstd"):
        assert admissions(read_bytes(reading, CONTENT, name)) == ADMISSIONS
    assert admissions(read_bytes(reading, gzip.compress(CONTENT), "A.Gz")) == ADMISSIONS


# -- guards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guards", "texts"),
    [
        ({}, []),
        ({"max_ahead_of_now_us": 5, "now_us": 10}, [16, 17]),
        ({"max_jump": 5, "latest": 11}, [17]),
        ({"max_jump": 5, "latest": 11, "max_ahead_of_now_us": 5, "now_us": 10}, [16, 17]),
        ({"max_jump": 5}, [14, 15, 16, 17]),
    ],
)
def test_a_record_that_a_guard_may_refuse_keeps_its_text(
    reading: TextReading, guards: dict[str, int], texts: list[int]
) -> None:
    """No other does, but errors."""
    clock = replace(ClockRules(False, 100, None, None, now_us=0, latest=None, quiet_us=0), **guards)
    lines = [f'{{"k":"a","t":{at}}}' for at in (14, 15, 16, 17)]
    found = read(reading, part_of(reading, "\n".join([*lines, "no record"]).encode()), clock)
    assert [raw for raw in found["_raw"].to_pylist() if raw is not None] == [
        *(f'{{"k":"a","t":{at}}}' for at in texts),
        "no record",
    ]


# -- CSV -------------------------------------------------------------------------------------------------------------


CSV_LINES = [b"k,t", b"a,1", b"", b'"\xc3\xbc",2\r', b'"', b"\xff,3", b",4", b"b", b'"b, ""c""",5,6', b"a,1,2,3"]
CSV_ADMISSIONS = [*ADMISSIONS[:-1], ADMITTED, MALFORMED]
CSV_CONTENT = b"\n".join(CSV_LINES) + b"\n"


@pytest.fixture
def csv_reading(reading: TextReading) -> TextReading:
    """The same columns in files of CSV with a header."""
    return replace(reading, form="csv", header=True)


def test_every_line_of_csv_behind_the_header_is_one_record(csv_reading: TextReading) -> None:
    """Its place counts the header, which is no record; by another header nothing is read."""
    found = read_bytes(csv_reading, CSV_CONTENT, "a.csv")
    assert admissions(found) == CSV_ADMISSIONS
    assert found["_order"].to_pylist() == list(range(1, len(CSV_LINES)))
    assert found["_0"].to_pylist() == ["a", None, "ü", None, None, None, "b", 'b, "c"', None]
    assert found["_1"].to_pylist() == [1, None, 2, None, None, 4, None, 5, None]
    assert found["_2"].to_pylist() == [*[None] * 7, 6, None]
    assert found["_raw"].to_pylist()[3:5] == ['"', base64.b64encode(CSV_LINES[5]).decode()]
    for header in (b"", b"\xff", b'"'):
        with pytest.raises(MisheadedFile):
            read_bytes(csv_reading, header + b"\n" + CSV_CONTENT.partition(b"\n")[2], "a.csv")
    packed = read_bytes(csv_reading, gzip.compress(CSV_CONTENT), "a.csv.gz")
    assert packed.equals(found)
    without = read_bytes(replace(csv_reading, header=False), CSV_CONTENT, "a.csv")
    assert admissions(without) == [MALFORMED, *CSV_ADMISSIONS]


@pytest.mark.parametrize("content", [b"", b"k,t", b"k,t\n", b"\xef\xbb\xbfk,t\r\n"])
def test_a_header_alone(csv_reading: TextReading, content: bytes) -> None:
    """Is a file without records."""
    assert read_bytes(csv_reading, content, "a.csv").num_rows == 0


def test_a_header_in_any_block(csv_reading: TextReading, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a block or a batch ends."""
    part = part_of(csv_reading, b"\xef\xbb\xbf" + CSV_CONTENT, "a.csv")
    whole = read(csv_reading, part)
    for size in range(1, part.size_bytes + 2):
        monkeypatch.setattr(text, "_BLOCK_BYTES", size)
        assert read(csv_reading, part).equals(whole)
    monkeypatch.setattr(text, "_BATCH_ROWS", 1)
    assert read(csv_reading, part).equals(whole)


def test_csv_has_no_fields_for_columns_of_folders(csv_reading: TextReading) -> None:
    """Those that stand in the file keep their order."""
    found = read_bytes(csv_reading, b"k,n\na,1\nb\nc,2,3\n", "t=7/a.csv")
    assert [found[name].to_pylist() for name in ("_0", "_1", "_2")] == [["a", "b", None], [7, 7, 7], [1, None, None]]
    assert admissions(found) == [ADMITTED, ADMITTED, MALFORMED]
    found = read_bytes(csv_reading, b"any\nx\n\ny,z\n", "t=7/k=other/n=1/a.csv")
    assert [found[name].to_pylist() for name in ("_0", "_1", "_2")] == [["other"] * 3, [7] * 3, [1] * 3]
    assert admissions(found) == [ADMITTED, MALFORMED, MALFORMED]


# -- expiry keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "expiry_kind", "values", "keys"),
    [
        ("decimal(12,3)", "decimal", ["1.5", "-0.001", "999999999"], [1500, -1, 999_999_999_000]),
        ("decimal(5,0)", "decimal", ["1.5", "-7", "99999"], [2, -7, 99_999]),
        ("string", "category", ['"b"', '""', "1"], ["b", "", "1"]),
        ("boolean", "category", ["true", "false", "true"], ["true", "false", "true"]),
        ("tinyint", "category", ["-5", "0", "127"], ["-5", "0", "127"]),
        ("date", "category", ['"2024-1-5"', '"0000-02-03"', '"9999"'], ["2024-01-05", "0000-02-03", "9999-01-01"]),
        ("date", "category", ['"-0001-02-03"', '"12024"', '"-9999"'], ["-0001-02-03", "+12024-01-01", "-9999-01-01"]),
        ("double", "float", ["1.5", "-0.0", '"NaN"'], [1.5, -0.0, None]),
    ],
)
def test_expiry_keys(
    reading: TextReading, kind: str, expiry_kind: ExpiryKind, values: list[str], keys: list[Any]
) -> None:
    """Of every type that a rule takes; null where there is none, or none that can be one."""
    columns = tuple(map(DeclaredColumn.of, parse_columns(f"k string, e {kind}")))
    has_category = expiry_kind == "category"
    expiry = pa.string() if has_category else pa.float64() if expiry_kind == "float" else pa.int64()
    given = replace(reading.declared, columns=columns, expiry_kind=expiry_kind, layout=RecordLayout.of(expiry))
    lines = [f'{{"k":"a","e":{value}}}' for value in values]
    found = read_bytes(replace(reading, declared=given), "\n".join([*lines, '{"k":"a"}']).encode())
    stored = found["_category" if has_category else "_expiry"].to_pylist()[: len(values)]
    assert [
        key if admission is ADMITTED else None for key, admission in zip(stored, admissions(found), strict=False)
    ] == keys
    expected = [ADMITTED if key is not None else Admission.BAD_EXPIRY for key in keys]
    assert admissions(found) == [*expected, Admission.NULL_EXPIRY]


def test_a_secure_digest(reading: TextReading) -> None:
    """As its definition gives it."""
    secure = replace(reading, declared=replace(reading.declared, is_secure=True))
    found = read_bytes(secure, b'{"k":"\xc3\xbc","t":1}')
    words = found["_hi"][0].as_py() % 2**64, found["_lo"][0].as_py() % 2**64
    assert words == key_digest(["ü"], ["string"], SALT, secure=True)


# -- folders, columns, files that change -----------------------------------------------------------------------------


def test_columns_of_folders(reading: TextReading) -> None:
    """They are of every record of the file, also where a field has their name."""
    found = read_bytes(reading, b'{"k":"a","t":1,"n":"no number"}\n{', "n=7/k=other/a.json")
    assert [found[name].to_pylist() for name in ("_0", "_1", "_2")] == [["other", "other"], [1, None], [7, 7]]
    assert admissions(found) == [ADMITTED, MALFORMED]
    found = read_bytes(reading, b'{"k":1.0}\n{"k":', "n=7/k=other/t=5/a.json")
    assert [found[name].to_pylist() for name in ("_0", "_1", "_2")] == [["other", "other"], [5, 5], [7, 7]]
    assert admissions(found) == [ADMITTED, MALFORMED]
    found = read_bytes(reading, CONTENT, "n=seven/a.json")
    assert found["_2"].null_count == len(LINES)
    assert admissions(found) == [INVALID if admission is INVALID else MALFORMED for admission in ADMISSIONS]
    assert found["_0"].to_pylist() == ["a", None, "ü", None, None, None, "b", "ü"]


def with_pattern(reading: TextReading, pattern: str) -> TextReading:
    """The same, of files whose names give columns."""
    rule = replace(reading.declared.path_rule, name_pattern=pattern)
    return replace(reading, declared=replace(reading.declared, path_rule=rule))


def test_columns_of_the_name(reading: TextReading) -> None:
    """They come before those of folders and of records; under a name that does not match, every record is malformed."""
    named = with_pattern(reading, r"(?P<k>\w+)-(?P<t>\d+)\.json(\.gz)?")
    found = read_bytes(named, gzip.compress(b'{"k":"a","n":3}\n{'), "k=folder/web-5.json.gz")
    assert [found[name].to_pylist() for name in ("_0", "_1", "_2")] == [["web", "web"], [5, 5], [3, None]]
    assert admissions(found) == [ADMITTED, MALFORMED]
    assert admissions(read_bytes(named, b'{"n":3}\n{}\n', "web.json")) == [MALFORMED, MALFORMED]


def test_csv_has_no_fields_for_columns_of_the_name(csv_reading: TextReading) -> None:
    """Its header has the others, and so has a file that is made to find out whether a fault is the machine's."""
    (first, *others) = [column.name for column in csv_reading.declared.columns]
    named = with_pattern(csv_reading, rf"(?P<{first}>\w+)\.csv")
    path = named.declared.path_rule.folder / "x.csv"
    path.write_bytes(f"{','.join(others)}\n1\n".encode())
    found = read(named, named.part(0, stat_files([ListedFile(str(path), 0)])[0]))
    assert found["_0"].to_pylist() == ["x"]
    sound = read_bytes(named, named.sound_file(), "sound")
    assert sound.num_rows == 1


def test_what_is_not_kept_is_checked_all_the_same(reading: TextReading) -> None:
    """A job without ports for records has the same verdicts."""
    content = CONTENT + b'{"k":"a","t":1,"n":1}\n{"k":"a","t":1,"n":"1"}\n'
    kept = read_bytes(reading, content)
    less = read_bytes(replace(reading, declared=replace(reading.declared, layout=RecordLayout.of(pa.int64()))), content)
    assert less.equals(kept.select(less.column_names))
    assert less.num_columns == kept.num_columns - 3
    assert admissions(less)[-2:] == [ADMITTED, MALFORMED]


def changed(path: Path, how: str) -> None:
    """Another file has its name."""
    before = path.stat()
    if how == "gone":
        path.unlink()
    elif how == "time":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    else:
        with path.open("ab") as file:
            file.write(b"x")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("how", ["gone", "time", "size"])
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_file_that_changes(reading: TextReading, monkeypatch: pytest.MonkeyPatch, how: str, when: str) -> None:
    """Since it was listed, or while it is read: its records may be of either."""
    monkeypatch.setattr(text, "_BLOCK_BYTES", 40)
    part = part_of(reading, CONTENT)
    records = reading.records(part)
    if when == "while":
        next(records)
    changed(Path(part.path), how)
    with pytest.raises(FileGone if how == "gone" else FileChanged):
        list(records)


def test_a_file_that_is_damaged_by_a_change(reading: TextReading, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has changed: what it is now says nothing about the listed one."""
    monkeypatch.setattr(text, "_BLOCK_BYTES", 40)
    part = part_of(reading, gzip.compress(CONTENT), "a.json.gz")
    records = reading.records(part)
    Path(part.path).write_bytes(b"no gzip, of another size")
    with pytest.raises(FileChanged):
        list(records)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENOMEM])
def test_a_fault_of_the_machine_is_none_of_the_file(
    reading: TextReading, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """At its beginning, and in the middle."""
    monkeypatch.setattr(text, "_BLOCK_BYTES", 40)
    part = part_of(reading, CONTENT)
    records = reading.records(part)
    next(records)

    def failing(*_: object) -> Any:
        raise OSError(code, os.strerror(code), part.path)

    monkeypatch.setattr(text, "_fill", failing)
    with pytest.raises(OSError, match=os.strerror(code)):
        next(records)
    monkeypatch.setattr(pa, "OSFile", failing)
    with pytest.raises(OSError, match=os.strerror(code)):
        next(reading.records(part))


# -- a task ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def task(tmp_path: Path, reading: TextReading) -> ReadTask:
    """A reading task."""
    folder = tmp_path / "spool"
    folder.mkdir()
    return ReadTask(str(folder), 2, reading.declared.layout, None, in_order=False, keeps_latest=False)


def test_a_task_counts_the_lines(reading: TextReading, task: ReadTask) -> None:
    """Apart from the records."""
    found = read_file(reading, task, part_of(reading, CONTENT))
    assert found.fault is None
    assert found.receipt is not None
    assert (found.rows, found.receipt.rows) == (len(LINES), len(LINES))


def test_a_file_without_lines_has_no_receipt(reading: TextReading, task: ReadTask) -> None:
    """Plain or compressed."""
    for content, name in ((b"", "a.json"), (gzip.compress(b""), "a.json.gz")):
        assert read_file(reading, task, part_of(reading, content, name)) == PartRead()


def test_a_file_that_is_cut_off_is_read_and_noted(reading: TextReading, task: ReadTask) -> None:
    """Its error tuple is a record like any other, so that the window may be judged again with the same ones."""
    found = read_file(reading, task, part_of(reading, gzip.compress(CONTENT)[:-8], "a.json.gz"))
    assert found.fault is None
    assert found.receipt is not None
    assert (found.rows, found.receipt.rows) == (len(LINES) + 1, len(LINES) + 1)
    assert found.noted.cut_off is not None


def test_lines_that_are_missing_are_noticed(
    reading: TextReading, task: ReadTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file leaves as one error then."""
    real = text.block.lines

    def but_one(data: Any) -> Any:
        starts, ends, rest = real(data)
        return starts[1:], ends[1:], rest

    part = part_of(reading, CONTENT)
    monkeypatch.setattr(text.block, "lines", but_one)
    read = read_file(reading, task, part)
    assert read.fault == FileReason(Admission.FILE_UNREADABLE, "7 records were read of 8 lines")


def test_texts_of_many_errors(reading: TextReading) -> None:
    """Each its own."""
    lines = [f"no record {number}" for number in range(1000)]
    found = read_bytes(reading, "\n".join(lines).encode())
    assert found["_raw"].to_pylist() == lines
    assert np.unique(found["_admission"].to_numpy()).tolist() == [MALFORMED]
