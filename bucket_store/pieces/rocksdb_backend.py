"""Pieces in RocksDB (embedded, by rocksdict): databases of a shard and epoch, one after another.

Root layout: `pieces/<shard, 4 digits>/<epoch, 6 digits>[-<serial, 4 digits> | -<8 random hex>].rocksdb/`. The first
database of an epoch has no serial; one with 128 table files gets no further piece, and the next serial begins: opening
a database takes the longer the more files it has, and every window opens one. A database has one writer, under LOCK; a
writer that does not get it in 2 s writes into a new database with a random suffix, which gets no second piece. A
deletion holds LOCK while it compacts (10 ms for 8 MB) and leaves the file `DELETING` there meanwhile: a writer does not
wait for it and begins a new database at once. All readers open read-only, which needs no LOCK. A piece is one table
file, ingested as a whole, with the keys

    <name>              piece length u64, chunk size u32 (little endian)
    <name>/<8 digits>   chunk 0, 1, 2 … of the piece, 256 KiB each, the last one shorter

Measured with 9 MB pieces, a database opened and closed for each: synced WriteBatch 50 ms (log, then again as a table
when closing), WriteBatch without log and flush 27 ms, ingested table file 15 ms. So pieces are ingested; RocksDB syncs
the table file, the directory and its manifest before it returns. No compression: digests are random.

Of a small piece, opening and closing is most: 10 ms for one shard, 20 for two, since the binding holds the GIL while it
opens; ingesting alone takes 1 to 2. So a process that appends small pieces keeps a shard's database open
(`stays_open`), and with it LOCK, until another process needs it (`close_writers`).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import struct
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rocksdict import (
    AccessType,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SstFileWriter,
    WriteBatch,
    WriteOptions,
)

from bucket_store import failpoints
from bucket_store.errors import CorruptionError, SpaceError, StoreError
from bucket_store.filesystem import LOCAL
from bucket_store.pieces.store import Located, PieceLocation, PieceStore, StoredPiece, sync_names, write_error

CHUNK_BYTES = 256 << 10
LOCK_WAIT_S = 2.0
_LOCK_POLL_S = 0.02
_READERS_KEPT = 64
_MOST_TABLES = 128
_RANDOM_DIGITS = 8
_TABLES_KEPT_OPEN = 64
_OPEN_ATTEMPTS = 5
_INGEST = ".ingest"
_DELETING = "DELETING"
_GONE = ".gone-"

_META = struct.Struct("<QI")
_P = ParamSpec("_P")
_T = TypeVar("_T")

# Read-only databases of this process, least recently used first. Opening takes milliseconds and a batch reads from the
# same few. The process id is part of the key because a handle does not survive a fork.
_readers: OrderedDict[tuple[int, str], Any] = OrderedDict()
_readers_lock = threading.Lock()
# Databases this process has open for writing: closing any descriptor of a LOCK file would drop its own lock on it.
_writing: set[str] = set()
# Those of them that wait for this process's next piece, by their shard's directory.
_kept: dict[Path, tuple[Path, Any]] = {}
_writing_lock = threading.Lock()


class RocksPieces:
    """The `rocksdb:` backend. Handles are kept by the process, not by the instance."""

    def __init__(self, root: str | os.PathLike[str], *, lock_wait_s: float = LOCK_WAIT_S) -> None:
        self._root = Path(root)
        self._lock_wait_s = lock_wait_s

    def __reduce__(self) -> tuple[object, ...]:
        return RocksPieces, (self._root,)

    @property
    def url(self) -> str:
        return f"rocksdb:{self._root}"

    @property
    def is_remote(self) -> bool:
        return False

    def append(
        self, *, shard: int, epoch: int, name: str, data: bytes | memoryview, stays_open: bool = False
    ) -> PieceLocation:
        directory = self._root / "pieces" / f"{shard:04d}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            path = _current(directory, epoch)
            if not self._append_to(path, name, data, self._lock_wait_s, stays_open=stays_open):
                path = directory / f"{epoch:06d}-{secrets.token_hex(4)}.rocksdb"
                if not self._append_to(path, name, data, self._lock_wait_s):
                    raise StoreError(f"{path}: a new database is locked")
        except OSError as error:
            raise write_error(error, f"{self._root}: piece {name}") from error
        return PieceLocation(path.relative_to(self._root).as_posix(), name, 0, len(data))

    def read(self, piece: Located, start: int = 0, length: int | None = None) -> bytes:
        end = piece.length if length is None else start + length
        meta = self._get(piece, piece.name)
        found, chunk_bytes = _META.unpack(meta) if len(meta) == _META.size else (0, 0)
        if found != piece.length or not 0 <= start <= end <= found or chunk_bytes == 0:
            raise CorruptionError(
                f"length of piece {piece.name}",
                file=piece.file,
                offset=start,
                expected=max(piece.length, end),
                found=found,
            )
        first, last = start // chunk_bytes, max(end - 1, start) // chunk_bytes
        chunks = [memoryview(self._get(piece, _chunk_key(piece.name, number))) for number in range(first, last + 1)]
        chunks[-1] = chunks[-1][: end - last * chunk_bytes]
        chunks[0] = chunks[0][start - first * chunk_bytes :]
        data = b"".join(chunks)
        if len(data) != end - start:
            raise CorruptionError(
                f"truncated piece {piece.name}", file=piece.file, offset=start, expected=end - start, found=len(data)
            )
        return data

    def delete(
        self, pieces: Iterable[Located], *, keep: Collection[str] = (), writing_epoch: int | None = None
    ) -> tuple[Located, ...]:
        by_file: defaultdict[str, list[Located]] = defaultdict(list)
        for piece in pieces:
            by_file[piece.file].append(piece)
        if writing_epoch is None:
            # Their last piece was deleted while they might still get another one, so they stayed.
            empty = (path for path in (self._root / "pieces").glob("*/*.rocksdb") if not any(path.glob("*.sst")))
            for path in empty:
                by_file.setdefault(path.relative_to(self._root).as_posix(), [])
        held: list[Located] = []
        for file, dying in by_file.items():
            may_go = file not in keep and (writing_epoch is None or not _may_grow(self._root / file, writing_epoch))
            if not self._delete_in(self._root / file, {piece.name for piece in dying}, may_go=may_go):
                held += dying
        for doomed in (self._root / "pieces").glob(f"*/*{_GONE}*"):  # a deletion was cut short
            shutil.rmtree(doomed, ignore_errors=True)
        return tuple(held)

    def pieces(self) -> Iterator[StoredPiece]:
        for path in sorted((self._root / "pieces").glob("*/*.rocksdb")):
            file = path.relative_to(self._root).as_posix()
            epoch = int(path.name.split(".")[0].split("-")[0])
            for name, length in _guarded(file, _repeat, _stored, path):
                yield StoredPiece(file, name, int(path.parent.name), epoch, 0, length)

    def close_writers(self) -> None:
        _close_kept(self._root / "pieces")

    def close(self) -> None:
        """Drops the process's handles of deleted databases; the others serve the next batch."""
        with _readers_lock:
            for key in [key for key in _readers if not (Path(key[1]) / "CURRENT").exists()]:
                del _readers[key]

    def _get(self, piece: Located, key: str) -> bytes:
        path = self._root / piece.file
        value = None
        if (path / "CURRENT").exists():
            value = _guarded(piece.file, _get_from_kept, path, key.encode())
            if value is None:
                value = _get_read_only(piece.file, path, key.encode())
        if value is None:
            raise CorruptionError(
                f"piece {piece.name}", file=piece.file, offset=0, expected=f"key {key}", found="no such key"
            )
        return bytes(value)

    def _append_to(
        self, path: Path, name: str, data: bytes | memoryview, wait_s: float, *, stays_open: bool = False
    ) -> bool:
        """False: no LOCK in time."""
        with _writer(path, wait_s, stays_open=stays_open) as (database, was_open):
            if database is None:
                return False
            if not was_open:
                # Left by a dead writer; LOCK is ours.
                for orphan in (*path.glob(f"*{_INGEST}"), *path.glob(_DELETING)):
                    orphan.unlink(missing_ok=True)
            table = path / f"{name}{_INGEST}"
            try:
                _guarded(str(path), _ingest, database, table, name, memoryview(data))
            finally:
                table.unlink(missing_ok=True)
        if not was_open:
            # Not only for a new database: its maker may have died before this.
            sync_names(LOCAL, self._root, path.parent)
        return True

    def _delete_in(self, path: Path, names: set[str], *, may_go: bool) -> bool:
        """False: no LOCK."""
        if not (path / "CURRENT").exists():
            return True
        sign = path / _DELETING
        try:
            sign.touch()
        except FileNotFoundError:
            return True  # removed by another
        try:
            with _writer(path, 0.0) as (database, _):
                if database is None:
                    return False
                stored = dict(_guarded(str(path), _names, database))
                dying = names & stored.keys()
                if dying:
                    _guarded(str(path), _delete_pieces, database, {name: stored[name] for name in dying})
                # Under LOCK: after it, another process may open the database and put a piece there.
                current = (path / "CURRENT").read_bytes()
        finally:
            sign.unlink(missing_ok=True)
        if may_go and len(dying) == len(stored):
            _forget_reader(path)
            _remove_if_unchanged(path, current)
        return True


def _options(*, create: bool) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_compression_type(DBCompressionType.none())
    options.set_keep_log_file_num(1)
    options.set_manifest_preallocation_size(4096)
    # Without a limit every table file of a database is opened with it, and a piece is one: of 1,000 pieces in 17 ms.
    options.set_max_open_files(_TABLES_KEPT_OPEN)
    options.set_skip_stats_update_on_db_open(True)
    # Otherwise every opening starts 15 threads for table files, and opens none.
    options.set_max_file_opening_threads(1)
    return options


def _open_read_only(path: Path) -> Any:
    # RocksDB's default refuses a database with a write-ahead log, which exists while a writer is at work.
    return Rdict(str(path), _options(create=False), access_type=AccessType.read_only(False))


def _repeat(read: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """The result of a reading by a fresh handle; up to `_OPEN_ATTEMPTS` readings while a file is missing.

    A writer or a deletion replaces files that the manifest named when a handle read it. A handle opens a table file as
    late as with the first read of a key in it. A file that stays missing is damage.

    Raises:
        Exception: the error of the last attempt, or one about anything but a missing file.
    """
    for attempt in range(_OPEN_ATTEMPTS):
        try:
            return read(*args, **kwargs)
        except Exception as error:
            if not _is_file_missing(error) or attempt == _OPEN_ATTEMPTS - 1:
                raise
            time.sleep(_LOCK_POLL_S)
    raise AssertionError("the loop returns or raises")


def _get_read_only(file: str, path: Path, key: bytes) -> Any:
    """The value by the handle that this process has kept, else by a fresh one; None when that has no such key.

    A kept handle may be older than the piece, or than a deletion that has compacted its table file into another one.
    """

    def get(*, fresh: bool) -> Any:
        return _guarded(file, _reader(path, fresh=fresh).get, key)

    try:
        value = get(fresh=False)
    except CorruptionError as error:
        if not _is_file_missing(error):
            raise
        value = None
    return _repeat(get, fresh=True) if value is None else value


def _stored(path: Path) -> list[tuple[str, int]]:
    """As `_names`, by a handle of its own; none of a database that is not yet made, or half deleted."""
    if not (path / "CURRENT").exists():
        return []
    database = _open_read_only(path)
    try:
        return _names(database)
    finally:
        database.close()


def _reader(path: Path, *, fresh: bool) -> Any:
    key = (os.getpid(), str(path))
    with _readers_lock:
        database = None if fresh else _readers.get(key)
        if database is None:
            database = _guarded(str(path), _open_read_only, path)
            # A replaced or surplus handle is only dropped, not closed: another thread may be reading from it.
            _readers[key] = database
            if len(_readers) > _READERS_KEPT:
                _readers.popitem(last=False)
        _readers.move_to_end(key)
        return database


def _forget_reader(path: Path) -> None:
    with _readers_lock:
        _readers.pop((os.getpid(), str(path)), None)


@contextmanager
def _writer(path: Path, wait_s: float, *, stays_open: bool = False) -> Iterator[tuple[Any, bool]]:
    """The database open for writing, None without its LOCK in time; and whether this process had kept it open."""
    deadline = time.monotonic() + wait_s
    database, was_open = None, False
    while True:
        with _writing_lock:
            kept = _kept.get(path.parent)
            if kept is not None and (kept[0] != path or not stays_open):
                _close(*_kept.pop(path.parent))
                kept = None
            if kept is not None:
                database, was_open = _kept.pop(path.parent)[1], True
                break
            free = str(path) not in _writing
            if free:
                _writing.add(str(path))
        if free:
            try:
                database = Rdict(str(path), _options(create=True))
                break
            except Exception as error:
                with _writing_lock:
                    _writing.discard(str(path))
                if not _is_lock_held(error):
                    raise _store_error(str(path), error) from error
        if time.monotonic() >= deadline or (path / _DELETING).exists():
            break
        time.sleep(_LOCK_POLL_S)
    if database is None:
        yield None, False
        return
    is_sound = False
    try:
        yield database, was_open
        is_sound = True
    finally:
        with _writing_lock:
            # After an error, one of a full disk say, RocksDB refuses further pieces until it is opened again.
            if is_sound and stays_open and path.parent not in _kept:
                _kept[path.parent] = path, database
            else:
                _close(path, database)


def _get_from_kept(path: Path, key: bytes) -> Any:
    """The value, if this process keeps the database open: the last small piece is read without opening it again."""
    with _writing_lock:
        kept = _kept.get(path.parent)
        return kept[1].get(key) if kept is not None and kept[0] == path else None


def _close(path: Path, database: Any) -> None:
    """Close a database that is open for writing. Under `_writing_lock`."""
    database.close()
    _writing.discard(str(path))


def _close_kept(pieces: Path) -> None:
    """Close the kept databases of a store; one that gets a piece at this moment stays."""
    with _writing_lock:
        for directory in [directory for directory in _kept if directory.parent == pieces]:
            _close(*_kept.pop(directory))


def _ingest(database: Any, table: Path, name: str, data: memoryview) -> None:
    writer = SstFileWriter(_options(create=True))
    writer.open(str(table))
    writer[name.encode()] = _META.pack(len(data), CHUNK_BYTES)
    for number, start in enumerate(range(0, len(data), CHUNK_BYTES)):
        writer[_chunk_key(name, number).encode()] = bytes(data[start : start + CHUNK_BYTES])
    writer.finish()
    failpoints.hit("piece.half")
    options = IngestExternalFileOptions()
    options.set_move_files(True)
    database.ingest_external_file([str(table)], options)
    failpoints.hit("piece.entered")


def _delete_pieces(database: Any, lengths: dict[str, int]) -> None:
    batch = WriteBatch(raw_mode=True)
    for name, length in lengths.items():
        batch.delete(name.encode())
        for number in range(-(-length // CHUNK_BYTES)):
            batch.delete(_chunk_key(name, number).encode())
    synced = WriteOptions()
    synced.sync = True
    database.write(batch, synced)
    failpoints.hit("piece.deleted")
    # Frees the space now: RocksDB never compacts tables that do not overlap by itself.
    database.compact_range(min(lengths).encode(), max(lengths).encode() + b"0")


def _names(database: Any) -> list[tuple[str, int]]:
    """(name, length) of every piece; skips the chunks."""
    names = []
    entry = database.iter()
    entry.seek_to_first()
    while entry.valid():
        key, value = bytes(entry.key()), bytes(entry.value())
        names.append((key.decode(), _META.unpack(value)[0]))
        entry.seek(key + b"0")  # "0" follows "/" in ASCII
    entry.status()  # raises: at damage an iterator ends as at the last key
    return names


def _current(directory: Path, epoch: int) -> Path:
    """The database for an epoch's next piece of a shard; it need not exist."""
    serial = _newest_serial(directory, epoch)
    path = directory / _database_name(epoch, serial)
    tables = sum(1 for _ in path.glob("*.sst"))
    return path if tables < _MOST_TABLES else directory / _database_name(epoch, serial + 1)


def _database_name(epoch: int, serial: int) -> str:
    return f"{epoch:06d}-{serial:04d}.rocksdb" if serial else f"{epoch:06d}.rocksdb"


def _newest_serial(directory: Path, epoch: int) -> int:
    """The newest serial of an epoch's databases; 0 when there is none."""
    of_epoch = directory.glob(f"{epoch:06d}-*.rocksdb")
    return max((serial for path in of_epoch if (serial := _serial(path.name)) is not None), default=0)


def _serial(name: str) -> int | None:
    """The serial in a database's name; None with a random suffix."""
    suffix = name.removesuffix(".rocksdb").partition("-")[2]
    return None if len(suffix) == _RANDOM_DIGITS else int(suffix or 0)


def _may_grow(path: Path, epoch: int) -> bool:
    """Whether a writer of this epoch, or of a later one, may append to a database from now on.

    True for the epoch's newest one: a writer that is still at an older serial is of a window that is judged. A database
    with a random suffix gets only the piece it was begun for.
    """
    of_epoch = int(path.name.split(".")[0].split("-")[0])
    serial = _serial(path.name)
    if of_epoch != epoch or serial is None:
        return of_epoch > epoch
    return serial >= _newest_serial(path.parent, epoch)


def _chunk_key(name: str, number: int) -> str:
    return f"{name}/{number:08d}"


def _remove_if_unchanged(path: Path, current: bytes) -> None:
    """Removes an empty database, unless it was opened for writing since it was found empty.

    A writer holds LOCK and puts a new name into CURRENT; under LOCK an equal CURRENT means that there was none. The
    rename frees the path for a new database before anything is deleted.
    """
    with _writing_lock:
        if str(path) in _writing:
            return
        try:
            fd = os.open(path / "LOCK", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # removed by another
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (path / "CURRENT").read_bytes() != current:
                return
            doomed = path.with_name(f"{path.name}{_GONE}{secrets.token_hex(4)}")
            path.rename(doomed)
            failpoints.hit("piece.file.gone")
        except BlockingIOError:
            return
        finally:
            os.close(fd)
    shutil.rmtree(doomed, ignore_errors=True)


def _guarded(file: str, action: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    try:
        return action(*args, **kwargs)
    except Exception as error:  # rocksdict raises bare Exception for everything
        raise _store_error(file, error) from error


def _is_lock_held(error: Exception) -> bool:
    message = str(error)
    return "LOCK" in message and ("lock hold by current process" in message or "While lock file" in message)


def _is_file_missing(error: Exception) -> bool:
    return "No such file" in str(error)


def _store_error(file: str, error: Exception) -> StoreError:
    """The one place that reads RocksDB's messages."""
    message = str(error)
    if "No space left" in message or "Disk quota" in message:
        return SpaceError(f"{file}: {message}")
    if message.startswith("Corruption") or _is_file_missing(error):
        return CorruptionError(
            message, file=file, offset=0, expected="a sound database", found="what RocksDB says above"
        )
    return StoreError(f"{file}: {message}")


def _keeps_the_protocol(pieces: RocksPieces) -> PieceStore:
    return pieces  # checked by mypy
