"""Turns in rounds: every lane meets the machine in the same states, and a slow minute hits all alike.

A round begins with another lane each time. A lane that fails keeps its turns so far and has no more; the others
continue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from deduper.spark.failures import innermost_cause
from tests.bench.contenders import LaneSpec
from tests.bench.figures import LaneResult
from tests.bench.lanes import Engine, Lane

logger = logging.getLogger(__name__)

T = TypeVar("T")


def run_rounds(
    engine: Engine,
    specs: Sequence[LaneSpec],
    *,
    group: str,
    rounds: int,
    work: Path,
    spark: Mapping[str, str],
    report: Callable[[str], None],
) -> list[LaneResult]:
    """Fill the state of every lane, then run their turns; remove their folders."""
    if not specs:
        return []
    workloads = dict.fromkeys(spec.workload for spec in specs)
    rows = {workload: engine.rows(workload, work / f"rows-{place}") for place, workload in enumerate(workloads)}
    lanes = []
    for number, spec in enumerate(specs):
        at = work / f"{group}-{number}"
        lanes.append(Lane(spec, at, rows[spec.workload], engine.outputs(spec, at), spark))
    try:
        for lane in lanes:
            _attempt(lane, lambda: lane.prepare(*engine.session()), report)  # noqa: B023  # called at once
            if lane.failure is None:
                report(f"{group}: {lane.spec.name} is loaded")
        for round_number in range(rounds):
            for lane in turn_order(lanes, round_number):
                if lane.failure is None:
                    _attempt(lane, lambda: lane.take_turn(*engine.session(), round_number), report)  # noqa: B023
                    _report_turn(lane, group, round_number, rounds, report)
        return [lane.result(group) for lane in lanes]
    finally:
        for lane in lanes:
            lane.discard()


def turn_order(lanes: Sequence[T], round_number: int) -> list[T]:
    """The order of a round: each round another lane begins, and every second round runs backwards from it."""
    first = round_number % len(lanes)
    step = 1 if round_number % 2 == 0 else -1
    return [lanes[(first + step * place) % len(lanes)] for place in range(len(lanes))]


def _attempt(lane: Lane, action: Callable[[], object], report: Callable[[str], None]) -> None:
    try:
        action()
    except Exception as error:  # the failure of one contender leaves the others' numbers valid
        lane.failure = innermost_cause(error) or type(error).__name__
        logger.debug("%s failed", lane.spec.name, exc_info=error)
        report(f"{lane.spec.name} failed: {lane.failure}")


def _report_turn(lane: Lane, group: str, round_number: int, rounds: int, report: Callable[[str], None]) -> None:
    if lane.failure is None:
        speeds = ", ".join(f"{trigger.rows_per_second:,.0f}" for trigger in lane.turns[-1].measured)
        report(f"{group} {round_number + 1}/{rounds}: {lane.spec.name} {speeds} rows/s")
