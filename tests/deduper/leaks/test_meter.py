"""The leak meter against a count of everything: at a rate of one it is that count, at others unbiased."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deduper.core.clock import POSITION_BITS
from deduper.core.verdict import TupleVerdict
from deduper.leaks.figures import of_count
from deduper.leaks.meter import KINDS, LeakMeter, LeakSettings
from deduper.leaks.sample import SampledRecords, in_sample
from deduper.testing import Oracle, Row, Settings

PERIOD, SPAN, MEMORY = 40, 10, 80
SETTINGS = LeakSettings(
    bits=0,
    most_keys=4096,
    float_domain=False,
    period=PERIOD,
    memory=MEMORY,
    edges=(0.0, 5.0, 39.0, 80.0),
)
Window = list[list[Row]]
VERDICTS = {verdict.port: verdict for verdict in TupleVerdict}


def stream(seed: int, *, windows: int = 8, keys: int = 120, rows: int = 60, heavy: bool = True) -> list[Window]:
    """Windows of two source partitions; some records come late or with a null; `heavy`: few keys make most of them."""
    dice = random.Random(seed)
    made, now = [], 0
    for _ in range(windows):
        parts: Window = [[], []]
        for _ in range(rows):
            now += dice.choice((0, 0, 1, 2))
            key = int(dice.paretovariate(0.7)) % keys if heavy else dice.randrange(keys)
            late = dice.choice((0, 0, 0, 3, 20, 39, 40, 41, 60))
            parts[dice.randrange(2)].append(Row((key if dice.random() > 0.02 else None,), now - late))
        made.append(parts)
    return made


def word(key: int, salt: int) -> int:
    """A digest's second half: any 64 bits, another for every salt."""
    return int(random.Random(f"{salt}/{key}").getrandbits(64))


def judged(windows: list[Window], settings: Settings) -> list[tuple[Any, list[list[Any]]]]:
    """The latest point before each window, and its verdicts."""
    oracle, result = Oracle(settings), []
    for parts in windows:
        before = oracle.latest
        result.append((before, oracle.judge(parts, 0)))
    return result


def settings_of(lookup: str, period: int = PERIOD, clock: str = "arrival") -> Settings:
    """Of an ordered stream."""
    return Settings("ordered", period=period, span=SPAN, lookup=lookup, clock=clock)


def measured(windows: list[Window], settings: Settings, meter: LeakMeter, salt: int = 0) -> LeakMeter:
    """The meter after all windows."""
    for parts, (before, answers) in zip(windows, judged(windows, settings), strict=True):
        rows = [
            (word(row.key[0], salt), row.expiry, (number << POSITION_BITS) + at, VERDICTS[answer[0]])
            for number, (part, of_part) in enumerate(zip(parts, answers, strict=True))
            for at, (row, answer) in enumerate(zip(part, of_part, strict=True))
            if answer[0] != "error"
        ]
        columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
        records = SampledRecords(
            np.array(columns[0], np.uint64),
            np.array(columns[1], np.int64),
            np.array(columns[2], np.int64),
            np.array(columns[3], np.uint8),
        )
        meter.add(SampledRecords.joined([records], float_domain=False), before, sum(map(len, parts)))
    return meter


def missed(windows: list[Window], settings: Settings) -> Counter[str]:
    """Every copy of the stream that was missed or found, counted one by one, by docs/leaks.md."""
    newest: dict[int, int] = {}
    counts: Counter[str] = Counter()
    for parts, (before, answers) in zip(windows, judged(windows, settings), strict=True):
        for part, of_part in zip(parts, answers, strict=True):
            for row, (port, _, _) in zip(part, of_part, strict=True):
                if port == "error":
                    continue
                key = row.key[0]
                if key in newest and before is not None and newest[key] <= before - MEMORY:
                    del newest[key]
                if key in newest:
                    distance = abs(row.expiry - newest[key])
                    if port == "unique":
                        counts["lookup" if distance < PERIOD else "period"] += 1
                    else:
                        counts["expired" if port == "expired" else "found"] += 1
                if port != "expired":
                    newest[key] = max(newest.get(key, row.expiry), row.expiry)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("lookup", ["own_bucket", "all_live"])
@pytest.mark.parametrize("clock", ["arrival", "batch"])
@pytest.mark.parametrize("seed", range(4))
def test_a_sample_of_all_keys_is_the_count(seed: int, lookup: str, clock: str) -> None:
    """At a rate of one the meter counts what a plain walk over the stream counts, without an interval."""
    windows, settings = stream(seed), settings_of(lookup, clock=clock)
    meter = measured(windows, settings, LeakMeter.new(SETTINGS))
    counts = missed(windows, settings)
    assert counts["found"], "the stream has copies"
    assert counts["lookup"] or lookup == "all_live"
    assert meter.totals.sampled.tolist() == [counts[kind] for kind in (*KINDS, "found")]
    for kind, total in enumerate(meter.totals.totals.tolist()):
        estimate = of_count(total, meter.totals.squares[kind], meter.weight, int(meter.totals.sampled[kind]))
        assert (estimate.low, estimate.records, estimate.high) == (total, total, total)
    assert meter.totals.records == sum(len(part) for parts in windows for part in parts)
    assert meter.totals.distances.sum() == sum(counts.values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_estimates_are_unbiased(seed: int) -> None:
    """The eight samples of one key in eight, one for each value of the bits, add up to eight times the count."""
    windows, settings = stream(seed, keys=400), settings_of("own_bucket")
    counts = missed(windows, settings)
    totals = np.zeros(len(KINDS) + 1)
    squares = np.zeros(len(KINDS) + 1)
    for turn in range(8):
        turned = _turned(windows, turn)
        meter = measured(turned, settings, LeakMeter.new(replace(SETTINGS, bits=3)))
        totals += meter.totals.totals
        squares += meter.totals.squares
    assert (totals / 8).tolist() == [counts[kind] for kind in (*KINDS, "found")]
    whole = measured(windows, settings, LeakMeter.new(SETTINGS)).totals
    # E[V'] is the variance (1 - p) / p * sum of y_k squared.
    assert (squares / 8 * (1 - 1 / 8)).tolist() == pytest.approx((whole.squares * (1 - 1 / 8) * 8).tolist())


def _turned(windows: list[Window], turn: int) -> list[Window]:
    """The same stream, its keys renamed so that those with `turn` as the highest three bits are the sample."""
    names: dict[int, int] = {}
    used: set[int] = set()
    for key in {row.key[0] for parts in windows for part in parts for row in part if row.key[0] is not None}:
        want = (word(key, 0) >> 61) ^ turn
        name = next(n for n in range(key * 1000, key * 1000 + 1000) if word(n, 0) >> 61 == want and n not in used)
        used.add(name)
        names[key] = name
    return [[[Row((names.get(row.key[0]),), row.expiry) for row in part] for part in parts] for parts in windows]


@pytest.mark.slow
def test_intervals_hold_the_count() -> None:
    """Of a hundred samples of a stream at least 90 have the count in their 95 % interval."""
    windows, settings = stream(5, keys=600, rows=400, windows=6, heavy=False), settings_of("own_bucket")
    count = missed(windows, settings)["lookup"]
    held = 0
    for salt in range(100):
        meter = measured(windows, settings, LeakMeter.new(replace(SETTINGS, bits=2)), salt)
        totals = meter.totals
        estimate = of_count(totals.totals[0], totals.squares[0], meter.weight, int(totals.sampled[0]))
        held += estimate.low <= count <= estimate.high
    assert count > 50
    assert held >= 90


@pytest.mark.slow
def test_a_full_sample_halves() -> None:
    """A sample that would hold too many keys drops half of them, keeps its room, and counts on by the new rate."""
    windows, settings = stream(7, keys=3000, rows=300), settings_of("own_bucket")
    meter = measured(windows, settings, LeakMeter.new(replace(SETTINGS, most_keys=64)))
    assert meter.bits > 0
    assert meter.count <= 64
    assert in_sample(meter.keys.words[: meter.count], meter.bits).all()
    totals = [
        measured(windows, settings, LeakMeter.new(replace(SETTINGS, most_keys=64)), salt).totals.totals[FOUND_AT]
        for salt in range(60)
    ]
    spread = np.std(totals) / np.sqrt(len(totals))
    assert abs(np.mean(totals) - missed(windows, settings)["found"]) < 4 * spread


FOUND_AT = len(KINDS)


def test_no_record_and_no_clock() -> None:
    """A window without sampled records counts its rows."""
    meter = LeakMeter.new(SETTINGS)
    meter.add(SampledRecords.joined([], float_domain=False), None, 17)
    assert (meter.totals.records, meter.totals.seen, meter.count) == (17, 0, 0)


@pytest.mark.parametrize(("age", "kind"), [(39, "lookup"), (40, "period"), (41, "period"), (79, "period"), (80, None)])
def test_both_sides_of_the_edges(age: int, kind: str | None) -> None:
    """
    A copy less than a period away is missed by the look-up, from a period on by the period, and at the end of the
    memory it is forgotten.

        first copy 0          39 | 40              79 | 80
                   lookup -------]  period -----------]  not seen any more
    """
    windows = [[[Row((1,), 0)]], [[Row((2,), age)]], [[Row((1,), age)]]]
    meter = measured(windows, settings_of("own_bucket"), LeakMeter.new(SETTINGS))
    assert meter.totals.sampled.tolist() == [int(kind == each) for each in KINDS] + [0]


def test_found_and_missed_copies_have_distances_of_their_own() -> None:
    """A copy 4 away that was found, then one of another bucket that was not, 35 from the newest."""
    windows = [[[Row((1,), at)]] for at in (0, 4, 39)]
    meter = measured(windows, settings_of("own_bucket"), LeakMeter.new(SETTINGS))
    assert meter.totals.distances.tolist() == [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0]]


def test_doubles() -> None:
    """Expiry keys that are doubles are compared as such."""
    meter = LeakMeter.new(replace(SETTINGS, float_domain=True, period=0.5, memory=1.0, edges=(0.1,)))
    one = np.array([5], np.uint64)
    for expiry in (0.0, 0.49, 0.99):
        records = SampledRecords(one, np.array([expiry]), np.zeros(1, np.int64), np.zeros(1, np.uint8))
        meter.add(records, expiry, 1)
    assert meter.totals.sampled.tolist() == [1, 1, 0, 0]


def test_bits_are_not_those_of_shards() -> None:
    """Any number of shards has its part of the sample: within a tenth, for a million keys."""
    words = np.random.default_rng(3).integers(0, 2**64, 1_000_000, dtype=np.uint64)
    sampled = words[in_sample(words, 4)]
    for shards in (4, 16, 7):
        parts = np.bincount((sampled % np.uint64(shards)).astype(np.int64), minlength=shards)
        assert parts.min() > 0.9 * sampled.size / shards
    assert in_sample(words, 0).all()


def test_intervals() -> None:
    """Byar's approximation is within 3 % of the exact interval of a Poisson count; nothing seen is not nothing."""
    exact = {0: (0.0, 3.689), 1: (0.0253, 5.572), 4: (1.090, 10.24), 25: (16.18, 36.90), 100: (81.36, 121.63)}
    for events, (low, high) in exact.items():
        estimate = of_count(events * 1024.0, events * 1024.0**2, 1024.0, events)
        assert estimate.high / 1024 == pytest.approx(high, rel=0.03)
        assert estimate.low / 1024 == pytest.approx(low, rel=0.03, abs=0.02)
    one_key = of_count(100 * 256.0, (100 * 256.0) ** 2, 256.0, 100)
    assert one_key.high > 5 * one_key.records
