"""Kinds of expiry, a section for each, as frozen values; see `config`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from deduper.config.values import Count, Duration, DurationOrOff, Number, NumberOrOff, Section, read_period


def with_default_span(data: Any) -> Any:
    """The section with `span` filled in: a 24th of the period when that is whole seconds, else the period."""
    if not isinstance(data, dict) or "span" in data or "period" not in data:
        return data
    try:
        period = read_period(data["period"])
    except PydanticCustomError:
        return {**data, "span": "1s"}  # the period itself is reported, and the span need not be
    span = period // 24 if period % (24 * 1_000_000) == 0 else period
    return {**data, "span": f"{span}us"}


class NeverExpiry(Section):
    """Keys are remembered for ever."""

    by: Literal["never"]


class EventTimeExpiry(Section):
    """Keys expire by a time in the record."""

    by: Literal["event_time"]
    field: str = Field(description="The timestamp column, or a whole-number column with `unit`", examples=["ts"])
    period: Duration = Field(description="How long a key is remembered", examples=["24h"])
    span: Duration = Field(
        default=None,  # type: ignore[assignment]  # filled in from the period before validation
        description="Width of a time bucket; default: a 24th of the period if that is whole seconds, else the period",
    )
    unit: Literal["us", "ms", "s"] | None = Field(
        default=None, description="Unit of a whole-number column, which counts since 1970; not for timestamp columns"
    )
    lookup: Literal["own_bucket", "all_live"] = Field(
        default="own_bucket",
        description="Scope of a look-up: the bucket of the key's own time, or the whole live period",
    )
    clock: Literal["arrival", "batch"] = Field(
        default="arrival", description="When the latest point moves: with every tuple, or once a window"
    )
    max_ahead_of_now: DurationOrOff = Field(
        default=3_600_000_000, description="A time further ahead of the wall clock is an error"
    )
    max_jump: DurationOrOff = Field(
        default=None, description="A time further ahead of the latest point (plus the time it stood still) is an error"
    )

    @model_validator(mode="before")
    @classmethod
    def _default_span(cls, data: Any) -> Any:
        return with_default_span(data)


class OrderedExpiry(Section):
    """Keys expire by a number in the record."""

    by: Literal["ordered"]
    field: str = Field(
        description="A number column: int, bigint, decimal up to 18 digits, double", examples=["sequence"]
    )
    period: Number = Field(description="How far behind the greatest number a key is remembered", examples=["1000"])
    span: Number = Field(description="Width of a bucket, in the column's numbers", examples=["100"])
    lookup: Literal["own_bucket", "all_live"] = Field(
        default="own_bucket",
        description="Scope of a look-up: the bucket of the key's own number, or the whole live period",
    )
    clock: Literal["arrival", "batch"] = Field(
        default="arrival", description="When the latest point moves: with every tuple, or once a window"
    )
    max_jump: NumberOrOff = Field(default=None, description="A number further ahead of the latest point is an error")


class ProcessingTimeExpiry(Section):
    """Keys expire by the wall clock at the start of their window."""

    by: Literal["processing_time"]
    period: Duration = Field(description="How long a key is remembered", examples=["24h"])
    span: Duration = Field(
        default=None,  # type: ignore[assignment]  # filled in from the period before validation
        description="Width of a time bucket; default: a 24th of the period if that is whole seconds, else the period",
    )

    @model_validator(mode="before")
    @classmethod
    def _default_span(cls, data: Any) -> Any:
        return with_default_span(data)


class CategoryExpiry(Section):
    """Keys live as long as their value of one column is among the most recent ones."""

    by: Literal["category"]
    field: str = Field(description="A column of few values, such as a file date", examples=["file_date"])
    live_categories: Count = Field(
        ge=1, le=1_000_000, description="Number of values that are live at once", examples=["7"]
    )
    remember_dropped: Count = Field(
        default=10_000, ge=0, le=10_000_000, description="Number of dropped values that stay known as dropped"
    )


ExpiryConfig = Annotated[
    EventTimeExpiry | OrderedExpiry | ProcessingTimeExpiry | CategoryExpiry | NeverExpiry,
    Field(discriminator="by"),
]
