"""`differences` finds nothing in what a job has done right, and every row that the oracle says otherwise."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bucket_store.log.sources_archive import SourcesReader
from deduper.errors import IntegrityError, UsageError
from deduper.query.rules import EventTime, Never
from deduper.testing import Difference, differences, verdicts
from tests.deduper.whole_job import KINDS, Kind, WholeJob, source_name

pytestmark = pytest.mark.slow
SEED = 5


@pytest.fixture(scope="module")
def sound_jobs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., WholeJob]:
    """Sound jobs by what they are like, each made once."""
    made: dict[Any, WholeJob] = {}

    def sound(kind: str, windows: int = 6) -> WholeJob:
        if (kind, windows) not in made:
            made[kind, windows] = WholeJob(tmp_path_factory.mktemp("sound"), KINDS[kind], SEED).make(windows)
        return made[kind, windows]

    return sound


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_sound_job_differs_in_nothing(tmp_path: Path, kind: Kind) -> None:
    """Every row of every port is read, and every record of the source is found where the oracle expects it."""
    job = WholeJob(tmp_path, kind, seed=SEED).make(7)
    assert differences(job.config_file, job.records) == []
    if len(job.config.file_ports) == 4:
        assert differences(job.config_file) == []
    else:
        with pytest.raises(UsageError, match=r"not all ports are files \(duplicate, error\); give the records"):
            differences(job.config_file)


def test_a_window_that_is_not_published_is_not_compared(tmp_path: Path) -> None:
    """Its rows are still staged; the records that only it has are said to be in no window."""
    job = WholeJob(tmp_path, seed=SEED).make(4)
    job.log.place(job.judge())
    assert differences(job.config_file) == []
    found = differences(job.config_file, job.records)
    assert {(one.window, one.found) for one in found} == {(3, "in none")}
    assert {one.source for one in found} <= {source_name(4, number) for number in range(3)}


def test_the_order_of_forgotten_sources_is_that_of_their_names(
    sound_jobs: Callable[..., WholeJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They leave the store with the keys of their window; the rows still name them."""
    job = sound_jobs("own_bucket")
    monkeypatch.setattr(SourcesReader, "of", lambda self, window: None)
    assert differences(job.config_file) == []
    source = source_name(2, 0)
    found = differences(job.config_file, job.records | {(source, 1000): None, ("in/more", 0): None})
    assert [(one.source, one.position, one.found) for one in found] == [
        (source, 1000, "in no port"),
        ("in/more", 0, "in none"),
    ]


def test_records_that_no_port_has_are_missed(sound_jobs: Callable[..., WholeJob]) -> None:
    """Lost before they were judged, or in the middle of a source partition."""
    job = sound_jobs("own_bucket")
    source = source_name(2, 0)
    position = max(at for name, at in job.records if name == source) + 1
    found = differences(job.config_file, job.records | {(source, position): None, ("in/more", 0): None})
    assert [str(one) for one in found] == [
        f"window 2: {source}, position {position}: expected in port error, found in no port",
        "window 5: in/more, position 0: expected in this window or an earlier one, found in none",
    ]


def test_other_records_than_the_jobs_give_other_verdicts(sound_jobs: Callable[..., WholeJob]) -> None:
    """The oracle judges what it is given: a record of another key, one that cannot be parsed, one that is not there."""
    job = sound_jobs("own_bucket")
    place, *others = [(source_name(0, 0), at) for at in range(20)]
    twin = next(of for of in others if job.records[of]["t"] is not None)
    (first, *_) = differences(job.config_file, job.records | dict.fromkeys(others, job.records[twin]))
    assert first.expected.startswith("duplicate same_window (0, ")
    (first, *_) = differences(job.config_file, job.records | {place: None})
    assert first == Difference(0, *place, "error", "unique")
    fewer = {of: record for of, record in job.records.items() if of != place}
    assert Difference(0, *place, "no such record", "in port unique") in differences(job.config_file, fewer)


def test_what_cannot_be_compared_is_refused(sound_jobs: Callable[..., WholeJob], tmp_path: Path) -> None:
    """A store without its config, a file that is none, a value of another type."""
    job = sound_jobs("own_bucket").copied(tmp_path / "job")
    with pytest.raises(UsageError, match="name the job's config file"):
        differences(str(job.log.root.local))
    place = next(iter(job.records))
    with pytest.raises(ValueError, match="'x' is no bigint"):
        differences(job.config_file, job.records | {place: {"k": "a", "n": "x", "t": 3}})
    job.published("unique")[0].write_bytes(b"")
    with pytest.raises(IntegrityError, match="cannot be read as an output"):
        differences(job.config_file)


# --- one row that is not as it was


@dataclass(frozen=True)
class Damage:
    """One way to damage the rows of a job, and what a difference must say."""

    name: str
    says: str
    inflict: Callable[[WholeJob], None]
    kind: str
    windows: int


DAMAGES: list[Damage] = []


def damage(
    says: str, *, kind: str = "own_bucket", windows: int = 6
) -> Callable[[Callable[[WholeJob], None]], Callable[[WholeJob], None]]:
    """Registers a way to damage a job."""

    def register(inflict: Callable[[WholeJob], None]) -> Callable[[WholeJob], None]:
        DAMAGES.append(Damage(f"{inflict.__name__} ({kind})", says, inflict, kind, windows))
        return inflict

    return register


def with_row(job: WholeJob, port: str, change: Callable[[dict[str, Any]], dict[str, Any]], window: int = 4) -> None:
    """One row of a port changed."""
    file = job.published(port, window)[0]
    first, *rest = job.read(file)
    job.write(file, [{**change(first)}, *rest])


def with_dedup(job: WholeJob, port: str, window: int = 4, **fields: Any) -> None:
    """One row of a port that says something else of its judgement."""
    with_row(job, port, lambda row: {**row, "_dedup": {**row["_dedup"], **fields}}, window)


@damage("expected verdict expired and window 4, found verdict unique and window 4")
def a_row_of_another_verdict(job: WholeJob) -> None:
    with_dedup(job, "expired", verdict="unique")


@damage("expected verdict unique and window 4, found verdict unique and window 3")
def a_row_of_another_window(job: WholeJob) -> None:
    with_row(job, "unique", lambda row: {**row, "_dedup": {**row["_dedup"], "window": 3}})


@damage("expected expired older_than_period, found expired category_dropped")
def a_row_of_another_reason(job: WholeJob) -> None:
    with_dedup(job, "expired", reason="category_dropped")


@damage("reasons {", kind="processing_time")
def an_error_of_another_reason(job: WholeJob) -> None:
    with_dedup(job, "error", reason="malformed")


def with_error(job: WholeJob, reason: str, pattern: str, text: str) -> None:
    """The first error of this reason, its line of CSV with another text."""
    for file in job.published("error"):
        lines = file.read_text().splitlines(keepends=True)
        for at, line in enumerate(lines):
            if reason in line:
                file.write_text("".join([*lines[:at], re.sub(pattern, text, line), *lines[at + 1 :]]))
                return
    raise KeyError(reason)


@damage("expected error null_key, found error key_too_long")
def an_error_of_a_reason_that_the_oracle_has_not(job: WholeJob) -> None:
    with_error(job, "null_key", "null_key", "key_too_long")


@damage("found error null_key")
def an_error_for_a_key_that_is_one(job: WholeJob) -> None:
    with_error(job, "null_key", "^,", "k1,")


@damage("found error null_expiry")
def an_error_for_an_expiry_key_that_is_one(job: WholeJob) -> None:
    with_error(job, "null_expiry", r"^(k\d+,\d),,", r"\g<1>,90,")


@damage("in/none.json, position 0: expected no such record, found in port unique")
def a_row_of_an_unknown_source(job: WholeJob) -> None:
    with_dedup(job, "unique", source="in/none.json", position=0)


@damage("rows, found ")
def a_row_that_is_gone(job: WholeJob) -> None:
    """And another in its place, so that the counts of the ports are right."""
    file = job.published("expired", 4)[0]
    mine = job.read(file)[0]["_dedup"]["source"]
    others = [source_name(4, number) for number in range(3) if source_name(4, number) != mine]
    with_dedup(job, "expired", source=others[0], position=1000)


@damage("expected once, found in port expired and in port expired")
def a_row_that_is_there_twice(job: WholeJob) -> None:
    file = job.published("expired", 4)[0]
    rows = job.read(file)
    job.write(file, [rows[1], *rows[1:]])


@damage("found duplicate same_window None")
def a_duplicate_without_its_first_copy(job: WholeJob) -> None:
    with_first(job, "same_window", lambda _: None)


@damage("expected unique no first copy, found unique (")
def a_unique_row_with_a_first_copy(job: WholeJob) -> None:
    first = job.read(job.published("duplicate", 4)[0])[0]["_dedup"]["first_seen"]
    with_dedup(job, "unique", first_seen=first or {"window": 3, "source": "a", "position": 1, "expiry": 9})


def with_first(job: WholeJob, reason: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """The newest duplicate of this reason, saying something else of its first copy."""
    for file in reversed(job.published("duplicate")):
        rows = job.read(file)
        for at, row in enumerate(rows):
            dedup = row["_dedup"]
            if dedup["reason"] == reason:
                other = change(dedup)
                first = None if other is None else {**dedup["first_seen"], **other}
                rows[at] = {**row, "_dedup": {**dedup, "first_seen": first}}
                job.write(file, rows)
                return
    raise KeyError(reason)


@damage("expected duplicate earlier_window (")
def a_duplicate_of_a_later_window(job: WholeJob) -> None:
    with_first(job, "earlier_window", lambda own: {"window": own["window"] + 1})


@damage(", 500, ")
def a_duplicate_of_a_row_that_was_not_unique(job: WholeJob) -> None:
    with_first(job, "earlier_window", lambda own: {"position": 500})


@damage("expected duplicate earlier_window (")
def a_duplicate_of_another_expiry_key_than_its_first_copy_has(job: WholeJob) -> None:
    with_first(job, "earlier_window", lambda own: {"expiry": own["first_seen"]["expiry"] + 1})


@damage("expected duplicate same_window (")
def a_duplicate_of_a_row_behind_it(job: WholeJob) -> None:
    with_first(job, "same_window", lambda own: {"source": own["source"], "position": own["position"] + 1})


@damage("expected duplicate earlier_window (", kind="all_live", windows=7)
def a_duplicate_of_a_dead_copy(job: WholeJob) -> None:
    old = job.read(job.published("unique", 0)[0])[0]
    named = {"window": 0, "source": old["_dedup"]["source"], "position": old["_dedup"]["position"], "expiry": old["t"]}
    with_first(job, "earlier_window", lambda _: named)


@damage("found expired older_than_period")
def a_row_that_was_not_old_enough(job: WholeJob) -> None:
    with_row(job, "expired", lambda row: {**row, "t": 90})


@damage("expected expired older_than_period, found unique")
def a_unique_row_that_was_too_old(job: WholeJob) -> None:
    with_row(job, "unique", lambda row: {**row, "t": 1})


@damage("expected duplicate ")
def a_unique_row_of_a_key_that_was_there(job: WholeJob) -> None:
    first, second = (job.read(file)[0] for file in job.published("unique", 4)[:2])
    with_row(job, "unique", lambda row: {**row, "k": second["k"], "n": second["n"], "t": second["t"]})
    assert (first["k"], first["n"]) != (second["k"], second["n"])


@damage("found expired older_than_period", kind="time")
def a_row_that_was_not_old_enough_in_time(job: WholeJob) -> None:
    newer = job.read(job.published("unique", 4)[0])[0]["t"]
    with_row(job, "expired", lambda row: {**row, "t": newer})


@damage("expected latest point ")
def a_latest_point_that_no_row_moved(job: WholeJob) -> None:
    job.change_window(5, lambda record: replace(record, latest_point=(record.latest_point or 0) + 1))


@damage("found expired", kind="processing_time")
def an_expired_row_where_nothing_expires(job: WholeJob) -> None:
    file = job.published("unique", 4)[0]
    other = job.directory / "out" / "expired" / file.name
    rows = [{**row, "_dedup": {**row["_dedup"], "verdict": "expired"}} for row in job.read(file)]
    shutil.move(file, other)
    job.write(other, rows)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_every_row_that_is_not_as_it_was_is_found(
    damage: Damage, sound_jobs: Callable[..., WholeJob], tmp_path: Path
) -> None:
    """With its window, and what the oracle expects."""
    job = sound_jobs(damage.kind, damage.windows).copied(tmp_path / "job")
    damage.inflict(job)
    found = differences(job.config_file)
    assert any(damage.says in str(one) for one in found), [str(one) for one in found]
    assert len(found) < 25


def test_verdicts_compare_payloads() -> None:
    """As a job does: objects by their fields, absent as null, all but what is left out; conflicts may be errors."""
    one = {"id": 1, "o": {"a": 1.0, "b": None}, "l": [1, {"x": math.nan}], "sent": 1}
    rows = [
        one,
        {"l": [1, {"x": math.nan, "y": None}], "o": {"a": 1}, "id": 1, "sent": 2},
        {**one, "l": [1, {"x": 2.0}]},
        {**one, "o": None},
    ]
    rules: dict[str, Any] = {"key": "id", "expiry": Never()}

    def reasons(**payload: Any) -> list[str]:
        return [f"{each.port}: {each.reason}" for each in verdicts([rows], **rules, **payload)[0][1:]]

    same, other = "duplicate: same_window", "duplicate: conflict_in_window"
    assert reasons() == [same, same, same]
    assert reasons(fingerprint="all") == [other, other, other]
    assert reasons(fingerprint={"except": ["sent"]}) == [same, other, other]
    assert reasons(fingerprint={"columns": ["o.a"]}) == [same, same, other]
    assert reasons(fingerprint={"columns": ["l"]}, on_conflict="error") == [same, "error: conflict_refused", same]


def test_an_expiry_key_beyond_64_bits_is_bad() -> None:
    """In steps of the store, as the readers count them."""
    rule = EventTime("t", period="1h", unit="s", lookup="all_live")
    rows = [{"id": number, "t": time} for number, time in enumerate((1 << 62, -(1 << 62), (1 << 62) // 1_000_000))]
    assert [one.reason for one in verdicts([rows], key="id", expiry=rule)[0]] == [
        *("bad_expiry", "bad_expiry", "ahead_of_now")
    ]
