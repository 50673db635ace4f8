"""The rows in the ports against the log: window by window, ascending, every row that is there.

A row stands in the port of its verdict, in a file of its window; rows by reason and by source partition are as they
were counted; no record of the source is there twice. `admin.verify.clock` runs the clock once more,
`admin.verify.first_copies` looks for the first copies of duplicates.

Rows that readers have taken away cannot be checked: then only what must hold without them is checked, and the report
says so. At most one window's rows are in memory. The origins of unique rows go to a temporary file, sorted by window,
where the duplicates of later windows find them.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc

from bucket_store.log.records import LogState
from bucket_store.log.sources_archive import SourcesReader
from bucket_store.places.place import Place
from deduper.admin.readback import RowFormat
from deduper.admin.verify.clock import check_clock
from deduper.admin.verify.findings import Check, Findings
from deduper.admin.verify.first_copies import check_firsts
from deduper.admin.verify.log import KnownCommit, LogHistory
from deduper.admin.verify.outputs import PublishedFiles
from deduper.admin.verify.scope import ROWS_CHECKS, Expected, Origins, Places, Scope
from deduper.admin.verify.window_rows import PORTS, UNIQUE, WindowRows, numbers, read_rows
from deduper.config.model import Config
from deduper.core.clock import POSITION_BITS
from deduper.core.verdict import PORT_OF_REASON, TupleVerdict


def check_rows(
    config: Config,
    root: Place,
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
        sources = SourcesReader(root, state)
        scope = Scope(config, RowFormat.of(config), root, state, history, files, Origins(spilled), expected, sources)
        for window, ports in sorted(files.present.items()):
            if state.sources_of(window) is not None:
                count += _check_window(scope, window, ports, findings)
            elif window < state.next_window:
                scope.without["sources"] += 1
        scope.report_missing(findings)
    return count


def _check_window(scope: Scope, window: int, ports: Mapping[str, list[Place]], findings: Findings) -> int:
    names = scope.names(window)
    if names is None:
        return 0  # Its sources file is damaged, and found as such.
    rows = read_rows(scope, window, ports, names, findings)
    known = scope.history.commits.get(window)
    if known is None:
        _note_whole_ports(scope, window, rows)
    _check_ports(rows, window, findings)
    _check_reasons(scope, rows, window, known, findings)
    _check_sources(scope, rows, window, names, findings)
    is_mine = rows.order >= 0
    _check_twice(rows, window, is_mine, findings)
    expiry, has_expiry = numbers(rows.table["expiry"], scope.format.is_float)
    if scope.is_whole(window, UNIQUE):
        unique = is_mine & (rows.ports == TupleVerdict.UNIQUE)
        scope.origins.add(window, rows.order[unique], expiry[unique])
    before = check_clock(scope, rows, window, known, expiry, has_expiry, findings)
    check_firsts(scope, rows, window, expiry, before, findings)
    _check_expected(scope, rows, window, findings)
    return len(rows.table)


def _note_whole_ports(scope: Scope, window: int, rows: WindowRows) -> None:
    """Of a window whose record is folded away, note which ports have all rows that the state still counts."""
    info = scope.state.windows.get(window)
    found = np.bincount(rows.ports, minlength=len(PORTS))
    for port in scope.config.file_ports:
        if info is not None and info.counts.get(port) == found[PORTS.index(port)]:
            scope.files.is_whole.add((window, port))


def _check_ports(rows: WindowRows, window: int, findings: Findings) -> None:
    verdicts = pc.fill_null(pc.index_in(rows.table["verdict"], pa.array(PORTS, pa.string())), -1).to_numpy()
    windows, _ = numbers(rows.table["window"], False)
    for name, is_wrong in (("verdict", verdicts != rows.ports), ("window", windows != window)):
        for row in np.flatnonzero(is_wrong).tolist():
            expected = window if name == "window" else PORTS[rows.ports[row]]
            found = rows.table[name][row].as_py()
            findings.add(rows.finding(Check.ROWS_PORT, window, row, name, expected=expected, found=found))


def _check_reasons(scope: Scope, rows: WindowRows, window: int, known: KnownCommit | None, findings: Findings) -> None:
    if known is None:
        scope.without["record"] += 1
        return
    begin = 0
    by_port: dict[str, Counter[str]] = {}
    for port, _, count in rows.files:
        counted = rows.table["reason"].slice(begin, count).value_counts().to_pylist()
        for pair in counted:
            if pair["values"] is not None:
                by_port.setdefault(port, Counter())[pair["values"]] += pair["counts"]
        begin += count
    for port in scope.config.file_ports:
        if not scope.is_whole(window, port):
            continue
        stated = {reason: count for reason, count in known.record.reasons.items() if PORT_OF_REASON.get(reason) == port}
        found = dict(by_port.get(port, Counter()))
        if stated != found:
            findings.wrong(
                Check.ROWS_REASON,
                f"window {window}: rows of port {port} by reason",
                file=known.file,
                expected=f"{stated} in the record",
                found=f"{found} in {scope.config.file_ports[port].path}",
            )


def _check_sources(scope: Scope, rows: WindowRows, window: int, names: Places, findings: Findings) -> None:
    for row in np.flatnonzero(rows.order < 0).tolist():
        findings.add(
            rows.finding(
                Check.ROWS_SOURCE, window, row, "source", expected="a source partition of the window", found="another"
            )
        )
    partitions = scope.sources.of(window) or ()
    found = np.bincount(rows.order[rows.order >= 0] >> POSITION_BITS, minlength=len(names))
    is_all = scope.is_whole(window, *PORTS)
    for ordinal, partition in enumerate(partitions):
        count = int(found[ordinal])
        if count > partition.rows or (is_all and count != partition.rows):
            findings.wrong(
                Check.ROWS_SOURCE,
                f"window {window}: rows of {partition.name} over all ports",
                file=scope.sources.file(window),
                expected=partition.rows,
                found=count,
            )


def _check_twice(rows: WindowRows, window: int, is_mine: NDArray[np.bool_], findings: Findings) -> None:
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
                f"in port {PORTS[rows.ports[row]]}",
                expected="once",
                found=f"in port {PORTS[rows.ports[other]]} too, {rows.place(other)[0].name}",
            )
        )


def _check_expected(scope: Scope, rows: WindowRows, window: int, findings: Findings) -> None:
    if scope.expected is None:
        return
    places = zip(rows.table["source"].to_pylist(), rows.table["position"].to_pylist(), strict=True)
    for row, (source, position) in enumerate(places):
        port = scope.expected.get((source, position), "no port: no such record")
        if port != PORTS[rows.ports[row]]:
            findings.add(
                rows.finding(Check.ROWS_EXPECTED, window, row, "port", expected=port, found=PORTS[rows.ports[row]])
            )
    scope.seen += len(rows.table)
