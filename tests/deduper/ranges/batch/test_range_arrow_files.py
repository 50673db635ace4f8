"""`deduper range-aggregate` without Spark: answers by the oracle, and what is left to Spark."""

from __future__ import annotations

import gzip
import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deduper.errors import DeduperError, UsageError
from deduper.ranges.batch import job
from deduper.ranges.batch.arrow_files import run_on_arrow
from deduper.ranges.batch.arrow_sides import OnlySpark
from deduper.ranges.batch.report import RangeReport
from deduper.ranges.batch.settings import RangeJob
from tests.deduper.ranges.aggregate import oracle

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


def on_arrow(directory: Path, config: str = CONFIG, **more: str) -> RangeReport:
    file = directory / "job.yaml"
    file.write_text(config, encoding="utf-8")
    overrides = [f"{name}={value}" for name, value in more.items()]
    job = RangeJob.load(file, overrides=overrides, environment={})
    return run_on_arrow(job, plan_only=False, on_progress=lambda _: None)


@pytest.mark.parametrize("per", ["event", "range"])
@pytest.mark.parametrize("ends", ["[]", "(]", "[)", "()"])
def test_answers_are_those_of_the_oracle(tmp_path: Path, per: str, ends: str) -> None:
    """Every asked row once, with all its columns and all aggregates, of files and row groups of any number."""
    seed = ["[]", "(]", "[)", "()"].index(ends)
    events, ranges = inputs(tmp_path, seed)
    wanted = ", ".join(f'a{place}: "{text}"' for place, text in enumerate(TEXTS))
    found = on_arrow(tmp_path, CONFIG.replace("found: count", wanted), per=per, ends=f'"{ends}"')
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
    on_arrow(tmp_path, CONFIG.replace("[id]", "[shop, id]"))
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
    of_parquet = on_arrow(tmp_path, CONFIG.replace("found: count", wanted), per=per)
    as_text(tmp_path)
    of_text = on_arrow(
        tmp_path, OF_TEXT.replace("found: count", wanted), per=per, output="{path: out/text, format: parquet}"
    )
    assert (of_text.rows, of_text.indexed_rows) == (of_parquet.rows, of_parquet.indexed_rows)
    tables = [pq.read_table(tmp_path / "out" / name).sort_by("note") for name in ("found", "text")]
    assert tables[0].schema == tables[1].schema
    assert tables[0].to_pylist() == tables[1].to_pylist()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"1,,,many,x\n", "a line that is no record"),
        (b'1,"\xff",,1,x', "a line that is no record"),
        (b",,,1,x\n", "a bad range"),
    ],
)
def test_a_bad_line_is_left_to_spark(tmp_path: Path, line: bytes, why: str) -> None:
    """It has the messages, and the place for errors."""
    inputs(tmp_path, 1)
    as_text(tmp_path)
    with (tmp_path / "ranges" / "0.csv").open("ab") as file:
        file.write(line)
    with pytest.raises(OnlySpark, match=why):
        on_arrow(tmp_path, OF_TEXT)


def test_files_of_text_without_rows_are_left_to_spark(tmp_path: Path) -> None:
    """On either side; nothing is left."""
    inputs(tmp_path, 1)
    as_text(tmp_path)
    for side in ("events", "ranges"):
        for file in (tmp_path / side).glob("*.[cj]s*"):
            file.unlink()
        (tmp_path / side / "a").touch()
        with pytest.raises(OnlySpark, match="no events"):
            on_arrow(tmp_path, OF_TEXT)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


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


def _other_columns(directory: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), directory / "ranges" / "9.parquet")


def _no_events(directory: Path) -> None:
    for file in (directory / "events").glob("*.parquet"):
        pq.write_table(pq.read_table(file).slice(0, 0), file)


def _cut(directory: Path) -> None:
    file = directory / "events" / "1.parquet"
    file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_changed("at", pa.array([None], TIME)), "a bad event"),
        (_changed("end", pa.array([BEGIN - timedelta(days=1)], TIME)), "a bad range"),
        (_changed("end", pa.array([BEGIN], pa.timestamp("us"))), "times are of different types"),
        (_changed("at", pa.array([BEGIN], pa.timestamp("ns", "UTC"))), "at is of type timestamp"),
        (_changed("note", pa.array([["x"]])), "column note is of type list"),
        (_changed("note", pa.array(["x"]).dictionary_encode()), "column note is of type dictionary"),
        (_folder, "folders below"),
        (_other_columns, "not those of the other files"),
        (_no_events, "no events"),
        (_cut, "it does not end in PAR1"),
    ],
)
def test_what_needs_spark_is_left_to_it(tmp_path: Path, change: Any, why: str) -> None:
    """With the reason, and with nothing left beside the output's place."""
    inputs(tmp_path, 1)
    change(tmp_path)
    with pytest.raises(OnlySpark, match=why):
        on_arrow(tmp_path)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("events, format: parquet", 'events, format: parquet, schema: "id INT, at TIMESTAMP"', "only Parquet files"),
        ("events, format: parquet", 'events, format: json, schema: "id INT, at ARRAY<INT>"', "at is of type array"),
        ("found, format: parquet", "found, format: json", "output is json"),
        ("found: count", "note: count", "has the name of a column"),
        ("found: count", "found: sum(note)", "sum takes numbers"),
        ("[id]", "[ID]", "an id column is missing"),
        ("time: at", "time: when", "a column of times is missing"),
        ("time: at", "spark: {spark.sql.ansi.enabled: false}\ntime: at", "may change what is read"),
    ],
)
def test_settings_that_only_spark_can_follow(tmp_path: Path, old: str, new: str, why: str) -> None:
    """Mistakes among them: Spark's way says what is wrong."""
    inputs(tmp_path, 1)
    assert old in CONFIG
    with pytest.raises(OnlySpark, match=why):
        on_arrow(tmp_path, CONFIG.replace(old, new))


def test_a_range_longer_than_allowed_is_bad(tmp_path: Path) -> None:
    """On the edge it is good; open ends are too long."""
    inputs(tmp_path, 1)
    _changed("start", pa.array([at(0)], TIME))(tmp_path)
    _changed("end", pa.array([at(60)], TIME))(tmp_path)
    assert on_arrow(tmp_path, longest="1h").rows == 60
    with pytest.raises(OnlySpark, match="a bad range"):
        on_arrow(tmp_path, longest="3599s", output="{path: out/again, format: parquet}")
    _changed("end", pa.array([None], TIME))(tmp_path)
    with pytest.raises(OnlySpark, match="a bad range"):
        on_arrow(tmp_path, longest="1h", output="{path: out/again, format: parquet}")


def test_without_bad_rows_the_errors_are_empty(tmp_path: Path) -> None:
    """A folder of its format is there all the same."""
    inputs(tmp_path, 1)
    on_arrow(tmp_path, CONFIG + "errors: {path: out/errors, format: parquet}\n")
    errors = pq.read_table(tmp_path / "out" / "errors")
    assert (errors.num_rows, errors.schema.names) == (0, ["side", "reason", "record"])


def test_a_sum_beyond_its_type_leaves_nothing(tmp_path: Path) -> None:
    """The error is ours, and no output and nothing half written is there."""
    inputs(tmp_path, 1)
    _changed("value", pa.array([2**62]))(tmp_path)
    with pytest.raises(DeduperError, match=r"found: a sum is .*cast the column"):
        on_arrow(tmp_path, CONFIG.replace("count", "sum(value)"))
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
        (
            "path: ranges, ",
            "path: lines, ",
            r"ranges\.format: .*lines/0 is no whole Parquet file; .*write `format: csv`",
        ),
        ("path: out/found", "path: lines/0/found", r"lines/0/found cannot be made: .*lines/0 is no folder"),
    ],
)
def test_what_files_do_not_have_is_told_before_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    """With the setting, and what to write."""
    inputs(tmp_path, 1)
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines/0").write_text("id,start,end\n")
    monkeypatch.setattr(job, "run_on_arrow", lambda *_, **__: pytest.fail("it starts"))
    file = tmp_path / "job.yaml"
    file.write_text(CONFIG.replace(old, new), encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        job.run(RangeJob.load(file), plan_only=False, on_progress=lambda _: None)


def test_an_output_below_a_folder_of_others_is_told_before_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user that runs the tests may be root, who may write anywhere."""
    inputs(tmp_path, 1)
    monkeypatch.setattr(job.os, "access", lambda *_: False)
    file = tmp_path / "job.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    with pytest.raises(UsageError, match=r"out/found cannot be made: this user may not write to .*"):
        job.run(RangeJob.load(file), plan_only=False, on_progress=lambda _: None)
