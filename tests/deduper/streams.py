"""Random streams that stay near the edges: settings, key types, windows of source partitions, and how they are run."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from deduper.testing import Row, Settings
from tests.deduper.engine import Shape

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

MODES = ("never", "event_time", "ordered", "ordered float", "processing_time", "category")

_KEYS: list[tuple[list[str], list[tuple[Any, ...]]]] = [
    (["string"], [("",), ("a",), ("b",), ("c",), ("é",), ("e\u0301",), (None,)]),
    (["bigint"], [(0,), (1,), (-1,), (INT64_MAX,), (INT64_MIN,), (None,)]),
    (["string", "string"], [("a", "bc"), ("ab", "c"), ("abc", ""), ("abc", None), (None, "abc"), (None, None)]),
    (["double"], [(0.0,), (-0.0,), (math.nan,), (1.5,), (math.inf,), (None,)]),
    (["int", "boolean"], [(1, True), (1, False), (0, True), (0, False), (1, None)]),
    (["binary"], [(b"",), (b"\x00",), (b"\xff",), (b"\x00\x00",)]),
]


@dataclass(frozen=True)
class Window:
    """One window: rows by source partition, and the intent's wall clock."""

    partitions: list[list[Row]]
    now_us: int


@dataclass(frozen=True)
class Stream:
    """All that a test needs; `floats` is the domain of the expiry keys."""

    settings: Settings
    floats: bool
    types: list[str]
    windows: list[Window]

    def rows(self) -> int:
        """How many rows there are."""
        return sum(len(part) for window in self.windows for part in window.partitions)


def random_stream(mode: str, seed: int) -> Stream:
    """A stream of up to some hundred rows; the same one for the same arguments."""
    draw = random.Random(f"{mode} {seed}")
    settings, floats = _settings(mode, draw)
    types, keys = draw.choice(_KEYS)
    if draw.random() < 0.2:
        # A hot key, and the sort's path for long runs of equal ones.
        keys = [*keys, *[keys[0]] * 20]
    expiries = _expiries(settings, floats, draw)
    windows = []
    now_us = draw.randrange(50)
    for _ in range(draw.randint(1, 6)):
        partitions = []
        for _ in range(draw.randint(0, 3)):
            count = draw.choice((0, 1, 3, 8, 40))
            partitions.append([Row(draw.choice(keys), next(expiries)) for _ in range(count)])
        windows.append(Window(partitions, now_us))
        now_us += draw.choice((0, 1, 5, 30))
    return Stream(settings, floats, types, windows)


def with_payloads(stream: Stream, seed: int, share: float, on_conflict: str) -> Stream:
    """The same stream with payloads that are compared; so many of all rows have another one than most.

    Of some streams the first source partition of every window is ahead of the others.
    """
    draw = random.Random(f"payloads {seed}")
    unit = stream.settings.span if stream.floats else 1
    steps = draw.choice((0, 1, 4, 12)) * unit if stream.settings.by in ("event_time", "ordered") else 0

    def payload(row: Row) -> Row:
        return replace(row, payload=draw.randint(1, 3) if draw.random() < share else 0)

    def ahead(row: Row) -> Row:
        is_far = row.expiry is None or not abs(row.expiry) < 2**50
        return row if is_far else replace(row, expiry=row.expiry + steps)

    windows = [
        replace(
            one,
            partitions=[
                [payload(row if number or not steps else ahead(row)) for row in part]
                for number, part in enumerate(one.partitions)
            ],
        )
        for one in stream.windows
    ]
    rules = replace(stream.settings, on_conflict=on_conflict, max_versions=draw.randint(2, 4))
    return replace(stream, settings=rules, windows=windows)


def random_shape(seed: int) -> Shape:
    """A way to run it that must not matter."""
    draw = random.Random(seed)
    return Shape(
        shards=draw.randint(1, 5),
        arrow_rows=draw.choice((1, 2, 7, 1000)),
        seed=seed,
        keep_first_seen=draw.random() < 0.7,
        secure=draw.random() < 0.2,
    )


def _settings(mode: str, draw: random.Random) -> tuple[Settings, bool]:
    floats = mode == "ordered float"
    settings = Settings(by=mode.removesuffix(" float"), null_keys=draw.choice(("error", "allow")))
    if settings.by == "never":
        return settings, False
    if settings.by == "category":
        live, dropped = draw.randint(1, 3), draw.choice((0, 1, 2, 10_000))
        return replace(settings, live_categories=live, remember_dropped=dropped), False
    period: Any = draw.choice((1, 7, 10))
    span: Any = draw.choice([span for span in (1, 3, 5, 7, 10) if span <= period])
    if floats:
        scale = draw.choice((1.0, 0.1, 1e-3))
        period, span = period * scale, span * scale
    settings = replace(settings, period=period, span=span)
    if settings.by == "processing_time":
        return settings, False
    jump = draw.choice((None, None, 4, 25))
    return (
        replace(
            settings,
            lookup=draw.choice(("own_bucket", "all_live")),
            clock=draw.choice(("arrival", "batch")),
            ahead=draw.choice((None, 10)) if settings.by == "event_time" else None,
            jump=jump * span if jump is not None and floats else jump,
        ),
        floats,
    )


def _expiries(settings: Settings, floats: bool, draw: random.Random) -> Iterator[Any]:
    """Expiry keys that wander forward, with late ones, exact edges, nulls and the ends of the domain."""
    if settings.by in ("never", "processing_time"):
        while True:
            yield None
    if settings.by == "category":
        names = "abcdefg"
        while True:
            yield None if draw.random() < 0.02 else draw.choice(names[: draw.choice((2, 4, 7))])
    ends: list[Any] = [INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1]
    if floats:
        ends = [math.nan, math.inf, -math.inf, 1e300, -1e300, 5e-324, -0.0, 2.0**63]
    has_ends = draw.random() < 0.2
    base: Any = draw.choice((-40, 0, 0, 20))
    while True:
        chance = draw.random()
        if chance < 0.02:
            yield None
        elif has_ends and chance < 0.06:
            yield draw.choice(ends)
        else:
            base += draw.choice((0, 0, 1, 1, 3, 12 if chance < 0.1 else 0))
            steps = base - draw.choice((0, 0, 0, 1, 2, 9, 10, 11, 20))
            yield steps * settings.span if floats else steps
