"""Do the bytes of a store agree with its log? Reads everything, changes nothing, and names all that is wrong.

    a  every record that lies in the log decodes, and the uniques it counts are the entries of its pieces
    b  every live piece is the one its record names, whole: each checksum, the order and the shard of its digests
    c  every sources file is the one its record names
    d  pieces that no record names are counted: they are remains of broken attempts, which the next start discards

Beside a running job a piece may leave the store while it is read; a finding counts only if the log still names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from bucket_store.errors import StoreError
from bucket_store.log_values import CommitRecord
from bucket_store.piece import BucketEntries, PieceRef, decode_piece
from bucket_store.sources_file import read_sources
from deduper.open_store import OpenStore
from deduper.terminal import pairs
from deduper.units import approximate_size


@dataclass(frozen=True, slots=True)
class Verification:
    """What was read, and what is wrong with it; empty `findings` mean a sound store."""

    records: int
    pieces: int
    entries: int
    size_bytes: int
    sources: int
    unnamed_pieces: int
    findings: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`."""
        return {
            "sound": self.is_sound,
            "records": self.records,
            "pieces": self.pieces,
            "entries": self.entries,
            "bytes": self.size_bytes,
            "sources": self.sources,
            "unnamed_pieces": self.unnamed_pieces,
            "findings": list(self.findings),
        }


def verify_store(store: OpenStore) -> Verification:
    """Steps a to d over the whole store. A log or manifest that cannot be read at all raises as `open_store` does."""
    records, findings = _check_records(store)
    state = store.log.state
    pieces = [piece for of_shard in state.pieces.values() for piece in of_shard]
    for piece in pieces:
        findings += _check_piece(store, piece)
    for window, ref in state.sources.items():
        try:
            read_sources(store.root, window, ref)
        except StoreError as error:
            findings.append(f"sources of window {window}: {error}")
    return Verification(
        records=records,
        pieces=len(pieces),
        entries=sum(piece.entries for piece in pieces),
        size_bytes=sum(piece.length for piece in pieces),
        sources=len(state.sources),
        unnamed_pieces=_unnamed(store),
        findings=tuple(findings),
    )


def _check_records(store: OpenStore) -> tuple[int, list[str]]:
    findings: list[str] = []
    count = 0
    try:
        for record in store.log.records():
            count += 1
            if isinstance(record.body, CommitRecord):
                findings += _check_commit(store, record.body)
    except (StoreError, FileNotFoundError) as error:
        findings.append(f"log: {error}")
    return count, findings


def _check_commit(store: OpenStore, commit: CommitRecord) -> Iterator[str]:
    entries = sum(piece.entries for piece in commit.pieces)
    unique = commit.counts.get("unique", 0)
    # With all_live a key can become unique again within one window, and only its last copy is kept.
    is_fewer_allowed = store.settings["expiry.lookup"] == "all_live"
    if entries > unique or (entries < unique and not is_fewer_allowed):
        yield f"window {commit.window}: {unique} unique tuples, but {entries} entries in its pieces"


def _check_piece(store: OpenStore, piece: PieceRef) -> list[str]:
    where = f"{piece.file}: piece {piece.name}"
    try:
        found = [f"{where}: {what}" for what in _piece_faults(store, piece)]
    except StoreError as error:
        found = [f"{where}: {error}"]
    if found and piece not in store.log.refresh().pieces.get(piece.shard, ()):
        return []
    return found


def _piece_faults(store: OpenStore, piece: PieceRef) -> Iterator[str]:
    data = store.pieces.read(piece)
    header, buckets = decode_piece(data, file=piece.file, offset=piece.offset)
    if header.to_ref(file=piece.file, name=piece.name, offset=piece.offset) != piece:
        yield "its header is another piece's than the record names"
    if header.store_id.hex() != store.log.manifest.store_id:
        yield f"it is of store {header.store_id.hex()}"
    for bucket in buckets:
        yield from _bucket_faults(store, piece, bucket)


def _bucket_faults(store: OpenStore, piece: PieceRef, bucket: BucketEntries) -> Iterator[str]:
    hi, lo = bucket.digests[:, 0], bucket.digests[:, 1]
    is_ascending = (hi[:-1] < hi[1:]) | ((hi[:-1] == hi[1:]) & (lo[:-1] < lo[1:]))
    if not is_ascending.all():
        yield f"bucket {bucket.bucket}: digests out of order"
    strangers = int((lo % np.uint64(store.settings["shards"]) != piece.shard).sum())
    if strangers:
        yield f"bucket {bucket.bucket}: {strangers} digests of other shards"


def _unnamed(store: OpenStore) -> int:
    """Pieces that lie in the store and are in no record; those a running job is writing count too."""
    state = store.log.refresh()
    named = {(piece.file, piece.name) for of_shard in state.pieces.values() for piece in of_shard}
    named |= {(retired.ref.file, retired.ref.name) for retired in state.retired}
    return sum((piece.file, piece.name) not in named for piece in store.pieces.pieces())


def render(report: Verification) -> list[RenderableType]:
    """The result as a person reads it."""
    verdict = (
        Text("sound: every byte is what the log says", style="green")
        if report.is_sound
        else Text(f"NOT sound: {len(report.findings)} findings; keep the store as it is", style="bold red")
    )
    return [
        *(Text(finding, style="red") for finding in report.findings),
        pairs(
            [
                ("log", f"{report.records:,} records"),
                ("pieces", f"{report.pieces:,} with {report.entries:,} keys, {approximate_size(report.size_bytes)}"),
                ("sources", f"{report.sources:,} files"),
                ("unnamed", f"{report.unnamed_pieces:,} pieces of broken or running attempts"),
                ("verdict", verdict),
            ]
        ),
    ]
