"""Conflicts end to end: files in, rows of the ports out, by the job's own readers, judge and writers."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from bucket_store.log.records import CommitRecord, LogState
from bucket_store.pieces.compaction import CompactionTask, compact_pieces
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import decode_piece
from deduper.admin.keys.conflicts import ConflictReport, conflicts_of, differing
from deduper.admin.keys.explain import explain
from deduper.admin.move.forget import forget
from deduper.admin.open_store import open_store
from deduper.admin.verify.run import verify_store
from deduper.cli.views.contents import render_conflicts, render_explanation
from deduper.columns import parse_columns
from deduper.errors import UsageError
from deduper.payload import leaves
from deduper.seeding.reading import seed_config
from deduper.seeding.run import plan_seed
from deduper.seeding.source import SeedInput
from deduper.testing import differences
from deduper.window.policy import FINGERPRINT, judge_rules, statistics_of
from tests.deduper.cli.test_terminal import printed, words
from tests.deduper.plain_job import PlainJob

Rows = Sequence[dict[str, Any]]
SCHEMA = "id string, amount double, note string, sent_at long"


def job(root: Path, form: str = "json", **sections: Any) -> PlainJob:
    """A job of one key, whose payload is all but the time of sending."""
    given = {
        "source": {"format": "files", "path": "in", "file_format": form, "schema": SCHEMA, "max_files_per_batch": 1},
        "key": "id",
        "expiry": {"by": "never"},
        "fingerprint": {"except": ["sent_at"]},
        "sinks": {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS},
        "spark": {"spark.master": "local[1]"},
    }
    return PlainJob(root, given | sections)


PORTS = ("unique", "duplicate", "expired", "error")


def put(of: PlainJob, name: str, rows: Rows, form: str = "json") -> None:
    """A file of records; a key that is absent is null."""
    path = of.root / "in" / f"{name}.{form}"
    columns = [part.split()[0] for part in SCHEMA.split(", ")]
    if form == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif form == "csv":
        with path.open("w", newline="") as stream:
            csv.writer(stream).writerows([[row.get(name, "") for name in columns] for row in rows])
    else:
        kinds = (pa.string(), pa.float64(), pa.string(), pa.int64())
        columns_of = {
            name: pa.array([row.get(name) for row in rows], kind) for name, kind in zip(columns, kinds, strict=True)
        }
        parquet.write_table(pa.table(columns_of), path)


def record(key: str, amount: float | None = 1.0, note: str | None = "n", sent_at: int = 1) -> dict[str, Any]:
    """A record; None is left out."""
    given = {"id": key, "amount": amount, "note": note, "sent_at": sent_at}
    return {name: value for name, value in given.items() if value is not None}


FIRST = [record("a"), record("b"), record("a", sent_at=2), record("b", note="other"), record("c", amount=-0.0)]
SECOND = [record("a", sent_at=9), record("a", amount=2.0), record("c", amount=0.0), record("b", note=None)]


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_a_retry_is_a_copy_and_another_record_a_conflict(form: str, tmp_path: Path) -> None:
    """The reasons, the first copies and both fingerprints, whatever the format; the counts of the log agree."""
    one = job(tmp_path, form)
    put(one, "1", FIRST, form)
    put(one, "2", SECOND, form)
    one.run()
    duplicates = one.rows("duplicate")
    assert [(row["id"], row["_dedup"]["reason"]) for row in duplicates] == [
        ("a", "same_window"),
        ("b", "conflict_in_window"),
        ("a", "earlier_window"),
        ("a", "conflict"),
        ("c", "earlier_window"),
        ("b", "conflict"),
    ]
    said = [row["_dedup"] for row in duplicates]
    assert [row["first_seen"]["position"] for row in said] == [0, 1, 0, 0, 4, 1]
    assert [row["fingerprint"] is None for row in said] == ["conflict" not in row["reason"] for row in said]
    assert said[1]["first_fingerprint"] == said[5]["first_fingerprint"], "of one first copy"
    assert len({said[1]["fingerprint"], said[5]["fingerprint"], said[1]["first_fingerprint"]}) == 3
    assert all(len(row["fingerprint"]) == 16 for row in said if row["fingerprint"])
    assert "fingerprint" not in one.rows("unique")[0]["_dedup"], "nothing to name there"
    log = open_store(str(one.config_file)).log
    assert dict(Counter(reason for _, reason in one.reasons())) == log.state.reason_totals
    assert differences(one.config_file) == []


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_conflict_may_be_an_error(form: str, tmp_path: Path) -> None:
    """It leaves by the error port with the record as it came, its first copy, both fingerprints and a detail."""
    one = job(tmp_path, form, on_conflict="error")
    put(one, "1", FIRST, form)
    put(one, "2", SECOND, form)
    one.run()
    assert sorted(row["id"] for row in one.rows("duplicate")) == ["a", "a", "c"]
    assert [(row["id"], row["_dedup"]["reason"]) for row in one.rows("error")] == [
        ("b", "conflict_refused"),
        ("a", "conflict_refused"),
        ("b", "conflict_refused"),
    ]
    assert differences(one.config_file) == []
    errors = [row["_dedup"] for row in one.rows("error")]
    assert [row["first_seen"]["position"] for row in errors] == [1, 0, 1]
    assert all(row["fingerprint"] and row["first_fingerprint"] for row in errors)
    assert {row["detail"] for row in errors} == {"the key is known with another payload (on_conflict: error)"}
    if form == "json":
        assert [json.loads(row["raw"]) for row in errors] == [FIRST[3], SECOND[1], SECOND[3]]


ALL_LIVE = {"by": "ordered", "field": "sent_at", "period": 10, "span": 5, "lookup": "all_live"}


@pytest.mark.slow
@pytest.mark.parametrize("expiry", [{"by": "never"}, ALL_LIVE])
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_conflict_may_be_a_version(form: str, expiry: dict[str, Any], tmp_path: Path) -> None:
    """It leaves as unique, marked; its copies name it as their first copy; one too many is an error with its record.

    What the store has of them is sound, is shown by the key, and is forgotten with it.
    """
    one = job(tmp_path, form, on_conflict="unique", max_versions=2, expiry=expiry)
    put(one, "1", [record("a", sent_at=1), record("b", sent_at=2), record("a", 2.0, sent_at=3)], form)
    put(one, "2", [record("a", 2.0, sent_at=4), record("a", sent_at=5), record("a", 3.0, sent_at=6)], form)
    one.run()
    assert [(row["id"], row["amount"], row["_dedup"]["reason"]) for row in one.rows("unique")] == [
        ("a", 1.0, None),
        ("b", 1.0, None),
        ("a", 2.0, "version"),
    ]
    version = one.rows("unique")[2]["_dedup"]
    assert version["first_seen"]["position"] == 0
    assert len({version["fingerprint"], version["first_fingerprint"], None}) == 3
    assert [(row["amount"], row["_dedup"]["first_seen"]["position"]) for row in one.rows("duplicate")] == [
        (2.0, 2),
        (1.0, 0),
    ]
    (error,) = (row["_dedup"] for row in one.rows("error"))
    assert (error["reason"], error["detail"]) == (
        "too_many_versions",
        "the key has max_versions other payloads (on_conflict: unique)",
    )
    assert error["first_seen"]["position"] == (2 if expiry is ALL_LIVE else 0), "of the version that dies last"
    assert form != "json" or json.loads(error["raw"]) == record("a", 3.0, sent_at=6)
    put(one, "3", [record("b", note="other", sent_at=7), record("b", sent_at=8)], form)
    one.run()
    assert one.rows("unique")[3]["_dedup"]["reason"] == "version"
    assert one.rows("duplicate")[2]["_dedup"]["first_seen"]["window"] == 0
    assert differences(one.config_file) == []
    config = str(one.config_file)
    ages = statistics_of(open_store(config).log.state).age
    assert sum(ages.counts) == 3, "of duplicates, not of versions or errors"
    report = verify_store(open_store(config))
    assert not report.findings, report
    assert conflicts_of(open_store(config)).columns == {"amount": 2, "note": 1}
    found = explain(open_store(config), ("b",))
    assert [(copy.reason, copy.differs) for copy in found.copies] == [
        ("", ()),
        ("version", ("note",)),
        ("earlier_window", ()),
    ]
    assert len(found.stored.entries) == 2, "one that has moved is shown once"
    assert any("version" in text for text in words(printed(render_explanation(found), 100)))
    assert forget(open_store(config), ("b",)).entries == (3 if expiry is ALL_LIVE else 2)
    put(one, "4", [record("b", note="other", sent_at=8), record("a", 2.0, sent_at=9)], form)
    one.run()
    assert one.rows("unique")[-1]["_dedup"]["reason"] is None
    assert one.rows("duplicate")[-1]["_dedup"]["first_seen"]["position"] == 2
    assert not verify_store(open_store(config)).findings


def test_versions_on_and_off(tmp_path: Path) -> None:
    """The first copy alone counts while they are off; then all do again, as many as there may be."""
    one = job(tmp_path, on_conflict="unique")
    put(one, "1", [record("a"), record("a", 2.0), record("a", 3.0)])
    one.run()
    said = []
    for name, settings in (
        ("2", {"on_conflict": "duplicate"}),
        ("3", {"on_conflict": "unique", "max_versions": 2}),
        ("4", {"on_conflict": "unique", "max_versions": 4}),
    ):
        one.sections = {**one.sections, "max_versions": 8, **settings}
        put(one, name, [record("a", 2.0), record("a", 3.0), record("a", float(name) * 10)])
        one.run()
        rows = [*one.rows("unique"), *one.rows("duplicate"), *one.rows("error")]
        of_window = {row["amount"]: row["_dedup"]["reason"] for row in rows if row["_dedup"]["window"] == int(name) - 1}
        said.append([of_window[amount] for amount in (2.0, 3.0, float(name) * 10)])
    assert said == [
        ["conflict", "conflict", "conflict"],
        ["earlier_window", "too_many_versions", "too_many_versions"],
        ["earlier_window", "earlier_window", "version"],
    ]
    assert differences(one.config_file) == []


def test_without_conflicts_no_output_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store counts them; the outputs may be months of files."""
    monkeypatch.setattr("deduper.admin.keys.conflicts.rows_where", lambda *_: pytest.fail("a file is read"))
    one = job(tmp_path)
    put(one, "1", [record("a"), record("b"), record("a")])
    one.run()
    assert conflicts_of(open_store(str(one.config_file))).looked_at == 0


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
@pytest.mark.parametrize("on_conflict", ["duplicate", "error"])
def test_people_see_keys_and_columns(form: str, on_conflict: str, tmp_path: Path) -> None:
    """`status --conflicts` counts them, keys masked unless asked for; `explain` names what differs of each copy."""
    sinks = {port: {"format": form, "path": f"out/{port}"} for port in PORTS}
    one = job(tmp_path, sinks=sinks, on_conflict=on_conflict)
    put(one, "1", FIRST)
    put(one, "2", SECOND)
    one.run()
    store = open_store(str(one.config_file))
    assert conflicts_of(store) == ConflictReport(3, 3, 3, {"note": 2, "amount": 1}, (("a", 2), ("a", 1)), ())
    assert conflicts_of(store, values=True).keys == (("b", 2), ("a", 1))
    found = explain(store, ("b",))
    assert [(copy.verdict, copy.differs) for copy in found.copies] == [
        ("unique", ()),
        (on_conflict, ("note",)),
        (on_conflict, ("note",)),
    ]
    assert any("note" in text for text in words(printed(render_explanation(found), 100)))
    assert any("note" in text for text in words(printed(render_conflicts(conflicts_of(store)), 100)))
    for file in (tmp_path / "out" / "unique").glob("[0-9a-f]*"):
        file.unlink()
    assert conflicts_of(store).compared == 0, "taken away by a reader"
    one.sections |= {"fingerprint": "none", "on_conflict": "duplicate"}
    with pytest.raises(UsageError, match="the job compares no payloads"):
        conflicts_of(open_store(str(one.config_file)))


@pytest.mark.parametrize(
    ("now", "one", "other"),
    [
        ("o struct<a: int>", "x", "y"),
        ("o struct<a: struct<b: int>>", {"a": "x"}, {"a": "y"}),
        ("o array<double>", 1.5, 2.5),
        ("o array<struct<a: int>>", [1], [2]),
        ("o map<string, int>", 1, 2),
        ("o map<string, int>", [1], [2]),
        ("o int", {"a": 1}, {"a": 2}),
    ],
)
def test_values_of_before_another_type_are_compared(now: str, one: Any, other: Any) -> None:
    """A column got another type after the rows were written."""
    payload = tuple(leaves(parse_columns(now)))
    assert differing(payload, {"o": one}, {"o": other}) == tuple(leaf.name for leaf in payload)
    assert differing(payload, {"o": one}, {"o": one}) == ()


def test_a_field_of_another_type_leaves_its_neighbours_alone() -> None:
    """Only the field that differs is named, not all of its object."""
    payload = tuple(leaves(parse_columns("o struct<a: struct<b: int>, c: int>")))
    assert differing(payload, {"o": {"a": "x", "c": 1}}, {"o": {"a": "x", "c": 2}}) == ("o.c",)


def test_a_date_beyond_pythons_is_shown_and_compared(tmp_path: Path) -> None:
    """A Parquet port holds it, and the file is sound."""
    source = {"format": "files", "path": "in", "file_format": "parquet", "schema": "id string, d date"}
    one = job(tmp_path, source=source, fingerprint="all")
    days = pa.array([5_000_000, 5_000_001], pa.int32()).view(pa.date32())
    parquet.write_table(pa.table({"id": ["a", "a"], "d": days}), tmp_path / "in" / "1.parquet")
    one.run()
    store = open_store(str(one.config_file))
    assert conflicts_of(store).columns == {"d": 1}
    copies = explain(store, ("a",)).copies
    assert [(copy.record, copy.differs) for copy in copies] == [
        ({"d": "+15659-07-15"}, ()),
        ({"d": "+15659-07-16"}, ("d",)),
    ]


def test_off_nothing_is_kept(tmp_path: Path) -> None:
    """No column in pieces or ports, no note in the log."""
    one = job(tmp_path, fingerprint="none")
    put(one, "1", FIRST)
    one.run()
    assert {reason for _, reason in one.reasons()} == {"same_window"}
    assert "fingerprint" not in one.rows("duplicate")[0]["_dedup"]
    store = open_store(str(one.config_file))
    assert FINGERPRINT not in store.log.state.extra
    for pieces in store.log.state.pieces.values():
        for ref in pieces:
            _, blocks = decode_piece(store.pieces.read(ref), file=ref.file, offset=ref.offset)
            assert all(block.fingerprint is None for block in blocks)


def test_first_copies_need_not_be_kept(tmp_path: Path) -> None:
    """`first_seen: false`: reasons and fingerprints are the same, and no place is named."""
    one = job(tmp_path, store={"url": "file:state", "shards": 2, "first_seen": False})
    put(one, "1", FIRST)
    put(one, "2", SECOND)
    one.run()
    said = [row["_dedup"] for row in one.rows("duplicate")]
    expected = ["same_window", "conflict_in_window", "earlier_window", "conflict", "earlier_window", "conflict"]
    assert [row["reason"] for row in said] == expected
    assert all("first_seen" not in row for row in said)
    assert [row["fingerprint"] is None for row in said] == ["conflict" not in reason for reason in expected]


def test_on_off_and_other_columns(tmp_path: Path) -> None:
    """Keys of before, and of other columns, are unknown and never a conflict; the same columns again go on."""
    one = job(tmp_path, fingerprint="none")

    def judged(name: str, rows: Rows, fingerprint: Any) -> list[tuple[str, str]]:
        before = Counter(one.reasons())
        one.sections["fingerprint"] = fingerprint
        put(one, name, rows)
        one.run()
        return sorted((Counter(one.reasons()) - before).elements())

    but_sent: Any = {"except": ["sent_at"]}
    assert judged("1", [record("a")], "none") == []
    assert judged("2", [record("a", 2.0), record("b")], but_sent) == [("a", "unknown")]
    assert judged("3", [record("b", 2.0), record("c")], "none") == [("b", "earlier_window")]
    assert judged("4", [record("b", 2.0), record("c", 2.0)], but_sent) == [("b", "conflict"), ("c", "unknown")]
    assert judged("5", [record("b", 2.0), record("d")], "all") == [("b", "unknown")]
    assert judged("6", [record("d", sent_at=2), record("b", 2.0)], "all") == [("b", "unknown"), ("d", "conflict")]
    # Back to the first columns: since when is counted anew, so what they have of before does not count.
    assert judged("7", [record("b", 2.0), record("d", 2.0)], but_sent) == [("b", "unknown"), ("d", "unknown")]
    log = open_store(str(one.config_file)).log
    notes = [r.body.extra.get(FINGERPRINT) for r in log.records() if isinstance(r.body, CommitRecord)]
    since = [None if note is None else note[2] for note in notes]
    assert since == [None, 1, 1, 1, 4, 4, 6]
    assert [None if note is None else note[3] for note in notes] == [None, *["duplicate"], None, *["duplicate"] * 4]
    assert notes[2][:3] == notes[1][:3] == notes[3][:3], "off leaves since when as it is"
    with pytest.raises(UsageError, match="window 4 was judged with another `fingerprint`"):
        differences(one.config_file)


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_seed_has_the_jobs_payload(form: str, tmp_path: Path) -> None:
    """Of records and of outputs, which have columns of their own: their keys are compared with later copies."""
    sinks = {port: {"format": form, "path": f"out/{port}"} for port in PORTS}
    for fingerprint in ("all", {"except": ["sent_at"]}, {"columns": ["note"]}):
        one = job(tmp_path / str(len(str(fingerprint))), sinks=sinks, fingerprint=fingerprint)
        put(one, "1", FIRST)
        one.run()
        config = one.config
        for given in (
            SeedInput("files", str(one.root / "in"), "csv"),
            SeedInput("files", str(one.root / "out" / "unique"), is_of_outputs=True),
        ):
            assert seed_config(config, given).payload_identity == config.payload_identity


def test_a_seed_has_the_payload_where_two_parts_have_one_name(tmp_path: Path) -> None:
    """A column `a.b` beside the field `b` of an object `a`: both are compared."""
    source = {"format": "files", "path": "in", "file_format": "json"}
    one = job(tmp_path, source=source | {"schema": "id string, `a.b` string, a struct<b: string>"}, fingerprint="all")
    config = one.config
    assert config.payload is not None
    assert [leaf.path for leaf in config.payload] == [("a.b",), ("a", "b")]
    assert seed_config(config, SeedInput("files", str(tmp_path / "in"))).payload == config.payload


@pytest.mark.parametrize("expiry", [{"by": "never"}, ALL_LIVE | {"lookup": "own_bucket"}])
def test_a_seed_of_outputs_makes_versions_where_keys_expire_by_bucket(expiry: dict[str, Any], tmp_path: Path) -> None:
    """By the rules of the job: no later row takes the place of an earlier one."""
    one = job(tmp_path, expiry=expiry, on_conflict="unique")
    (tmp_path / "out" / "unique").mkdir(parents=True)
    given = SeedInput("files", str(tmp_path / "out" / "unique"), is_of_outputs=True)
    rules = judge_rules(seed_config(one.config, given), LogState(), 0)
    assert (rules.takes_later, rules.most_versions) == (False, 8)


@pytest.mark.parametrize("expiry", [{"by": "processing_time", "period": "1h"}, ALL_LIVE])
def test_a_seed_of_outputs_with_versions_that_die_one_by_one_is_refused(expiry: dict[str, Any], tmp_path: Path) -> None:
    """A row may be a version or its key again. Records can be seeded, and outputs where conflicts are errors."""
    one = job(tmp_path, expiry=expiry, on_conflict="unique")
    (tmp_path / "out" / "unique").mkdir(parents=True)
    records = SeedInput("files", str(tmp_path / "in"))
    outputs = SeedInput("files", str(tmp_path / "out" / "unique"), is_of_outputs=True)
    with pytest.raises(UsageError, match="Seed the records that the job has read, without --outputs"):
        plan_seed(one.config, outputs, None)
    assert seed_config(one.config, records).keeps_versions
    one.sections["on_conflict"] = "error"
    assert judge_rules(seed_config(one.config, outputs), LogState(), 0).takes_later


def test_merged_pieces_keep_fingerprints(tmp_path: Path) -> None:
    """Of pieces with and without the column; an entry without one is unknown after the merge too."""
    one = job(tmp_path, fingerprint="none", store={"url": "file:state", "shards": 1})
    put(one, "1", [record("a")])
    one.run()
    one.sections["fingerprint"] = "all"
    put(one, "2", [record("b")])
    one.run()
    state = open_store(str(one.config_file)).log.state
    backend = open_backend(one.config.store.url)
    task = CompactionTask(
        state.pieces[0], open_store(str(one.config_file)).log.manifest.store_id, state.epoch, None, None
    )
    merged = compact_pieces(backend, task)
    assert merged is not None
    _, blocks = decode_piece(backend.read(merged), file=merged.file, offset=merged.offset)
    known = {int(window): int(value) for b in blocks for window, value in zip(b.window, b.fingerprint, strict=True)}
    assert known[0] == 0
    assert known[1] != 0
    backend.close()
