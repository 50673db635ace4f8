"""The contents and the progress of a store, read beside a running job without disturbing it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bucket_store.log.heartbeat import FILE_NAME as HEARTBEAT_NAME
from bucket_store.log.heartbeat import read_beat
from bucket_store.log.marks import PUBLISHED_NAME, read_published
from bucket_store.log.records import CommitRecord
from bucket_store.log.sources_file import DIRECTORY as SOURCES_DIRECTORY
from bucket_store.log.sources_file import FOLDED_DIRECTORY
from deduper.admin.lag import SourceLag, source_lag
from deduper.admin.open_store import OpenStore
from deduper.admin.profile import ProfileView, profile_view
from deduper.as_json import AsJson
from deduper.config.sections import PORTS
from deduper.units import format_time

_ALIVE_SECONDS = 10.0
"""An owner beats every 2 s; a file system may show it late."""


@dataclass(frozen=True, slots=True)
class StoreStatus(AsJson):
    """The answer of `status` as plain values; points and times are ready to print.

    `entries` counts entries of live pieces: a key whose bucket is half dead, or that was renewed, counts each time.
    `bytes_per_key`: bytes of all pieces, dead ones too, for each live entry; None without one.
    `epoch` 0 means that no job has ever owned the store.
    """

    url: str
    store_id: str
    incarnation: str
    created: str
    settings: dict[str, Any]
    epoch: int
    owner: str | None
    is_running: bool
    windows: int
    last_commit: str | None
    latest_point: str | int | float | None
    expiry_point: str | int | float | None
    published_through: int | None
    unpublished: tuple[int, ...]
    rows: int
    counts: dict[str, int]
    reasons: dict[str, int]
    entries: int
    pieces: int
    retired_pieces: int
    bytes_on_disk: dict[str, int]
    bytes_per_key: float | None
    last_windows: tuple[dict[str, Any], ...]
    lag: SourceLag | None
    profile: ProfileView


def store_status(store: OpenStore, *, last: int) -> StoreStatus:
    """The status, with the newest `last` windows (fewer when their records are no longer in the log)."""
    state, manifest, scale = store.log.state, store.log.manifest, store.scale
    published = _published_through(store)
    beat = read_beat(store.root)
    commits = store.log.last_commits(last)
    counts = {port: state.totals.get(port, 0) for port in PORTS}
    live = [piece for pieces in state.pieces.values() for piece in pieces]
    entries = sum(piece.entries for piece in live)
    on_disk = _bytes_on_disk(store.root)
    return StoreStatus(
        url=store.url,
        store_id=manifest.store_id,
        incarnation=manifest.incarnation,
        created=format_time(manifest.created_us),
        settings=manifest.settings,
        epoch=state.epoch,
        owner=None if beat is None else beat.owner,
        is_running=beat is not None and beats(store.root),
        windows=state.next_window,
        last_commit=format_time(commits[-1].wall_us) if commits else None,
        latest_point=scale.shown(state.latest_point),
        expiry_point=scale.shown(store.expiry_point),
        published_through=published,
        unpublished=tuple(window for window in sorted(state.outputs) if published is None or window > published),
        rows=sum(counts.values()),
        counts=counts,
        reasons=dict(sorted(state.reason_totals.items(), key=lambda item: (-item[1], item[0]))),
        entries=entries,
        pieces=len(live),
        retired_pieces=len(state.retired),
        bytes_on_disk=on_disk,
        bytes_per_key=round(on_disk["pieces"] / entries, 1) if entries else None,
        last_windows=tuple(_window(store, commit) for commit in commits),
        lag=source_lag(store),
        profile=profile_view(store.root, last=last),
    )


def _published_through(store: OpenStore) -> int | None:
    """The greatest window that is out on every port, as the mark or the log says, whichever is further."""
    marked = read_published(store.root / PUBLISHED_NAME)
    known = max(-1 if marked is None else marked.window, store.log.state.published_through)
    return None if known < 0 else known


def beats(root: Path) -> bool:
    """Whether the store's heartbeat is recent; does not wait for the next beat."""
    try:
        return time.time() - (root / HEARTBEAT_NAME).stat().st_mtime < _ALIVE_SECONDS
    except FileNotFoundError:
        return False


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


def _bytes_on_disk(root: Path) -> dict[str, int]:
    """Bytes by part of the store, as its files' lengths; a file that goes away meanwhile counts nothing."""
    sizes = {"pieces": 0, "log": 0, "sources": 0, "other": 0}
    for path in _files(root):
        part = path.relative_to(root).parts[0].replace(FOLDED_DIRECTORY, SOURCES_DIRECTORY)
        try:
            sizes[part if part in sizes else "other"] += path.stat().st_size
        except FileNotFoundError:
            continue
    return {**sizes, "total": sum(sizes.values())}


def _files(directory: Path) -> Iterator[Path]:
    try:
        entries = list(directory.iterdir())
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            yield from _files(entry)
        else:
            yield entry
