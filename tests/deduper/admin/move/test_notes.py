"""What a note says stays known for as long as something depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduper.admin.move.owning import owning
from deduper.admin.open_store import open_store
from deduper.window.completeness import OUTPUTS_THROUGH, outputs_through
from tests.deduper.admin.move.test_reshard import NOW_US, made

pytestmark = pytest.mark.slow


def test_the_last_window_of_a_seed_from_outputs_outlives_its_note(tmp_path: Path) -> None:
    """The newest 100 notes stay; up to that window `verify` allows two live entries of a key."""
    store = open_store(str(made(tmp_path, "file")))
    with owning(store, NOW_US) as owned:
        owned.rebase(store.log.state, action="seed", **{OUTPUTS_THROUGH: 1})
        for _ in range(101):
            owned.rebase(store.log.state, action="forget")
    state = store.log.refresh()
    assert {note["action"] for note in state.notes} == {"forget"}
    assert outputs_through(state) == 1
