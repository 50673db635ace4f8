"""The tables of reasons in SEMANTICS.md: those of the program, each with its port."""

from __future__ import annotations

import re
from pathlib import Path

from deduper.core.verdict import PORT_OF_REASON, TupleVerdict

PAGE = Path(__file__).parents[3] / "deduper" / "SEMANTICS.md"


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    below = PAGE.read_text(encoding="utf-8").split(f"{heading}\n", 1)[1]
    (table, *_) = re.findall(r"(?m)^\|.*\n\|[-|]+\|\n((?:\|.*\n)+)", below)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]


def test_every_reason_has_its_port_and_meaning() -> None:
    """No reason is missing, none is there twice, and none is left over."""
    listed = [(name, cells[1]) for cells in rows("## Reasons") for name in re.findall(r"`(\w+)`", cells[0])]
    assert sorted(listed) == sorted(PORT_OF_REASON.items())
    assert all(cells[2] for cells in rows("## Reasons"))


def test_every_reason_of_an_error_has_its_detail() -> None:
    """Several ones for some."""
    detailed = {name for cells in rows("### What `detail` says") for name in re.findall(r"`(\w+)`", cells[0])}
    assert detailed == {reason for reason, port in PORT_OF_REASON.items() if port == TupleVerdict.ERROR.port}
