"""Scripts read `--json`: every report's keys, their order and the form of their values are pinned by `answers.json`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bucket_store.log.profile import WindowProfile
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.store import StoredPiece
from deduper.admin.errors.export import ErrorExport
from deduper.admin.errors.report import ErrorRowGroup, ErrorsReport
from deduper.admin.gc import Garbage, GcReport
from deduper.admin.health import Health, State
from deduper.admin.inspect import BucketPart, BucketReport
from deduper.admin.keys.conflicts import ConflictReport
from deduper.admin.keys.explain import Explanation, SeenCopy
from deduper.admin.keys.stored import CopyForecast, KeyEntry, StoredKey
from deduper.admin.move.backup import CopyReport
from deduper.admin.move.export import ExportReport
from deduper.admin.move.forget import ForgetReport
from deduper.admin.move.key_sum import KeySum
from deduper.admin.move.reshard import ReshardReport
from deduper.admin.move.rewind import RewindReport
from deduper.admin.orphans import Orphan, OrphanKind
from deduper.admin.profile import ProfileView
from deduper.admin.status import KeyHistory, PartitionLag, SourceLag, StoreStatus
from deduper.admin.verify.findings import Check, Finding
from deduper.admin.verify.run import Verification
from deduper.diagnostics import error, note
from deduper.leaks.figures import Estimate, LeakFigures
from deduper.preflight.checks import Diagnosis

ANSWERS = Path(__file__).with_name("answers.json")
PIECE = PieceRef(2, "shards/2/a.dat", "a-piece", 64, 512, 0xABC, 3, 5, 9, -1, 4, 17)
ORPHAN = Orphan(
    OrphanKind.PIECE, Path("/store/a"), 7, "named by nothing", True, 3, 2, 99, StoredPiece("a", "b", 1, 2, 0, 7)
)
FILE_ORPHAN = Orphan(OrphanKind.TEMPORARY, Path("/store/.tmp-a"), 0, "half written", False)
LAG = SourceLag((PartitionLag("t", 0, 5, 9, 4), PartitionLag("t", 1, None, None, None)))
LEAKS = LeakFigures(
    first_window=1,
    next_window=5,
    since_us=7,
    missed_windows=0,
    records=10,
    seen=3,
    sample=256,
    keys=2,
    period=60,
    memory=120,
    missed={"lookup": Estimate(256.0, 6.5, 1426.5, 1)},
    found=0.0,
    distances=((60.0, 256.0, 0.0), (None, 0.0, 0.0)),
)
PROFILE = ProfileView((WindowProfile(4, 2, 0, 100, 0.51234567, {"intent": 0.1234567, "task.read": 0.25}),))
SUM = KeySum(90, 0xABC)
REPORTS = {
    "status": StoreStatus(
        health=Health(State.BEHIND, "9 offsets wait"),
        url="file:/store",
        store_id="abc",
        incarnation="def",
        created="2024-12-31T00:00:00Z",
        settings={"shards": 4, "key": ["a"]},
        epoch=2,
        owner=None,
        is_running=False,
        last_end={"exit_code": 1, "message": "no room", "at": "2024-12-31T00:00:00Z", "owner": "host:7"},
        windows=5,
        last_commit=None,
        latest_point="2024-12-31T00:00:00Z",
        expiry_point=None,
        history=KeyHistory(None, is_complete=False, is_seed_open=False),
        published_through=3,
        unpublished=(4,),
        rows=10,
        rates={"unique": 1.5},
        since_window_s=12.0,
        behind_s=None,
        counts={"unique": 1, "duplicate": 2, "expired": 3, "error": 4},
        reasons={"null_key": 4},
        entries=4,
        pieces=2,
        retired_pieces=1,
        bytes_on_disk={"pieces": 200, "total": 300},
        bytes_per_key=50.0,
        last_windows=({"window": 4, "epoch": 2},),
        waiting_files=None,
        profile=PROFILE,
        lag=LAG,
        leaks=LEAKS,
        spans={"lateness": {"count": 3, "mean_s": 0.5, "half_s": 0.0, "most_s": None}},
    ),
    "lag_unknown": SourceLag((), "no brokers"),
    "no_profile": ProfileView(()),
    "gc": GcReport(
        (
            Garbage("piece", "/store/a", 7, "named by nothing", "younger than 1h", None),
            Garbage("tables", "/tmp/t", 5, "of no store", None, None, None, True),
        ),
        90_000_000,
        False,
        True,
    ),
    "gc_refused": GcReport((), 0, True, True),
    "check": Diagnosis("job", False, (error("java", "java", "none", "install one"), note("java", "java", "is there"))),
    "errors": ErrorsReport(
        "/out/error", 2, 9, None, (ErrorRowGroup("null_key", "user: null", 8, 3, 5, "in/a.json:7"),), 1
    ),
    "error_export": ErrorExport("/out/errors", {"null_key": 8}, 2, {"file_missing": 1}),
    "explain": Explanation(
        StoredKey(
            {"a": "x", "b": None},
            "00ff",
            3,
            "ts",
            (CopyForecast("same", "2024-12-31T00:00:00Z", "duplicate", "earlier_window"),),
            (KeyEntry(4, -1, "a-piece", "2024-12-31T00:00:00Z", "part-0.parquet", 7, None, "for ever"),),
        ),
        (
            SeenCopy(
                *("duplicate", "same_window", 4, "2024-12-31T00:00:00Z", "in/0.json:8", "/out/d.parquet:0"),
                {"window": 4, "place": "in/0.json:7"},
                {"page": "/", "n": None},
                "output",
            ),
        ),
        ("unique: 3 rows are not kept (format: none)",),
        2,
        9,
    ),
    "conflicts": ConflictReport(9, 3, 2, {"page": 2}, (("aaa", 3),), ("unique: only ports of files are read",)),
    "bucket": BucketReport(
        7,
        "numbers",
        True,
        (BucketPart(3, "a-piece", "a", 1, 2, 5, 99, 1, 2.5), BucketPart(4, "b", "c", 2, 2, 6, 98, None, None)),
    ),
    "verify": Verification(
        "file:/store",
        (Finding.of(Check.LOG_COUNTS, "rows", file=Path("/store/log/1"), offset=3, expected=4, found=b"5"),),
        unlisted={Check.LOG_COUNTS: 3},
        notes=("a note", "another"),
        ran=frozenset({Check.LOG_COUNTS, Check.MANIFEST}),
        skipped={Check.OUTPUTS_BYTES: "not asked for"},
        orphans=(ORPHAN, FILE_ORPHAN),
        records=1,
        pieces=2,
        entries=3,
        size_bytes=4,
        sources=5,
        outputs=6,
        output_bytes=7,
    ),
    "reshard": ReshardReport(4, 7, 20, 90, 1000, 3, 1, 21, SUM, KeySum(), SUM),
    "copy": CopyReport("file:/store", "file:/copy", 9, 5, 20, 3, 90, 1000, SUM, SUM),
    "export": ExportReport("/keys", 9, 5, 4, 1, 90, SUM, SUM),
    "forget": ForgetReport("00ff", 1, 1, 1, 30, SUM, SUM, "/store/audit/000002.json"),
    "rewind": RewindReport(4, 2, 20, 3, ("/out/a.parquet",), SUM, SUM),
}


@pytest.mark.parametrize("name", REPORTS)
def test_an_answer_keeps_its_keys(name: str) -> None:
    expected = json.loads(ANSWERS.read_text(encoding="utf-8"))[name]
    # As text, because a dict compares equal in any order.
    assert json.dumps(REPORTS[name].to_json()) == json.dumps(expected)


def test_every_answer_is_pinned() -> None:
    assert set(json.loads(ANSWERS.read_text(encoding="utf-8"))) == set(REPORTS)
