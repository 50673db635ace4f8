"""The tiers of tests: which tests each has, how many examples of a property it tries, and what draws them.

| tier | command | tests | examples of a property | drawn by |
|---|---|---|---|---|
| `check` | `make check` | those that start nothing and are quick | at most 20 | a fixed seed |
| `change` | `scripts/test.sh` | all but those marked `night` | at most 100 | a fixed seed |
| `night` | `make all` | all | as many as a test asks for | a random seed, which is printed |

The environment has the tier and the seed, so that every process of a run has the same.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

CHECK, CHANGE, NIGHT = TIERS = ("check", "change", "night")
TIER, SEED = "TESTS_TIER", "TESTS_SEED"
FIXED_SEED = 651119

_MOST_EXAMPLES = {CHECK: 20, CHANGE: 100}
_NOT_IN_CHECK = {"spark", "services", "crash", "slow", "night"}


def begin(tier: str, seed: int | None) -> None:
    """Set the tier and the seed of this process and of those that it starts.

    A process that another one of the run has started keeps what it was given.
    """
    os.environ.setdefault(TIER, tier)
    drawn = drawn_seed() if tier == NIGHT else FIXED_SEED
    os.environ.setdefault(SEED, str(drawn if seed is None else seed))


def drawn_seed() -> int:
    """Another seed each time."""
    return random.SystemRandom().randrange(10**6)


def tier() -> str:
    """The tier of this run."""
    return os.environ.get(TIER, CHANGE)


def seed() -> int:
    """What draws everything that this run leaves to chance."""
    return int(os.environ.get(SEED, FIXED_SEED))


def is_night() -> bool:
    """True where a test tries everything, and False where it tries a fixed choice."""
    return tier() == NIGHT


def examples(wanted: int) -> int:
    """How many examples of a property this tier tries, of those that the property asks for."""
    return min(wanted, _MOST_EXAMPLES.get(tier(), wanted))


def has(chosen: str, marks: Iterable[str]) -> bool:
    """True if a tier has a test with these marks."""
    return chosen == NIGHT or not ({"night"} if chosen == CHANGE else _NOT_IN_CHECK) & set(marks)
