"""What a store holds and how far it has come, read beside a running job without disturbing it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from bucket_store.commit_log import CommitLog
from bucket_store.heartbeat import FILE_NAME as HEARTBEAT_NAME
from bucket_store.heartbeat import read_beat
from bucket_store.log_values import CommitRecord
from bucket_store.marks import PUBLISHED_NAME, read_published
from deduper.open_store import OpenStore
from deduper.profile_view import ProfileView, profile_view
from deduper.profile_view import render as render_profile
from deduper.source_lag import PartitionLag, SourceLag, source_lag
from deduper.terminal import pairs, table
from deduper.units import approximate_size, format_time
from deduper.verdict import Verdict

_PORTS = tuple(verdict.port for verdict in Verdict)
_MOST_PARTITIONS = 50
_ALIVE_SECONDS = 10.0
"""An owner beats every 2 s; a file system may show it late."""


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """Everything `status` tells, as plain values; points and times are ready to print.

    `entries` counts what lies in live pieces: a key whose bucket is half dead, or that was renewed, counts each time.
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
    counts: dict[str, int]
    reasons: dict[str, int]
    entries: int
    pieces: int
    retired_pieces: int
    bytes_on_disk: dict[str, int]
    last_windows: tuple[dict[str, Any], ...]
    profile: ProfileView
    lag: SourceLag | None

    @property
    def rows(self) -> int:
        """All rows judged so far."""
        return sum(self.counts.values())

    @property
    def bytes_per_key(self) -> float | None:
        """Bytes of all pieces, dead ones too, for each live entry; None without one."""
        return round(self.bytes_on_disk["pieces"] / self.entries, 1) if self.entries else None

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`."""
        return {
            "url": self.url,
            "store_id": self.store_id,
            "incarnation": self.incarnation,
            "created": self.created,
            "settings": self.settings,
            "epoch": self.epoch,
            "owner": self.owner,
            "running": self.is_running,
            "windows": self.windows,
            "last_commit": self.last_commit,
            "latest_point": self.latest_point,
            "expiry_point": self.expiry_point,
            "published_through": self.published_through,
            "unpublished": list(self.unpublished),
            "rows": self.rows,
            "counts": self.counts,
            "reasons": self.reasons,
            "entries": self.entries,
            "pieces": self.pieces,
            "retired_pieces": self.retired_pieces,
            "bytes_on_disk": self.bytes_on_disk,
            "bytes_per_key": self.bytes_per_key,
            "last_windows": list(self.last_windows),
            "lag": None if self.lag is None else self.lag.to_json(),
            "profile": self.profile.to_json(),
        }


def store_status(store: OpenStore, *, last: int) -> StoreStatus:
    """The status, with the newest `last` windows (fewer when their records are no longer in the log)."""
    state, manifest, scale = store.log.state, store.log.manifest, store.scale
    published = _published_through(store)
    beat = read_beat(store.root)
    commits = last_commits(store.log, last)
    live = [piece for pieces in state.pieces.values() for piece in pieces]
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
        counts={port: state.totals.get(port, 0) for port in _PORTS},
        reasons=dict(sorted(state.reason_totals.items(), key=lambda item: (-item[1], item[0]))),
        entries=sum(piece.entries for piece in live),
        pieces=len(live),
        retired_pieces=len(state.retired),
        bytes_on_disk=_bytes_on_disk(store.root),
        last_windows=tuple(_window(store, commit) for commit in commits),
        lag=source_lag(store),
        profile=profile_view(store.root, last=last),
    )


def last_commits(log: CommitLog, count: int) -> list[CommitRecord]:
    """The newest commit records, ascending by window.

    Reads backwards from the end of the log in growing steps, because a store of years has millions of records.
    """
    end = log.state.next_number
    reach = count + 1
    while True:
        start = max(0, end - reach)
        bodies = [record.body for record in log.records(start)]
        commits = [body for body in bodies if isinstance(body, CommitRecord)]
        if count == 0 or len(commits) >= count or start == 0:
            return commits[len(commits) - count :] if 0 < count < len(commits) else commits if count else []
        reach *= 4


def _published_through(store: OpenStore) -> int | None:
    """The greatest window that is out on every port, as the mark or the log says, whichever is further."""
    marked = read_published(store.root / PUBLISHED_NAME)
    known = max(-1 if marked is None else marked.window, store.log.state.published_through)
    return None if known < 0 else known


def beats(root: Path) -> bool:
    """Whether the store's heart has beaten a moment ago; a look, without waiting for the next beat."""
    try:
        return time.time() - (root / HEARTBEAT_NAME).stat().st_mtime < _ALIVE_SECONDS
    except FileNotFoundError:
        return False


def _window(store: OpenStore, commit: CommitRecord) -> dict[str, Any]:
    counts = {port: commit.counts.get(port, 0) for port in _PORTS}
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
        part = path.relative_to(root).parts[0]
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


def render(status: StoreStatus) -> list[RenderableType]:
    """The status as a person reads it."""
    parts: list[RenderableType] = [pairs(_summary(status)), Text()]
    if status.rows:
        parts.append(
            table(
                ("port", "rows", "share"),
                [(port, count, f"{count / status.rows:.1%}") for port, count in status.counts.items()],
            )
        )
    if status.reasons:
        parts.append(table(("reason", "rows"), status.reasons.items()))
    if status.lag is not None and status.lag.partitions:
        shown = sorted(status.lag.partitions, key=lambda one: -(one.lag or 0))[:_MOST_PARTITIONS]
        rows = [(one.topic, one.partition, one.judged, one.end, one.lag) for one in sorted(shown, key=_place)]
        parts.append(table(("topic", "partition", "judged up to", "end", "lag"), rows))
    if status.last_windows:
        parts.append(
            table(
                ("window", "begun", "rows", *_PORTS, "latest point"),
                [
                    (
                        window["window"],
                        _to_the_second(window["begun"]),
                        *(window[name] for name in ("rows", *_PORTS)),
                        window["latest_point"],
                    )
                    for window in status.last_windows
                ],
            )
        )
    return [*parts, *render_profile(status.profile)]


def _to_the_second(time: str) -> str:
    return time.partition(".")[0].rstrip("Z") + "Z"


def _summary(status: StoreStatus) -> list[tuple[str, object]]:
    owner = f"{status.owner}, {'running' if status.is_running else 'not heard of any more'}"
    size = approximate_size(status.bytes_on_disk["total"])
    per_key = "" if status.bytes_per_key is None else f", {status.bytes_per_key:g} B of pieces a key"
    unpublished = ", ".join(map(str, status.unpublished))
    return [
        ("store", status.url),
        ("id", f"{status.store_id} (incarnation {status.incarnation})"),
        ("created", status.created),
        ("key", ", ".join(status.settings["key"])),
        ("expiry", _expiry(status.settings)),
        ("epoch", status.epoch or "none: no job has owned it yet"),
        ("owner", "no job is running" if status.owner is None else owner),
        ("windows", f"{status.windows:,}" + (f", the last begun {status.last_commit}" if status.last_commit else "")),
        ("unpublished", Text(f"windows {unpublished}", style="yellow") if unpublished else "none"),
        ("latest point", status.latest_point),
        ("expiry point", status.expiry_point),
        ("lag", None if status.lag is None else _lag_line(status.lag)),
        ("keys", f"{status.entries:,} in {status.pieces:,} pieces"),
        ("on disk", f"{size}{per_key}"),
    ]


def _place(one: PartitionLag) -> tuple[str, int]:
    return one.topic, one.partition


def _lag_line(lag: SourceLag) -> Text:
    count = len(lag.partitions)
    over = f"over {count:,} partition{'' if count == 1 else 's'}"
    if lag.error:
        return Text(f"not known: {lag.error}", style="yellow")
    if lag.total is None:
        return Text(f"not known {over}: a topic ends before what was judged, or is gone", style="yellow")
    most = ", the furthest behind below" if count > _MOST_PARTITIONS else ""
    return Text(f"{lag.total:,} offsets {over}{most}")


def _expiry(settings: dict[str, Any]) -> str:
    field = settings.get("expiry.field")
    on_field = f" on {field}" if field else ""
    return f"{settings['expiry.by']}{on_field}, {settings['expiry.lookup']}"
