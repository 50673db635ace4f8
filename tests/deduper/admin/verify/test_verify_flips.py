"""No damaged bit is passed over: single flips in a sample of every kind of file, and keys twice in every slice."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import deduper.admin.verify.run
from bucket_store.log.marks import Intent, write_intent
from deduper.admin.verify.findings import Check
from deduper.admin.verify.keys import slice_edges
from deduper.admin.verify.run import Verification, verify_store, verify_target
from tests.deduper.damage_by_hand import flip, remember_again
from tests.deduper.settled import half_done
from tests.deduper.whole_job import KINDS, WholeJob
from tests.tiers import is_night

pytestmark = pytest.mark.slow
FLIPS = 12 if is_night() else 4


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> WholeJob:
    """A job with a file of every kind."""
    kind = replace(KINDS["own_bucket"], snapshot_every=4)
    return WholeJob(tmp_path_factory.mktemp("sound"), kind, 5).make(5)


def report_on(job: WholeJob) -> Verification:
    """What is said of a job that has ended."""
    return verify_target(str(job.config_file))


FILES: dict[str, Callable[[WholeJob], list[Path]]] = {
    "manifest": lambda job: [job.log.root.local / "manifest"],
    "records": lambda job: sorted((job.log.root.local / "log").iterdir()),
    "sources": lambda job: sorted((job.log.root.local / "sources").iterdir()),
    "pieces": lambda job: sorted(job.log.root.local.glob("pieces/*/*.piece")),
    "parquet": lambda job: job.published("unique"),
    "json": lambda job: job.published("expired"),
    "csv": lambda job: job.published("error"),
}


@pytest.mark.parametrize("files", FILES.values(), ids=FILES)
def test_every_flipped_bit_is_a_finding_in_that_file(
    files: Callable[[WholeJob], list[Path]], sound: WholeJob, tmp_path: Path
) -> None:
    """Wherever it falls; the finding names the file."""
    job = sound.copied(tmp_path / "job")
    draw = random.Random(7)
    for _ in range(FLIPS):
        file = draw.choice(files(job))
        whole = file.read_bytes()
        offset, bit = draw.randrange(len(whole)), draw.randrange(8)
        flip(file, offset, bit)
        found = report_on(job)
        assert found.exit_code == 4, (file.name, offset, bit)
        assert str(file) in {finding.file for finding in found.findings}, (file.name, offset, bit)
        file.write_bytes(whole)
    assert report_on(job).is_sound


@pytest.mark.parametrize(
    "name", ["state/published", "state/heartbeat", "state/intents/000001", "out/unique/_published"]
)
def test_what_counts_as_absent_when_damaged_is_told(name: str, sound: WholeJob, tmp_path: Path) -> None:
    """No harm comes of it, so it is no finding while the job may go on; once it has ended, it is half done."""
    job = sound.copied(tmp_path / "job")
    file = job.directory / name
    if "intents" in name:
        write_intent(job.log.root, Intent(5, 1, "q", 0, (), 1, None, 0, ""))
    elif "heartbeat" in name:
        file.write_bytes((job.log.root.local / "published").read_bytes())
    for offset in range(0, file.stat().st_size, 7):
        whole = file.read_bytes()
        flip(file, offset)
        found = report_on(job)
        assert found.findings == ()
        assert any("damaged" in note and str(file) in note for note in found.notes), offset
        assert half_done(found)
        file.write_bytes(whole)


@pytest.mark.night(but=["1-own_bucket", "7-never", "7-double", "2097152-all_live"])
@pytest.mark.parametrize("kind", ["own_bucket", "all_live", "double", "never"])
@pytest.mark.parametrize("slice_entries", [1, 7, 1 << 21])
def test_a_key_twice_is_found_in_whatever_slice_it_lies(
    kind: str, slice_entries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice of one digest, of some, of all: the same keys."""
    monkeypatch.setattr(deduper.admin.verify.run, "slice_edges", partial(slice_edges, slice_entries=slice_entries))
    job = WholeJob(tmp_path, KINDS[kind], 5).make(5)
    assert verify_store(job.open()).findings == ()
    remember_again(job, 0 if kind == "never" else 4, later_by=1 if kind == "all_live" else 0)
    piece = job.log.state.pieces
    newest = max((ref for refs in piece.values() for ref in refs), key=lambda ref: ref.first_window)
    report = verify_store(job.open())
    twice = [finding for finding in report.findings if finding.check is Check.KEYS_TWICE]
    assert len(twice) + report.unlisted.get(Check.KEYS_TWICE, 0) == newest.entries > 0
