"""Which standing task takes over what: records that jobs have read stay in the folder of their host. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from deduper.spark.placing import Executor
from deduper.tasks.executors.steps import Left
from deduper.tasks.write import grouped


def taken_over(lefts: Sequence[Left], tasks: Sequence[tuple[Executor, str]]) -> list[tuple[Executor, Left]]:
    """What each task takes, of those at these places and in these processes; none if one cannot take all of its own.

    A task gets what its own executor has read: another on the same host may have another folder. What it gets is one
    `Left`, so it needs one directory; a host whose shared memory has filled up meanwhile has two.
    """
    places_of: dict[str, list[Executor]] = {}
    for place, process in tasks:
        places_of.setdefault(process, []).append(place)
    of_process: dict[str, list[Left]] = {}
    for left in lefts:
        if left.receipts:
            of_process.setdefault(left.ran_on, []).append(left)
    taken = []
    for process, of_one in of_process.items():
        if process not in places_of or len({left.directory for left in of_one}) > 1:
            return []
        groups = grouped([left.key_bytes for left in of_one], len(places_of[process]))
        taken += [
            (place, _joined([of_one[number] for number in group]))
            for place, group in zip(places_of[process], groups, strict=False)
        ]
    return taken


def _joined(lefts: Sequence[Left]) -> Left:
    return Left(
        directory=lefts[0].directory,
        parts=tuple(part for left in lefts for part in left.parts),
        checksums=tuple(checksum for left in lefts for checksum in left.checksums),
        key_bytes=sum(left.key_bytes for left in lefts),
        ran_on=lefts[0].ran_on,
    )
