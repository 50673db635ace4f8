"""The start of a job: this process becomes the owner of its store and ends half-done windows, in this order.

a  open the store, or create it; the settings that are fixed for its life must be those it was created with
b  refuse while the heartbeat of another owner moves, unless the store is to be taken over
c  claim the next epoch in the log: from here on the old owner can commit nothing
d  publish committed windows that have no mark yet (steps 5 and 6 of a window), and mark every port as this store's
e  discard staged files and pieces of lower epochs that no record names
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bucket_store import failpoints
from bucket_store.errors import FencedError, SettingsChangedError, StoreError, StoreMissingError
from bucket_store.log.commit_log import DEFAULT_SNAPSHOT_EVERY, CommitLog
from bucket_store.log.copies import warn_of_original
from bucket_store.log.heartbeat import Sign
from bucket_store.log.marks import PUBLISHED_NAME, read_intents, read_published, remove_intents
from bucket_store.log.records import OutputFile
from bucket_store.log.sources_file import DIRECTORY as SOURCES_DIRECTORY
from bucket_store.log.sources_file import remove_unnamed
from bucket_store.log.state import live_files, named_pieces
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.store import PieceStore, StoredPiece
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.config.model import Config
from deduper.config.query import COUNTS, QUERIES
from deduper.errors import IntegrityError, UsageError
from deduper.kafka.offsets import ENDS
from deduper.sinks import names, staging
from deduper.sources.files.judged import FOLDER
from deduper.window.completeness import SEED
from deduper.window.leftovers import discard_temporary, store_folders
from deduper.window.owner_alive import own_name, owning, require_no_owner
from deduper.window.policy import changed_settings, fixed_settings, snapshot_every, stored_settings
from deduper.window.present_clock import present_wall_us
from deduper.window.publishing import FunctionPorts, TopicPorts, mark_places, mark_published, publish_window
from deduper.window.rewound import later_files, rewound_to

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ownership:
    """A store whose owner this process is: its log, with an epoch claimed, and its pieces."""

    log: CommitLog
    pieces: PieceStore


@contextlib.contextmanager
def owned_store(
    config: Config,
    *,
    take_over: bool,
    wall_clock_us: Callable[[], int],
    silent: Sign | None = None,
    why: Callable[[], str] = lambda: "done",
    require: Callable[[CommitLog], None] = lambda _: None,
) -> Iterator[Ownership]:
    """Claim the store (steps a to c) and hold it, with a heartbeat, while the `with` block runs; `recover` comes next.

    `silent`: the last sign of an owner that is known to be gone. `why` gives the reason of a clean end. `require`
    refuses a store that is not for this caller: before the claim, which would end its owner, and after it.

    Raises:
        OwnerAliveError: another owner is alive and `take_over` is not set.
        SettingsChangedError: a setting that is fixed for the store's life was changed.
    """
    log = open_or_create(config, wall_clock_us())
    require(log)
    with (
        owned_log(log, config, take_over=take_over, wall_clock_us=wall_clock_us, silent=silent, why=why),
        contextlib.closing(open_backend(config.store.url)) as pieces,
    ):
        require(log)
        yield Ownership(log, pieces)


@contextlib.contextmanager
def owned_log(
    log: CommitLog,
    ports: names.HasFilePorts,
    *,
    take_over: bool,
    wall_clock_us: Callable[[], int],
    silent: Sign | None = None,
    why: Callable[[], str] = lambda: "done",
) -> Iterator[None]:
    """Claim a store by its log (steps b and c), and hold it, with a heartbeat, while the `with` block runs.

    Raises:
        OwnerAliveError: as `owned_store`.
    """
    owner = own_name()
    if not take_over:
        require_no_owner(log.root, silent)
    warn_of_original(log)
    epoch = log.claim_epoch(owner, present_wall_us(log, wall_clock_us()))
    logger.info("%s: owner %s, epoch %d, next window %d", log.root, owner, epoch, log.state.next_window)
    _discard_leftovers(ports)
    failpoints.hit("start.claimed")
    with owning(log.root, owner, epoch, why):
        yield


def _discard_leftovers(ports: names.HasFilePorts) -> None:
    """Remove the temporary files of earlier owners; after the claim, before anything is written."""
    folders = (sink.place for sink in ports.file_ports.values())
    discard_temporary([*store_folders(ports.store_place), *folders])


def reason_to_stop(log: CommitLog, error: Exception) -> Exception:
    """The error, or FencedError if another owner has the store: it discards staged files, which may cause any error."""
    try:
        log.check_owner()
    except FencedError as fenced:
        return fenced
    except (StoreError, OSError) as also:
        logger.warning("%s: the log cannot be read, so another owner may have taken the store: %s", log.root, also)
    return error


@contextlib.contextmanager
def telling_takeover(log: CommitLog) -> Iterator[None]:
    """Raises FencedError for an error in the block if another owner has the store: see `reason_to_stop`."""
    try:
        yield
    except Exception as exc:
        reason = reason_to_stop(log, exc)
        if reason is exc:  # never as its own cause: readers of causes would not end
            raise
        raise reason from exc


def open_or_create(config: Config, wall_us: int) -> CommitLog:
    """The store of a configuration (step a).

    Raises:
        SettingsChangedError: as `require_fixed_settings`.
    """
    every = snapshot_every(config.store.shards)
    log = opened_log(open_place(config.store.url), fixed_settings(config), wall_us, every)
    require_fixed_settings(config, log)
    return log


def opened_log(root: Place, fixed: dict[str, Any], wall_us: int, every: int = DEFAULT_SNAPSHOT_EVERY) -> CommitLog:
    """The log of a store, which is made with these settings if it is not there; `every`: records to a snapshot."""
    try:
        return CommitLog.open(root)
    except StoreMissingError:
        require_no_owner(root)  # a restore, which makes the store
        return CommitLog.create(root, fixed, wall_us=wall_us, snapshot_every=every)


def require_fixed_settings(config: Config, log: CommitLog) -> None:
    """The settings that are fixed for the store's life are those that it was created with.

    Raises:
        SettingsChangedError: the message names each that differs, and what to do.
    """
    differing = changed_settings(config, stored_settings(log.manifest, log.state))
    more = "; `deduper reshard` changes the shards of a store" if "store.shards" in differing else ""
    write = "point `store.url` and the sinks at new places and read the source again from its beginning"
    require_unchanged(log, differing, write + more)


def require_unchanged(log: CommitLog, differing: Mapping[str, tuple[Any, Any]], write: str) -> None:
    """No setting differs, (the store's, the given one) by name; `write` is what to do beside putting them back.

    Raises:
        SettingsChangedError: one differs.
    """
    if differing:
        changes = "; ".join(
            f"{name}: the store has {stored!r}, not {given!r}" for name, (stored, given) in differing.items()
        )
        what = f"settings that are fixed for the life of a store differ: {changes}"
        raise SettingsChangedError(f"{log.root}: {what}; put them back, or {write}")


def require_of_job(log: CommitLog) -> None:
    """Refuse a job the store of a `Deduper`: its commits would forget which batches were judged.

    Raises:
        UsageError: the newest window is of a batch of a query.
    """
    if QUERIES in log.state.extra:
        raise UsageError(
            f"{log.root}: this store is a `Deduper`'s, and a job has one of its own: write another `store.url`; "
            "`deduper seed` fills it from rows that were unique before"
        )


def require_of_queries(log: CommitLog) -> None:
    """Refuse a `Deduper` the store of a job: its commits would forget how far the source was judged.

    Raises:
        UsageError: the newest window is of files or topics, and not of a seed.
    """
    if SEED not in log.state.extra and {FOLDER, ENDS} & log.state.extra.keys():
        raise UsageError(
            f"{log.root}: this store is a job's, and a Deduper has one of its own: give it another URL; `deduper seed` "
            "fills it from the outputs of the job"
        )


def recover(
    config: Config,
    owned: Ownership,
    topics: TopicPorts | None = None,
    functions: FunctionPorts | None = None,
    *,
    is_held: bool = False,
) -> None:
    """Steps d and e. Safe to repeat, and to interrupt at any point.

    Uses the log's file system; tests pass one that fails. `is_held`: an unpublished window stays unpublished, with its
    staged rows, until the caller has used them.

    Raises:
        FencedError: another owner has taken the store, whatever the error was.
        UsageError, IntegrityError: the ports are not this store's, or newer than it.
    """
    log = owned.log
    with telling_takeover(log):
        if is_held:
            (log.root / SOURCES_DIRECTORY).make_directories()
        else:
            publish_unmarked(config, log, topics, functions)
        failpoints.hit("start.published")
        _discard_unnamed(config, log, owned.pieces, keep=unpublished(log) if is_held else ())
        failpoints.hit("start.discarded")


def unpublished(log: CommitLog) -> list[int]:
    """The committed windows that have no mark, ascending. One at most, unless marks were lost.

    A window without outputs is published as it is; but functions get that of a query, which has counts.
    """
    state, published = log.state, read_published(log.root / PUBLISHED_NAME)
    through = -1 if published is None else published.window
    windows, newest = set(state.outputs), state.next_window - 1
    if COUNTS in state.extra and newest > state.published_through:
        windows.add(newest)
    return [window for window in sorted(windows) if window > through]


def publish_unmarked(
    config: names.HasFilePorts, log: CommitLog, topics: TopicPorts | None = None, functions: FunctionPorts | None = None
) -> None:
    """Step d: publish committed windows without a mark, and mark every port."""
    staging.make_port_directories(config, names=log.root.names)
    (log.root / SOURCES_DIRECTORY).make_directories()
    for mark in mark_places(config, log):
        mark.remove_prepared(below_epoch=log.state.epoch)
    check_ports(config, log)
    for window in unpublished(log):
        logger.warning("window %d was committed and perhaps not published: publishing it", window)
        outputs = staged_outputs(config, log, window)
        publish_window(config, log, window, outputs, topics, functions)
    # Also for ports without rows: no other store may take them for unused.
    mark_published(config, log, log.state.next_window - 1)


def staged_outputs(config: names.HasFilePorts, log: CommitLog, window: int) -> list[OutputFile]:
    """The outputs of an unpublished window, where they lie now."""
    return staging.where_they_lie(config, log.state.outputs.get(window, ()), names=log.root.names)


def _discard_unnamed(config: Config, log: CommitLog, pieces: PieceStore, keep: Collection[int]) -> None:
    """Step e: discard staged files, sources files, intents and pieces of lower epochs that no record names.

    Staged files of the windows `keep` stay.
    """
    discarded = staging.discard_abandoned(config, log.state.epoch, keep=keep, names=log.root.names)
    remove_unnamed(log.root, state=log.state, below_epoch=log.state.epoch)
    newest_intent = max((intent.epoch for intent in read_intents(log.root)), default=0)
    # A later intent is damaged: no start repeats it, and perhaps no window follows that would remove it.
    remove_intents(log.root, below_epoch=log.state.epoch, but=newest_intent)
    orphans = _orphan_pieces(log, pieces)
    pieces.delete(orphans, keep=live_files(log.state))
    if discarded or orphans:
        logger.warning("discarded what no record names: %d staged attempts, %d pieces", discarded, len(orphans))


def check_ports(config: names.HasFilePorts, log: CommitLog | None) -> None:
    """The ports must hold this store's windows only, and none beyond its last; `log` is None before there is a store.

    Raises:
        UsageError: a port belongs to another store: its rows would be judged again and be there twice.
        IntegrityError: the store is older than its outputs: it was put back from a copy, or a rewind was broken off.
    """
    for port, sink in config.file_ports.items():
        place = sink.place if log is None else staging.through(log.root.names, sink.place)
        mark = read_published(place / names.PUBLISHED)
        if mark is None:
            continue
        if log is None or mark.store_id != log.manifest.store_id:
            ours = "is new" if log is None else f"is {log.manifest.store_id[:8]}"
            raise UsageError(
                f"{place}: port {port} holds the outputs of another store (id {mark.store_id[:8]}, this one "
                f"{ours}); give the port a new path, or move its files away"
            )
        if mark.window >= log.state.next_window:
            to = rewound_to(log.state)
            broken_off = f". If a rewind was broken off, repeat `deduper rewind --to {to} --execute`"
            raise IntegrityError(
                f"{place}: port {port} holds windows up to {mark.window}, the store only those below "
                f"{log.state.next_window}: the store was put back to an older copy; bring the newer store back, or "
                "start with a new store and new ports" + ("" if to is None else broken_off)
            )
    if log is not None:
        _require_whole_rewind(config, log)


def _require_whole_rewind(config: names.HasFilePorts, log: CommitLog) -> None:
    """Refuse a store whose rewind was interrupted. The marks do not show it if the undone window had no mark yet."""
    window = rewound_to(log.state)
    if window is None:
        return
    ports = [staging.through(log.root.names, sink.place) for sink in config.file_ports.values()]
    for file in later_files(ports, log.manifest.store_id, window):
        raise IntegrityError(
            f"{file}: its window is undone by a rewind that was broken off: repeat `deduper rewind --to {window} "
            "--execute`"
        )


def _orphan_pieces(log: CommitLog, pieces: PieceStore) -> list[StoredPiece]:
    named, epoch = named_pieces(log.state), log.state.epoch
    return [piece for piece in pieces.pieces() if piece.epoch < epoch and (piece.file, piece.name) not in named]
