"""What `explain` says of the next copy is what the job then says of it."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bucket_store.log.commit_log import CommitLog
from bucket_store.pieces.open import open_backend
from bucket_store.places.local import local_place
from deduper.admin.keys.stored import CopyForecast, category_of, new_category, stored_key
from deduper.admin.open_store import OpenStore, open_store
from deduper.core.categories import CategoryState
from deduper.testing import Row
from tests.deduper.small_service import BEGIN_US, SECOND, Process, Trial, World, machine_of
from tests.deduper.window.test_conflicts import job, put, record
from tests.deduper.window.test_state_machine import trials
from tests.tiers import examples

KEYS = ("a", "b", "c", None)
STEPS = (-20, -11, -10, -9, -2, -1, 0, 1, 3, 5, 12, 40)
CATEGORIES = ("p", "q", "r", "s", "t")


def opened(world: World) -> OpenStore:
    """The store as a command opens it."""
    url = world.config.store.url
    return OpenStore(url, world.config, CommitLog.open(local_place(world.config.store.path)), open_backend(url))


def rows_of(by: str, trial: Trial) -> st.SearchStrategy[Row]:
    """Rows of few keys, with the expiry keys of a trial."""
    point = BEGIN_US if by == "event_time" else 0
    expiries: Any = st.sampled_from(CATEGORIES)
    if by != "category":
        expiries = st.sampled_from(STEPS).map(lambda step: point + step * trial.unit)
    return st.builds(lambda key, expiry: Row((key,), expiry, 0), st.sampled_from(KEYS), expiries)


PORTS = ("unique", "duplicate", "expired")
REACHED = {
    "never": PORTS[:2],
    "event_time": PORTS,
    "ordered": PORTS,
    "processing_time": PORTS[:2],
    "category": PORTS,
}


@pytest.mark.night(but=["event_time"])
@pytest.mark.slow
@pytest.mark.parametrize("by", REACHED)
def test_what_is_said_of_the_next_copy_is_what_the_job_says(by: str) -> None:
    """Every kind of expiry, look-up, clock and guard; keys seen, expired and never seen; a quiet hour between."""
    seen: Counter[str] = Counter()

    @settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(data=st.data())
    def agrees(data: st.DataObject) -> None:
        seen[judged(by, data)] += 1

    agrees()
    assert all(seen[port] for port in REACHED[by]), seen


def judged(by: str, data: st.DataObject) -> str:
    """The port of a copy after a random history, which is the one that was foretold."""
    trial = data.draw(trials(by))
    rows = rows_of(by, trial)
    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root), trial)
        with machine_of(world):
            process = Process(world)
            for window in data.draw(st.lists(st.lists(rows, min_size=1, max_size=5), max_size=4)):
                process.offer(world.put([window]))
                world.now_us += data.draw(st.sampled_from((0, SECOND, 8 * SECOND, -SECOND)))
            store = opened(world)
            copy = data.draw(rows)
            asked = [] if by in ("never", "processing_time") else [copy.expiry]
            report = stored_key(store, copy.key, asked=asked, now_us=world.now_us)
            (forecast,) = [one for one in report.next if one.copy in ("asked", "any")]
            for one in report.next:
                if one.copy == "same" and one.expiry_key == forecast.expiry_key:
                    assert one.verdict == forecast.verdict
            process.offer(world.put([[copy]]))
            (((port, reason, _),),) = world.judged[max(world.judged)].answers
            assert (forecast.verdict, forecast.reason) == (port, reason)
            return port


def test_a_copy_of_a_key_without_a_known_payload_is_foretold_as_unknown(tmp_path: Path) -> None:
    """Its first copy came before `fingerprint`, or before the one of now; that of the other key counts."""
    one = job(tmp_path, fingerprint="none")
    for name, fingerprint in (("a", "none"), ("b", {"columns": ["note"]}), ("c", "all")):
        one.sections["fingerprint"] = fingerprint
        put(one, name, [record(name)])
        one.run()
    store = open_store(str(one.config_file))
    foretold = [(forecast.verdict, forecast.reason) for key in "abcd" for forecast in stored_key(store, (key,)).next]
    put(one, "d", [record(key) for key in "abcd"])
    one.run()
    rows = [row for port in ("duplicate", "unique") for row in one.rows(port) if row["_dedup"]["window"] == 3]
    assert foretold == [
        ("duplicate", "unknown"),
        ("duplicate", "unknown"),
        ("duplicate", "earlier_window"),
        ("unique", ""),
    ]
    assert [(row["_dedup"]["verdict"], row["_dedup"]["reason"] or "") for row in rows] == foretold


def test_the_category_of_a_place_is_known_while_it_is_live_or_known_as_dropped() -> None:
    """Values are dropped in the order of their places."""
    state = CategoryState(6, (("tue", 4), ("wed", 5)), ("sun", "mon"))
    assert [category_of(state, place) for place in range(7)] == [None, None, "sun", "mon", "tue", "wed", None]
    assert new_category(CategoryState(2, (("new-0", 1),), ("new-1",))) == "new-2"


def test_a_forecast_has_stable_keys() -> None:
    """For scripts."""
    assert CopyForecast("same", 3, "expired", "older_than_period").to_json() == {
        "copy": "same",
        "expiry_key": 3,
        "verdict": "expired",
        "reason": "older_than_period",
    }
