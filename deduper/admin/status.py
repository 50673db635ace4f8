"""The contents and the progress of a store, read beside a running job without disturbing it."""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bucket_store.errors import StoreError
from bucket_store.log.heartbeat import FILE_NAME as HEARTBEAT_NAME
from bucket_store.log.heartbeat import INTERVAL_S, Beat, moves, read_beat
from bucket_store.log.last_end import LastEnd
from bucket_store.log.marks import PUBLISHED_NAME, read_intents, read_published
from bucket_store.log.profile import read_profiles
from bucket_store.log.records import ClaimRecord, CommitRecord
from bucket_store.log.sources_archive import SourcesReader
from bucket_store.log.sources_file import DIRECTORY as SOURCES_DIRECTORY
from bucket_store.log.sources_file import FOLDED_DIRECTORY
from bucket_store.places.place import Place
from deduper.admin.health import FEWEST_FREE, STARTS_WITHIN_S, Facts, Health, Waiting, health
from deduper.admin.open_store import OpenStore
from deduper.admin.orphans import entry_of
from deduper.admin.profile import ProfileView, profile_view
from deduper.as_json import AsJson
from deduper.config.files import FilesSource
from deduper.config.kafka.sections import KafkaSource
from deduper.config.sections import PORTS
from deduper.core.statistics import SpanCounts, Statistics
from deduper.errors import DeduperError
from deduper.kafka.errors import CLIENT_MISSING, INSTALL_CLIENT, is_client_installed
from deduper.kafka.offsets import HELD_BACK, judged_ends
from deduper.leaks.figures import LeakFigures
from deduper.preflight.folders import disk_room
from deduper.sources.files.judged import KnownFiles
from deduper.sources.files.listing import list_files
from deduper.units import format_time
from deduper.window.accessories.leak_watch import stored_figures
from deduper.window.completeness import SEED_OPEN, complete_since, is_complete
from deduper.window.owner_alive import end_as_json, how_ended, last_end, process_exists
from deduper.window.policy import changed_settings, statistics_of

_ALIVE_SECONDS = 10.0
"""An owner beats every 2 s; a file system may show it late."""
_NEWEST_RECORDS = 200
_RECENT = 10
"""So many of the newest windows count for the health."""


@dataclass(frozen=True, slots=True)
class KeyHistory(AsJson):
    """From which expiry key on the store has every key (`ever`: all), and whether `unique` is final by that.

    `complete_since` is None where nothing is known. Without a config no period is known, so nothing is final.
    `is_seed_open`: a seed is not over, and no job may start.
    """

    complete_since: str | int | float | None
    is_complete: bool
    is_seed_open: bool


@dataclass(frozen=True, slots=True)
class StoreStatus(AsJson):
    """The answer of `status` as plain values; points and times are ready to print.

    `entries` counts entries of live pieces: a key whose bucket is half dead, or that was renewed, counts each time.
    `bytes_per_key`: bytes of all pieces, dead ones too, for each live entry; None without one.
    `epoch` 0 means that no job has ever owned the store. `waiting_files`: files of the source that no window has
    judged; None for topics (`lag` has them), without a config, and when the source cannot be listed.
    `spans`: lateness, duplicate distance and age of the first copy, as the store has counted them: how many, their
    mean, and the seconds below which half and 99 % of them are, as upper ends of buckets (None: beyond the last).
    `rates`: rows a second by port over the newest windows, idle time too; none before the second window.
    `since_window_s`: since the newest window began. `behind_s`: of the latest point, behind the clock; of times alone.
    `last_end`: how the last owner ended; None while one runs, and if it left none: it was killed.
    """

    health: Health

    url: str
    store_id: str
    incarnation: str
    created: str
    settings: dict[str, Any]
    epoch: int
    owner: str | None
    is_running: bool
    last_end: dict[str, object] | None
    windows: int
    last_commit: str | None
    latest_point: str | int | float | None
    expiry_point: str | int | float | None
    published_through: int | None
    unpublished: tuple[int, ...]
    rows: int
    counts: dict[str, int]
    rates: dict[str, float]
    since_window_s: float | None
    behind_s: float | None
    reasons: dict[str, int]
    entries: int
    pieces: int
    retired_pieces: int
    bytes_on_disk: dict[str, int]
    bytes_per_key: float | None
    last_windows: tuple[dict[str, Any], ...]
    waiting_files: int | None
    lag: SourceLag | None
    profile: ProfileView
    leaks: LeakFigures | None
    history: KeyHistory
    spans: dict[str, dict[str, float | None]]


def store_status(store: OpenStore, *, last: int) -> StoreStatus:
    """The status, with the newest `last` windows (fewer when their records are no longer in the log)."""
    state, manifest, scale = store.log.state, store.log.manifest, store.scale
    published, unpublished = _published(store)
    owner = _owner(store)
    commits = store.log.last_commits(last)
    counts = {port: state.totals.get(port, 0) for port in PORTS}
    live = [piece for pieces in state.pieces.values() for piece in pieces]
    entries = sum(piece.entries for piece in live)
    on_disk = _bytes_on_disk(store.root)
    lag, files = source_lag(store), waiting_files(store)
    leaks = stored_figures(store.log.root)
    facts = _facts(store, owner, lag, files, leaks)
    return StoreStatus(
        health=health(facts),
        url=store.url,
        store_id=manifest.store_id,
        incarnation=manifest.incarnation,
        created=format_time(manifest.created_us),
        settings={**manifest.settings, "shards": store.settings["shards"]},
        epoch=state.epoch,
        owner=None if owner.beat is None else owner.beat.owner,
        is_running=owner.is_running,
        last_end=end_as_json(owner.end),
        windows=state.next_window,
        last_commit=format_time(commits[-1].wall_us) if commits else None,
        latest_point=scale.shown(state.latest_point),
        expiry_point=scale.shown(store.expiry_point),
        published_through=published,
        unpublished=unpublished,
        rows=sum(counts.values()),
        counts=counts,
        rates=_rates(store),
        since_window_s=facts.since_window,
        behind_s=time.time() - state.latest_point / 1e6 if state.latest_point is not None and scale.is_time else None,
        reasons=dict(sorted(state.reason_totals.items(), key=lambda item: (-item[1], item[0]))),
        entries=entries,
        pieces=len(live),
        retired_pieces=len(state.retired),
        bytes_on_disk=on_disk,
        bytes_per_key=round(on_disk["pieces"] / entries, 1) if entries else None,
        last_windows=tuple(_window(store, commit) for commit in commits),
        waiting_files=files,
        lag=lag,
        profile=profile_view(store.root, last=last),
        leaks=leaks,
        history=_history(store),
        spans=_spans(statistics_of(state)),
    )


@dataclass(frozen=True, slots=True)
class _Owner:
    """The present owner, or the last one: its heartbeat, if it is there, and its end. `exists`: None if not known."""

    beat: Beat | None
    is_running: bool
    exists: bool | None
    end: LastEnd | None


def _owner(store: OpenStore) -> _Owner:
    beat = read_beat(store.root)
    exists = None if beat is None else process_exists(beat)
    is_running = beat is not None and exists is not False and beats(store.root)
    return _Owner(beat, is_running, exists, None if is_running else last_end(store.root, store.log.state.epoch))


def _facts(
    store: OpenStore, owner: _Owner, lag: SourceLag | None, files: int | None, leaks: LeakFigures | None
) -> Facts:
    left_beat = "" if owner.beat is None or owner.is_running else owner.beat.owner
    return Facts(
        epoch=store.log.state.epoch,
        is_running=owner.is_running,
        left_beat=left_beat,
        left_exists=not owner.is_running and owner.exists is True,
        exit_code=None if owner.end is None else owner.end.exit_code,
        ended=how_ended(owner.end, left_beat),
        leaked=0.0 if leaks is None else _leaked(leaks),
        unpublished=_published(store)[1],
        waiting=_waiting(lag, files),
        differing=() if store.config is None else tuple(changed_settings(store.config, store.settings)),
        **_outputs(store),
        **_recent(store, is_of_files=files is not None),
    )


def _published(store: OpenStore) -> tuple[int | None, tuple[int, ...]]:
    """The last published window, and the committed ones after it."""
    published = _published_through(store)
    return published, tuple(
        window for window in sorted(store.log.state.outputs) if published is None or window > published
    )


def _rates(store: OpenStore) -> dict[str, float]:
    commits = store.log.last_commits(_RECENT)
    seconds = (commits[-1].wall_us - commits[0].wall_us) / 1e6 if commits else 0.0
    if seconds <= 0:
        return {}
    # A window's rows are those of the time until the next one begins.
    return {port: round(sum(one.counts.get(port, 0) for one in commits[:-1]) / seconds, 1) for port in PORTS}


def _history(store: OpenStore) -> KeyHistory:
    state = store.log.state
    mark = complete_since(state)
    point = None if mark is None else "ever" if mark.point is None else store.scale.shown(mark.point)
    return KeyHistory(
        point,
        is_complete=store.config is not None and is_complete(store.config, state),
        is_seed_open=bool(state.extra.get(SEED_OPEN)),
    )


def _spans(statistics: Statistics) -> dict[str, dict[str, float | None]]:
    counted = {"lateness": statistics.lateness, "distance": statistics.distance, "age": statistics.age}
    return {
        name: {
            "count": spans.count,
            "mean_s": round(spans.total_s / spans.count, 3),
            "half_s": finite_quantile(spans, 0.5),
            "most_s": finite_quantile(spans, 0.99),
        }
        for name, spans in counted.items()
        if spans.count
    }


def finite_quantile(spans: SpanCounts, share: float) -> float | None:
    """The upper end in seconds of so large a share of the spans; None of none, and beyond the last bucket."""
    seconds = spans.quantile_s(share)
    return None if seconds is None or math.isinf(seconds) else seconds


def _recent(store: OpenStore, *, is_of_files: bool) -> dict[str, Any]:
    """The facts about the newest windows, and about the one in work."""
    state, now_us = store.log.state, time.time_ns() // 1000
    commits = store.log.last_commits(_RECENT)
    profiles = read_profiles(store.root)[-_RECENT:]
    seconds = sum(profile.seconds for profile in profiles)
    rows = sum(profile.rows for profile in profiles)
    judged = sum(_files_of(store, profile.window) for profile in profiles) if is_of_files else rows
    newest, reasons = Counter[str](), Counter[str]()
    for commit in commits:
        newest.update(commit.counts)
        reasons.update(commit.reasons)
    ahead, stands = _event_time(store, commits[-1] if commits else None, now_us)
    intents = [one for one in read_intents(store.root) if (one.epoch, one.window) == (state.epoch, state.next_window)]
    return {
        "windows": state.next_window,
        "since_window": (now_us - commits[-1].wall_us) / 1e6 if commits else None,
        "in_work": (intents[0].window, (now_us - intents[0].wall_us) / 1e6) if intents else None,
        "usual": sorted(profile.seconds for profile in profiles)[len(profiles) // 2] if profiles else 0.0,
        "rate": judged / seconds if seconds else 0.0,
        "newest": newest,
        "reasons": reasons,
        "total": state.totals,
        "ahead": ahead,
        "stands": stands,
        "starts": _starts(store, now_us),
    }


def _starts(store: OpenStore, now_us: int) -> int:
    """The starts of the last half hour, as far as the newest records show them."""
    newest = store.log.records(max(0, store.log.state.next_number - _NEWEST_RECORDS))
    claims = [record.body for record in newest if isinstance(record.body, ClaimRecord)]
    return sum(now_us - claim.wall_us < STARTS_WITHIN_S * 1e6 for claim in claims)


def _event_time(store: OpenStore, last: CommitRecord | None, now_us: int) -> tuple[float, float]:
    """Seconds by which the latest point is ahead of the clock, and for which it has stood still; 0 for other clocks."""
    if (
        last is None
        or last.latest_point is None
        or last.latest_moved_us is None
        or store.settings["expiry.by"] != "event_time"
    ):
        return 0.0, 0.0
    return (last.latest_point - now_us) / 1e6, (last.wall_us - last.latest_moved_us) / 1e6


def _files_of(store: OpenStore, window: int) -> int:
    try:
        return len(SourcesReader(store.root, store.log.state).of(window) or ())
    except StoreError:
        return 0  # folded meanwhile


def _waiting(lag: SourceLag | None, files: int | None) -> Waiting | None:
    if files is not None:
        return Waiting(files, "file")
    if lag is None:
        return None
    gone = [one for one in lag.partitions if one.lag is None and one.judged is not None and one.end is not None]
    if gone:
        where = f"{gone[0].topic}-{gone[0].partition}"
        text = f"{where} ends at {gone[0].end}, before the judged offset {gone[0].judged}: the topic was made anew"
        return Waiting(None, "offset", text, is_broken=True)
    return Waiting(lag.total, "offset", lag.error or "")


def waiting_files(store: OpenStore) -> int | None:
    """The files of the source that no window has judged; None where there are none to list. Never fails."""
    if store.config is None or not isinstance(store.config.source, FilesSource):
        return None
    try:
        found = KnownFiles(store.config.source, store.log).new(list_files(store.config.source))
    except (OSError, StoreError, DeduperError):
        return None
    return sum(_has_content(path) for path in found)


def _has_content(path: str) -> bool:
    """An empty file has no records yet, and waits for its writer."""
    try:
        return Path(path).stat().st_size > 0
    except OSError:
        return False


def _published_through(store: OpenStore) -> int | None:
    """The greatest window that is out on every port, as the mark or the log says, whichever is further."""
    marked = read_published(store.root / PUBLISHED_NAME)
    known = max(-1 if marked is None else marked.window, store.log.state.published_through)
    return None if known < 0 else known


def beats(root: Place) -> bool:
    """Whether the store's heartbeat is recent; does not wait for the next beat of a store of this machine.

    Elsewhere its time is by another clock, so the beat is watched until it moves: for 5 s at most.
    """
    if root.names.scheme != "file":
        return moves(root, 2.5 * INTERVAL_S)
    entry = entry_of(root / HEARTBEAT_NAME)
    return entry is not None and time.time() - entry.modified_us / 1e6 < _ALIVE_SECONDS


def _outputs(store: OpenStore) -> dict[str, Any]:
    """The disk that has the least room, of those of this machine, and what is wrong with the ports' folders."""
    root, free_bytes, place, broken = store.root, None, str(store.root), ""
    if root.names.scheme == "file":
        free_bytes = shutil.disk_usage(root.local).free
    if store.config is not None:
        for port, room in disk_room(store.config).items():
            is_short = port in PORTS and room.free < FEWEST_FREE * room.size
            if is_short and (free_bytes is None or room.free < free_bytes):
                free_bytes, place = room.free, f"{store.config.file_ports[port].url} (sinks.{port})"
        for port, sink in store.config.file_ports.items():
            if sink.is_local and sink.path.exists() and not sink.path.is_dir():
                broken = f"sinks.{port}: {sink.path} exists and is not a folder"
    return {"free_bytes": free_bytes, "place": place, "broken": broken}


def _leaked(leaks: LeakFigures) -> float:
    """The share of records that are copies which were not found, by the lower end of the estimate."""
    return sum(leaks.missed[kind].low for kind in ("lookup", "period")) / max(1, leaks.records)


def _window(store: OpenStore, commit: CommitRecord) -> dict[str, Any]:
    counts = {port: commit.counts.get(port, 0) for port in PORTS}
    return {
        "window": commit.window,
        "epoch": commit.epoch,
        "begun": format_time(commit.wall_us),
        "rows": sum(counts.values()),
        **counts,
        "latest_point": store.scale.shown(commit.latest_point),
    }


def _bytes_on_disk(root: Place) -> dict[str, int]:
    """Bytes by part of the store, as its files' lengths; a file that goes away meanwhile counts nothing."""
    sizes = {"pieces": 0, "log": 0, "sources": 0, "other": 0}
    for file, entry in root.files():
        part = file.path.relative_to(root.path).parts[0].replace(FOLDED_DIRECTORY, SOURCES_DIRECTORY)
        sizes[part if part in sizes else "other"] += entry.size
    return {**sizes, "total": sum(sizes.values())}


_ANSWER_S = 3.0


@dataclass(frozen=True, slots=True)
class PartitionLag(AsJson):
    """One topic partition: up to where it was judged, where it ends, and the offsets in between.

    `judged` is None before its first window; then its lag counts all that the brokers keep. `end` is None when it is
    unknown; `lag` then too, and when the topic ends before the judged offset: it was recreated. `is_held_back`: the
    last window took nothing of it, since its records are too far ahead of the other partitions' (`source.order`).
    """

    topic: str
    partition: int
    judged: int | None
    end: int | None
    lag: int | None
    is_held_back: bool = False


@dataclass(frozen=True, slots=True)
class SourceLag(AsJson):
    """All partitions, in source order. `error` says why the brokers gave no answer."""

    json_names = ("total", "error", "partitions")

    partitions: tuple[PartitionLag, ...]
    error: str | None = None

    @property
    def total(self) -> int | None:
        """Offsets over all partitions; None when one is not known."""
        lags = [one.lag for one in self.partitions if one.lag is not None]
        return sum(lags) if len(lags) == len(self.partitions) and not self.error else None


def source_lag(store: OpenStore) -> SourceLag | None:
    """The lag of a store that was named by its config and reads Kafka; None for any other. Never fails."""
    if store.config is None or not isinstance(store.config.source, KafkaSource):
        return None
    source = store.config.source
    judged = judged_ends(store.log.state, source.reads)
    held_back = [list(one) for one in store.log.state.extra.get(HELD_BACK, ())]
    firsts, ends, error = {}, {}, ""
    if not is_client_installed():
        error = f"{CLIENT_MISSING}: {INSTALL_CLIENT}"
    else:
        from deduper.kafka.cluster import ClusterOffsets

        try:
            brokers = ClusterOffsets(source, answer_s=_ANSWER_S)
            places = brokers.places()
            ends = brokers.latest_offsets({*places, *judged})
            firsts = brokers.earliest_offsets(place for place in places if place not in judged)
        except DeduperError as exc:
            error = str(exc)
    found = []
    for place in sorted({*judged, *ends}):
        begin = judged[place].offset if place in judged else None
        end = ends.get(place)
        since = firsts.get(place, 0) if begin is None else begin
        lag = None if end is None or end < since else end - since
        is_held = [place.topic, place.partition] in held_back
        found.append(PartitionLag(place.topic, place.partition, begin, end, lag, is_held))
    return SourceLag(tuple(found), error or None)
