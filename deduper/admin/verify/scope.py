"""The context of the checks of rows: settings, the log, earlier windows; and the checks that could not be made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bucket_store.errors import StoreError
from bucket_store.log.records import LogState
from bucket_store.log.sources_archive import SourcesReader
from bucket_store.places.place import Place
from deduper.admin.readback import RowFormat
from deduper.admin.verify.findings import Check, Findings
from deduper.admin.verify.log import LogHistory
from deduper.admin.verify.outputs import PublishedFiles
from deduper.config.model import Config
from deduper.core.verdict import TupleVerdict

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

Int64s = NDArray[np.int64]
Places = tuple[tuple[str, int], ...]
"""Source partitions of a window by ordinal: the name, and the position that orders count from."""

_NAMES_KEPT = 256


class Origins:
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


@dataclass
class Scope:
    """The context of the checks of rows, and the checks that could not be made."""

    config: Config
    format: RowFormat
    root: Place
    state: LogState
    history: LogHistory
    files: PublishedFiles
    origins: Origins
    expected: Expected | None
    sources: SourcesReader
    seen: int = 0
    without: Counter[str] = field(default_factory=Counter)
    _names: dict[int, Places] = field(default_factory=dict)

    def names(self, window: int) -> Places | None:
        """The source partitions of a window by ordinal; None when its sources file cannot be read."""
        if window not in self._names:
            if len(self._names) >= _NAMES_KEPT:
                del self._names[next(iter(self._names))]
            try:
                partitions = self.sources.of(window)
            except (StoreError, OSError):
                return None
            if partitions is None:
                return None
            self._names[window] = tuple((partition.name, partition.start) for partition in partitions)
        return self._names[window]

    def is_whole(self, window: int, *ports: str) -> bool:
        """Whether all rows of the window that left by these ports are there."""
        return all((window, port) in self.files.is_whole for port in ports)

    def report_missing(self, findings: Findings) -> None:
        """Reports missing rows and files as reasons why checks were not made for everything."""
        if self.without["sources"]:
            findings.skip(f"not for {self.without['sources']} windows whose sources file is forgotten", *ROWS_CHECKS)
        if self.without["record"]:
            findings.skip(f"not for {self.without['record']} windows whose record is folded away", Check.ROWS_REASON)
        if self.without["clock"]:
            findings.skip(
                f"only roughly for {self.without['clock']} windows of which not all rows are there, or whose record is "
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
                f"not for {self.without['first']} duplicates: the sources file or the record of their first copy's "
                "window is folded away, as after a move, or its rows are gone",
                Check.ROWS_FIRST_SEEN,
            )
        if self.expected is not None:
            findings.run(Check.ROWS_EXPECTED)
            if len(self.config.file_ports) == len(TupleVerdict) and self.seen != len(self.expected):
                findings.wrong(
                    Check.ROWS_EXPECTED,
                    "records in all ports",
                    file=self.root,
                    expected=len(self.expected),
                    found=self.seen,
                )
