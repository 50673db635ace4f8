"""The configuration of a replay: the job's, with a store and outputs of the replay's own, and a range of keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deduper.admin.keys.values import parse_expiry
from deduper.config.files import FileSink
from deduper.config.model import Config
from deduper.config.sections import EventTimeExpiry, NoneSink, OrderedExpiry
from deduper.errors import UsageError
from deduper.replay.keys import Key, KeyRange

Order = Literal["time", "arrival"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be replayed: expiry keys from `start` to before `end` as they are written, in `order`.

    `order` None: in the order of time if the keys have one. `out`: the folder of the replay's own store and outputs;
    None: those of the job.
    """

    out: Path | None
    start: str | None = None
    end: str | None = None
    order: Order | None = None


def order_of(config: Config, asked: Asked) -> Order:
    """The order of a replay.

    Raises:
        UsageError: the job's records have no order of time.
    """
    has_time = isinstance(config.expiry, EventTimeExpiry | OrderedExpiry)
    order = asked.order or ("time" if has_time else "arrival")
    if order == "time" and not has_time:
        raise UsageError(
            f"--order time: with `expiry.by: {config.expiry.by}` records have no order of time; write --order arrival"
        )
    if order == "arrival" and (asked.start is not None or asked.end is not None):
        raise UsageError("--from and --to are of --order time: leave them out")
    if asked.out is None and (asked.start is not None or asked.end is not None):
        raise UsageError(
            "--in-place takes the whole source, since all of it counts as judged for the job: leave out --from and --to"
        )
    return order


def bounds_of(config: Config, asked: Asked, now_us: int) -> KeyRange:
    """The range of a replay in the order of time. `now_us`: the wall clock, by which a guard refuses records.

    Raises:
        UsageError: the range is none.
    """
    first, end = _key(config, "--from", asked.start), _key(config, "--to", asked.end)
    if first is not None and end is not None and first >= end:
        raise UsageError(f"--from {asked.start} --to {asked.end}: nothing is between them")
    ahead = config.expiry.max_ahead_of_now if isinstance(config.expiry, EventTimeExpiry) else None
    return KeyRange(first, end, None if ahead is None else now_us + ahead)


def _key(config: Config, option: str, text: str | None) -> Key | None:
    if text is None:
        return None
    try:
        key = parse_expiry(text, config)
    except UsageError as error:
        raise UsageError(f"{option}: {error}".replace("--at ", "")) from error
    assert not isinstance(key, str)
    return key


def replay_config(config: Config, asked: Asked) -> Config:
    """The job's configuration for its replay: drained once, and without `max_jump`, which allows for a silence.

    With a folder of its own it has its store and ports there, files in the formats of the job's.
    """
    expiry = config.expiry
    if isinstance(expiry, EventTimeExpiry | OrderedExpiry):
        expiry = expiry.model_copy(update={"max_jump": None})
    update: dict[str, object] = {"expiry": expiry, "trigger": "available_now"}
    if asked.out is not None:
        own = asked.out.absolute()
        scheme = "rocksdb" if config.store.url.startswith("rocksdb:") else "file"
        store = config.store.model_copy(update={"url": f"{scheme}:{own / 'store'}"})
        sinks = {port: _own_sink(sink, own / port) for port, sink in config.sinks.items()}
        update |= {"store": store, "sinks": config.sinks.model_copy(update=sinks), "metrics": None}
    return config.model_copy(update=update)


def _own_sink(sink: object, path: Path) -> FileSink | NoneSink:
    if isinstance(sink, NoneSink):
        return sink
    if isinstance(sink, FileSink):
        return sink.model_copy(update={"url": str(path)})
    return FileSink.model_validate({"format": "parquet", "path": str(path)})
