"""One small file, or more, of every format that FORMAT.md lists, with the way the product reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bucket_store.filesystem import LOCAL
from bucket_store.framing import frame, unframe
from bucket_store.log.codec import decode_record, encode_record, record_name
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.heartbeat import HeartBeat, read_beat
from bucket_store.log.history import History, Sample, decode_history
from bucket_store.log.judged_files import JudgedFiles, encode_judged, judged_ref, read_judged
from bucket_store.log.last_end import LastEnd, read_end, write_end
from bucket_store.log.leak_sample import LeakSample, read_leak_sample, write_leak_sample
from bucket_store.log.manifest import read_manifest
from bucket_store.log.marks import decode_intent, encode_intent, read_intents, read_published, write_intent
from bucket_store.log.profile import Profiles, WindowProfile, read_profiles
from bucket_store.log.sources_archive import archive_ref, encode_archive, read_archive
from bucket_store.log.sources_file import (
    FOLDED_DIRECTORY,
    decode_sources,
    encode_sources,
    read_sources,
    write_sources,
)
from bucket_store.pieces.piece import dump_piece
from bucket_store.places.local import local_place
from bucket_store.tables.generation import GenerationHeader, _read_header, _write_header
from bucket_store.tables.matches import TableLayout
from bucket_store.tables.table_file import create_table, open_table
from tests.bucket_store import test_format_files
from tests.bucket_store.damage import Format, Read
from tests.bucket_store.log import test_codec, test_marks, test_sources_file
from tests.bucket_store.table_samples import STORE_ID

PIECES = Path(__file__).parent / "data"
LINEAGE = tuple((first, bytes(range(first, first + 16))) for first in range(10))
COMMITTED_PIECES = ("piece-v1-all-columns", "piece-v1-digests", "piece-v1-float")


class Instead:
    """The local files, with other bytes in the place of one of them."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path = path
        self._data = data

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(LOCAL, name)

    def read(self, path: Path) -> bytes:
        return self._data if path == self._path else LOCAL.read(path)


def committed_formats() -> list[Format]:
    """All versions as they lie in the repository: what was written once must be guarded for ever."""
    found = [
        Format(f"{path.stem} of version {version}", path.read_bytes(), decode, is_absent=path.stem == "intent")
        for path, version in test_format_files.FILES.items()
        for decode, _ in [test_format_files.CODECS[path.stem]]
    ]
    found += [
        Format(name, (PIECES / f"{name}.bin").read_bytes(), _dump, file="segment", offset=1000, version_at=8)
        for name in COMMITTED_PIECES
    ]
    for path in test_format_files.MARKS:
        found.append(
            Format(
                f"published in {path.parent.name}",
                path.read_bytes(),
                lambda bad, path=path: read_published(local_place(path, Instead(path, bad))),
                is_absent=True,
            )
        )
    return found


def generated_formats(directory: Path) -> list[Format]:
    """What the product writes today, below a new directory, read by the functions that a job reads it with."""
    framed = frame(b"TESTTEST", 1, b"body")
    found = [Format("frame", framed, lambda bad: unframe(bad, magic=b"TESTTEST", version=1, file="f"))]
    for kind, record in test_codec.SAMPLES.items():
        number = record.number
        found.append(Format(f"{kind} record", encode_record(record), _record_reader(number), file="log/x"))
    found.append(
        Format(
            "intent of today",
            encode_intent(test_marks.INTENT),
            lambda bad: decode_intent(bad, file="f"),
            is_absent=True,
        )
    )
    partitions = (test_sources_file.FILE, test_sources_file.TOPIC)
    found.append(
        Format(
            "sources of today",
            encode_sources(3, partitions),
            lambda bad: decode_sources(bad, window=3, file="f"),
        )
    )
    return found + _files_of_a_store(directory / "store", partitions) + _files_of_tables(directory / "tables")


def _files_of_a_store(root: Path, partitions: tuple[Any, ...]) -> list[Format]:
    log = CommitLog.create(local_place(root), {"key": ["user"]}, wall_us=5, snapshot_every=3)
    log.claim_epoch("me", 6)
    for window in range(3):
        log.place(test_codec.commit(window))
    newest_snapshot, newest = 3, log.state.next_number - 1
    write_intent(local_place(root), test_marks.INTENT)
    ref = write_sources(local_place(root), window=3, epoch=1, attempt=0, partitions=partitions)
    archive = archive_ref("a.archive", {3: partitions}, encode_archive({3: partitions}))
    judged = JudgedFiles.empty("/in").joined({(1, 2): (3, 4), (1, 5): (6, 7)}, "/in")
    table = judged_ref("a.judged", 3, judged, encode_judged(3, judged))
    (root / FOLDED_DIRECTORY).mkdir()
    (root / FOLDED_DIRECTORY / archive.name).write_bytes(encode_archive({3: partitions}))
    (root / FOLDED_DIRECTORY / table.name).write_bytes(encode_judged(3, judged))
    HeartBeat(local_place(root), "host:1").beat()
    profiles = Profiles(local_place(root))
    profiles.add(WindowProfile(2, 1, 5, 1000, 1.5, {"judge": 1.25, "publish": 0.25}))
    profiles.write()
    write_leak_sample(
        local_place(root), LeakSample("id", 3, 0, 5, 1, "{}", 8, 30, 2, 1, {"words": bytes(8), "seen": b"\1"})
    )
    history = History(local_place(root), "id", next_window=2)
    history.add(Sample(5, 2, {"unique": 7, "seconds": 0.5}))
    history.write()
    write_end(local_place(root), LastEnd(1, "host:1", 1, "no broker answers", 5))

    def of(name: str, read: Callable[[Any], object], *, is_absent: bool = False) -> Format:
        path = root / name
        data = path.read_bytes()
        return Format(name, data, lambda bad: read(Instead(path, bad)), file=str(path), is_absent=is_absent)

    def opened(fs: Any) -> object:
        return asdict(CommitLog.open(local_place(root, fs)).state)

    return [
        of("manifest", lambda fs: read_manifest(local_place(root, fs))),
        of(f"log/{record_name(newest_snapshot)}", opened),
        of(f"log/{record_name(newest)}", opened),
        of(
            f"intents/{test_marks.INTENT.epoch:06d}",
            lambda fs: read_intents(local_place(root, fs)) or None,
            is_absent=True,
        ),
        of(f"sources/{ref.name}", lambda fs: read_sources(local_place(root, fs), 3, ref)),
        of(f"{FOLDED_DIRECTORY}/{archive.name}", lambda fs: read_archive(local_place(root, fs), archive)),
        of(
            f"{FOLDED_DIRECTORY}/{table.name}", lambda fs: read_judged(local_place(root, fs), table).size_bytes.tolist()
        ),
        of("heartbeat", lambda fs: read_beat(local_place(root, fs)), is_absent=True),
        of("profile", lambda fs: read_profiles(local_place(root, fs)) or None, is_absent=True),
        of("leaks", lambda fs: read_leak_sample(local_place(root, fs))),
        of("ended", lambda fs: read_end(local_place(root, fs)), is_absent=True),
        of("history", lambda fs: decode_history(fs.read(root / "history"), file=str(root / "history"))),
    ]


def _files_of_tables(directory: Path) -> list[Format]:
    directory.mkdir()
    _write_header(directory, GenerationHeader(STORE_ID, "boot", bytes(range(16)), 5, LINEAGE, 1000, False, 50))
    header = directory / "header"
    whole = header.read_bytes()
    used = len(whole.rstrip(b"\0"))

    def read_header(bad: bytes) -> object:
        header.write_bytes(bad)
        return _read_header(directory)

    layout = TableLayout(has_expiry=True, float_expiry=False, has_origin=True, one_table=False)
    path = directory / "t7.table"
    create_table(path, layout, bytes(range(16)), 7, capacity=4, slack=2)

    def read_table(bad: bytes) -> object:
        path.write_bytes(bad)
        table = open_table(path, layout, bytes(range(16)), 7)
        return None if table is None else (table.bucket, table.slices)

    # Of a table the first 56 bytes alone have a checksum; the rest is a cache like the memory it is mapped into.
    table = path.read_bytes()
    return [
        Format("generation", whole, read_header, is_absent=True, silent=range(used, len(whole) + 1)),
        Format("table", table, read_table, is_absent=True, silent=range(56, len(table))),
    ]


def _dump(data: bytes) -> str:
    return dump_piece(data, file="segment", offset=1000)


def _record_reader(number: int) -> Read:
    return lambda bad: decode_record(bad, number=number, file="log/x")
