"""How a seed's input is read: the job's configuration with another source, and the opening of that source."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import PrivateAttr

from bucket_store import failpoints
from bucket_store.log.records import RebaseRecord
from bucket_store.log.state import LogState
from deduper.config.files import FilesSource
from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.config.sections import EventTimeExpiry, NoneSink, OrderedExpiry, SinksConfig, SourceConfig
from deduper.dedup_column import DEDUP
from deduper.errors import UsageError
from deduper.kafka.errors import CLIENT_MISSING, INSTALL_CLIENT, is_client_installed
from deduper.payload import Leaf
from deduper.seeding.source import (
    KnownByOrder,
    SeededFiles,
    SeedInput,
    SeedProgress,
    SeedSource,
    seeds_of,
)
from deduper.service.followed_files import FollowedFiles
from deduper.service.job import Opened
from deduper.service.stop import Stop
from deduper.sinks.names import FinalName
from deduper.sources.declared_columns import file_reading
from deduper.sources.files.batch import FileBatches
from deduper.sources.files.judged import FOLDER
from deduper.sources.files.listing import FoundFiles, found_files, list_files
from deduper.sources.files.source_file import shown
from deduper.sources.protocol import PlannedSource
from deduper.window.completeness import OUTPUTS, SEED, SEED_OPEN
from deduper.window.recovery import Ownership

_NOTHING = NoneSink(format="none")


class SeedConfig(Config):
    """The configuration of a seed."""

    is_seed: ClassVar[bool] = True
    _payload: tuple[Leaf, ...] | None = PrivateAttr(default=())

    @property
    def payload(self) -> tuple[Leaf, ...] | None:
        """The job's: the input may have other columns.

        Names do not choose it, since a column `a.b` and the field `b` of an object `a` have the same one.
        """
        return self._payload


class OutputsConfig(SeedConfig):
    """The configuration of a seed from what a unique port has written."""

    is_of_outputs: ClassVar[bool] = True


def seed_config(config: Config, given: SeedInput) -> Config:
    """The job's configuration with the seed's input as its source, and no outputs.

    `max_jump` is off: it allows for the wall time of a silence, which past records do not show.

    Raises:
        UsageError: the job cannot read such an input.
    """
    if given.is_of_outputs and config.keeps_versions and config.lookup == "all_live":
        raise UsageError(
            f"{given.option} --outputs: with `on_conflict: unique`, and keys that expire one by one (`lookup: "
            "all_live`, `by: processing_time`), a row of the port may be a version of its key, or the key again after "
            "its period, and the rows do not say which. Seed the records that the job has read, without --outputs; if "
            "they are gone, seed and run with `on_conflict: error` for one period: no version leaves again"
        )
    expiry = config.expiry
    if isinstance(expiry, EventTimeExpiry | OrderedExpiry):
        expiry = expiry.model_copy(update={"max_jump": None})
    # Files have no bytes of a topic's value.
    has_payload = config.payload is not None or given.kind == "topic"
    made = config.model_copy(
        update={
            "source": _source(config, given),
            "expiry": expiry,
            "fingerprint": config.fingerprint if has_payload else "none",
            "sinks": SinksConfig(unique=_NOTHING, duplicate=_NOTHING, expired=_NOTHING, error=_NOTHING),
            "trigger": "available_now",
            "metrics": None,
        }
    )
    made_by = OutputsConfig if given.is_of_outputs else SeedConfig
    return made_by.model_construct(**dict(made), _payload=config.payload if has_payload else ())


def _source(config: Config, given: SeedInput) -> SourceConfig:
    if given.kind == "topic":
        return _topic(config, given)
    return _outputs(config, given) if given.is_of_outputs else _records(config, given)


def _outputs(config: Config, given: SeedInput) -> FilesSource:
    """Published files of one format: their endings say which, and CSV has a header, with `_dedup` at its end."""
    source = _records(config, replace(given, record_format="parquet"))
    try:
        names = [FinalName.of(os.path.basename(path)) for path in list_files(source)]  # noqa: PTH119  # texts here
    except OSError as error:
        raise UsageError(f"{given.option}: it cannot be listed: {error.strerror}") from error
    forms = {None if name is None else name.format for name in names}
    if None in forms:
        raise UsageError(f"{given.option}: not all files are a port's: name its folder, or leave out --outputs")
    if len(forms) > 1:
        raise UsageError(f"{given.option}: the files are of several formats: name those of one, such as PATH/*.parquet")
    form = next(iter(forms)) if forms else "parquet"
    has_texts = any(column.type.name == "string" for column in config.key_columns)
    if form == "csv" and config.null_keys == "allow" and has_texts:
        raise UsageError(
            f"{given.option}: with `null_keys: allow` a text of a key may be empty or null: "
            "CSV reads both as null, so these keys cannot be told apart"
        )
    more: dict[str, Any] = (
        {"columns": f"{source.columns}, {DEDUP} string", "header": True} if form == "csv" else {"header": False}
    )
    # All columns are in the rows, and none in the names of files.
    more |= {"name_pattern": None, "delimiter": ","}
    return source.model_copy(update={"file_format": form, **more})


def _records(config: Config, given: SeedInput) -> FilesSource:
    source = config.source
    path = str(Path(given.place).absolute())
    if isinstance(source, FilesSource):
        form = given.record_format or source.file_format
        return source.model_copy(update={"path": path, "file_format": form, "header": source.header and form == "csv"})
    form = given.record_format or source.value.format
    if form in ("text", "avro"):
        raise UsageError(
            f"the job reads topics with values in {form}, which no file has: add --format json, csv or parquet; "
            f"the columns of the files are `{source.columns}`"
        )
    files = {"format": "files", "path": path, "file_format": form, "schema": source.columns}
    return FilesSource.model_validate({**files, "delimiter": source.value.delimiter})


def _topic(config: Config, given: SeedInput) -> KafkaSource:
    if not is_client_installed():
        raise UsageError(f"{CLIENT_MISSING}; {INSTALL_CLIENT}")
    from deduper.seeding.topics import topic_source

    return topic_source(config, given)


def open_input(config: Config, own: Config, given: SeedInput, owned: Ownership, stop: Stop) -> Opened:
    """A seed's input as a source; `own` is the job's own configuration. First one record says that a seed is begun.

    Raises:
        UsageError: a job has judged windows in the store, or the seed of another input is not over.
    """
    log = owned.log
    seeds = seeds_of(log.state)
    if seeds is None:
        raise has_windows(str(log.root), log.state.next_window)
    require_no_other(given, log.state)
    judged, batches = _opened(config, given, owned, seeds, stop)
    if not log.state.extra.get(SEED_OPEN):
        extra = {**log.state.extra, SEED: {**seeds, given.name: judged.to_wire()}, SEED_OPEN: given.name}
        log.place(RebaseRecord(replace(log.state, extra=extra, retired=()), log.state.last_wall_us))
        failpoints.hit("seed.begun")
    kept = {SEED: seeds} | ({FOLDER: str(own.source.folder)} if isinstance(own.source, FilesSource) else {})
    return None, lambda _: SeedSource(batches, given.name, kept, judged)


def _opened(
    config: Config, given: SeedInput, owned: Ownership, seeds: Mapping[str, Any], stop: Stop
) -> tuple[SeedProgress, PlannedSource]:
    """What was judged of the input, and the rest of it."""
    salt = owned.log.manifest.salt
    if isinstance(config.source, FilesSource):
        files = SeededFiles.from_wire(seeds.get(given.name))
        known = KnownByOrder(files, config.source)
        return files, FollowedFiles(FileBatches(config.source, known, file_reading(config, config.source, salt)))
    from deduper.seeding.topics import open_topic

    return open_topic(config, config.source, given, seeds, owned.log.state, salt, stop.event)


def require_no_other(given: SeedInput, state: LogState) -> None:
    """One seed at a time: the end of another one would let a job start on half of this one. One kind for each place.

    Raises:
        UsageError: the seed of another input was begun and is not over, or the place was seeded as another kind of
            input, with `--outputs` or without.
    """
    other = state.extra.get(SEED_OPEN)
    if other not in (None, given.name):
        raise UsageError(f"{given.option}: the seed of {other} is not over: repeat the command for it first")
    if replace(given, is_of_outputs=not given.is_of_outputs).name in state.extra.get(SEED, {}):
        way = "without" if given.is_of_outputs else "with"
        raise UsageError(
            f"{given.option}: it was seeded {way} --outputs, and a record is seeded once: repeat the command {way} it, "
            "or seed into another new store"
        )


def require_finished(given: SeedInput, found: FoundFiles) -> None:
    """No file of the input can be read later only: it may be older than those that are judged then.

    An empty one has nothing to be seeded, and is newer when it has.

    Raises:
        UsageError: one is not finished by its writer, or leads where this user may not go.
    """
    for path in found.denied:
        raise UsageError(
            f"{given.option}: {shown(path)} leads to a place that this user may not enter: grant permission, or move "
            "it away, and repeat the command"
        )
    for file in found.unfinished:
        if file.size_bytes:
            raise UsageError(
                f"{given.option}: {shown(file.path)} is not finished by its writer: it has no end, or the log of "
                "Spark's file sink (`_spark_metadata`) does not list it. Wait until it is finished, or move it away if "
                "its writer has failed, and repeat the command"
            )


def require_apart(
    config: Config, given: SeedInput, files: Iterable[str], seeds: Mapping[str, Mapping[str, Any]]
) -> None:
    """No file of the input was judged as a file of another one: `seeds` as `source.seeds_of`.

    Files that are gone since, or have another place in their order, are not recognised.

    Raises:
        UsageError: one was.
    """
    own: set[str] | None = None
    for name, judged in seeds.items():
        kind, _, place = name.removeprefix(OUTPUTS).partition(" ")
        if kind != given.kind or place == given.place:
            continue
        # Their format is not noted. By this one no file is opened: what was judged is whole.
        source = _records(config, replace(given, place=place, record_format="json"))
        try:
            others = found_files(source).finished[: SeededFiles.from_wire(judged).count]
        except OSError:
            continue  # what is not there is in no other input either
        own = own if own is not None else set(map(os.path.realpath, files))
        for file in others:
            if os.path.realpath(file.path) in own:
                raise UsageError(
                    f"--files {given.place}: {file.path} was seeded as a file of {place}, and a record is seeded once: "
                    "name files that were not seeded"
                )


def has_windows(store: str, windows: int) -> UsageError:
    """The refusal of a store that a job has used."""
    return UsageError(
        f"{store}: a job has judged windows in this store, which has {windows}: records of before them would be judged "
        "too late. Seed a new store, then let the job read its source into it"
    )
