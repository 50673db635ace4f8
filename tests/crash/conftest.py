"""The figures of the kills, for the end of the run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import notes
from tests.crash import ledger


@pytest.fixture(scope="session", autouse=True)
def _kills_are_counted() -> Iterator[None]:
    """Of this process, which has all the kills."""
    yield
    for line in ledger.summary():
        notes.add(line)
