"""Every call to the file system goes wrong once, and for good: the job ends well, or with an error, and never wrongly.

After an error the process is dead, what it wrote is there, and the next owner meets a file system that works. What it
finds is checked at once, and everything when it has run to the end of the source. A case is named by (scenario, kind,
call, once or for good), which makes it again. At night all cases are gone through, otherwise a fixed part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bucket_store.errors import StoreError
from bucket_store.log.records import OutputFile
from deduper.errors import DeduperError
from deduper.sinks import staging
from tests import tiers
from tests.faults.crash_disk import Disk, Machine
from tests.faults.failing import KINDS, FailingFiles, Hang
from tests.faults.invariants import Violation, check_end, check_moment, public_windows
from tests.faults.service import Plan, Process, Scene, limits, seeded_names
from tests.faults.states import Tally, gone_through, some_of, tried

pytestmark = pytest.mark.slow

STORIES = {
    # The store's birth, and a window.
    "birth": (Plan(windows=1), 0),
    # Pieces die, their bytes go, a snapshot comes, folded records go.
    "growth": (Plan(period=6, windows=4, deletion_batch=1, snapshot_every=3), 3),
}
LEAST = 1000 if tiers.is_night() else 80
Case = tuple[str, int, bool]
"""The kind of fault, the number of the call, and whether it is for good."""


@pytest.mark.parametrize("name", STORIES)
def test_an_error_anywhere_ends_well_or_clearly(name: str, tmp_path: Path) -> None:
    """Never in a hang, never in a wrong verdict, never in a loss; the next start makes it good."""
    sweep = Sweep(name, tmp_path)
    tally = gone_through(sweep.comes_of, some_of(sweep.cases(), 11), f"{name}: {len(sweep.calls)} calls")
    assert tally.violations == []
    assert tally.states >= LEAST


def test_an_error_that_is_taken_for_success_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publishing that holds whatever it cannot rename for published loses rows: the sweep would show it."""

    def careless(outputs: Sequence[OutputFile], *, names: Any) -> list[OutputFile]:
        for output in outputs:
            with contextlib.suppress(OSError):
                names.fs.replace(Path(output.staged), Path(output.final))
        return []

    monkeypatch.setattr(staging, "publish", careless)
    sweep = Sweep("birth", tmp_path)
    renames = [case for case in sweep.cases() if case[0] == "EIO" and not case[2] and sweep.calls[case[1]] == "replace"]
    found = [what for case in renames for what in sweep.comes_of(case).violations]
    print(found[:1])
    assert any("rows of window" in what for what in found)


class Sweep:
    """One story, and the ways in which its calls go wrong."""

    def __init__(self, name: str, root: Path) -> None:
        plan, before = STORIES[name]
        self._name, self._before = name, before
        self._scene = scene = Scene(plan, root)
        with limits(plan), seeded_names(name):
            disk = scene.new_disk()
            if before:
                earlier = Process(scene, Machine(disk))
                earlier.start()
                earlier.run(before)
            self._begun = dict(disk.nodes)
            undisturbed = FailingFiles(Machine(disk), "EIO", -1, lasting=False, most_calls=10**6)
            process = Process(scene, undisturbed)
            process.start()
            process.run()
        self.calls = undisturbed.calls

    def cases(self) -> list[Case]:
        """Every kind of fault at every call that it is about."""
        return [
            (kind, at, lasting)
            for kind, diagnostics in KINDS.items()
            for at, call in enumerate(self.calls)
            if diagnostics(call)
            for lasting in (False, True)
        ]

    def comes_of(self, case: Case) -> Tally:
        """What comes of one."""
        kind, at, lasting = case
        named = f"{self._name}, {kind} at call {at} ({self.calls[at]}), {'for good' if lasting else 'once'}"
        return tried(named, self._scene, lambda: self._go_through(*case))

    def _go_through(self, kind: str, at: int, lasting: bool) -> None:
        scene = self._scene
        machine = Machine(Disk(dict(self._begun)))
        files = FailingFiles(machine, kind, at, lasting=lasting, most_calls=20 * len(self.calls))
        process = Process(scene, files)
        acknowledged = self._before

        def commit(windows: int) -> None:
            nonlocal acknowledged
            acknowledged = windows

        process.committed = commit
        healthy = Process(scene, Machine(machine.disk))
        try:
            process.start()
            process.run()
            acknowledged = len(scene.batches)
        except Hang as error:
            raise Violation(f"it hangs: {error}") from error
        except (StoreError, DeduperError, OSError):
            pass  # A clear end: the job says what it met, and exits.
        machine.die()
        check_moment(scene, healthy.fs, acknowledged, public_windows(scene, healthy.fs))
        # After success too: the next start finds nothing to judge, and clears what a failed removal has left.
        healthy.start()
        healthy.run()
        check_end(scene, healthy)
