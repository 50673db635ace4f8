"""A stand-in for Spark's triggers: a job's plans and windows one after another, on this thread, without a query.

A query takes more than a second to start. Tests of what windows hold do without it in the tier `change`; in `night`,
and wherever a test has the mark `query`, the job is the query that it is.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, cast

import pyspark
import pytest

from deduper.spark.installed import RELEASE
from tests import tiers

_OWNER_CHECK_S = 0.2


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on jobs of this process have no query."""
    from deduper.service.stream import WindowStream  # needs the release of jobs

    monkeypatch.setattr(WindowStream, "_query", without_query)


def stand_in_unless_asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, but by night and for tests with the mark `query`."""
    if pyspark.__version__ == RELEASE and not tiers.is_night() and request.node.get_closest_marker("query") is None:
        stand_in(monkeypatch)


def without_query(stream: Any, name: str, every_s: float) -> None:
    """As `WindowStream._query`: what ends the run is kept, and raised by who has started it."""
    del name
    while stream._goes_on:
        due = time.monotonic() + every_s
        with contextlib.suppress(Exception):
            if stream._plan() is not None:
                stream._judge(cast(Any, None), 0)
        stream._windows.between()
        while (left := due - time.monotonic()) > 0 and not stream._stop.wait(min(_OWNER_CHECK_S, left)):
            stream._windows.between()
