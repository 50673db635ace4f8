"""The log against itself: every record that is still there is read, and the records are added up.

The log is read here file by file and not through `CommitLog`, which stops at the first damage. Records below the newest
snapshot may be gone, or come from an overtaken driver that resumed: they count only if they follow one another up to
that snapshot without a gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import pairwise

import numpy as np

from bucket_store.errors import CorruptionError, StoreError
from bucket_store.log.codec import decode_record, demand_kind, record_name, record_number
from bucket_store.log.commit_log import DIRECTORY
from bucket_store.log.judged_files import read_judged
from bucket_store.log.manifest import Manifest
from bucket_store.log.records import (
    ClaimRecord,
    CommitRecord,
    CompactionRecord,
    DeletionRecord,
    ExpiryKey,
    LogRecord,
    LogSnapshot,
    LogState,
    RebaseRecord,
    SourcesFoldRecord,
)
from bucket_store.log.sources_archive import SourcesReader
from bucket_store.log.sources_file import FOLDED_DIRECTORY, GONE, SourcePartition
from bucket_store.log.state import fold_all
from bucket_store.log.wall_clock import is_far_ahead
from bucket_store.places.place import Place
from deduper.admin.verify.findings import Check, Findings
from deduper.core.verdict import PORT_OF_REASON, VERSION_REASON, TupleVerdict
from deduper.payload import MOST_VERSIONS

LOG_CHECKS = (
    Check.LOG_RECORDS,
    Check.LOG_ORDER,
    Check.LOG_SNAPSHOTS,
    Check.LOG_CLOCK,
    Check.LOG_WALL_CLOCK,
    Check.LOG_COUNTS,
    Check.LOG_TOTALS,
)
SOURCES_CHECKS = (Check.SOURCES_BYTES, Check.SOURCES_TWICE)


@dataclass(frozen=True, slots=True)
class KnownCommit:
    """A window's commit record that is still in the log, and the latest point before it."""

    file: str
    record: CommitRecord
    latest_before: ExpiryKey | None


@dataclass
class LogHistory:
    """The content of the records that count.

    `records` is how many there are, counted or not. `base` is the state from which on every record was read and
    follows, None when there is none. `commits` are the windows since, by number; those up to `last_ahead` were judged
    before a wall clock far ahead came back, so their clocks are not comparable with later ones.
    """

    records: int = 0
    base: LogState | None = None
    commits: dict[int, KnownCommit] = field(default_factory=dict)
    last_claim: ClaimRecord | None = None
    last_ahead: int = -1


@dataclass
class _Run:
    """Records that follow one another: the fold of those read so far, but for the pending ones."""

    state: LogState | None = None
    pending: list[LogRecord] = field(default_factory=list)
    last_commit_us: int | None = None
    last_wall_us: int = 0


def check_log(root: Place, manifest: Manifest, findings: Findings) -> LogHistory:
    """Reads all records; gives what they say of the windows whose records are still there."""
    findings.run(*LOG_CHECKS[:-1])
    history = LogHistory()
    is_all_live = manifest.settings.get("expiry.lookup") == "all_live"
    numbers = _numbers(root)
    counted = _counted(numbers, manifest.snapshot_every)
    run = _Run()
    for number in numbers:
        path = root / DIRECTORY / record_name(number)
        try:
            record = decode_record(path.read(), number=number, file=str(path))
            demand_kind(record, manifest.snapshot_every, str(path))
        except FileNotFoundError:
            continue  # folded, and deleted since the listing
        except (StoreError, OSError) as error:
            findings.failed(Check.LOG_RECORDS, error, f"record {number}", file=path)
            run, history.base = _Run(), None
            continue
        history.records += 1
        if number not in counted:
            continue
        if isinstance(record.body, LogSnapshot):
            _fold(run, root, findings)
            _check_snapshot(run, record, str(path), findings)
            if run.state is None:
                history.base = record.body.state
            run = _Run(record.body.state, [], run.last_commit_us, record.body.state.last_wall_us)
        if run.state is not None:
            run.pending.append(record)
            _check_record(run, record, str(path), history, is_all_live, findings)
    _fold(run, root, findings)
    _check_gaps(counted, root, findings)
    _check_ports(history, findings)
    return history


def check_totals(state: LogState, root: Place, history: LogHistory, findings: Findings) -> None:
    """The totals of the newest state, against those of the oldest that is known and the windows since."""
    base = history.base
    if base is None:
        findings.skip("no record can be read from a snapshot on", Check.LOG_TOTALS)
        return
    findings.run(Check.LOG_TOTALS)
    totals, reasons = Counter(base.totals), Counter(base.reason_totals)
    for window in range(base.next_window, state.next_window):
        known = history.commits.get(window)
        if known is None:
            return  # Its record is damaged, and found as such.
        totals.update(known.record.counts)
        reasons.update(known.record.reasons)
    for what, stated, summed in (
        ("tuples by port", state.totals, totals),
        ("tuples by reason", state.reason_totals, reasons),
    ):
        findings.expect(
            Check.LOG_TOTALS,
            f"{what}, over all {state.next_window} windows",
            file=root / DIRECTORY,
            expected=dict(summed),
            found=dict(stated),
        )
    _check_reasons(state.totals, state.reason_totals, "all windows", str(root / DIRECTORY), Check.LOG_TOTALS, findings)


def check_sources(state: LogState, root: Place, history: LogHistory, findings: Findings) -> dict[int, list[int]]:
    """Reads every sources file: rows by source partition, of the windows whose file is sound.

    Held against them are the counts of the windows, and of all windows together.
    """
    findings.run(*SOURCES_CHECKS)
    rows: dict[int, list[int]] = {}
    total = 0
    digests: list[bytes] = []
    windows: list[int] = []
    reader = SourcesReader(root, state)
    named = [*_archived(reader, state, findings), *sorted(state.sources)]
    is_whole = len(named) == state.next_window
    if not is_whole:
        gone = state.next_window - len(named)
        findings.skip(f"not for {gone:,} windows of which all keys and the sources file are gone", Check.SOURCES_TWICE)
    for window in named:
        try:
            partitions = reader.of(window) or ()
        except (StoreError, OSError) as error:
            where = reader.file(window)
            findings.failed(Check.SOURCES_BYTES, error, f"sources of window {window}", file=where)
            is_whole = False
            continue
        rows[window] = [partition.rows for partition in partitions]
        total += sum(rows[window])
        judged = [partition.digest for partition in partitions if partition.version != GONE]
        digests += judged
        windows += [window] * len(judged)
        _check_window_rows(state, window, partitions, root, history, findings)
    _check_judged(state, root, findings)
    _check_twice(reader, digests, windows, findings)
    stated = sum(state.totals.values())
    if is_whole and stated != total:
        findings.wrong(
            Check.LOG_TOTALS,
            "rows that the windows counted, and rows of all source partitions",
            file=root / DIRECTORY,
            expected=total,
            found=stated,
        )
    return rows


def _numbers(root: Place) -> list[int]:
    names = (entry.name for entry in (root / DIRECTORY).entries())
    return sorted(number for name in names if (number := record_number(name)) is not None)


def _counted(numbers: list[int], snapshot_every: int) -> set[int]:
    """The numbers from the newest snapshot on, and those before it as far as they touch."""
    if not numbers:
        return set()
    counted = set()
    newest_snapshot = numbers[-1] - numbers[-1] % snapshot_every
    expected = None
    for number in reversed(numbers):
        if number < newest_snapshot and number != expected:
            break
        counted.add(number)
        expected = number - 1
    return counted


def _check_gaps(counted: set[int], root: Place, findings: Findings) -> None:
    """From the newest snapshot on no number may be missing."""
    for before, after in pairwise(sorted(counted)):
        if after > before + 1:
            findings.wrong(
                Check.LOG_ORDER,
                "a record is missing",
                file=root / DIRECTORY / record_name(before + 1),
                expected=f"records {before + 1} to {after - 1}",
                found="no file",
            )


def _fold(run: _Run, root: Place, findings: Findings) -> None:
    """Brings the run's state up to date; a record out of turn ends the run until the next snapshot."""
    if run.state is None:
        return
    try:
        run.state = fold_all(run.state, run.pending)
    except CorruptionError as error:
        findings.failed(Check.LOG_ORDER, _under(root, error))
        run.state = None
    run.pending = []


def _check_snapshot(run: _Run, record: LogRecord, file: str, findings: Findings) -> None:
    if run.state is None or record.number == 0:
        return
    assert isinstance(record.body, LogSnapshot)
    stated = record.body.state
    for name in (each.name for each in fields(LogState)):
        folded, found = getattr(run.state, name), getattr(stated, name)
        if folded != found:
            expected, shown = _difference(folded, found)
            findings.wrong(Check.LOG_SNAPSHOTS, f"snapshot: {name}", file=file, expected=expected, found=shown)


def _difference(expected: object, found: object) -> tuple[object, object]:
    """The first part in which two values differ, where they have parts."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted(expected.keys() | found.keys(), key=str):
            if expected.get(key) != found.get(key):
                return f"{key}: {expected.get(key)}", f"{key}: {found.get(key)}"
    return expected, found


def _under(root: Place, error: CorruptionError) -> CorruptionError:
    """The error with the whole path of its file: the fold has no directory."""
    return CorruptionError(
        error.what, file=str(root / error.file), offset=error.offset, expected=error.expected, found=error.found
    )


def _check_record(
    run: _Run, record: LogRecord, file: str, history: LogHistory, is_all_live: bool, findings: Findings
) -> None:
    match record.body:
        case ClaimRecord() as claim:
            history.last_claim = claim
            _follow_wall_clock(run, claim.wall_us, history)
        case CommitRecord() as commit:
            _check_commit(run, commit, file, history, findings)
            _check_entries(commit, file, is_all_live, findings)
        case RebaseRecord(state=base, wall_us=wall_us):
            for window in [window for window in history.commits if window >= base.next_window]:
                del history.commits[window]
            _follow_wall_clock(run, wall_us, history)
            _check_wall_clock(run, wall_us, file, findings)
        case DeletionRecord(wall_us=wall_us) | CompactionRecord(wall_us=wall_us) | SourcesFoldRecord(wall_us=wall_us):
            _follow_wall_clock(run, wall_us, history)
            _check_wall_clock(run, wall_us, file, findings)


def _follow_wall_clock(run: _Run, wall_us: int, history: LogHistory) -> None:
    """After a clock that was far ahead, windows begin at the present one; see `log.state`."""
    if is_far_ahead(run.last_wall_us, wall_us):
        run.last_commit_us, run.last_wall_us = None, wall_us
        history.last_ahead = max(history.commits, default=-1)
    run.last_wall_us = max(run.last_wall_us, wall_us)


def _check_wall_clock(run: _Run, wall_us: int, file: str, findings: Findings) -> None:
    if run.last_commit_us is not None and wall_us < run.last_commit_us:
        findings.wrong(
            Check.LOG_WALL_CLOCK, "wall clock", file=file, expected=f"{run.last_commit_us} or later", found=wall_us
        )


def _check_commit(run: _Run, commit: CommitRecord, file: str, history: LogHistory, findings: Findings) -> None:
    _check_wall_clock(run, commit.wall_us, file, findings)
    run.last_commit_us = commit.wall_us
    run.last_wall_us = max(run.last_wall_us, commit.wall_us)
    before = history.commits.get(commit.window - 1)
    latest_before = None
    if before is not None:
        latest_before = before.record.latest_point
    elif run.state is not None:
        latest_before = run.state.latest_point
    if latest_before is not None and (commit.latest_point is None or commit.latest_point < latest_before):
        findings.wrong(
            Check.LOG_CLOCK,
            f"latest point of window {commit.window}",
            file=file,
            expected=f"{latest_before} or later",
            found=commit.latest_point,
        )
    history.commits[commit.window] = KnownCommit(file, commit, latest_before)
    _check_reasons(commit.counts, commit.reasons, f"window {commit.window}", file, Check.LOG_COUNTS, findings)
    _check_output_counts(commit, file, findings)


def _check_reasons(
    counts: dict[str, int], reasons: dict[str, int], of: str, file: str, check: Check, findings: Findings
) -> None:
    """The reasons of a port add up to its count; of unique tuples only versions have one."""
    by_port: Counter[str] = Counter()
    for reason, count in reasons.items():
        by_port[PORT_OF_REASON.get(reason, f"of the reason {reason}")] += count
    for port in (by_port.keys() | counts.keys()) - {TupleVerdict.UNIQUE.port}:
        if by_port[port] != counts.get(port, 0):
            findings.wrong(
                check,
                f"{of}: tuples of port {port}, and their reasons",
                file=file,
                expected=counts.get(port, 0),
                found=f"{by_port[port]} by reason",
            )


def _check_entries(commit: CommitRecord, file: str, is_all_live: bool, findings: Findings) -> None:
    entries = sum(piece.entries for piece in commit.pieces)
    unique = commit.counts.get(TupleVerdict.UNIQUE.port, 0)
    # With all_live a key can become unique again within one window, and only its last copy is kept; a version may move
    # all others of its key.
    moved = commit.reasons.get(VERSION_REASON, 0) * (MOST_VERSIONS - 1) if is_all_live else 0
    if entries > unique + moved or (entries < unique and not is_all_live):
        findings.wrong(
            Check.LOG_COUNTS,
            f"window {commit.window}: unique tuples, and entries in its pieces",
            file=file,
            expected=unique,
            found=f"{entries} entries",
        )


def _check_ports(history: LogHistory, findings: Findings) -> None:
    """An owner writes a port to files for as long as it runs, or never: no window may be without its rows."""
    written: dict[int, set[str]] = {}
    for known in history.commits.values():
        written.setdefault(known.record.epoch, set()).update(output.port for output in known.record.outputs)
    for window, known in sorted(history.commits.items()):
        record = known.record
        absent = written[record.epoch] - {output.port for output in record.outputs}
        for port in sorted(port for port in absent if record.counts.get(port, 0)):
            findings.wrong(
                Check.LOG_COUNTS,
                f"window {window}: rows in the files of port {port}",
                file=known.file,
                expected=record.counts[port],
                found="no file",
            )


def _check_output_counts(commit: CommitRecord, file: str, findings: Findings) -> None:
    rows: Counter[str] = Counter()
    for output in commit.outputs:
        rows[output.port] += output.rows
    for port, found in rows.items():
        findings.expect(
            Check.LOG_COUNTS,
            f"window {commit.window}: rows in the files of port {port}",
            file=file,
            expected=commit.counts.get(port, 0),
            found=found,
        )


def _check_window_rows(
    state: LogState,
    window: int,
    partitions: tuple[SourcePartition, ...],
    root: Place,
    history: LogHistory,
    findings: Findings,
) -> None:
    known = history.commits.get(window)
    info = state.windows.get(window)
    counts = known.record.counts if known is not None else None if info is None else info.counts
    if counts is None:
        return
    rows = sum(partition.rows for partition in partitions)
    if sum(counts.values()) != rows:
        findings.wrong(
            Check.LOG_COUNTS,
            f"window {window}: tuples over all ports, and rows of its source partitions",
            file=known.file if known is not None else root / DIRECTORY,
            expected=rows,
            found=f"{sum(counts.values())}: {counts}",
        )


def _archived(reader: SourcesReader, state: LogState, findings: Findings) -> Iterator[int]:
    """The windows of the archives that can be read."""
    for archive in state.archives:
        try:
            yield from reader.archived(archive)
        except (StoreError, OSError) as error:
            what = f"sources of the windows {archive.first_window} to {archive.last_window}"
            findings.failed(Check.SOURCES_BYTES, error, what, file=reader.file(archive.first_window))


def _check_judged(state: LogState, root: Place, findings: Findings) -> None:
    if state.judged is None:
        return
    try:
        read_judged(root, state.judged)
    except (StoreError, OSError) as error:
        path = root / FOLDED_DIRECTORY / state.judged.name
        findings.failed(Check.SOURCES_BYTES, error, "table of judged files", file=path)


def _check_twice(reader: SourcesReader, digests: list[bytes], windows: list[int], findings: Findings) -> None:
    """No source partition in two windows: by sorting their digests."""
    words = np.frombuffer(b"".join(digests), [("hi", ">u8"), ("lo", ">u8")])
    order = np.lexsort((words["lo"], words["hi"])) if words.size else np.empty(0, np.int64)
    for place in np.flatnonzero(words[order][1:] == words[order][:-1]).tolist():
        one, other = sorted((int(order[place]), int(order[place + 1])))
        findings.wrong(
            Check.SOURCES_TWICE,
            f"source partition {digests[one].hex()}",
            file=reader.file(windows[other]),
            expected=f"in window {windows[one]} alone",
            found=f"in window {windows[other]} too",
        )


def overdue_commits(history: LogHistory) -> Iterator[KnownCommit]:
    """The windows after which the same owner committed another one, newest first: it has deleted all that was due."""
    for window in sorted(history.commits, reverse=True):
        before = history.commits.get(window - 1)
        if before is not None and before.record.epoch == history.commits[window].record.epoch:
            yield before
