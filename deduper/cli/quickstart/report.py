"""PURE. Results of a quickstart: the windows in the store beside the expected counts, as tables for any printer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bucket_store.log.records import CommitRecord, LogState
from deduper.core.verdict import PORT_OF_REASON, Verdict
from deduper.units import format_time

PORTS: Final = tuple(verdict.port for verdict in Verdict)
ALL: Final = "all"
"""The row that sums the ports up."""
NUMBERS: Final = frozenset({"rows", "share", "expected", "window", *PORTS})
"""The columns to set flush right."""


@dataclass(frozen=True, slots=True)
class Table:
    """A heading and rows of text, each as long as `head`."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def as_markdown(self) -> str:
        """The table as Markdown, with its title as a heading of the second level."""
        lines = [self.head, tuple("---:" if name in NUMBERS else "---" for name in self.head), *self.rows]
        return f"## {self.title}\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


@dataclass(frozen=True, slots=True)
class Expected:
    """The right answers: rows of each port, and the reasons of the error port."""

    counts: Mapping[str, int]
    error_reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The contents of the store, and the expected counts; None if these are unknown.

    `windows` are those whose records are still in the log; the sums in `state` cover all.
    """

    state: LogState
    windows: Sequence[CommitRecord]
    expected: Expected | None

    @property
    def counts(self) -> dict[str, int]:
        """Rows of each port, over all windows."""
        return {port: self.state.totals.get(port, 0) for port in PORTS}

    @property
    def reasons(self) -> Counter[str]:
        """Rows of each reason, over all windows; reasons without rows are left out."""
        return +Counter(self.state.reason_totals)

    @property
    def is_as_expected(self) -> bool:
        """Whether every expected count was found."""
        if self.expected is None:
            return True
        reasons = self.reasons
        return self.counts == dict(self.expected.counts) and all(
            reasons[reason] == rows for reason, rows in self.expected.error_reasons.items()
        )

    def ports_table(self) -> Table:
        """Rows and share of each port and of all, with the expected rows if they are known."""
        counts = self.counts
        rows = sum(counts.values())
        expected = None if self.expected is None else {**self.expected.counts, ALL: sum(self.expected.counts.values())}
        head = ("port", "rows", "share", *_expected_head(expected))
        return Table(
            "Result",
            head,
            tuple(
                (port, f"{found:,}", f"{found / max(1, rows):.2%}", *_compared(found, expected, port))
                for port, found in [*counts.items(), (ALL, rows)]
            ),
        )

    def reasons_table(self) -> Table:
        """Rows of each reason that occurs or was expected, grouped as the ports are."""
        found = self.reasons
        expected = None if self.expected is None else self.expected.error_reasons
        ports = PORT_OF_REASON
        names = sorted({*found, *(expected or ())}, key=lambda name: (PORTS.index(ports[name]), -found[name], name))
        return Table(
            "Reasons",
            ("reason", "port", "rows", *_expected_head(expected)),
            tuple((name, ports[name], f"{found[name]:,}", *_compared(found[name], expected, name)) for name in names),
        )

    def windows_table(self) -> Table:
        """One row a window: rows of each port, latest point after it, when it was begun."""
        return Table(
            "Windows",
            ("window", *PORTS, "latest point", "begun"),
            tuple(
                (
                    str(window.window),
                    *(f"{window.counts.get(port, 0):,}" for port in PORTS),
                    "" if window.latest_point is None else format_time(int(window.latest_point)),
                    format_time(window.wall_us),
                )
                for window in self.windows
            ),
        )

    def as_markdown(self, *, remarks: Sequence[str], places: Sequence[tuple[str, str]], config_text: str) -> str:
        """A report to look at: remarks, tables, places as (name, path), settings."""
        where = "\n".join(f"- {name}: `{place}`" for name, place in places)
        parts = [
            "# deduper quickstart\n",
            *(f"{remark}\n" for remark in remarks),
            self.ports_table().as_markdown(),
            self.reasons_table().as_markdown(),
            self.windows_table().as_markdown(),
            f"## Files\n\n{where}\n",
            f"## Settings\n\n```yaml\n{config_text}```\n",
        ]
        return "\n".join(parts)


def _expected_head(expected: Mapping[str, int] | None) -> tuple[str, ...]:
    return () if expected is None else ("expected", "")


def _compared(found: int, expected: Mapping[str, int] | None, name: str) -> tuple[str, ...]:
    """The cells beside a count: none if nothing is expected, empty ones if nothing is expected for this name."""
    if expected is None:
        return ()
    if name not in expected:
        return "", ""
    wanted = expected[name]
    return f"{wanted:,}", "as expected" if found == wanted else f"differs by {found - wanted:+,}"
