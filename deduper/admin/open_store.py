"""A store opened for reading, by the name a person has for it: a config file, a `store.url`, or the store's folder.

Nothing here writes, claims or locks: it is safe beside a running job.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bucket_store.errors import StoreMissingError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.manifest import FILE_NAME as MANIFEST_NAME
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.store import PieceStore
from bucket_store.places.local import local_place
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.columns import Column, parse_columns
from deduper.config.load import is_of_stream, load_config, read_settings
from deduper.config.model import Config
from deduper.config.problems import ConfigError
from deduper.config.query import FILE_NAME as QUERY_FILE
from deduper.config.query import query_of
from deduper.errors import UsageError
from deduper.expiry_key import ExpiryKeyScale
from deduper.sinks.names import staging_homes
from deduper.window import policy

_STREAM = "range_stream"
"""A fixed setting that the stores of range streams have, and no job's."""
_LOCAL_SCHEMES = ("rocksdb", "file")


class RangeStreamError(UsageError):
    """The store of a range stream is named, or its file of settings, and a job's is needed.

    `root` is the folder of the store; None for a file of settings, which is not read here.
    """

    def __init__(self, message: str, root: Place | None = None) -> None:
        super().__init__(message)
        self.root = root


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A store's log and pieces.

    `config` is None when the store was named without one, and is no `Deduper`'s, which leaves its own: then no period
    is known.
    """

    url: str
    config: Config | None
    log: CommitLog
    pieces: PieceStore

    @property
    def root(self) -> Place:
        """The store's folder."""
        return self.log.root

    @property
    def ports(self) -> dict[str, Place]:
        """The folders of the ports that are files; none without a config."""
        return {} if self.config is None else {port: sink.place for port, sink in self.config.file_ports.items()}

    @property
    def staging_homes(self) -> list[Place]:
        """Every folder that may have a `_staging`: the store's, and those of the ports that are known."""
        return [self.root] if self.config is None else staging_homes(self.config)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are fixed for the store's life; see `window.policy.fixed_settings`."""
        return policy.stored_settings(self.log.manifest, self.log.state)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns of the dedup key as the store was made for them."""
        return tuple(column for text in self.settings["key"] for column in parse_columns(text))

    @property
    def scale(self) -> ExpiryKeyScale:
        """How the store's expiry keys are to be read."""
        field = self.settings.get("expiry.field")
        return ExpiryKeyScale.of(self.settings["expiry.by"], None if field is None else parse_columns(field)[0].type)

    @property
    def period(self) -> int | float | None:
        """The expiry period in steps of the stored key; None without one, or without a config."""
        return None if self.config is None else self.config.period_steps

    @property
    def expiry_point(self) -> int | float | None:
        """Entries at or before it are forgotten; None when it is unknown."""
        latest = self.log.state.latest_point
        return None if latest is None or self.period is None else latest - self.period


def open_store(target: str) -> OpenStore:
    """The store of a config file, of a URL such as `rocksdb:PATH`, `file:PATH` or `hdfs://…`, or in a folder.

    Raises:
        ConfigError: the config file is not valid.
        UsageError: the text is none of the three, or no storage has the URL's scheme.
        RangeStreamError: it is no job's store.
        StoreMissingError: there is no store there (yet).
    """
    url, config = named_store(target)
    root = root_of(url)
    log = opened_log(root, is_made_by_run=config is not None)
    if _STREAM in log.manifest.settings:
        raise RangeStreamError(f"{root}: this is a range stream's store; only `deduper status` shows it", root)
    if config is None and (root / QUERY_FILE).exists():
        config = query_of((root / QUERY_FILE).read(), url)
    return OpenStore(url, config, log, open_backend(url))


def opened_log(root: Place, *, is_made_by_run: bool) -> CommitLog:
    """The log of the store in a folder. `is_made_by_run`: a config file names it.

    Raises:
        StoreMissingError: there is no store there (yet).
    """
    try:
        return CommitLog.open(root)
    except StoreMissingError as error:
        if (root / MANIFEST_NAME).exists():
            raise
        found = "yet; the first start of `deduper run` makes it" if is_made_by_run else "here; check the place"
        raise StoreMissingError(f"{root}: there is no store {found}") from error


def root_of(url: str) -> Place:
    """The folder of a store, by its `store.url`.

    Raises:
        UsageError: no storage has this scheme, or its client is not installed.
    """
    try:
        return open_place(url)
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from error


def named_store(target: str) -> tuple[str, Config | None]:
    """The URL of the store that is meant, and the config if that was named. Opens nothing.

    Raises:
        ConfigError, UsageError, RangeStreamError: as `open_store`.
    """
    scheme, colon, rest = target.partition(":")
    if colon and scheme in _LOCAL_SCHEMES:
        return _local_url(scheme, rest), None
    path = Path(target)
    if colon and rest.startswith("/") and not path.exists():
        return target, None
    if path.is_dir():
        root = local_place(path)
        if not (root / MANIFEST_NAME).exists():
            raise UsageError(f"{target}: this folder holds no store; name a config file, or the folder of a store")
        return f"{_backend_of(root)}:{root}", None
    if path.suffix not in (".yaml", ".yml") and not path.exists():  # `load_config` has the advice for a file
        raise UsageError(f"{target}: there is no such file or folder; name a config file, or a store by folder or URL")
    try:
        config = load_config(path)
    except ConfigError:
        if is_of_stream(read_settings(path)):
            raise RangeStreamError(f"{path}: this is a range stream's file; only `deduper status` shows it") from None
        raise
    return config.store.url, config


def store_url(text: str) -> str:
    """The URL of a store that is named without a config, and need not be there.

    Raises:
        UsageError: it has no scheme.
    """
    scheme, colon, rest = text.partition(":")
    if not colon or not rest:
        raise UsageError(f"{text}: write the place with its kind, as file:{text} or rocksdb:{text}")
    return _local_url(scheme, rest) if scheme in _LOCAL_SCHEMES else text


def _local_url(scheme: str, rest: str) -> str:
    """As a config's: `file:state`, `file://state` and `file:///folder/state` name no host."""
    return f"{scheme}:{local_place(rest[2:] if rest.startswith('//') else rest)}"


def _backend_of(root: Place) -> str:
    """The kind of the pieces in a store; `file` for one that has none, where it makes no difference."""
    shards = [root / "pieces" / entry.name for entry in (root / "pieces").entries() if entry.is_directory]
    return (
        "rocksdb" if any(entry.name.endswith(".rocksdb") for shard in shards for entry in shard.entries()) else "file"
    )
