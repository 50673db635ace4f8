"""The mark *complete since* of a store, in the `extra` of its newest commit.

The first window of a job sets it: to the latest point at its end, since nothing is known of what lies before. A seed
sets none; an operator's statement (`deduper seed --complete-since`) replaces it in one record.
"""

from __future__ import annotations

from typing import Any

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import ExpiryKey
from bucket_store.log.state import LogState
from deduper.config.model import Config
from deduper.core.complete_since import CompleteSince
from deduper.errors import UsageError

COMPLETE, SEED, SEED_OPEN = "complete_since", "seed", "seed_open"
"""Names in the `extra` of a commit: the mark, what a seed has judged, and whether a seed is not over."""

REPLAY = "replay"
"""In the `extra` of a commit of a replay: its `plan`, and how many parts `of` all are `done`."""
OUTPUTS = "outputs "
"""The beginning of the name of a seed's input that is what a unique port has written."""
OUTPUTS_THROUGH = "outputs_through"
"""In the note of such a seed: its last window."""


def outputs_through(state: LogState) -> int:
    """The last window that a seed has filled with rows of a unique port, -1 without one.

    A key may be alive twice in these windows: the later entry counts.
    """
    is_open = str(state.extra.get(SEED_OPEN) or "").startswith(OUTPUTS)
    noted = max((int(note[OUTPUTS_THROUGH]) for note in state.notes if OUTPUTS_THROUGH in note), default=-1)
    return state.next_window - 1 if is_open else noted


def complete_since(state: LogState) -> CompleteSince | None:
    """The mark of the newest commit; None where nothing is known."""
    return CompleteSince.from_wire(state.extra.get(COMPLETE))


def require_none_open(log: CommitLog) -> None:
    """Refuse a start on a store whose seed or replay is not over: after a window of the job the rest would come late.

    Raises:
        UsageError: a seed or a replay of this store was begun and is not over.
    """
    if replay_is_open(log.state):
        raise UsageError(
            f"{log.root}: a replay into this store is not over: repeat `deduper replay`, or begin with a new store"
        )
    if log.state.extra.get(SEED_OPEN):
        raise UsageError(
            f"{log.root}: a seed of this store is not over: repeat `deduper seed`, or begin with a new store"
        )


def replay_is_open(state: LogState) -> bool:
    """Whether a replay was begun, and has parts that are not judged."""
    replay = state.extra.get(REPLAY)
    return replay is not None and replay["done"] < replay["of"]


def is_complete(config: Config, state: LogState) -> bool:
    """Whether `unique` is final in the window after `state`."""
    mark = complete_since(state)
    return mark is not None and mark.covers(state.latest_point, config.period_steps)


def complete_after(config: Config, state: LogState, latest: ExpiryKey | None, *, is_seed: bool) -> dict[str, Any]:
    """For the `extra` of the window after `state`, which ends with `latest`: the mark, if there is one."""
    mark = complete_since(state)
    if mark is not None:
        mark = mark.after(state.latest_point, config.period_steps)
    elif latest is not None and not is_seed:
        mark = CompleteSince(latest, config.period_steps)
    return {} if mark is None else {COMPLETE: mark.to_wire()}
