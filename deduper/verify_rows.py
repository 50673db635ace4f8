"""Do the rows in the ports say what the log says? Window by window, ascending, every row that lies there.

- A row stands in the port of its verdict, in a file of its window; rows by reason and by source partition are as they
  were counted; no record of the source is there twice.
- A duplicate names its first copy: of the same window or an earlier one, before it in source order, in the same bucket
  (`own_bucket`) or still living (`all_live`), and, where the unique port still has its window, really there.
- The clock of every place is run once more over the rows that lie there: a tuple is expired when its expiry key is at
  or before that clock less the period, and only then.

What readers have taken away cannot be looked at: then only what must hold without it is checked, and the report says
so. At most one window's rows are in memory. The origins of unique rows go to a temporary file, sorted by window, where
the duplicates of later windows find them.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc

from bucket_store.errors import StoreError
from bucket_store.log_values import LogState
from bucket_store.sources_file import read_sources
from deduper import judging
from deduper.clock import POSITION_BITS, domain_ends
from deduper.config import Config, EventTimeExpiry, OrderedExpiry
from deduper.errors import IntegrityError
from deduper.findings import Check, Finding, Findings
from deduper.judged_rows import RowFormat, read_judged
from deduper.output_names import file_sinks
from deduper.verdict import Fate, Verdict, bucket_key
from deduper.verify_log import KnownCommit, LogHistory
from deduper.verify_outputs import PublishedFiles

ROWS_CHECKS = (
    Check.ROWS_PORT,
    Check.ROWS_REASON,
    Check.ROWS_SOURCE,
    Check.ROWS_TWICE,
    Check.ROWS_FIRST_SEEN,
    Check.ROWS_CLOCK,
)

Expected = Mapping[tuple[str, int], str]
"""(source, position) of every record that was judged -> the port it must have left by. For tests."""

_UNIQUE, _DUPLICATE, _EXPIRED = (verdict.port for verdict in (Verdict.UNIQUE, Verdict.DUPLICATE, Verdict.EXPIRED))
Int64s = NDArray[np.int64]
Places = tuple[tuple[str, int], ...]
"""Source partitions of a window by ordinal: the name, and the position that orders count from."""


def check_rows(
    config: Config,
    root: Path,
    state: LogState,
    history: LogHistory,
    files: PublishedFiles,
    findings: Findings,
    expected: Expected | None,
) -> int:
    """Reads the rows of all files in `files`; gives how many there were."""
    findings.run(*ROWS_CHECKS)
    count = 0
    with tempfile.TemporaryFile(prefix="deduper-verify-") as spilled:
        job = _Job(config, RowFormat.of(config), root, state, history, files, _Origins(spilled), expected)
        for window, ports in sorted(files.lying.items()):
            if window in state.sources:
                count += _check_window(job, window, ports, findings)
            elif window < state.next_window:
                job.without["sources"] += 1
        job.tell_what_was_missing(findings)
    return count


@dataclass
class _Job:
    """What is known beside the rows, and what could not be looked at."""

    config: Config
    format: RowFormat
    root: Path
    state: LogState
    history: LogHistory
    files: PublishedFiles
    origins: _Origins
    expected: Expected | None
    seen: int = 0
    without: Counter[str] = field(default_factory=Counter)
    _names: dict[int, Places] = field(default_factory=dict)

    def names(self, window: int) -> Places | None:
        """The source partitions of a window by ordinal; None when its sources file cannot be read."""
        if window not in self._names:
            if len(self._names) >= _NAMES_KEPT:
                del self._names[next(iter(self._names))]
            try:
                partitions = read_sources(self.root, window, self.state.sources[window])
            except (KeyError, StoreError, OSError):
                return None
            self._names[window] = tuple((partition.name, partition.start) for partition in partitions)
        return self._names[window]

    def count(self, window: int, rows: _Rows) -> None:
        """Of a window whose record is folded away, which ports have all rows that the state still counts."""
        info = self.state.windows.get(window)
        found = np.bincount(rows.ports, minlength=len(_PORTS))
        for port in file_sinks(self.config):
            if info is not None and info.counts.get(port) == found[_PORTS.index(port)]:
                self.files.is_whole.add((window, port))

    def is_whole(self, window: int, *ports: str) -> bool:
        """Whether all rows of the window that left by these ports lie there."""
        return all((window, port) in self.files.is_whole for port in ports)

    def tell_what_was_missing(self, findings: Findings) -> None:
        """What was taken away, or is not written, as reasons why checks were not made for everything."""
        if self.without["sources"]:
            findings.skip(f"not for {self.without['sources']} windows whose sources file is forgotten", *ROWS_CHECKS)
        if self.without["record"]:
            findings.skip(f"not for {self.without['record']} windows whose record is folded away", Check.ROWS_REASON)
        if self.without["clock"]:
            findings.skip(
                f"only roughly for {self.without['clock']} windows of which not all rows lie there, or whose record is "
                "folded away",
                Check.ROWS_CLOCK,
            )
        if self.without["settings"]:
            findings.skip(
                f"not for {self.without['settings']} windows that were judged with other settings than the config's",
                Check.ROWS_CLOCK,
            )
        if self.without["first"]:
            findings.skip(
                f"{self.without['first']} duplicates have their first copy in rows that lie here no more",
                Check.ROWS_FIRST_SEEN,
            )
        if self.expected is not None:
            findings.run(Check.ROWS_EXPECTED)
            if len(file_sinks(self.config)) == len(Verdict) and self.seen != len(self.expected):
                findings.add(
                    Finding.of(
                        Check.ROWS_EXPECTED,
                        "records in all ports",
                        file=self.root,
                        expected=len(self.expected),
                        found=self.seen,
                    )
                )


_NAMES_KEPT = 256


class _Origins:
    """Source orders and expiry keys of the unique rows of whole windows, each window's sorted, in a temporary file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._end = 0
        self._places: dict[int, tuple[int, int]] = {}

    def add(self, window: int, order: Int64s, expiry: NDArray[Any]) -> None:
        """The unique rows of a window."""
        at = np.argsort(order)
        self._places[window] = self._end, order.size
        data = order[at].tobytes() + np.ascontiguousarray(expiry[at]).view(np.int64).tobytes()
        self._file.write(data)
        self._file.flush()
        self._end += len(data)

    def has(self, window: int) -> bool:
        """Whether the window's unique rows were all there."""
        return window in self._places

    def find(self, window: int, order: Int64s) -> tuple[NDArray[np.bool_], Int64s]:
        """Which of these source orders are unique rows of the window, and the expiry key (its bits) of those."""
        offset, count = self._places[window]
        if not count:
            return np.zeros(order.size, np.bool_), np.zeros(order.size, np.int64)
        known = np.memmap(self._file, np.int64, "r", offset, (2, count))
        at = np.minimum(np.searchsorted(known[0], order), count - 1)
        return np.asarray(known[0][at] == order), np.asarray(known[1][at])


@dataclass(frozen=True, slots=True)
class _Rows:
    """All rows of a window that lie there, one file after another. `order` is -1 where the source is none of its."""

    files: list[tuple[str, Path, int]]
    table: pa.Table
    ports: NDArray[np.int8]
    order: Int64s

    def place(self, row: int) -> tuple[Path, int]:
        """The file of a row, and its number there."""
        begin = 0
        for _, path, count in self.files:
            if row < begin + count:
                return path, row - begin
            begin += count
        raise IndexError(row)

    def finding(self, check: Check, window: int, row: int, what: str, *, expected: object, found: object) -> Finding:
        """A finding at a row."""
        path, number = self.place(row)
        source, position = self.table["source"][row].as_py(), self.table["position"][row].as_py()
        return Finding.of(
            check,
            f"window {window}, row {number} ({source}, position {position}): {what}",
            file=path,
            expected=expected,
            found=found,
        )


_PORTS = [verdict.port for verdict in Verdict]


def _check_window(job: _Job, window: int, ports: Mapping[str, list[Path]], findings: Findings) -> int:
    names = job.names(window)
    if names is None:
        return 0  # Its sources file is damaged, and found as such.
    rows = _read(job, window, ports, names, findings)
    known = job.history.commits.get(window)
    if known is None:
        job.count(window, rows)
    _check_ports(rows, window, findings)
    _check_reasons(job, rows, window, known, findings)
    _check_sources(job, rows, window, names, findings)
    is_mine = rows.order >= 0
    _check_twice(rows, window, is_mine, findings)
    expiry, has_expiry = _numbers(rows.table["expiry"], job.format.is_float)
    if job.is_whole(window, _UNIQUE):
        unique = is_mine & (rows.ports == Verdict.UNIQUE)
        job.origins.add(window, rows.order[unique], expiry[unique])
    before = _clock_before(job, rows, window, known, expiry, has_expiry, findings)
    _check_firsts(job, rows, window, expiry, before, findings)
    _check_expected(job, rows, window, findings)
    return len(rows.table)


def _read(job: _Job, window: int, ports: Mapping[str, list[Path]], names: Places, findings: Findings) -> _Rows:
    files: list[tuple[str, Path, int]] = []
    tables: list[pa.Table] = []
    for port, paths in sorted(ports.items()):
        for path in paths:
            try:
                table = read_judged(path, job.format, with_expiry=port != Verdict.ERROR.port)
            except FileNotFoundError:
                job.files.is_whole.discard((window, port))
                continue
            except (IntegrityError, OSError) as error:
                job.files.is_whole.discard((window, port))
                findings.add(
                    Finding.of(
                        Check.ROWS_PORT, f"window {window}", file=path, expected=f"rows of port {port}", found=error
                    )
                )
                continue
            files.append((port, path, len(table)))
            tables.append(table)
    table = pa.concat_tables(tables) if tables else job.format.schema.empty_table()
    codes = [np.full(count, _PORTS.index(port), np.int8) for port, _, count in files]
    return _Rows(
        files,
        table,
        np.concatenate(codes) if codes else np.empty(0, np.int8),
        _orders(table["source"], table["position"], names),
    )


def _orders(sources: pa.ChunkedArray, positions: pa.ChunkedArray, names: Places) -> Int64s:
    """Source orders, -1 for what is none of these sources."""
    known = pa.array([name for name, _ in names], pa.string())
    ordinal = pc.fill_null(pc.index_in(sources, known), -1).to_numpy().astype(np.int64)
    starts = np.array([*(start for _, start in names), 0], np.int64)  # the last one for ordinal -1
    position = pc.fill_null(positions, -1).to_numpy().astype(np.int64) - starts[ordinal]
    is_known = (ordinal >= 0) & (position >= 0) & (position < 1 << POSITION_BITS)
    order: Int64s = np.where(is_known, ordinal << POSITION_BITS | position, -1)
    return order


def _numbers(column: pa.ChunkedArray, is_float: bool) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """A column's values, 0 for null, and where there is one."""
    valid = column.is_valid().to_numpy()
    values = pc.fill_null(column, 0.0 if is_float else 0).to_numpy()
    return values.astype(np.float64 if is_float else np.int64), valid


def _check_ports(rows: _Rows, window: int, findings: Findings) -> None:
    verdicts = pc.fill_null(pc.index_in(rows.table["verdict"], pa.array(_PORTS, pa.string())), -1).to_numpy()
    windows, _ = _numbers(rows.table["window"], False)
    for name, is_wrong in (("verdict", verdicts != rows.ports), ("window", windows != window)):
        for row in np.flatnonzero(is_wrong).tolist():
            expected = window if name == "window" else _PORTS[rows.ports[row]]
            found = rows.table[name][row].as_py()
            findings.add(rows.finding(Check.ROWS_PORT, window, row, name, expected=expected, found=found))


def _check_reasons(job: _Job, rows: _Rows, window: int, known: KnownCommit | None, findings: Findings) -> None:
    if known is None:
        job.without["record"] += 1
        return
    begin = 0
    by_port: dict[str, Counter[str]] = {}
    for port, _, count in rows.files:
        counted = rows.table["reason"].slice(begin, count).value_counts().to_pylist()
        for pair in counted:
            if pair["values"] is not None:
                by_port.setdefault(port, Counter())[pair["values"]] += pair["counts"]
        begin += count
    for port in file_sinks(job.config):
        if not job.is_whole(window, port):
            continue
        stated = {reason: count for reason, count in known.record.reasons.items() if _PORT_OF.get(reason) == port}
        found = dict(by_port.get(port, Counter()))
        if stated != found:
            findings.add(
                Finding.of(
                    Check.ROWS_REASON,
                    f"window {window}: rows of port {port} by reason",
                    file=known.file,
                    expected=f"{stated} in the record",
                    found=f"{found} in {file_sinks(job.config)[port].path}",
                )
            )


_PORT_OF = {"earlier_window": _DUPLICATE, "same_window": _DUPLICATE} | {
    fate.reason: fate.verdict.port for fate in Fate if fate.verdict is not None
}


def _check_sources(job: _Job, rows: _Rows, window: int, names: Places, findings: Findings) -> None:
    for row in np.flatnonzero(rows.order < 0).tolist():
        findings.add(
            rows.finding(
                Check.ROWS_SOURCE, window, row, "source", expected="a source partition of the window", found="another"
            )
        )
    partitions = read_sources(job.root, window, job.state.sources[window])
    found = np.bincount(rows.order[rows.order >= 0] >> POSITION_BITS, minlength=len(names))
    is_all = job.is_whole(window, *_PORTS)
    for ordinal, partition in enumerate(partitions):
        count = int(found[ordinal])
        if count > partition.rows or (is_all and count != partition.rows):
            findings.add(
                Finding.of(
                    Check.ROWS_SOURCE,
                    f"window {window}: rows of {partition.name} over all ports",
                    file=job.root / "sources" / job.state.sources[window].name,
                    expected=partition.rows,
                    found=count,
                )
            )


def _check_twice(rows: _Rows, window: int, is_mine: NDArray[np.bool_], findings: Findings) -> None:
    mine = np.flatnonzero(is_mine)
    by_order = mine[np.argsort(rows.order[mine], kind="stable")]
    ordered = rows.order[by_order]
    for at in np.flatnonzero(ordered[1:] == ordered[:-1]).tolist():
        row, other = int(by_order[at + 1]), int(by_order[at])
        findings.add(
            rows.finding(
                Check.ROWS_TWICE,
                window,
                row,
                f"in port {_PORTS[rows.ports[row]]}",
                expected="once",
                found=f"in port {_PORTS[rows.ports[other]]} too, {rows.place(other)[0].name}",
            )
        )


@dataclass(frozen=True, slots=True)
class _Clock:
    """The clock before every row. Exact, or a bound: it cannot have stood lower, nor higher at the window's end."""

    latest: NDArray[Any]
    is_set: NDArray[np.bool_]
    is_exact: bool


def _clock_before(
    job: _Job,
    rows: _Rows,
    window: int,
    known: KnownCommit | None,
    expiry: NDArray[Any],
    has_expiry: NDArray[np.bool_],
    findings: Findings,
) -> _Clock | None:
    """The clock of every row's place, held against what became of the row; None where none is known."""
    config = job.config
    is_expired = (rows.ports == Verdict.EXPIRED) & (rows.order >= 0)
    if not isinstance(config.expiry, EventTimeExpiry | OrderedExpiry):
        if config.expiry.by != "category":
            for row in np.flatnonzero(is_expired).tolist():
                findings.add(
                    rows.finding(
                        Check.ROWS_CLOCK, window, row, "expired", expected=f"never, {config.expiry.by}", found=_EXPIRED
                    )
                )
        return None
    if known is None:
        job.without["clock"] += 1
        return None
    if known.record.settings_hash != judging.settings_hash(config):
        job.without["settings"] += 1
        return None
    is_admitted = (rows.ports <= Verdict.DUPLICATE) & (rows.order >= 0) & has_expiry
    is_all = job.is_whole(window, _UNIQUE, _DUPLICATE)
    clock = _run(rows, expiry, is_admitted, known, is_exact=is_all or config.clock == "batch", config=config)
    if not clock.is_exact:
        job.without["clock"] += 1
    period = config.period_steps
    assert period is not None
    is_old = _is_expired(expiry, clock.latest, clock.is_set, period, config)
    # Without all rows the clock is known only from below, and above by where it stood in the end.
    could_be_old = is_old
    if not clock.is_exact:
        after = known.record.latest_point
        highest = np.full(expiry.size, 0 if after is None else after, expiry.dtype)
        could_be_old = _is_expired(expiry, highest, np.full(expiry.size, after is not None), period, config)
    is_older = pc.equal(pc.fill_null(rows.table["reason"], ""), Fate.OLDER_THAN_PERIOD.reason).to_numpy()
    for row in np.flatnonzero(is_expired & is_older & has_expiry & ~could_be_old).tolist():
        findings.add(_clock_finding(rows, window, row, expiry, clock, period, "not expired", _EXPIRED))
    for row in np.flatnonzero(is_admitted & is_old).tolist():
        findings.add(_clock_finding(rows, window, row, expiry, clock, period, _EXPIRED, _PORTS[rows.ports[row]]))
    if is_all:
        _check_latest(known, window, expiry[is_admitted], findings)
    return clock


def _run(
    rows: _Rows,
    expiry: NDArray[Any],
    is_admitted: NDArray[np.bool_],
    known: KnownCommit,
    *,
    is_exact: bool,
    config: Config,
) -> _Clock:
    """The latest point before every row: the committed one, or that of an earlier tuple of its source partition."""
    lowest, _ = domain_ends(float_domain=expiry.dtype == np.float64)
    begin = lowest if known.latest_before is None else known.latest_before
    latest = np.full(expiry.size, begin, expiry.dtype)
    is_set = np.full(expiry.size, known.latest_before is not None)
    if config.clock == "batch":
        return _Clock(latest, is_set, is_exact)
    by_order = np.argsort(rows.order, kind="stable")
    partition = rows.order[by_order] >> POSITION_BITS
    edges = [0, *(np.flatnonzero(partition[1:] != partition[:-1]) + 1).tolist(), by_order.size]
    for first, last in pairwise(edges):
        part = by_order[first:last]
        if part.size and rows.order[part[0]] >= 0:
            keys = np.where(is_admitted[part], expiry[part], lowest)
            running = np.maximum.accumulate(np.concatenate(([begin], keys[:-1])).astype(expiry.dtype))
            latest[part] = running
            is_set[part] |= np.concatenate(([False], np.logical_or.accumulate(is_admitted[part][:-1])))
    return _Clock(latest, is_set, is_exact)


def _is_expired(
    expiry: NDArray[Any], latest: NDArray[Any], is_set: NDArray[np.bool_], period: int | float, config: Config
) -> NDArray[np.bool_]:
    """`kernels.is_expired` for whole columns: expiry <= latest - period, without leaving int64."""
    lowest, _ = domain_ends(float_domain=config.point_scale.is_float)
    if config.point_scale.is_float:
        old: NDArray[np.bool_] = is_set & (expiry <= latest - period)
        return old
    floor = int(lowest) + int(period)
    reaches = is_set & (latest >= floor)
    return reaches & (expiry <= np.where(reaches, latest, floor) - np.int64(period))


def _clock_finding(
    rows: _Rows,
    window: int,
    row: int,
    expiry: NDArray[Any],
    clock: _Clock,
    period: int | float,
    expected: str,
    found: str,
) -> Finding:
    stood = clock.latest[row].item() if clock.is_set[row] else "unset"
    how = "the clock of its place" if clock.is_exact else "the clock at least"
    what = f"expiry key {expiry[row].item()}, {how} {stood}, period {period}"
    return rows.finding(Check.ROWS_CLOCK, window, row, what, expected=expected, found=found)


def _check_latest(known: KnownCommit, window: int, admitted: NDArray[Any], findings: Findings) -> None:
    """The latest point of the record is the greatest of the one before and of all admitted tuples."""
    points = [admitted.max().item()] if admitted.size else []
    if known.latest_before is not None:
        points.append(known.latest_before)
    expected = max(points, default=None)
    if known.record.latest_point != expected:
        findings.add(
            Finding.of(
                Check.ROWS_CLOCK,
                f"window {window}: latest point after it",
                file=known.file,
                expected=expected,
                found=known.record.latest_point,
            )
        )


def _check_firsts(
    job: _Job, rows: _Rows, window: int, expiry: NDArray[Any], before: _Clock | None, findings: Findings
) -> None:
    first_window, is_named = _numbers(rows.table["first_window"], False)
    is_duplicate = rows.ports == Verdict.DUPLICATE
    should = is_duplicate if job.config.store.first_seen else np.zeros_like(is_duplicate)
    for row in np.flatnonzero(is_named != should).tolist():
        expected, found = ("a first copy", "none") if should[row] else ("no first copy", "one")
        findings.add(rows.finding(Check.ROWS_FIRST_SEEN, window, row, "first_seen", expected=expected, found=found))
    reasons = pc.fill_null(rows.table["reason"], "")
    says_same = pc.equal(reasons, "same_window").to_numpy()
    at = np.flatnonzero(is_named & is_duplicate)
    wrong = at[(first_window[at] > window) | ((first_window[at] == window) != says_same[at]) | (first_window[at] < 0)]
    for row in wrong.tolist():
        findings.add(
            rows.finding(
                Check.ROWS_FIRST_SEEN,
                window,
                row,
                f"window of its first copy, for reason {reasons[row]}",
                expected=f"{window}" if says_same[row] else f"below {window}",
                found=int(first_window[row]),
            )
        )
    at = np.setdiff1d(at, wrong)
    first_expiry, _ = _numbers(rows.table["first_expiry"], job.format.is_float)
    for first in np.unique(first_window[at]).tolist():
        of_first = at[first_window[at] == first]
        for row, what in _first_faults(job, rows, window, first, of_first, first_expiry):
            findings.add(
                rows.finding(
                    Check.ROWS_FIRST_SEEN,
                    window,
                    row,
                    f"its first copy, {rows.table['first_source'][row]}, position {rows.table['first_position'][row]}",
                    expected=what,
                    found=f"window {first}, expiry key {first_expiry[row].item()}",
                )
            )
    for row in _out_of_reach(job, at, expiry, first_expiry, before):
        findings.add(
            rows.finding(
                Check.ROWS_FIRST_SEEN,
                window,
                row,
                f"expiry key {expiry[row].item()}",
                expected="a first copy where the key was looked up",
                found=f"expiry key {first_expiry[row].item()} of its first copy",
            )
        )


def _first_faults(
    job: _Job, rows: _Rows, window: int, first: int, at: Int64s, first_expiry: NDArray[Any]
) -> Iterator[tuple[int, str]]:
    """Duplicates whose first copy, of window `first`, is not where it must be: the row, and what was expected."""
    names = job.names(first)
    if names is None:
        job.without["first"] += at.size
        return
    order = _orders(rows.table["first_source"].take(at), rows.table["first_position"].take(at), names)
    for row in at[order < 0].tolist():
        yield row, f"a source partition of window {first}"
    at, order = at[order >= 0], order[order >= 0]
    if first == window:
        is_late = (rows.order[at] >= 0) & (order >= rows.order[at])
        for row in at[is_late].tolist():
            yield row, "before it in source order"
    if not job.origins.has(first):
        job.without["first"] += at.size
        return
    found, bits = job.origins.find(first, order)
    for row in at[~found].tolist():
        yield row, f"a row of port {_UNIQUE}"
    if job.format.column is not None:
        is_other = found & (bits != np.ascontiguousarray(first_expiry[at]).view(np.int64))
        for row in at[is_other].tolist():
            yield row, "the expiry key that its row in the unique port has"


def _out_of_reach(
    job: _Job, at: Int64s, expiry: NDArray[Any], first_expiry: NDArray[Any], before: _Clock | None
) -> list[int]:
    """Duplicates whose first copy lies in another bucket, or was dead when they came."""
    config = job.config
    if not isinstance(config.expiry, EventTimeExpiry | OrderedExpiry) or not at.size:
        return []
    if config.lookup == "own_bucket":
        span = config.span_steps
        assert span is not None
        differs = at[expiry[at] != first_expiry[at]]
        return [
            row
            for row in differs.tolist()
            if bucket_key(expiry[row].item(), span) != bucket_key(first_expiry[row].item(), span)
        ]
    if before is None or config.period_steps is None:
        return []
    # A bound from below will do: what was dead by then was dead by the true clock too.
    dead = _is_expired(first_expiry[at], before.latest[at], before.is_set[at], config.period_steps, config)
    return [int(row) for row in at[dead]]


def _check_expected(job: _Job, rows: _Rows, window: int, findings: Findings) -> None:
    if job.expected is None:
        return
    places = zip(rows.table["source"].to_pylist(), rows.table["position"].to_pylist(), strict=True)
    for row, (source, position) in enumerate(places):
        port = job.expected.get((source, position), "no port: no such record")
        if port != _PORTS[rows.ports[row]]:
            findings.add(
                rows.finding(Check.ROWS_EXPECTED, window, row, "port", expected=port, found=_PORTS[rows.ports[row]])
            )
    job.seen += len(rows.table)
