"""The plan of a replay, of two processes that believe to own its store."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from bucket_store.errors import FencedError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import RebaseRecord
from deduper.config.model import Config
from deduper.errors import IntegrityError, UsageError
from deduper.replay.keys import KeyRange
from deduper.replay.making import PLAN, Making, asked_for, read_plan, require_same_replay
from deduper.window.completeness import REPLAY
from tests.deduper.published_store import WALL_US, PublishedStore


class _Surveyed(Exception):
    """The inputs are asked for: here the survey would begin."""


@dataclass
class _Process:
    """A process that has claimed the store."""

    config: Config
    log: CommitLog

    def making(self) -> Making:
        def inputs() -> Any:
            raise _Surveyed

        nothing: Any = None
        return Making(self.config, self.log, nothing, KeyRange(), inputs, nothing, nothing, Event(), WALL_US)

    def has_left(self, *, is_named: bool) -> str:
        """A plan with a slice of this process; the name of its folder."""
        name = f"{self.log.manifest.store_id[:8]}-{self.log.state.epoch:06d}"
        folder = self.making().home / name
        folder.make_directories()
        (folder / PLAN).create(b"plan")
        (folder / "000000-aaaa.arrow").create(b"slice")
        if is_named:
            extra = {REPLAY: {"plan": name, "done": 0, "of": 1, "asked": asked_for(self.config, KeyRange())}}
            self.log.place(RebaseRecord(replace(self.log.state, extra=extra, retired=()), WALL_US))
        return name


@pytest.fixture
def claim(tmp_path: Path) -> Callable[[], _Process]:
    """Another process claims the store, a new one."""
    config = PublishedStore(tmp_path).make(windows=0).config

    def claim() -> _Process:
        log = CommitLog.open(config.store.place)
        log.claim_epoch("somebody:1", WALL_US)
        return _Process(config, log)

    return claim


def test_an_owner_that_slept_removes_no_plan_of_the_new_one(claim: Callable[[], _Process]) -> None:
    """Whether or not the new one has recorded it already."""
    for is_named in (False, True):
        sleeper, owner = claim(), claim()
        name = owner.has_left(is_named=is_named)
        with pytest.raises(FencedError):
            sleeper.making().planned()
        assert {entry.name for entry in (owner.making().home / name).entries()} == {PLAN, "000000-aaaa.arrow"}


def test_what_earlier_runs_have_left_is_removed(claim: Callable[[], _Process]) -> None:
    """Their epochs are lower, and no record names it; all other folders stay."""
    earlier = claim()
    earlier.has_left(is_named=False)
    others = {f"{earlier.log.manifest.store_id[:8]}-old", "ffffffff-000001"}
    for name in others:
        (earlier.making().home / name).make_directories()
    owner = claim()
    with pytest.raises(_Surveyed):
        owner.making().planned()
    assert {entry.name for entry in owner.making().home.entries()} == others


def test_a_replay_goes_on_as_it_was_begun(claim: Callable[[], _Process]) -> None:
    """Where its plan lies no longer counts once all is judged."""
    process = claim()
    asked = json.loads(asked_for(process.config, KeyRange()))

    def require(asked: dict[str, Any], done: int = 0) -> None:
        begun = {"plan": "12345678-000001", "done": done, "of": 1, "asked": json.dumps(asked)}
        require_same_replay(process.log.root, begun, process.config, KeyRange())

    require(asked)
    require({**asked, "home": "/elsewhere"}, done=1)
    for other, match in (
        ({**asked, "from": 1}, "another range or other rules"),
        ({**asked, "from": 1, "records": []}, "another range or other rules"),
        ({**asked, "records": ["columns", "sent"]}, "other ports"),
        ({**asked, "home": "/elsewhere"}, "other ports"),
    ):
        with pytest.raises(UsageError, match=match):
            require(other)


def test_a_plan_that_is_gone_is_named(claim: Callable[[], _Process]) -> None:
    """It counts: the store has a record of it."""
    file = claim().making().home / "12345678-000001" / PLAN
    with pytest.raises(IntegrityError, match="000001/plan: the plan of the replay is gone; begin again"):
        read_plan(file)
    earlier = claim()
    name = earlier.has_left(is_named=True)
    (earlier.making().home / name).remove_tree()
    with pytest.raises(IntegrityError, match="the plan of the replay is gone"):
        claim().making().planned()
