"""What other settings would find, and what they would need; from the sample of the leak meter. PURE."""

from __future__ import annotations

from dataclasses import dataclass

from deduper.as_json import AsJson
from deduper.leaks.estimate import Estimate
from deduper.leaks.figures import LeakFigures

_LOAD = 0.7
"""The load of a table, between 0.62 and 0.8; see FORMAT.md."""
_WORTH = 0.001
"""A setting is advised if it finds more than this share of the records, with 97.5 % certainty."""


@dataclass(frozen=True, slots=True)
class Option(AsJson):
    """Settings, beside those of the job.

    period: in steps. more: duplicates that are found more than by the job, below 0 fewer; None for the job itself.
    duplicates: the share of all records. keys: that are remembered; size_bytes: of their tables.
    """

    lookup: str
    period: int | float
    is_present: bool
    duplicates: float | None
    more: Estimate | None
    keys: float
    size_bytes: float


@dataclass(frozen=True, slots=True)
class Advice(AsJson):
    """The options by what they find, and a sentence on the one to take."""

    options: tuple[Option, ...]
    text: str


def advise(figures: LeakFigures, *, lookup: str, first_seen: bool, shown_period: str) -> Advice:
    """Of a job with this look-up; keys that are dead and not yet dropped are left out everywhere."""
    # Every other period says by how much its duplicates differ from the job's.
    shares = [
        (other.duplicate - other.gain.records) / judged
        for other in figures.others
        if (judged := other.unique + other.duplicate + other.expired)
    ]
    share, keys = shares[0] if shares else None, figures.recent_keys
    present = Option(lookup, figures.period, True, share, None, keys, _bytes(keys, lookup, first_seen))
    options = [present]
    for other in figures.others:
        if lookup == "all_live" and other.period == figures.period:
            continue
        judged = other.unique + other.duplicate + other.expired
        share = other.duplicate / judged if judged else None
        size_bytes = _bytes(other.live_keys, "all_live", first_seen)
        options.append(Option("all_live", other.period, False, share, other.gain, other.live_keys, size_bytes))
    return Advice(tuple(options), _text(figures, present, options, shown_period))


def _text(figures: LeakFigures, present: Option, options: list[Option], shown_period: str) -> str:
    if figures.seen < 1000:
        return f"Too few records of sampled keys for advice: {figures.seen:,} of 1,000."
    worth = _WORTH * figures.records
    better = [option for option in options if option.more is not None and option.more.low > worth]
    same_period = next((option for option in better if option.period == figures.period), None)
    if same_period is not None and present.lookup == "own_bucket":
        return (
            f"`lookup: all_live` would find about {_share(same_period, figures):.1%} of all records as duplicates that "
            f"leave as unique now. The look-up is fixed for the life of a store: it takes a new one."
        )
    longer = next((option for option in better if option.period > figures.period), None)
    if longer is not None:
        return (
            f"A period longer than {shown_period} would find about {_share(longer, figures):.1%} of all records more."
        )
    return "No other setting that was measured would find more than 0.1 % of the records as duplicates."


def _share(option: Option, figures: LeakFigures) -> float:
    assert option.more is not None, "the present settings are no advice"
    return option.more.records / figures.records


def _bytes(keys: float, lookup: str, first_seen: bool) -> float:
    """Of the tables: digest, expiry key for all_live, place of the first copy (with its expiry key)."""
    return keys * (16 + (20 if first_seen else 8 if lookup == "all_live" else 0)) / _LOAD
