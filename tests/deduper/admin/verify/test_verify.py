"""`verify` finds nothing in a sound store with sound outputs, whatever the job is like, and looks at all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import xxhash

from bucket_store.errors import CorruptionError
from bucket_store.log.heartbeat import HeartBeat
from bucket_store.log.records import DeletionRecord, LogState, OutputFile, WindowInfo
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece_files import PieceFiles
from bucket_store.pieces.store import StoredPiece
from deduper.admin.open_store import open_store
from deduper.admin.orphans import OrphanKind
from deduper.admin.verify.findings import Check, Finding, Findings
from deduper.admin.verify.log import LogHistory
from deduper.admin.verify.outputs import check_outputs
from deduper.admin.verify.pieces import _check_window, _Rebuilt
from deduper.admin.verify.run import Verification, _made_twice, verify_store, verify_target
from tests.deduper.settled import half_done
from tests.deduper.store_samples import BEGIN_US, HOUR_US, SeenKey, Window, make_store, write_config
from tests.deduper.whole_job import KINDS, Kind, WholeJob

pytestmark = pytest.mark.slow
BUCKET = BEGIN_US // HOUR_US


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """The config of a sound store of two windows, whose ports are written nowhere."""
    file = write_config(tmp_path)
    keys = [SeenKey((f"u{n}", n), BUCKET + n % 3, BEGIN_US + n % 3 * HOUR_US, n) for n in range(30)]
    make_store(file, [Window(keys, BEGIN_US), Window([SeenKey(("late", 1), BUCKET, BEGIN_US)], BEGIN_US)])
    return file


def verified(config_file: Path) -> Verification:
    """What `verify` says of the store of this config."""
    return verify_store(open_store(str(config_file)))


def test_a_sound_store_is_sound(config_file: Path) -> None:
    """And everything in it was read."""
    found = verified(config_file).to_json()
    assert (found["sound"], found["records"], found["entries"], found["sources"]) == (True, 4, 31, 2)
    assert (found["unnamed_pieces"], found["findings"]) == (0, [])


@pytest.mark.parametrize(
    ("kind", "snapshot_every"),
    [(kind, 1000 if number % 2 else 3) for number, kind in enumerate(KINDS.values())],
    ids=KINDS,
)
def test_every_check_passes_on_every_kind_of_job(tmp_path: Path, kind: Kind, snapshot_every: int) -> None:
    """Nothing is skipped, and nothing is worth a note."""
    job = WholeJob(tmp_path, replace(kind, snapshot_every=snapshot_every), seed=5).make(7)
    report = verify_store(job.open())
    assert (report.findings, half_done(report)) == ((), [])
    assert report.ran == set(Check)
    assert (report.skipped, report.notes, report.orphans) == ({}, (), ())


@pytest.mark.parametrize("final", ["function:unique", "kafka:clicks?job=test&slots=0"])
@pytest.mark.parametrize("is_published", [True, False])
@pytest.mark.parametrize("staged", [b"", b"rows", b"rowz"])
def test_rows_that_are_handed_over_are_staged_until_the_mark(
    tmp_path: Path, final: str, is_published: bool, staged: bytes
) -> None:
    """They have no other place, and no reader has taken them when they are gone."""
    job = WholeJob(tmp_path, KINDS["own_bucket"], seed=5).make(2)
    store = job.open()
    file = tmp_path / "staged.parquet"
    if staged:
        file.write_bytes(staged)
    output = OutputFile("unique", str(file), final, 4, xxhash.xxh3_64_intdigest(b"rows"), 1)
    state = store.log.state
    window = state.next_window - (1 if is_published else 0)
    state = replace(state, outputs={window: (output,)}, next_window=state.next_window + 1)
    findings = Findings()
    found = check_outputs(store, state, LogHistory(), findings)
    checks = [finding.check for finding in findings.found if str(file) in str(finding) or final in str(finding)]
    if is_published:
        assert checks == []
    elif staged == b"":
        assert checks == [Check.OUTPUTS_MISSING]
    else:
        assert checks == [Check.OUTPUTS_BYTES]
    assert found.taken == 0


def test_a_store_whose_records_are_folded_away_is_sound(tmp_path: Path) -> None:
    """The missing records are not checked, and the report says so."""
    job = WholeJob(tmp_path, replace(KINDS["own_bucket"], snapshot_every=4), seed=5).make(9)
    assert job.log.delete_folded(grace_us=0) > 0
    report = verify_store(job.open())
    assert (report.findings, half_done(report)) == ((), [])
    assert set(report.skipped) == {Check.PIECES_OVERDUE}


def test_moved_entries_make_up_for_no_lost_ones() -> None:
    """Of 3 new entries and a moved one 3 are left, the rest is dead: the window's index may say more than they do."""
    state = LogState(reason_totals={"version": 1})
    store: Any = SimpleNamespace(root=Path("store"), log=SimpleNamespace(state=state))
    findings = Findings()
    left = _Rebuilt({1}, 15, entries=3)
    _check_window(store, 4, WindowInfo((1, 2), 20, {"unique": 3}, 0), left, None, findings)
    assert not findings.found


def test_what_readers_take_away_is_told_and_no_finding(tmp_path: Path) -> None:
    """Ports are there to be emptied; what can still be checked is."""
    job = WholeJob(tmp_path, KINDS["own_bucket"], seed=5).make(8)
    for port in ("unique", "error"):
        for path in job.published(port)[::3]:
            path.unlink()
    report = verify_store(job.open())
    assert (report.findings, half_done(report)) == ((), [])
    assert any("readers have taken them" in note for note in report.notes)
    assert report.skipped == {}


def test_a_sleepers_record_in_a_freed_slot_counts_for_nothing(tmp_path: Path) -> None:
    """It lies below the newest snapshot, where the records before it are gone."""
    job = WholeJob(tmp_path, replace(KINDS["own_bucket"], snapshot_every=4), seed=5).make(9)
    log = job.log.root.local / "log"
    stale = (log / f"{3:020d}").read_bytes()
    job.log.delete_folded(grace_us=0)
    (log / f"{3:020d}").write_bytes(stale)
    assert verify_store(job.open()).findings == ()


def test_a_clock_that_was_ahead_twice_makes_no_piece_overdue(tmp_path: Path) -> None:
    """A piece left by the clock that was ahead; set back, its date is before windows that were judged ahead."""
    job = WholeJob(tmp_path, replace(KINDS["own_bucket"], snapshot_every=4), seed=5).make(3)
    leap = 2 * 86_400_000_000
    right_us = job.log.state.last_wall_us
    job.interval_us = leap
    job.run_window()
    job.interval_us = 1_000_000
    job.run_window()
    piece = job.log.state.pieces[0][0]
    ahead_us = job.log.state.last_wall_us
    job.log.place(DeletionRecord((piece,), ahead_us, 0))
    for wall_us in (right_us, ahead_us + 1):
        job.log.claim_epoch("a start", wall_us)
    assert job.log.state.retired[0].wall_us == right_us
    assert not [finding for finding in verify_store(job.open()).findings if finding.check == Check.PIECES_OVERDUE]


def test_without_a_config_it_says_what_was_not_checked(tmp_path: Path) -> None:
    """The ports and the period stand in the config alone."""
    job = WholeJob(tmp_path, seed=5).make(3)
    report = verify_target(str(job.log.root.local))
    assert report.findings == ()
    assert report.skipped.keys() >= {Check.PIECES_OVERDUE, Check.OUTPUTS_BYTES}
    assert all("config" in why for why in report.skipped.values())


@pytest.mark.parametrize("step", ["judged", "committed", "published", "store marked"])
def test_a_store_between_two_steps_of_a_window_is_sound_but_not_settled(tmp_path: Path, step: str) -> None:
    """A crash leaves it so, and the next start goes on from there."""
    job = WholeJob(tmp_path, seed=5).make(4)
    record = job.judge()
    if step != "judged":
        job.log.place(record)
    if step in ("published", "store marked"):
        job.publish(record.outputs)
    if step == "store marked":
        job.mark_at(job.log.root.local / "published", record.window)
    report = verify_store(job.open())
    assert report.findings == ()
    assert half_done(report)


def test_a_beating_heart_is_a_note(tmp_path: Path) -> None:
    """And of a job that should have ended, something half done."""
    job = WholeJob(tmp_path, seed=5).make(2)
    HeartBeat(job.log.root, "somebody:2").beat()
    report = verify_store(job.open())
    assert report.findings == ()
    assert [note.split(":")[0] for note in report.notes] == [
        "the heartbeat of somebody",
        "the newest claim, of epoch 1, is somebody",
    ]
    assert len(half_done(report)) == 1


def test_a_window_that_lost_a_piece_to_expiry_is_sound(tmp_path: Path) -> None:
    """Its record still says what all its pieces spanned; the rest must lie within."""
    job = WholeJob(tmp_path, seed=5).make(6)
    piece = job.log.state.pieces[1][0]
    job.log.place(DeletionRecord((piece,), job.log.state.last_wall_us, 0))
    report = verify_store(job.open())
    assert report.findings == ()
    assert [orphan.kind for orphan in report.orphans] == [OrphanKind.RETIRED_PIECE]


def test_remains_of_a_broken_attempt_are_counted_and_harmless(config_file: Path) -> None:
    """The next start discards them."""
    pieces = open_backend(open_store(str(config_file)).url)
    pieces.append(shard=0, epoch=2, name="000000000002-000002-000-0000-deadbeef", data=b"x" * 100)
    pieces.close()
    found = verified(config_file)
    assert (found.is_sound, found.unnamed_pieces) == (True, 1)


def test_what_is_let_go_of_while_it_is_read_is_no_finding(tmp_path: Path) -> None:
    """A job runs beside it: the piece is gone, and so is its name in the log."""
    job = WholeJob(tmp_path, KINDS["own_bucket"], seed=5).make(4)
    store = job.open()
    piece = store.log.state.pieces[0][0]

    class LettingGo(PieceFiles):
        """The job lets go of a piece when `verify` comes to it."""

        def read(self, wanted: Any, start: int = 0, length: int | None = None) -> bytes:
            if wanted.name == piece.name and piece in job.log.state.pieces[0]:
                job.log.place(DeletionRecord((piece,), job.log.state.last_wall_us, 0))
                self.delete([piece])
                raise CorruptionError("piece", file=piece.file, offset=piece.offset, expected="bytes", found="none")
            return super().read(wanted, start, length)

    assert verify_store(replace(store, pieces=LettingGo(store.root))).findings == ()
    assert piece not in job.log.state.pieces[0]


def test_what_is_published_while_it_is_looked_at_is_no_finding(tmp_path: Path) -> None:
    """A window is committed and published between the reading of the log and the listing of its ports."""
    job = WholeJob(tmp_path, KINDS["own_bucket"], seed=5).make(4)
    store = job.open()

    class Late(PieceFiles):
        """The job commits a window while the pieces are listed."""

        def pieces(self) -> Iterator[StoredPiece]:
            if job.log.state.next_window == 4:
                job.run_window()
            return super().pieces()

    report = verify_store(replace(store, pieces=Late(store.root)))
    assert report.findings == ()
    assert job.log.state.next_window == 5


def test_every_check_stands_in_the_documentation() -> None:
    """With its exit code and its promise; a check's name is stable."""
    text = (Path(__file__).parents[4] / "docs" / "verify.md").read_text(encoding="utf-8")
    for check in Check:
        assert f"| `{check.id}` | {check.level.value.value} | {check.promise} |" in text


def test_only_what_is_found_twice_counts() -> None:
    """The second pass is what is reported, without that which only it, or only the first one, has seen."""

    def finding(offset: int) -> Finding:
        return Finding.of(Check.OUTPUTS_MISSING, "a file", file="f", offset=offset, expected="there", found="none")

    passes = iter([[finding(1), finding(2)], [finding(2), finding(3)]])

    def one_pass(found: Findings) -> str:
        for each in next(passes):
            found.add(each)
        return "what the pass gives"

    findings = Findings()
    assert _made_twice(one_pass, findings) == "what the pass gives"
    assert findings.found == [finding(2)]
    assert list(passes) == []


def test_the_json_names_every_check_and_its_promise(tmp_path: Path) -> None:
    """For programs: the checks that were made."""
    report = verify_target(str(WholeJob(tmp_path, seed=5).make(2).config_file)).to_json()
    by_id = {check["check"]: check for check in json.loads(json.dumps(report))["checks"]}
    assert by_id.keys() == {check.id for check in Check}
    assert all(check["ran"] and check["promise"] and check["findings"] == 0 for check in by_id.values())
