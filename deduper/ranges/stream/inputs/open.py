"""Opens the inputs of a stream at the positions of the last committed window."""

from __future__ import annotations

from threading import Event

from bucket_store.log.records import LogState
from deduper.config.kafka.sections import KafkaSource
from deduper.errors import UsageError
from deduper.ranges.stream.inputs.folders import FolderInput, Input
from deduper.ranges.stream.settings import INPUTS, StreamJob

_KINDS = {"folder": "a folder", "topics": "topics"}


def open_inputs(job: StreamJob, state: LogState, stop: Event, *, drain: bool) -> dict[str, Input]:
    """Events and ranges by their names. With `drain`, topics end at their present ends.

    Raises:
        UsageError: a side was taken from a folder, and is topics now, or the other way round.
        TopicMissingError, IntegrityError, KafkaOptionsError: as `TopicInput`.
    """
    return {side: _opened(job, side, state, stop, drain=drain) for side in INPUTS}


def _opened(job: StreamJob, side: str, state: LogState, stop: Event, *, drain: bool) -> Input:
    source = getattr(job, side)
    kind = "topics" if isinstance(source, KafkaSource) else "folder"
    before, position = state.extra.get("inputs", {}).get(side, (kind, None))
    if before != kind:
        raise UsageError(
            f"{job.store.url}: {side} were taken from {_KINDS[before]}, and are {_KINDS[kind]} now; put `{side}` back, "
            "or begin with a new store and new ports"
        )
    if not isinstance(source, KafkaSource):
        return FolderInput(side, source, position, job.max_windows)
    # Kafka's client is optional.
    from deduper.ranges.stream.inputs.topics import TopicInput

    return TopicInput(side, source.of_job(job.name), position, stop, drain=drain)
