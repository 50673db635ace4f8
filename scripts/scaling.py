"""What a job of any size needs, computed from measured constants.

    python scripts/scaling.py --keys 10e9 --executors 100        # one job
    python scripts/scaling.py --write | --check                  # the tables of docs/scaling.md

Sizes of records come from encoding made-up ones, and the life of pieces from a simulated day under the rule by which
the service merges them; all else is arithmetic on `Constants`. With `--check` nothing is written, and the exit code is
1 if a table of the page would change.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from bucket_store.log.codec import encode_record
from bucket_store.log.records import CommitRecord, LogRecord, LogSnapshot, LogState, OutputFile
from bucket_store.pieces.compaction import choose
from bucket_store.pieces.piece import PieceRef

PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"
_BLOCK = re.compile(r"(<!-- table ([a-z]+), by scripts/scaling\.py: begin -->\n).*?(<!-- table \2: end -->)", re.DOTALL)
DAY_S = 86_400
MOST_SHARDS = 4096
HEARTBEAT_S = 2
COUNTED_S = DAY_S // 4


@dataclass(frozen=True, slots=True)
class Constants:
    """Measured, each with where: the table of constants in docs/scaling.md says more."""

    table_bytes_a_key: float = 60.9
    piece_bytes_a_key: float = 32.0
    exchange_bytes_a_row: float = 29.0
    verdict_bytes_a_row: float = 6.0
    cpu_us_a_row: float = 1.25
    exchange_cpu_us_a_row: float = 0.16
    output_file_bytes: int = 128 << 20
    hdfs_read_mib_s: float = 171.0
    small_put_ms: float = 2.1
    large_put_ms: float = 6.4


MEASURED = Constants()


@dataclass(frozen=True, slots=True)
class Job:
    """What a job is asked for. `keys` are live ones: unique records a second times the period and one span."""

    keys: float
    executors: int = 1
    cores: int = 8
    period_s: int = DAY_S
    span_s: int = DAY_S // 24
    window_s: int = 30
    copies: float = 0.2
    record_bytes: int = 165
    file_ports: int = 2
    replicas: int = 2

    @property
    def shards(self) -> int:
        """One a core, as far as they go."""
        return min(MOST_SHARDS, self.executors * self.cores)

    @property
    def unique_s(self) -> float:
        """Unique records a second."""
        return self.keys / (self.period_s + self.span_s)

    @property
    def rows_s(self) -> float:
        """Records a second, copies included."""
        return self.unique_s / (1 - self.copies)

    @property
    def rows(self) -> float:
        """Records of a window."""
        return self.rows_s * self.window_s


@dataclass(frozen=True, slots=True)
class Needs:
    """What it comes to."""

    tables: float
    tables_an_executor: float
    keys_a_shard: float
    cores_busy: float
    pieces: float
    live_pieces: float
    files: float
    record: float
    records_a_day: float
    snapshot: float
    piece: float
    shuffled_s: float
    written_s: float
    merged: float
    merges: float
    writers: int
    namenode_calls_s: float
    namenode_edits_s: float
    puts_s: float
    cold_shard_s: float


def needs(job: Job, constants: Constants = MEASURED) -> Needs:
    """The arithmetic of docs/scaling.md."""
    shards, windows_s = job.shards, 1 / job.window_s
    piece = job.unique_s * job.window_s / shards * constants.piece_bytes_a_key
    life = day_of_pieces(piece, job)
    output_bytes = job.rows * job.record_bytes
    writers = max(min(job.executors, shards), int(output_bytes / constants.output_file_bytes))
    output_files = writers * job.file_ports
    new_pieces = shards * (1 + life.merges_a_window)
    return Needs(
        tables=job.keys * constants.table_bytes_a_key,
        tables_an_executor=job.keys * constants.table_bytes_a_key / job.executors,
        keys_a_shard=job.keys / shards,
        cores_busy=job.rows_s * (constants.cpu_us_a_row + constants.exchange_cpu_us_a_row) / 1e6,
        pieces=job.keys * constants.piece_bytes_a_key * job.replicas,
        live_pieces=life.mean_live * shards,
        files=life.mean_live * shards,
        record=record_bytes(shards, output_files),
        records_a_day=record_bytes(shards, output_files) * DAY_S * windows_s,
        snapshot=snapshot_bytes(shards, round(life.mean_live)),
        piece=piece,
        shuffled_s=job.rows_s * (constants.exchange_bytes_a_row + constants.verdict_bytes_a_row),
        written_s=job.unique_s * constants.piece_bytes_a_key * life.times_written,
        merged=piece * shards * (life.times_written - 1),
        merges=shards * life.merges_a_window,
        writers=writers,
        namenode_calls_s=(4 * new_pieces + 5 * output_files + 4 * job.file_ports + 31) * windows_s,
        namenode_edits_s=(6 * new_pieces + 7 * output_files + 6 * job.file_ports + 20) * windows_s,
        puts_s=(new_pieces + 3) * windows_s + 1 / HEARTBEAT_S,
        cold_shard_s=job.keys / shards * constants.piece_bytes_a_key / (constants.hdfs_read_mib_s * (1 << 20)),
    )


@dataclass(frozen=True, slots=True)
class LifeOfPieces:
    """A shard's pieces on a simulated day: live ones at the ends of windows, and how often bytes are written."""

    mean_live: float
    peak_live: int
    times_written: float
    merges_a_window: float


_days: dict[tuple[int, int, int, int], LifeOfPieces] = {}


def day_of_pieces(piece_bytes: float, job: Job) -> LifeOfPieces:
    """A piece a window in one shard; each window at most one merging, as soon as the service's rule asks for one.

    Counted for six hours after one period, when as many bytes leave as come. Sizes are rounded to a power of two: the
    rule goes by ratios, so the life hardly depends on more.
    """
    length = 1 << max(9, round(piece_bytes).bit_length() - 1)
    key = (length, job.window_s, job.span_s, job.period_s)
    if key not in _days:
        _days[key] = _simulated(length, job.window_s, job.span_s, job.period_s)
    return _days[key]


def _simulated(length: int, window_s: int, span_s: int, period_s: int) -> LifeOfPieces:
    live: list[PieceRef] = []
    count, peak, total, added, written, merges = 0, 0, 0, 0, 0, 0
    for window in range((period_s + COUNTED_S) // window_s):
        now = window * window_s
        bucket = now // span_s
        live = [piece for piece in live if (piece.max_bucket + 1) * span_s > now - period_s]
        live.append(_piece(0, window, length, bucket))
        chosen = choose(live, lambda piece: piece.max_bucket)
        is_counted = now >= period_s
        if chosen:
            merged = sum(piece.length for piece in chosen)
            gone = set(map(id, chosen))
            live = [piece for piece in live if id(piece) not in gone]
            live.append(_piece(0, window, merged, chosen[-1].max_bucket))
        if is_counted:
            count, peak, total = count + 1, max(peak, len(live)), total + len(live)
            added += length
            written += length + (merged if chosen else 0)
            merges += bool(chosen)
    return LifeOfPieces(total / count, peak, written / added, merges / count)


def _piece(shard: int, window: int, length: int, bucket: int) -> PieceRef:
    return PieceRef(
        shard=shard,
        file=f"pieces/{shard:04d}/000001-0000.piece",
        name=f"{window:012d}-000001-000-{shard:04d}-{shard * 2654435761 % 2**32:08x}",
        offset=window * length,
        length=length,
        checksum=(window + 1) * 0x9E3779B97F4A7C15 % 2**64,
        first_window=window,
        last_window=window,
        entries=length // 32,
        min_bucket=bucket,
        max_bucket=bucket,
        max_expiry=1_790_000_000_000_000 + window,
    )


def record_bytes(shards: int, output_files: int) -> int:
    """A commit record with a piece of each shard and so many output files."""
    pieces = tuple(_piece(shard, 100_000, 200_000, 500_000) for shard in range(shards))
    outputs = tuple(
        OutputFile("unique", f"_staging/000000100000-000001/{at:05d}.parquet", f"000000100000-{at:05d}.parquet", *size)
        for at in range(output_files)
        for size in [(100_000_000, (at + 1) * 0x9E3779B97F4A7C15 % 2**64, 1_000_000)]
    )
    counts = {"unique": 10**6, "duplicate": 10**5, "expired": 10**3, "error": 10}
    commit = CommitRecord(
        *(100_000, 1, 0, "", 100_000, 1_790_000_000_000_000, "0123456789abcdef", 1_790_000_000_000_000, None),
        *(counts, {}, pieces, outputs, (500_000,), 1_790_000_000_000_000, None, {}),
    )
    return len(encode_record(LogRecord(100_001, 1, bytes(16), 99_999, -1, commit)))


def snapshot_bytes(shards: int, live: int) -> int:
    """A snapshot of a state with so many live pieces in each shard; of many shards by their number."""
    counted = min(shards, 32)
    pieces = {shard: tuple(_piece(shard, at, 200_000, 500_000) for at in range(live)) for shard in range(counted)}
    state = LogState(next_number=1000, epoch=1, next_window=1000, pieces=pieces)
    return len(encode_record(LogRecord(1000, 1, bytes(16), 999, -1, LogSnapshot(state)))) * shards // counted


def _size(number: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB", "PB"):
        if number < 1000 or unit == "PB":
            return f"{_short(number)} {unit}"
        number /= 1000
    raise AssertionError


def _short(number: float) -> str:
    """Two digits that count."""
    if number >= 100:
        digits = len(str(round(number))) - 2
        return f"{round(number / 10**digits) * 10**digits:,}"
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def _count(number: float) -> str:
    if number < 1e6:
        return _short(number)
    return f"{_short(number / 1e6)} M" if number < 1e9 else f"{_short(number / 1e9)} G"


_JOBS = (
    Job(50e6, 1),
    Job(1e9, 10),
    Job(10e9, 100),
    Job(10e9, 100, window_s=10),
    Job(100e9, 1000),
    Job(100e9, 1000, period_s=3600, span_s=300),
)


def _table(head: str, rows: list[list[str]]) -> str:
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _columns(rows: list[tuple[str, list[str]]]) -> str:
    head = "| | " + " | ".join(f"{_count(job.keys)} keys" for job in _JOBS) + " |"
    return _table(head, [[name, *cells] for name, cells in rows])


def demand_table() -> str:
    """The jobs and what they ask of memory, cores and disks."""
    found = [(job, needs(job)) for job in _JOBS]
    return _columns(
        [
            ("executors of 8 cores; shards", [f"{job.executors:,}; {job.shards:,}" for job, _ in found]),
            ("period; window", [f"{job.period_s // 3600} h; {job.window_s} s" for job in _JOBS]),
            ("records/s", [_count(job.rows_s) for job in _JOBS]),
            ("tables, all", [_size(each.tables) for _, each in found]),
            ("tables, an executor", [_size(each.tables_an_executor) for _, each in found]),
            ("keys a shard", [_count(each.keys_a_shard) for _, each in found]),
            ("cores busy with records", [_short(max(1, each.cores_busy)) for _, each in found]),
            ("live pieces, two replicas", [_size(each.pieces) for _, each in found]),
            ("keys and verdicts between tasks", [f"{_size(each.shuffled_s)}/s" for _, each in found]),
            ("pieces written, mergings included", [f"{_size(each.written_s)}/s" for _, each in found]),
            ("a cold shard from HDFS, bytes alone", [f"{_short(each.cold_shard_s)} s" for _, each in found]),
        ]
    )


def storage_table() -> str:
    """The same jobs and what they ask of the log, a NameNode or an object store."""
    found = [needs(job) for job in _JOBS]
    return _columns(
        [
            ("piece of a shard and window", [_size(each.piece) for each in found]),
            ("live pieces, if merging keeps up", [_count(each.live_pieces) for each in found]),
            ("merges due after a window", [_short(each.merges) for each in found]),
            ("bytes of them", [_size(each.merged) for each in found]),
            ("writers a window", [_short(each.writers) for each in found]),
            ("commit record", [_size(each.record) for each in found]),
            ("records of a day", [_size(each.records_a_day) for each in found]),
            ("snapshot", [_size(each.snapshot) for each in found]),
            ("NameNode: calls/s", [_short(each.namenode_calls_s) for each in found]),
            ("NameNode: edits/s", [_short(each.namenode_edits_s) for each in found]),
            ("HDFS: files of pieces", [_count(each.files) for each in found]),
            ("object store: puts/s", [_short(each.puts_s) for each in found]),
            ("object store: puts a day", [_count(each.puts_s * DAY_S) for each in found]),
        ]
    )


def life_table() -> str:
    """Live pieces and bytes written again, by the size of a window's piece."""
    rows = []
    for window_s in (10, 30):
        for size in (1 << 12, 100 << 10, 1 << 20):
            life = day_of_pieces(size, Job(1e9, window_s=window_s))
            rows.append(
                [
                    f"{window_s} s",
                    _size(size),
                    _short(life.mean_live),
                    _short(life.peak_live),
                    _short(life.times_written),
                ]
            )
    return _table("| window | piece | live pieces, mean | peak | times written |", rows)


def record_table() -> str:
    """Bytes of the log by shards."""
    rows = []
    for shards in (8, 100, 1000, MOST_SHARDS):
        record = record_bytes(shards, 2)
        rows.append([f"{shards:,}", _size(record), _size(snapshot_bytes(shards, 50)), _size(record * DAY_S / 10)])
    return _table(
        "| shards | commit record | snapshot of 50 pieces a shard | records of a day, a window every 10 s |", rows
    )


TABLES = {"demand": demand_table, "storage": storage_table, "life": life_table, "record": record_table}


def filled(page: str) -> str:
    """The page with its tables as they are computed now."""
    return _BLOCK.sub(lambda block: f"{block[1]}{TABLES[block[2]]()}{block[3]}", page)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables of docs/scaling.md")
    parser.add_argument("--check", action="store_true", help="exit 1 if they would change")
    for name, default in (("keys", 1e9), ("executors", 10), ("cores", 8), ("copies", 0.2)):
        parser.add_argument(f"--{name}", type=type(default) if name != "keys" else float, default=default)
    for name in ("period_s", "span_s", "window_s", "record_bytes", "file_ports", "replicas"):
        default = Job.__dataclass_fields__[name].default
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    given = vars(parser.parse_args())
    is_written, is_checked = given.pop("write"), given.pop("check")
    if is_written or is_checked:
        page = PAGE.read_text(encoding="utf-8")
        now = filled(page)
        if is_written:
            PAGE.write_text(now, encoding="utf-8")
        sys.exit(int(is_checked and now != page))
    job = Job(**given)
    found = needs(job)
    print(f"{job.shards} shards, {_count(job.rows_s)} records/s, {_count(job.rows)} a window")
    for name in Needs.__dataclass_fields__:
        value = getattr(found, name)
        is_bytes = name in (
            "tables",
            "tables_an_executor",
            "pieces",
            "record",
            "records_a_day",
            "snapshot",
            "piece",
            "merged",
        )
        is_rate = name in ("shuffled_s", "written_s")
        print(f"{name:20} {_size(value) if is_bytes or is_rate else _count(value)}{'/s' if is_rate else ''}")


if __name__ == "__main__":
    main()
