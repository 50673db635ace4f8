"""The soak's checks can fail: a leak, a loss and a repetition are found, and what is flat is not accused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.bench.plot_svg import plot
from tests.bench.slopes import slope
from tests.bench.soak_kafka import (
    _AFTER_GC,
    MEMORY,
    checked,
    flat,
    kill_times,
    once,
    parsed,
    small,
)
from tests.bench.traffic import _FIRST, _NUMBER, _SENT, MALFORMED_EVERY, key_of, records, value_of

SEED = 11


def noisy(percent_an_hour: float, minutes: int, noise: float = 0.002) -> tuple[list[float], list[float]]:
    """Samples every five seconds of something at 1 GB that grows by so much, with noise and some far outliers."""
    random = np.random.default_rng(SEED)
    seconds = np.arange(0, minutes * 60, 5.0)
    values = 1e9 * (1 + percent_an_hour / 100 * seconds / 3600 + random.normal(0, noise, len(seconds)))
    values[:: len(seconds) // 9] *= 1.5
    return seconds.tolist(), values.tolist()


@pytest.mark.parametrize("grows", [-20.0, 0.0, 20.0, 200.0])
def test_the_slope_is_found_among_outliers(grows: float) -> None:
    """And lies within its interval."""
    found = slope(*noisy(grows, 60))
    assert found is not None
    true = grows / 100 * 1e9 / 3600
    assert found.least <= true <= found.greatest
    assert abs(found.a_second - true) < 0.01 * 1e9 / 3600
    assert found.percent_an_hour()[0] == pytest.approx(found.a_second * 360_000 / found.level)


@pytest.mark.parametrize(
    ("grows", "minutes", "verdict"),
    [(200.0, 10, "broken"), (0.0, 10, "not shown"), (0.0, 600, "holds"), (3.0, 600, "broken"), (0.0, 4, "not shown")],
)
def test_a_small_slope_is_claimed_only_when_it_is_shown(grows: float, minutes: int, verdict: str) -> None:
    """Ten minutes show a leak of a gigabyte an hour, and cannot show that there is none of ten megabytes."""
    assert small("x", *noisy(grows, minutes)).verdict == verdict


def test_a_lost_and_a_repeated_record_are_found() -> None:
    """Each of them alone breaks the claim."""
    counts = np.zeros((5, 4), np.uint8)
    counts[[0, 1, 2, 3, 4], [0, 0, 1, 2, 3]] = 1
    assert once(counts, 5).verdict == "holds"
    lost, repeated = counts.copy(), counts.copy()
    lost[3, 2] = 0
    repeated[3, 0] = 1
    assert once(lost, 5).numbers.startswith("5 sent; 1 lost, 0 twice")
    assert once(repeated, 5).numbers.startswith("5 sent; 0 lost, 1 twice")
    assert once(lost, 5).verdict == once(repeated, 5).verdict == "broken"


def test_growing_lag_maintenance_and_store_are_found() -> None:
    """Also when the lag stays below its bound."""
    arguments = parsed(["--rate", "1000", "--warm", "0"])
    names = ("lag", *MEMORY, "store_live", "store_all", "tables")

    def samples(lag: float, store: float, house: float | None = 0) -> list[dict[str, float]]:
        return [
            {
                "seconds": 150 + 5.0 * at,
                **dict.fromkeys(names, 1e9),
                "lag": 500 + lag * at,
                "store_live": 1e6 + store * at,
                "rss_maintenance": 0 if house is None else 50e6 + house * at,
            }
            for at in range(60)
        ]

    def verdict(claim: str, lag: float, store: float, house: float | None = 0) -> str:
        grown = samples(lag, store, house)
        return next(each.verdict for each in checked(grown, [], arguments) if claim in each.claim)

    assert (verdict("lag", 0, 0), verdict("live", 0, 0)) == ("holds", "holds")
    assert verdict("lag", 60, 0) == "broken"
    assert verdict("lag", 1000, 0) == "broken"
    assert verdict("live", 0, 1e5) == "broken"
    assert (verdict("keeps house", 0, 0), verdict("keeps house", 0, 0, 2e6)) == ("holds", "broken")
    assert verdict("keeps house", 0, 0, None) == "not shown", "it never ran"
    assert flat("x", samples(0, 0)[:6], "tables").verdict == "not shown"


def test_a_record_says_at_fixed_places_what_it_is() -> None:
    """Torn or not; a whole one is JSON, a torn one is none."""
    for number in (0, 42, MALFORMED_EVERY - 1, 99_999_999_999):
        value = value_of(number, 1_790_000_000_123_456_789, key_of(number), 1_790_000_000.25)
        assert (int(value[_NUMBER]) - _FIRST, int(value[_SENT])) == (number, 1_790_000_000_123_456_789)
        if number % MALFORMED_EVERY == MALFORMED_EVERY - 1:
            with pytest.raises(json.JSONDecodeError):
                json.loads(value)
        else:
            assert json.loads(value)["ts"] == "2026-09-21T14:13:20.250000Z"


def test_the_same_workload_is_made_again() -> None:
    """But for the moment of sending; a fifth are repeats of what went before."""
    first, again = ([key for key, *_ in records(0, 5000, repeats=0.2, late=0, seed=3)] for _ in range(2))
    assert first == again
    assert 0.15 < 1 - len(set(first)) / len(first) < 0.25


def test_kills_fall_into_the_minutes_that_do_not_count() -> None:
    """Evenly, none at either end."""
    assert kill_times(parsed(["--rate", "1", "--warm", "4", "--kills", "3"])) == [60.0, 120.0, 180.0]
    assert kill_times(parsed(["--rate", "1"])) == []


def test_collections_are_read_from_the_jvm_s_log() -> None:
    """Full ones only, and what was left after them."""
    text = (
        "[11.345s][info][gc] GC(7) Pause Young (Normal) (G1 Evacuation Pause) 714M->201M(1200M) 9.9ms\n"
        "[12.345s][info][gc] GC(8) Pause Full (Diagnostic Command) 714M->127M(1200M) 199.9ms\n[13s] x\n"
    )
    assert [(found["at"], found["after"]) for found in _AFTER_GC.finditer(text)] == [("12.345", "127")]


def test_a_plot_skips_what_is_not_known() -> None:
    """A hole is no zero."""
    text = plot("a < b", [0.0, 1.0, 2.0], [("one", {"x": [1.0, float("nan"), 2.0]})], {"warm": 1.0})
    assert "a &lt; b" in text
    assert text.count("polyline") == 1
    assert "nan" not in text
