"""Every check finds what it is there for: a job damaged in exactly one way, and what `verify` says of it."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bucket_store.log.records import DeletionRecord, LogSnapshot
from bucket_store.log.sources_file import GONE
from deduper.admin.verify.findings import MOST_LISTED, Check
from deduper.admin.verify.run import Verification, verify_target
from deduper.cli.views.soundness import render_verify as render
from deduper.errors import ExitCode
from deduper.sinks.names import Attempt, final_name
from tests.deduper.damage_by_hand import (
    DIRECTORY_AT,
    PieceBytes,
    change_ref,
    change_sources,
    flip,
    piece_of,
    remember_again,
)
from tests.deduper.whole_job import KINDS, WholeJob

pytestmark = pytest.mark.slow
SEED = 5
Where = tuple[Path, int] | Path
"""The file, and the byte, that a finding must name; the byte is not asked for when it is not given."""


@dataclass(frozen=True)
class Damage:
    """One way to damage a job. `also`: checks that must notice too, or may. `says`: what a finding must say."""

    name: str
    check: Check
    inflict: Callable[[WholeJob], Where]
    kind: str = "own_bucket"
    also: frozenset[Check] = frozenset()
    windows: int = 6
    snapshot_every: int = 1000
    says: str = ""


DAMAGES: list[Damage] = []


def damage(
    check: Check,
    *also: Check,
    kind: str = "own_bucket",
    windows: int = 6,
    snapshot_every: int = 1000,
    says: str = "",
) -> Callable[[Callable[[WholeJob], Where]], Callable[[WholeJob], Where]]:
    """Registers a way to damage a job."""

    def register(inflict: Callable[[WholeJob], Where]) -> Callable[[WholeJob], Where]:
        name = f"{check.id}: {inflict.__name__}" + ("" if kind == "own_bucket" else f" ({kind})")
        DAMAGES.append(Damage(name, check, inflict, kind, frozenset(also), windows, snapshot_every, says))
        return inflict

    return register


# --- manifest, settings, log


@damage(Check.MANIFEST)
def a_flipped_bit_in_the_manifest(job: WholeJob) -> Where:
    file = flip(job.log.root.local / "manifest", 40)
    return file, file.stat().st_size - 8


@damage(Check.SETTINGS, Check.PIECES_OVERDUE)
def a_config_for_another_key(job: WholeJob) -> Where:
    settings = json.loads(job.config_file.read_text())
    job.config_file.write_text(json.dumps({**settings, "key": "k"}))
    return job.log.root.local / "manifest"


@damage(Check.LOG_RECORDS)
def a_flipped_bit_in_the_newest_record(job: WholeJob) -> Where:
    file = flip(job.record(5)[0], 100)
    return file, file.stat().st_size - 8


@damage(Check.LOG_RECORDS, snapshot_every=4)
def a_flipped_bit_in_a_record_that_is_folded(job: WholeJob) -> Where:
    file = flip(job.record(0)[0], 100)
    return file, file.stat().st_size - 8


@damage(Check.LOG_RECORDS)
def a_record_that_is_cut_short(job: WholeJob) -> Where:
    file = job.record(5)[0]
    file.write_bytes(file.read_bytes()[:5])
    return file, 5


@damage(Check.LOG_ORDER, Check.LOG_CLOCK, Check.LOG_WALL_CLOCK)
def a_record_that_is_gone(job: WholeJob) -> Where:
    file = job.record(3)[0]
    file.unlink()
    return file


@damage(Check.LOG_ORDER, Check.LOG_COUNTS)
def a_window_that_is_left_out(job: WholeJob) -> Where:
    return job.change_window(5, lambda record: replace(record, window=7))


@damage(Check.LOG_ORDER)
def a_commit_of_an_epoch_that_nobody_claimed(job: WholeJob) -> Where:
    return job.change_window(5, lambda record: replace(record, epoch=3))


@damage(Check.LOG_SNAPSHOTS, snapshot_every=4)
def a_snapshot_that_lost_a_piece(job: WholeJob) -> Where:
    def without_one(snapshot: LogSnapshot) -> LogSnapshot:
        pieces = {shard: refs[1:] for shard, refs in snapshot.state.pieces.items()}
        return replace(snapshot, state=replace(snapshot.state, pieces=pieces))

    return job.change(4, without_one)


@damage(Check.LOG_CLOCK, windows=5)
def a_latest_point_that_went_back(job: WholeJob) -> Where:
    return job.change_window(4, lambda record: replace(record, latest_point=1))


@damage(Check.LOG_CLOCK, windows=5)
def a_latest_point_that_was_unset(job: WholeJob) -> Where:
    return job.change_window(4, lambda record: replace(record, latest_point=None))


@damage(Check.LOG_WALL_CLOCK)
def a_wall_clock_that_went_back(job: WholeJob) -> Where:
    return job.change_window(5, lambda record: replace(record, wall_us=record.wall_us - 10_000_001))


@damage(Check.LOG_COUNTS, Check.LOG_TOTALS)
def a_row_that_is_in_no_count(job: WholeJob) -> Where:
    return job.change_window(
        5, lambda record: replace(record, counts={**record.counts, "unique": record.counts["unique"] - 1})
    )


@damage(Check.LOG_COUNTS, Check.LOG_TOTALS)
def a_reason_that_counts_one_more(job: WholeJob) -> Where:
    def with_one_more(record: Any) -> Any:
        return replace(record, reasons={**record.reasons, "same_window": record.reasons.get("same_window", 0) + 1})

    return job.change_window(5, with_one_more)


@damage(Check.LOG_COUNTS, Check.OUTPUTS_STRANGE, says="expected")
def a_record_without_the_files_of_a_port(job: WholeJob) -> Where:
    return job.change_window(
        5, lambda record: replace(record, outputs=tuple(o for o in record.outputs if o.port != "unique"))
    )


@damage(Check.LOG_COUNTS, Check.LOG_TOTALS, says="rows of its source partitions")
def a_source_partition_with_one_more_row(job: WholeJob) -> Where:
    change_sources(job, 3, lambda parts: [replace(parts[0], rows=parts[0].rows + 1), *parts[1:]])
    return job.record(3)[0]


@damage(Check.LOG_TOTALS, Check.LOG_SNAPSHOTS, Check.LOG_COUNTS, snapshot_every=4)
def totals_of_the_newest_snapshot_that_are_no_sums(job: WholeJob) -> Where:
    def with_one_less(snapshot: LogSnapshot) -> LogSnapshot:
        totals = dict(snapshot.state.totals)
        totals["unique"] -= 1
        return replace(snapshot, state=replace(snapshot.state, totals=totals))

    numbers = [record.number for record in job.log.records() if isinstance(record.body, LogSnapshot)]
    job.change(max(numbers), with_one_less)
    return job.log.root.local / "log"


# --- sources


@damage(Check.SOURCES_BYTES)
def a_flipped_bit_in_a_sources_file(job: WholeJob) -> Where:
    file = flip(job.log.root.local / "sources" / job.log.state.sources[2].name, 30)
    return file, file.stat().st_size - 8


@damage(Check.SOURCES_BYTES)
def a_sources_file_that_is_gone(job: WholeJob) -> Where:
    file = job.log.root.local / "sources" / job.log.state.sources[2].name
    file.unlink()
    return file


@damage(Check.SOURCES_TWICE)
def a_source_partition_in_two_windows(job: WholeJob) -> Where:
    digests: list[bytes] = []

    def remember(parts: Any) -> Any:
        digests.append(parts[1].digest)
        return list(parts)

    change_sources(job, 1, remember)
    return change_sources(job, 4, lambda parts: [replace(parts[0], digest=digests[0]), *parts[1:]])


# --- pieces


@damage(Check.PIECES_BYTES)
def a_flipped_bit_in_a_piece(job: WholeJob) -> Where:
    piece = PieceBytes(job, piece_of(job, 3))
    row = piece.bucket()
    flip(piece.file, piece.ref.offset + piece.block(row) + 5)
    return piece.file, piece.ref.offset + piece.block(row)


@damage(Check.PIECES_BYTES)
def a_flipped_bit_in_the_directory_of_a_piece(job: WholeJob) -> Where:
    piece = PieceBytes(job, piece_of(job, 3))
    flip(piece.file, piece.ref.offset + DIRECTORY_AT + 3)
    return piece.file, piece.ref.offset


@damage(Check.PIECES_BYTES, Check.PIECES_LISTED)
def a_piece_that_is_gone(job: WholeJob) -> Where:
    ref = piece_of(job, 0)
    (job.log.root.local / ref.file).unlink()
    return job.log.root.local / ref.file, ref.offset


@damage(Check.PIECES_LISTED, Check.PIECES_BYTES, kind="batch")
def a_database_that_is_gone(job: WholeJob) -> Where:
    ref = piece_of(job, 0)
    shutil.rmtree(job.log.root.local / ref.file)
    return job.log.root.local / ref.file


@damage(Check.PIECES_BYTES, Check.PIECES_LISTED)
def a_piece_that_is_cut_short(job: WholeJob) -> Where:
    ref = piece_of(job, 0)
    file = job.log.root.local / ref.file
    file.write_bytes(file.read_bytes()[: ref.offset + ref.length - 1])
    return file, ref.offset


@damage(Check.PIECES_BYTES, says="store")
def a_piece_of_another_store(job: WholeJob) -> Where:
    piece = PieceBytes(job, piece_of(job, 3))
    piece.data[16:32] = b"another store 16"
    return piece.put_back(), piece.ref.offset


@damage(Check.PIECES_BYTES, says="as its record says")
def a_sound_piece_that_is_not_the_one_of_the_record(job: WholeJob) -> Where:
    ref = piece_of(job, 3)
    change_ref(job, ref, lambda ref: replace(ref, checksum=ref.checksum ^ 1))
    return job.log.root.local / ref.file, ref.offset


@damage(Check.PIECES_ORDER, Check.PIECES_INDEX, says="digests out of order")
def two_digests_that_changed_places(job: WholeJob) -> Where:
    piece = PieceBytes(job, piece_of(job, 3))
    at = piece.block(piece.bucket())
    piece.data[at : at + 32] = piece.data[at + 16 : at + 32] + piece.data[at : at + 16]
    return piece.put_back(), piece.ref.offset + at + 16


@damage(Check.PIECES_ORDER, says="digests of other shards")
def a_digest_of_another_shard(job: WholeJob) -> Where:
    piece = PieceBytes(job, piece_of(job, 3))
    at = piece.block(piece.bucket())
    piece.data[at + 8] ^= 1
    return piece.put_back(), piece.ref.offset + at


@damage(Check.PIECES_ORDER, kind="never", says="digests of other buckets")
def a_digest_of_another_bucket(job: WholeJob) -> Where:
    piece = PieceBytes(job, piece_of(job, 0))
    at = piece.block(piece.bucket(at_least=1))
    piece.data[at] ^= 1
    return piece.put_back(), piece.ref.offset + at


@damage(Check.PIECES_ORDER, Check.PIECES_INDEX, says="an entry of another bucket")
def an_expiry_key_of_another_bucket(job: WholeJob) -> Where:
    piece = PieceBytes(job, piece_of(job, 3))
    row = piece.bucket()
    count = piece.field(row, 16)
    at = piece.block(row) + 16 * count
    expiry = struct.unpack_from("<q", piece.data, at)[0]
    struct.pack_into("<q", piece.data, at, expiry - 10)
    return piece.put_back(), piece.ref.offset + piece.block(row)


@damage(Check.PIECES_INDEX, kind="category")
def a_place_that_no_category_had(job: WholeJob) -> Where:
    piece = PieceBytes(job, piece_of(job, 5))
    rows = struct.unpack_from("<I", piece.data, 12)[0]
    struct.pack_into("<q", piece.data, DIRECTORY_AT + 64 * (rows - 1), 1000)
    return piece.put_back(), piece.ref.offset + piece.block(rows - 1)


@damage(Check.PIECES_INDEX, says="least and greatest expiry key")
def a_directory_with_another_greatest_expiry_key(job: WholeJob) -> Where:
    piece = PieceBytes(job, piece_of(job, 3))
    row = piece.bucket()
    at = DIRECTORY_AT + 64 * row + 48
    struct.pack_into("<q", piece.data, at, struct.unpack_from("<q", piece.data, at)[0] - 1)
    return piece.put_back(), piece.ref.offset + piece.block(row)


@damage(Check.PIECES_INDEX, says="one of the window")
def an_origin_that_is_no_source_partition(job: WholeJob) -> Where:
    piece = PieceBytes(job, piece_of(job, 3))
    row = piece.bucket()
    at = piece.block(row) + 24 * piece.field(row, 16)
    struct.pack_into("<q", piece.data, at, 3 << 40)
    return piece.put_back(), piece.ref.offset + piece.block(row)


@damage(Check.PIECES_INDEX, says="greatest bucket")
def a_record_with_another_greatest_bucket(job: WholeJob) -> Where:
    ref = piece_of(job, 3)
    change_ref(job, ref, lambda ref: replace(ref, max_bucket=ref.max_bucket + 1))
    return job.log.root.local / ref.file, ref.offset


@damage(Check.PIECES_INDEX, says="greatest expiry key")
def a_record_with_another_greatest_expiry_key(job: WholeJob) -> Where:
    ref = piece_of(job, 3)
    change_ref(job, ref, lambda ref: replace(ref, max_expiry=(ref.max_expiry or 0) - 1))
    return job.log.root.local / ref.file, ref.offset


@damage(Check.PIECES_INDEX, Check.PIECES_BYTES, Check.LOG_COUNTS)
def a_record_that_counts_an_entry_less(job: WholeJob) -> Where:
    ref = piece_of(job, 3)
    change_ref(job, ref, lambda ref: replace(ref, entries=ref.entries - 1))
    return job.log.root.local / ref.file, ref.offset


@damage(Check.PIECES_INDEX, says="buckets of the window")
def a_window_with_a_bucket_less(job: WholeJob) -> Where:
    return job.change_window(3, lambda record: replace(record, buckets=record.buckets[1:]))


@damage(Check.PIECES_INDEX, says="buckets of the window")
def a_window_with_a_bucket_more(job: WholeJob) -> Where:
    return job.change_window(3, lambda record: replace(record, buckets=(*record.buckets, 1000)))


@damage(Check.PIECES_INDEX, says="greatest expiry key of the window")
def a_window_with_another_timestamp(job: WholeJob) -> Where:
    return job.change_window(3, lambda record: replace(record, timestamp=(record.timestamp or 0) + 1))


@damage(Check.PIECES_OVERDUE, windows=16, says="pieces that were dead after window")
def dead_pieces_that_nobody_lets_go_of(job: WholeJob) -> Where:
    """`WholeJob` never does."""
    return job.log.root.local / job.log.state.pieces[0][0].file


@damage(Check.PIECES_OVERDUE, windows=2, says="its bytes gone after window")
def bytes_that_are_kept_beyond_the_grace(job: WholeJob) -> Where:
    piece = piece_of(job, 0)
    job.log.place(DeletionRecord((piece,), job.log.state.last_wall_us, 0))
    job.interval_us = 700_000_000
    job.run_window()
    job.run_window()
    return job.log.root.local / piece.file, piece.offset


# --- keys


@damage(Check.KEYS_TWICE, Check.LOG_COUNTS)
def a_key_twice_in_a_bucket(job: WholeJob) -> Where:
    return remember_again(job, 5)


@damage(Check.KEYS_TWICE, Check.LOG_COUNTS, kind="never")
def a_key_twice_for_ever(job: WholeJob) -> Where:
    return remember_again(job, 0)


@damage(Check.KEYS_TWICE, Check.LOG_COUNTS, kind="category")
def a_key_twice_in_a_category(job: WholeJob) -> Where:
    return remember_again(job, 5)


@damage(Check.KEYS_TWICE, Check.LOG_COUNTS, kind="all_live")
def a_key_twice_among_the_living(job: WholeJob) -> Where:
    return remember_again(job, 5, later_by=10)


@damage(Check.KEYS_TWICE, Check.LOG_COUNTS, kind="all_live", windows=9)
def a_key_renewed_with_an_earlier_expiry_key(job: WholeJob) -> Where:
    return remember_again(job, 0)


@damage(Check.KEYS_TWICE, Check.LOG_COUNTS, kind="processing_time")
def a_key_twice_within_the_period_of_the_wall_clock(job: WholeJob) -> Where:
    return remember_again(job, 4, later_by=20_000_000)


# --- outputs and marks


@damage(Check.OUTPUTS_MISSING)
def a_staged_file_of_a_committed_window_that_is_gone(job: WholeJob) -> Where:
    record = job.judge()
    job.log.place(record)
    Path(record.outputs[0].staged).unlink()
    return Path(record.outputs[0].final)


@damage(Check.OUTPUTS_BYTES)
def a_flipped_bit_in_a_published_file(job: WholeJob) -> Where:
    return flip(job.published("error")[0], 1)


@damage(Check.OUTPUTS_BYTES)
def a_flipped_bit_in_a_staged_file(job: WholeJob) -> Where:
    record = job.judge()
    job.log.place(record)
    return flip(Path(record.outputs[0].staged), 100)


@damage(Check.OUTPUTS_BYTES)
def a_published_file_that_is_cut_short(job: WholeJob) -> Where:
    file = job.published("expired")[0]
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-3])
    return file, size - 3


@damage(Check.OUTPUTS_BYTES, Check.LOG_COUNTS)
def a_record_that_counts_a_row_more_in_a_file(job: WholeJob) -> Where:
    def one_more(record: Any) -> Any:
        first = record.outputs[0]
        return replace(record, outputs=(replace(first, rows=first.rows + 1), *record.outputs[1:]))

    job.change_window(5, one_more)
    return job.published("unique", 5)[0]


@damage(Check.OUTPUTS_EARLY)
def a_file_of_a_window_that_is_not_committed(job: WholeJob) -> Where:
    record = job.judge()
    job.publish(record.outputs)
    return Path(record.outputs[0].final)


@damage(Check.OUTPUTS_STRANGE)
def a_file_of_somebody_else(job: WholeJob) -> Where:
    file = job.config.sinks.unique.path / "part-0.parquet"  # type: ignore[union-attr]
    shutil.copy(job.published("unique")[0], file)
    return file


@damage(Check.OUTPUTS_STRANGE)
def a_file_that_was_packed(job: WholeJob) -> Where:
    file = job.published("unique")[0]
    packed = file.with_name(f"{file.name}.bz2")
    file.rename(packed)
    return packed


@damage(Check.OUTPUTS_STRANGE)
def a_file_of_another_store(job: WholeJob) -> Where:
    file = job.published("unique")[0]
    other = file.with_name("0123abcd" + file.name[8:])
    file.rename(other)
    return other


@damage(Check.OUTPUTS_STRANGE)
def a_file_that_no_record_names(job: WholeJob) -> Where:
    name = final_name(job.log.manifest.store_id, Attempt(3, 1, 0), 77, "parquet")
    file = job.config.sinks.unique.path / name  # type: ignore[union-attr]
    shutil.copy(job.published("unique", 3)[0], file)
    return file


@damage(Check.OUTPUTS_TWICE, Check.OUTPUTS_STRANGE)
def a_file_that_is_there_with_two_endings(job: WholeJob) -> Where:
    file = job.published("unique", 3)[0]
    shutil.copy(file, file.with_suffix(".json"))
    return file


@damage(Check.OUTPUTS_TWICE)
def a_file_that_is_staged_and_published(job: WholeJob) -> Where:
    record = job.judge()
    job.log.place(record)
    shutil.copy(record.outputs[0].staged, record.outputs[0].final)
    return Path(record.outputs[0].final)


@damage(Check.MARKS_STORE)
def a_port_with_the_mark_of_another_store(job: WholeJob) -> Where:
    file = job.directory / "out" / "expired" / "_published"
    job.mark_at(file, 5, "f" * 32)
    return file


@damage(Check.MARKS_AHEAD, says="found window 6")
def a_mark_beyond_the_log(job: WholeJob) -> Where:
    job.mark_at(job.log.root.local / "published", 6)
    return job.log.root.local / "published"


@damage(Check.MARKS_AHEAD, says="still staged")
def a_mark_of_a_window_that_is_still_staged(job: WholeJob) -> Where:
    record = job.judge()
    job.log.place(record)
    job.publish(record.outputs[1:])
    job.mark_at(job.directory / "out" / "error" / "_published", 6)
    return Path(record.outputs[0].staged)


@pytest.fixture(scope="module")
def sound_jobs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., WholeJob]:
    """Sound jobs by what they are like, each made once."""
    made: dict[Any, WholeJob] = {}

    def sound(kind: str, windows: int, snapshot_every: int) -> WholeJob:
        key = kind, windows, snapshot_every
        if key not in made:
            of_kind = replace(KINDS[kind], snapshot_every=snapshot_every)
            made[key] = WholeJob(tmp_path_factory.mktemp("sound"), of_kind, SEED).make(windows)
        return made[key]

    return sound


def _verified(job: WholeJob) -> Verification:
    return verify_target(str(job.config_file))


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_every_damage_is_found_by_its_check(
    damage: Damage, sound_jobs: Callable[..., WholeJob], tmp_path: Path
) -> None:
    """With file and place; nothing else is said to be wrong than what this damage breaks."""
    job = sound_jobs(damage.kind, damage.windows, damage.snapshot_every).copied(tmp_path / "job")
    where = damage.inflict(job)
    report = _verified(job)
    file, offset = where if isinstance(where, tuple) else (where, None)
    places = {(finding.file, finding.offset) for finding in report.findings if finding.check is damage.check}
    assert str(file) in {name for name, _ in places}, [str(finding) for finding in report.findings]
    assert offset is None or (str(file), offset) in places
    assert {finding.check for finding in report.findings} <= {damage.check, *damage.also}
    assert any(damage.says in str(finding) for finding in report.findings)
    assert all(finding.expected != finding.found and finding.what for finding in report.findings)
    assert report.exit_code in (ExitCode.INTEGRITY, ExitCode.UNHEALTHY)


def test_every_check_has_a_damage() -> None:
    """A check that nothing can fail is none."""
    assert {damage.check for damage in DAMAGES} == set(Check)


def test_a_file_that_was_gone_may_be_judged_later(sound_jobs: Callable[..., WholeJob], tmp_path: Path) -> None:
    """It was an error tuple of an earlier window, and judged in none."""
    job = sound_jobs("own_bucket", 6, 1000).copied(tmp_path / "job")
    digests: list[bytes] = []

    def gone(parts: Any) -> Any:
        digests.append(parts[1].digest)
        return [parts[0], replace(parts[1], version=GONE), *parts[2:]]

    change_sources(job, 1, gone)
    change_sources(job, 4, lambda parts: [replace(parts[0], digest=digests[0]), *parts[1:]])
    assert Check.SOURCES_TWICE not in {finding.check for finding in _verified(job).findings}


def test_damage_in_thousands_is_counted_not_told(sound_jobs: Callable[..., WholeJob], tmp_path: Path) -> None:
    """A report that nobody can read tells nothing."""
    job = sound_jobs("own_bucket", 6, 1000).copied(tmp_path / "job")
    folder = job.config.sinks.unique.path  # type: ignore[union-attr]
    strays = MOST_LISTED + 3
    for number in range(strays):
        (folder / f"stray-{number}.parquet").write_bytes(b"")
    report = _verified(job)
    assert len(report.findings) == MOST_LISTED
    assert report.unlisted == {Check.OUTPUTS_STRANGE: strays - MOST_LISTED}
    reported = next(check for check in report.to_json()["checks"] if check["check"] == "outputs.strange")
    assert reported["findings"] == strays


def test_the_report_says_what_to_do(sound_jobs: Callable[..., WholeJob], tmp_path: Path) -> None:
    """Each finding on its line, with file, byte, expected and found."""
    job = sound_jobs("own_bucket", 6, 1000).copied(tmp_path / "job")
    ref = piece_of(job, 3)
    flip(job.log.root.local / ref.file, ref.offset + ref.length - 1)
    report = _verified(job)
    (finding,) = report.findings
    first, *_ = render(report)
    assert str(first).startswith(f"pieces.bytes: {job.log.root.local / ref.file} at byte ")
    assert f"expected {finding.expected}, found {finding.found}" in str(first)
    assert report.exit_code is ExitCode.INTEGRITY


def test_disorder_alone_is_no_damage(sound_jobs: Callable[..., WholeJob], tmp_path: Path) -> None:
    """Exit code 3: nothing is lost."""
    job = sound_jobs("own_bucket", 6, 1000).copied(tmp_path / "job")
    a_file_of_somebody_else(job)
    assert _verified(job).exit_code is ExitCode.UNHEALTHY
