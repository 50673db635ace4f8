"""`deduper range-aggregate`: files in, answers by the oracle and bad rows out; what is refused."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from deduper.cli.main import app
from deduper.errors import DeduperError, UsageError
from deduper.ranges.batch import job
from deduper.ranges.batch.job import RangeReport
from deduper.ranges.batch.settings import RangeJob
from deduper.ranges.batch.sides import ParquetSide
from tests.deduper.ranges.aggregate import oracle
from tests.deduper.ranges.stream import own_aggregates

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
TEXTS = ("count", "sum(value)", "mean(value)", "max(value)", "last(value)", "top_k(value, 2)", "list(value)")
CONFIG = """\
events: {path: events, format: parquet}
ranges: {path: ranges, format: parquet}
on: [id]
time: at
start: start
end: end
aggregates: {found: count}
output: {path: out/found, format: parquet}
"""


def at(minute: int | None) -> datetime | None:
    return None if minute is None else BEGIN + timedelta(minutes=minute)


def write(folder: Path, rows: pa.Table, files: int) -> None:
    """Rows in some files of small row groups; a hidden one is none of them."""
    folder.mkdir()
    for number in range(files):
        begin, end = (len(rows) * place // files for place in (number, number + 1))
        pq.write_table(rows.slice(begin, end - begin), folder / f"{number}.parquet", row_group_size=7)
    (folder / "_SUCCESS").touch()


def inputs(directory: Path, seed: int) -> tuple[list[oracle.Row], list[oracle.Row]]:
    """Random events and ranges with many equal times; also of ids that the other side does not have."""
    draw = random.Random(seed)
    events = [
        {"id": draw.randrange(-3, 3), "time": draw.randrange(200), "value": draw.choice([None, 1, 2, 5])}
        for _ in range(60)
    ]
    ranges = []
    for _ in range(50):
        start, end = sorted(draw.choices(range(200), k=2))
        ranges.append(
            {
                "id": draw.randrange(-1, 4),
                "start": draw.choice([None, start, start, start]),
                "end": draw.choice([None, end, end, end]),
                "value": draw.choice([None, 1, 1, 7]),
            }
        )
    of_events = {
        "id": pa.array([one["id"] for one in events], pa.int32()),
        "at": pa.array([at(one["time"]) for one in events], TIME),
        "value": pa.array([one["value"] for one in events], pa.int64()),
        "note": pa.array([str(place) for place in range(len(events))], pa.large_string()),
    }
    of_ranges = {
        "id": pa.array([one["id"] for one in ranges], pa.int32()),
        "start": pa.array([at(one["start"]) for one in ranges], TIME),
        "end": pa.array([at(one["end"]) for one in ranges], TIME),
        "value": pa.array([one["value"] for one in ranges], pa.int64()),
        "note": pa.array([str(place) for place in range(len(ranges))]),
    }
    write(directory / "events", pa.table(of_events), 3)
    write(directory / "ranges", pa.table(of_ranges), 2)
    return events, ranges


def answered(directory: Path, config: str = CONFIG, **more: str) -> RangeReport:
    file = directory / "job.yaml"
    file.write_text(config, encoding="utf-8")
    overrides = [f"{name}={value}" for name, value in more.items()]
    return job.run(RangeJob.load(file, overrides=overrides, environment={}), on_progress=lambda _: None)


@pytest.mark.parametrize("per", ["event", "range"])
@pytest.mark.parametrize("ends", ["[]", "(]", "[)", "()"])
def test_answers_are_those_of_the_oracle(tmp_path: Path, per: str, ends: str) -> None:
    """Every asked row once, with all its columns and all aggregates, of files and row groups of any number."""
    seed = ["[]", "(]", "[)", "()"].index(ends)
    events, ranges = inputs(tmp_path, seed)
    wanted = ", ".join(f'a{place}: "{text}"' for place, text in enumerate(TEXTS))
    found = answered(tmp_path, CONFIG.replace("found: count", wanted), per=per, ends=f'"{ends}"')
    table = pq.read_table(tmp_path / "out" / "found")
    asked, of = (events, oracle.of_events) if per == "event" else (ranges, oracle.of_ranges)
    assert (found.rows, found.indexed_rows) == (len(asked), len(ranges) + len(events) - len(asked))
    assert table.schema.field("note").type == pa.string()
    order = [int(note) for note in table["note"].to_pylist()]
    assert sorted(order) == list(range(len(asked)))
    assert table["value"].to_pylist() == [asked[place]["value"] for place in order]
    for number, text in enumerate(TEXTS):
        answers = of(events, ranges, ends, text, "int")
        assert table[f"a{number}"].to_pylist() == [answers[place] for place in order], (text, seed)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["found"]


def test_ids_of_several_columns_are_digested(tmp_path: Path) -> None:
    """Of any scalar types; ("a", 1) is not ("b", 1)."""
    types = {"shop": pa.string(), "id": pa.decimal128(9, 2), "at": pa.date32()}
    rows = {"shop": ["a", "b", "a"], "id": [Decimal(1), Decimal(1), Decimal("1.5")], "at": [BEGIN.date()] * 3}
    events = pa.table({name: pa.array(values, types[name]) for name, values in rows.items()})
    write(tmp_path / "events", events, 1)
    one = events.slice(0, 1)
    write(
        tmp_path / "ranges", pa.table({"shop": one["shop"], "id": one["id"], "start": one["at"], "end": one["at"]}), 1
    )
    answered(tmp_path, CONFIG.replace("[id]", "[shop, id]"))
    assert pq.read_table(tmp_path / "out" / "found")["found"].to_pylist() == [1, 0, 0]


OF_TEXT = CONFIG.replace(
    "events, format: parquet", 'events, format: json, schema: "id INT, at TIMESTAMP, value BIGINT, note STRING"'
).replace(
    "ranges, format: parquet",
    'ranges, format: csv, schema: "id INT, start TIMESTAMP, end TIMESTAMP, value BIGINT, note STRING"',
)


def as_text(directory: Path) -> None:
    """The same events as JSON and ranges as CSV, with a header line; one file is compressed, one is empty."""
    for file in (directory / "events").glob("*.parquet"):
        rows = pq.read_table(file).to_pylist()
        lines = "".join(json.dumps({**row, "at": row["at"].isoformat()}) + "\n" for row in rows)
        file.with_suffix(".json").write_text(lines)
        file.unlink()
    (directory / "events" / "empty.json").touch()
    for number, file in enumerate(sorted((directory / "ranges").glob("*.parquet"))):
        rows = [
            {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
            for row in pq.read_table(file).to_pylist()
        ]
        lines = "".join(",".join("" if one is None else str(one) for one in row.values()) + "\n" for row in rows)
        content = f"id,start,end,value,note\n{lines}".encode()
        target = file.with_suffix(".csv.gz" if number else ".csv")
        target.write_bytes(gzip.compress(content) if number else content)
        file.unlink()


@pytest.mark.parametrize("per", ["event", "range"])
def test_lines_of_text_give_the_answers_of_parquet(tmp_path: Path, per: str) -> None:
    """JSON and CSV with a header, compressed or not, empty files among them."""
    inputs(tmp_path, 4)
    wanted = ", ".join(f'a{place}: "{text}"' for place, text in enumerate(TEXTS))
    of_parquet = answered(tmp_path, CONFIG.replace("found: count", wanted), per=per)
    as_text(tmp_path)
    of_text = answered(
        tmp_path, OF_TEXT.replace("found: count", wanted), per=per, output="{path: out/text, format: parquet}"
    )
    assert (of_text.rows, of_text.indexed_rows) == (of_parquet.rows, of_parquet.indexed_rows)
    tables = [pq.read_table(tmp_path / "out" / name).sort_by("note") for name in ("found", "text")]
    assert tables[0].schema == tables[1].schema
    assert tables[0].to_pylist() == tables[1].to_pylist()


def test_lines_of_logfmt_give_the_answers_of_json(tmp_path: Path) -> None:
    """The same events, as pairs."""
    inputs(tmp_path, 4)
    of_parquet = answered(tmp_path)
    for file in (tmp_path / "events").glob("*.parquet"):
        rows = [{**row, "at": row["at"].isoformat()} for row in pq.read_table(file).to_pylist()]
        pairs = (" ".join(f"{name}={'' if one is None else one}" for name, one in row.items()) for row in rows)
        file.with_suffix(".log").write_text("".join(f"{line}\n" for line in pairs))
        file.unlink()
    first = OF_TEXT.splitlines()[0].replace("format: json", "format: logfmt")
    of_logs = answered(
        tmp_path, "\n".join([first, *CONFIG.splitlines()[1:], ""]), output="{path: out/logs, format: parquet}"
    )
    assert of_logs.rows == of_parquet.rows
    tables = [pq.read_table(tmp_path / "out" / name).sort_by("note") for name in ("found", "logs")]
    assert tables[0].to_pylist() == tables[1].to_pylist()


def test_columns_of_the_names_of_files(tmp_path: Path) -> None:
    """An id in the name of a file; the lines of one whose name does not match are bad rows."""
    inputs(tmp_path, 4)
    for file in (tmp_path / "events").glob("*.parquet"):
        file.unlink()
    for name in ("of-1.json", "of-2.json.gz", "other.json"):
        line = b'{"at":"2026-03-01T00:10:00","note":"x"}\n'
        (tmp_path / "events" / name).write_bytes(gzip.compress(line) if name.endswith(".gz") else line)
    first = OF_TEXT.splitlines()[0].replace("format: json", r"name_pattern: 'of-(?P<id>\d+)\.json.*', format: json")
    named = "\n".join([first, *CONFIG.splitlines()[1:], ""])
    report = answered(tmp_path, named + "errors: {path: out/errors, format: json}\n", per="event")
    assert report.rows == 2
    assert sorted(pq.read_table(tmp_path / "out/found")["id"].to_pylist()) == [1, 2]
    (part,) = [path for path in (tmp_path / "out/errors").iterdir() if path.read_bytes()]
    texts = [json.loads(line) for line in part.read_text().splitlines()]
    assert {"side": "event", "reason": "unparsable", "record": line.decode().strip()} in texts


@pytest.mark.parametrize(
    ("line", "reason", "record"),
    [
        (b"1,,,many,x\n", "unparsable", "1,,,many,x"),
        (b'1,"\xff",,1,x', "unparsable", "MSwi/yIsLDEseA=="),
        (b",,,1,x\n", "null_id", '{"value":1,"note":"x"}'),
    ],
)
@pytest.mark.parametrize("per", ["event", "range"])
def test_a_bad_line_stops_or_leaves_by_the_errors(
    tmp_path: Path, line: bytes, reason: str, record: str, per: str
) -> None:
    """With side, reason and the row, also of columns that no aggregate takes; the other rows are answered."""
    _, ranges = inputs(tmp_path, 1)
    as_text(tmp_path)
    with (tmp_path / "ranges" / "0.csv").open("ab") as file:
        file.write(line)
    with pytest.raises(DeduperError, match=f"bad range: {reason}: .*; correct it, or keep bad rows: write `errors: "):
        answered(tmp_path, OF_TEXT, per=per)
    assert not list((tmp_path / "out").iterdir())
    found = answered(tmp_path, OF_TEXT + "errors: {path: out/errors, format: json}\n", per=per)
    assert found.errors == {f"range.{reason}": 1}
    assert (found.rows, found.indexed_rows) == ((60, len(ranges)) if per == "event" else (len(ranges), 60))
    (part,) = (tmp_path / "out/errors").iterdir()
    assert json.loads(part.read_text()) == {"side": "range", "reason": reason, "record": record}


@pytest.mark.parametrize("side", ["events", "ranges"])
@pytest.mark.parametrize("per", ["event", "range"])
def test_a_side_without_rows(tmp_path: Path, side: str, per: str) -> None:
    """Of files of text that are empty: aggregates of nothing, or no rows, with their types."""
    inputs(tmp_path, 1)
    as_text(tmp_path)
    for file in (tmp_path / side).glob("*.[cj]s*"):
        file.unlink()
    (tmp_path / side / "a").touch()
    found = answered(tmp_path, OF_TEXT.replace("found: count", 'sum: sum(value), all: "list(value)"'), per=per)
    table = pq.read_table(tmp_path / "out" / "found")
    asked = {"event": "events", "range": "ranges"}[per]
    assert found.rows == table.num_rows == (0 if side == asked else {"events": 60, "ranges": 50}[asked])
    assert table.schema.field("sum").type == pa.int64()
    assert table["sum"].null_count == table.num_rows


def test_an_aggregate_of_one_s_own(tmp_path: Path) -> None:
    """By its name in the settings: the sizes of groups of equal values, of the ranges that `list` gives."""
    inputs(tmp_path, 3)
    for file in (tmp_path / "ranges").glob("*.parquet"):
        rows = pq.read_table(file)
        pq.write_table(rows.rename_columns(["id", "start", "end", "points", "note"]), file)
    sizes = f'sizes: "{own_aggregates.__name__}:sizes", all: "list(points)"'
    answered(tmp_path, CONFIG.replace("found: count", sizes))
    rows = pq.read_table(tmp_path / "out/found").to_pylist()
    assert [row["sizes"] for row in rows] == [sorted(Counter(row["all"]).values()) for row in rows]
    assert any(len(row["sizes"]) > 1 for row in rows)


def test_rows_are_lines_of_json(tmp_path: Path) -> None:
    """The same answers, by the writer of jobs."""
    inputs(tmp_path, 2)
    wanted = CONFIG.replace("found: count", 'found: "list(value)"')
    answered(tmp_path, wanted)
    answered(tmp_path, wanted, output="{path: out/lines, format: json}")
    of_parquet = pq.read_table(tmp_path / "out/found").to_pylist()
    parts = sorted((tmp_path / "out/lines").iterdir())
    lines = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert {row["note"]: row["found"] for row in of_parquet} == {line["note"]: line["found"] for line in lines}


def _changed(column: str, value: pa.Array) -> Any:
    def change(directory: Path) -> None:
        side = "events" if column in ("at", "note") else "ranges"
        for file in (directory / side).glob("*.parquet"):
            table = pq.read_table(file)
            filled = pa.repeat(value[0], len(table))
            pq.write_table(table.set_column(table.schema.get_field_index(column), column, filled), file)

    return change


def _folder(directory: Path) -> None:
    (directory / "events" / "day=1").mkdir()


def _hidden_like_folder(directory: Path) -> None:
    (directory / "events" / "_day=1").mkdir()


def _other_columns(directory: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), directory / "ranges" / "9.parquet")


def _cut(directory: Path) -> None:
    file = directory / "events" / "1.parquet"
    file.write_bytes(file.read_bytes()[:-20])


TIMES = "time: at\nstart: start\nend: end"
BY_SPARK = r"; give the rows to `deduper.range_aggregate`, as DataFrames of Spark"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_changed("at", pa.array([None], TIME)), "bad event: null_time: "),
        (_changed("end", pa.array([BEGIN - timedelta(days=1)], TIME)), "bad range: start_after_end: "),
        (
            _changed("end", pa.array([BEGIN], pa.timestamp("us"))),
            "time: `at` of events is timestamp.*, `end`",
        ),
        (_changed("at", pa.array([BEGIN], pa.timestamp("ns", "UTC"))), f"at is of type timestamp.*{BY_SPARK}"),
        (_changed("note", pa.array([["x"]])), f"column note is of type list.*{BY_SPARK}"),
        (_changed("note", pa.array(["x"]).dictionary_encode()), f"column note is of type dictionary.*{BY_SPARK}"),
        (_folder, f"events has folders below{BY_SPARK}"),
        (_hidden_like_folder, f"events has folders below{BY_SPARK}"),
        (_other_columns, f"not those of the other files{BY_SPARK}"),
        (_cut, "1.parquet: .*it does not end in PAR1.*; replace it, or correct `format`"),
    ],
)
def test_what_is_not_answered_says_why(tmp_path: Path, change: Any, why: str) -> None:
    """With nothing left beside the output's place."""
    inputs(tmp_path, 1)
    change(tmp_path)
    with pytest.raises(DeduperError, match=why):
        answered(tmp_path)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("events, format: parquet", 'events, format: json, schema: "id INT, at ARRAY<INT>"', "at is of type array"),
        ("found: count", "note: count", "aggregate `note` has the name of a column; write another name"),
        ("found: count", "found: sum(note)", "sum takes numbers"),
        ("[id]", "[ID]", "on: events have no column `ID`; did you mean `id`"),
        ("time: at", "time: note", "time: `note` of events is string, `start` of ranges is timestamp"),
        (
            "time: at\nstart: start\nend: end",
            "time: note\nstart: note\nend: note",
            "`note` is string, which is no time",
        ),
        (
            "time: at\nstart: start\nend: end",
            "time: id\nstart: id\nend: id\nlongest: 1h",
            "`id` is a number, so a range",
        ),
    ],
)
def test_settings_that_do_not_fit_the_files(tmp_path: Path, old: str, new: str, why: str) -> None:
    """With the setting or the column, and what to write."""
    inputs(tmp_path, 1)
    assert old in CONFIG
    with pytest.raises(UsageError, match=why):
        answered(tmp_path, CONFIG.replace(old, new))


def test_an_index_beyond_a_share_of_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its size, and the door of DataFrames, which cuts it into parts."""
    inputs(tmp_path, 1)
    monkeypatch.setattr(job, "_SHARE_OF_MEMORY", 1 << 60)
    with pytest.raises(UsageError, match=f"more than a quarter of free memory{BY_SPARK}"):
        answered(tmp_path)


def test_a_range_longer_than_allowed_is_bad(tmp_path: Path) -> None:
    """On the edge it is good; open ends are too long; dates have lengths in days."""
    inputs(tmp_path, 1)
    _changed("start", pa.array([at(0)], TIME))(tmp_path)
    _changed("end", pa.array([at(60)], TIME))(tmp_path)
    assert answered(tmp_path, longest="1h").rows == 60
    with pytest.raises(DeduperError, match="bad range: too_long"):
        answered(tmp_path, longest="3599s", output="{path: out/again, format: parquet}")
    _changed("end", pa.array([None], TIME))(tmp_path)
    with pytest.raises(DeduperError, match="bad range: too_long"):
        answered(tmp_path, longest="1h", output="{path: out/again, format: parquet}")
    for column, day in (("at", 1), ("start", 1), ("end", 3)):
        _changed(column, pa.array([day], pa.date32()))(tmp_path)
    assert answered(tmp_path, longest="48h", output="{path: out/days, format: parquet}").rows == 60
    with pytest.raises(DeduperError, match="bad range: too_long"):
        answered(tmp_path, longest="47h", output="{path: out/again, format: parquet}")


def test_numbers_that_are_none_are_bad_times(tmp_path: Path) -> None:
    """NaN has no place on a line; infinite times are ordinary."""
    inputs(tmp_path, 1)
    _changed("at", pa.array([float("nan")]))(tmp_path)
    for column, value in (("start", float("-inf")), ("end", float("nan"))):
        _changed(column, pa.array([value]))(tmp_path)
    found = answered(tmp_path, CONFIG + "errors: {path: out/errors, format: parquet}\n")
    assert (found.rows, found.errors) == (0, {"event.nan_time": 60, "range.nan_end_point": 50})


def test_without_bad_rows_the_errors_are_empty(tmp_path: Path) -> None:
    """A folder of its format is there all the same."""
    inputs(tmp_path, 1)
    answered(tmp_path, CONFIG + "errors: {path: out/errors, format: parquet}\n")
    errors = pq.read_table(tmp_path / "out" / "errors")
    assert (errors.num_rows, errors.schema.names) == (0, ["side", "reason", "record"])


def test_a_sum_beyond_its_type_leaves_nothing(tmp_path: Path) -> None:
    """The error is ours, and no output and nothing half written is there."""
    inputs(tmp_path, 1)
    _changed("value", pa.array([2**62]))(tmp_path)
    with pytest.raises(DeduperError, match=r"found: a sum is .*cast the column"):
        answered(tmp_path, CONFIG.replace("count", "sum(value)"))
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("time: at", "time: att", r"time: events have no column `att`; did you mean `at`\?"),
        ("on: [id]", "on: [id, place]", r"on: events have no column `place`; columns are id, at, value, note"),
        (
            "found: count",
            '"top": "max(price)"',
            r"aggregates\.top: ranges have no column `price`; columns are id, start",
        ),
        ("path: out/found", "path: lines/0/found", r"lines/0/found cannot be made: .*lines/0 is no folder"),
    ],
)
def test_what_files_do_not_have_is_told(tmp_path: Path, old: str, new: str, message: str) -> None:
    """With the setting, and what to write."""
    inputs(tmp_path, 1)
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines/0").write_text("id,start,end\n")
    with pytest.raises(UsageError, match=message):
        answered(tmp_path, CONFIG.replace(old, new))


def test_an_output_below_a_folder_of_others_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user that runs the tests may be root, who may write anywhere."""
    inputs(tmp_path, 1)
    monkeypatch.setattr(job.os, "access", lambda *_: False)
    with pytest.raises(UsageError, match=r"out/found cannot be made: this user may not write to .*"):
        answered(tmp_path)


@pytest.mark.slow
def test_a_run_removes_what_it_has_made_and_no_more(tmp_path: Path) -> None:
    """In a container another run has the same process id; its folder is left alone, and is no hindrance."""
    inputs(tmp_path, 1)
    other = tmp_path / "out" / f".found.{os.getpid()}.writing"
    other.mkdir(parents=True)
    answered(tmp_path)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [other.name, "found"]


def test_the_command(tmp_path: Path) -> None:
    """Rows, a report, nothing left over; a second run does not write over the first, a mistake has its place."""
    inputs(tmp_path, 1)
    file = tmp_path / "job.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    done = CliRunner().invoke(app, ["range-aggregate", str(file)])
    assert done.exit_code == 0, done.output
    assert "50 ranges are indexed" in done.stderr
    assert re.search(r"rows written +60", done.stdout)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["found"]
    again = CliRunner().invoke(app, ["range-aggregate", str(file)])
    assert (again.exit_code, again.stdout) == (2, "")
    assert "out/found exists; name another folder, or remove it" in again.stderr.replace("\n", "")
    report = CliRunner().invoke(app, ["range-aggregate", str(file), "--json", "--set", "output.path=out/more"])
    assert (report.exit_code, report.stderr) == (0, "")
    found = json.loads(report.stdout)
    assert found.pop("seconds") > 0
    assert found == {"per": "event", "indexed_rows": 50, "rows": 60, "errors": {}}


def test_rows_of_a_side_are_those_of_its_footers(tmp_path: Path) -> None:
    """They are what the rows that were read are held against: with none, a file that is cut short would pass."""
    for number, count in enumerate((3, 0, 4)):
        pq.write_table(pa.table({"id": pa.array(range(count), pa.int64())}), tmp_path / f"{number}.parquet")
    assert ParquetSide.of(sorted(map(str, tmp_path.iterdir())), 2).rows == 7
