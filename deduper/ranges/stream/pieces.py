"""The files of levels: a frame around an Arrow IPC file, made once, named by commit records, and mapped into memory.

Six zero bytes before the Arrow file align its columns to eight bytes. A piece that is not on this machine is mapped
from a copy: a file without a name in the temporary folder, which ends with the process.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import xxhash

from bucket_store import failpoints
from bucket_store.errors import CorruptionError
from bucket_store.framing import BODY_OFFSET, FRAME_BYTES, frame, unframe
from bucket_store.log.records import LogState
from bucket_store.places import steps
from bucket_store.places.new_file import create_own
from bucket_store.places.place import Place
from deduper.errors import telling_where

RANGES, EVENTS = "ranges", "events"
_MAGIC = {RANGES: b"BSRANGES", EVENTS: b"BSEVENTS"}
_VERSION = 1
_PADDING = bytes(6)
_BEGIN = BODY_OFFSET + len(_PADDING)


@dataclass(frozen=True, slots=True)
class PieceName:
    """A piece as a commit record names it; `last_us` is the last instant of its rows."""

    name: str
    checksum: int
    length: int
    rows: int
    last_us: int

    @property
    def as_list(self) -> list[Any]:
        """For the record."""
        return [self.name, self.checksum, self.length, self.rows, self.last_us]


def named_pieces(state: LogState, kind: str) -> list[PieceName]:
    """The live pieces of a kind, oldest first, by the newest commit record."""
    return [PieceName(*piece) for piece in state.extra.get(kind, ())]


def piece_name(window: int, epoch: int, number: int) -> str:
    """A name of its own for each attempt: an owner judges a window once, and commits it or ends."""
    return f"{window:012d}-{epoch:06d}-{number:03d}"


def write_piece(root: Place, kind: str, name: str, rows: pa.Table, last_us: int) -> tuple[PieceName, pa.Table]:
    """Make a piece, durable on return: its name, and its rows as `read_piece` gives them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    data = frame(_MAGIC[kind], _VERSION, _PADDING + sink.getvalue().to_pybytes())
    create_own(root / kind / name, data, failpoint=steps.PIECE)
    failpoints.hit("ranges.3.piece")
    piece = PieceName(name, xxhash.xxh3_64_intdigest(data), len(data), rows.num_rows, last_us)
    return piece, _mapped_rows(root / kind / name, data)


def read_piece(root: Place, kind: str, piece: PieceName) -> pa.Table:
    """The rows of a piece, checked whole. They may be read after its file was removed.

    Raises:
        CorruptionError, UnknownFormatError: it is gone, or not the one that was written.
        CannotWriteError: the temporary folder has no room for the copy.
    """
    file = root / kind / piece.name
    try:
        data = file.read()
    except FileNotFoundError as error:
        expected = f"{piece.length} bytes"
        raise CorruptionError("piece", file=str(file), offset=0, expected=expected, found="no file") from error
    found = (len(data), xxhash.xxh3_64_intdigest(data))
    if found != (piece.length, piece.checksum):
        expected = f"{piece.length} bytes of checksum {piece.checksum:016x}"
        raise CorruptionError(
            "piece", file=str(file), offset=0, expected=expected, found=f"{found[0]} bytes of {found[1]:016x}"
        )
    unframe(data, magic=_MAGIC[kind], version=_VERSION, file=str(file))
    return _mapped_rows(file, data)


def _mapped_rows(file: Place, data: bytes) -> pa.Table:
    """The rows of a piece that is known to be whole."""
    if file.is_local:
        with pa.memory_map(str(file.local)) as opened:
            mapped = opened.read_buffer()
    else:
        mapped = _mapped_copy(data)
    with pa.ipc.open_file(mapped.slice(_BEGIN, len(data) - FRAME_BYTES - len(_PADDING))) as reader:
        return reader.read_all()


def _mapped_copy(data: bytes) -> pa.Buffer:
    folder = tempfile.gettempdir()
    with telling_where(f"{folder}, for a copy of a piece"), tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def remove_pieces(root: Place, kind: str, names: Iterable[str]) -> None:
    """Remove pieces that no record names any more; safe to repeat."""
    for name in names:
        (root / kind / name).remove()
        failpoints.hit("ranges.7.removed")


def unnamed_pieces(root: Place, kind: str, named: Sequence[PieceName], below_epoch: int) -> list[str]:
    """The pieces of lower epochs that are not among the named ones, and temporary files."""
    kept = {piece.name for piece in named}
    return [
        name for name in (root / kind).listed() if name not in kept and (name[0] == "." or _epoch(name) < below_epoch)
    ]


def _epoch(name: str) -> int:
    return int(name.split("-")[1])
