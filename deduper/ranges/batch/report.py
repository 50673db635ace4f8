"""What the command reports, whichever way it took."""

from __future__ import annotations

from dataclasses import dataclass

from deduper.as_json import AsJson


@dataclass(frozen=True, slots=True)
class RangeReport(AsJson):
    """What was planned, and what was written; `rows` is None if only the plan was asked for."""

    per: str
    indexed_rows: int
    parts: int | None
    sliced_ids: int
    rows: int | None
    errors: dict[str, int]
    seconds: float = 0.0


def plan_text(per: str, indexed_rows: int, parts: int | None, sliced_ids: int) -> str:
    """The plan as one line."""
    how = "one index, no shuffle" if parts is None else f"{parts:,} parts, {sliced_ids:,} ids cut into slices"
    return f"{indexed_rows:,} {'range' if per == 'event' else 'event'}s indexed; {how}"
