"""The batches of a Kafka source, read from Spark's checkpoint.

    offsets/<batch id>   last line: {"topic": {"0": 23}}: the end of the batch
    sources/0/0          the beginning of batch 0, in the same form, after a zero byte and a version line

`foreachBatch` gets none of it. Spark syncs none of these files; `is_sound` checks before a start that it can read all.
"""

from __future__ import annotations

from pathlib import Path

from deduper.errors import IntegrityError
from deduper.kafka.offsets import Ends, Offsets, parse_offsets
from deduper.sources.checkpoint import entry_numbers, is_sound_log, read_entry


def offsets_of_batch(checkpoint: Path, batch_id: int) -> tuple[Offsets, Offsets]:
    """The beginning and the end of a batch. Partitions found after the batch before have no beginning.

    Raises:
        IntegrityError: a file that the batch needs is absent or torn.
    """
    end = _offsets(checkpoint / "offsets" / str(batch_id))
    if batch_id > 0:
        return _offsets(checkpoint / "offsets" / str(batch_id - 1)), end
    return _offsets(checkpoint / "sources" / "0" / "0"), end


def finished_offsets(checkpoint: Path) -> Offsets:
    """The offsets before which Spark holds everything for done; the store must have judged it. Empty for a new one."""
    begun, committed = entry_numbers(checkpoint / "offsets"), entry_numbers(checkpoint / "commits")
    done = max(committed | {number - 1 for number in begun}, default=-1)
    return _offsets(checkpoint / "offsets" / str(done)) if done >= 0 else {}


def initial_offsets(checkpoint: Path) -> Offsets | None:
    """The beginning of its first batch; None for a checkpoint without one."""
    first = checkpoint / "sources" / "0" / "0"
    return _offsets(first) if first.exists() else None


def beyond(checkpoint: Path, ends: Ends) -> str | None:
    """The reason why Spark would skip unjudged offsets from here, when the judged ends are these; None if it would not.

    In a partition that was never judged, it may skip only the offsets before the checkpoint's own beginning.
    """
    initial = initial_offsets(checkpoint) or {}
    for place, offset in sorted(finished_offsets(checkpoint).items()):
        judged = ends[place].offset if place in ends else initial.get(place, 0)
        if offset > judged:
            return f"it has {place} as done up to offset {offset}, the store has judged up to {judged}"
    return None


def is_sound(checkpoint: Path) -> bool:
    """Whether every file that a start would read is whole. An absent or empty checkpoint is sound."""
    try:
        if not is_sound_log(checkpoint):
            return False
        for number in sorted(entry_numbers(checkpoint / "offsets"))[-2:]:
            offsets_of_batch(checkpoint, number)
        finished_offsets(checkpoint)
        initial_offsets(checkpoint)
    except (IntegrityError, OSError):
        return False
    return True


def _offsets(file: Path) -> Offsets:
    try:
        return parse_offsets(read_entry(file).lstrip("\0").rstrip("\n").rsplit("\n", 1)[-1])
    except (OSError, ValueError) as exc:
        raise IntegrityError(
            f"{file}: it holds no offsets of a Kafka source: torn, absent, or of another source"
        ) from exc
