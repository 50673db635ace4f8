"""What a batch of a query is to its store. PURE.

Spark calls the function of `foreachBatch` again with a batch whenever it does not know that the call ended well. The
commit record of a window names its query and batch, so the store knows, whatever became of Spark's checkpoint. It also
has the time at which Spark planned the batch. That time stands in the checkpoint, so a repetition has the same one; a
batch of another time was planned anew, of a checkpoint that lacks it, and has the rows that have come since too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from deduper.errors import NewCheckpointError, OldCheckpointError


class Answer(Enum):
    """What is to be done for a batch."""

    JUDGE = "judge"
    NOTHING = "nothing"
    """It was judged. Its ports are out, or they are repeated now: see `query.dedup`."""


def answer(
    batches: Mapping[str, tuple[int, int | None]],
    query_id: str,
    batch_id: int,
    *,
    planned_ms: int | None,
    name: str,
    next_window: int,
    refuses_new: bool,
) -> tuple[Answer, str | None]:
    """The answer to a batch, and a warning.

    Args:
        batches: the last batch of each query that the store has judged a window of, and when it was planned.
        query_id, batch_id: Spark's, of the call.
        planned_ms: when Spark planned the batch, in ms since the epoch; None: it does not say.
        name: the Deduper's, for messages.
        next_window: of the store.
        refuses_new: whether a query that the store does not know is refused, if it knows others.

    Raises:
        OldCheckpointError: the store has a later batch of the query, or judged this one as it was planned before.
        NewCheckpointError: the store knows other queries, and `refuses_new`.
    """
    if query_id not in batches:
        warning = None
        if batches:
            newest = list(batches.items())[-1]
            warning = (
                f"{name}: query {query_id} is new to a store of {next_window} windows, the last of which is batch "
                f"{newest[1][0]} of query {newest[0]}: its checkpoint was replaced, or it is a second query. What it "
                "reads again leaves as duplicate, what it skips is gone. Go on; or start the source where the store "
                "stands; or use another store"
            )
            if refuses_new:
                raise NewCheckpointError(warning)
        return Answer.JUDGE, warning
    last, judged_ms = batches[query_id]
    if batch_id > last + 1:
        return Answer.JUDGE, (
            f"{name}: batches {last + 1} to {batch_id - 1} of query {query_id} never came here: their rows were not "
            "judged"
        )
    if batch_id > last:
        return Answer.JUDGE, None
    if batch_id < last:
        since = f"asks for batch {batch_id} of query {query_id}, and the store has judged batch {last}"
    elif planned_ms == judged_ms and (planned_ms is not None or not query_id):
        return Answer.NOTHING, None
    elif planned_ms is None or judged_ms is None:
        return Answer.NOTHING, (
            f"{name}: batch {batch_id} of query {query_id} was judged, and comes again; this release of Spark does not "
            "say when it was planned. If its checkpoint is an older copy, rows that have come since are not judged"
        )
    else:
        since = f"has planned batch {batch_id} of query {query_id} anew since the store has judged it"
    raise OldCheckpointError(
        f"{name}: Spark {since}: the checkpoint is older than the store, and batch {batch_id} may hold other rows than "
        "then. Put the newest checkpoint back; or start with a new one, and what is read again leaves as duplicate; or "
        "take the store back with `deduper rewind`, if all its ports are files"
    )
