"""A store of many shards as its driver sees it: windows of the service without their tasks, and made-up pieces.

Every shard's receipt of a window names a piece of its own that has no bytes anywhere, in a file of its shard. What
one window costs the driver, and what it sends to each task, is the service's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import CommitRecord
from bucket_store.maintenance.background_task import InBackground
from bucket_store.maintenance.compactions import Merges
from bucket_store.pieces.compaction import CompactionTask
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.store import Located
from bucket_store.places.place import Place
from bucket_store.tables.manager import TableSettings
from bucket_store.tables.view import ShardView
from deduper.sources.files.batch import SourceFileBatch
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.sources.protocol import Records
from deduper.tasks.judge import JudgeTask, Receipt
from deduper.tasks.read import ReadTask
from deduper.tasks.readers.declared import Noted
from deduper.tasks.readers.reading_tasks import PartRead
from deduper.tasks.write import WriterReceipt, WriteTask
from deduper.testing import Settings
from deduper.window import policy
from deduper.window.attempt import WindowJudge
from deduper.window.runner import WindowInput, WindowRunner
from tests.deduper.small_service import BEGIN_US, Trial
from tests.deduper.unread import UNREAD

HOUR_US = 3_600_000_000
WINDOW_US = 30_000_000
SETTINGS = Settings("event_time", period=24 * HOUR_US, span=HOUR_US)


def made_up(window: int, shard: int, *, length: int = 100 << 10, last: int | None = None, tag: str = "") -> PieceRef:
    """A piece without bytes, of a window that lies 30 s after the one before it."""
    point = BEGIN_US + window * WINDOW_US
    return PieceRef(
        shard=shard,
        file=f"pieces/{shard:04d}/000001-0001.piece",
        name=f"{window:012d}-000001-000-{shard:04d}-{window * 7919 % 2**32:08x}{tag}",
        offset=window * length,
        length=length,
        checksum=(window * 2654435761 + shard) % 2**64,
        first_window=window,
        last_window=window if last is None else last,
        entries=length // 24,
        min_bucket=point // HOUR_US,
        max_bucket=point // HOUR_US,
        max_expiry=point,
    )


class NoBytes(Merges):
    """Maintenance of pieces without bytes."""

    def delete(
        self, pieces: Iterable[Located], *, keep: Collection[str] = (), writing_epoch: int | None = None
    ) -> tuple[Located, ...]:
        """None is left."""
        return ()

    def merge(self, task: CompactionTask) -> PieceRef:
        """A piece as large as all that are merged in it."""
        first, last = task.pieces[0], task.pieces[-1]
        length = sum(piece.length for piece in task.pieces)
        return made_up(last.first_window, first.shard, length=length, last=last.last_window, tag=f"-{first.name}")


class ManyShards:
    """A job with a store of many shards, all of which get a piece in every window.

    `task` and `views` are those of the last window's judging.
    """

    session: Any = None

    def __init__(
        self,
        directory: Path,
        *,
        shards: int,
        pieces: int,
        root: Place | None = None,
        in_background: InBackground = lambda action: action(),
    ) -> None:
        """With so many live pieces a shard."""
        self.config = Trial(SETTINGS, shards=shards).config(directory)
        (directory / "in").mkdir()
        (directory / "in" / "a").touch()
        self.task: JudgeTask | None = None
        self.views: Sequence[ShardView] = ()
        self.finished_reads: Sequence[str] = ()
        self.log = CommitLog.create(
            root or self.config.store.place,
            policy.fixed_settings(self.config),
            wall_us=BEGIN_US,
            snapshot_every=policy.snapshot_every(shards),
        )
        self.log.claim_epoch("many", BEGIN_US)
        for _ in range(pieces):
            self._commit()
        self.log.forget_outputs(pieces - 1)
        tables = TableSettings(
            memory_dir=str(directory),
            disk_dir=str(directory),
            memory_bytes=1 << 20,
            disk_bytes=1 << 20,
            layout=policy.table_layout(self.config),
        )
        self._judge = WindowJudge(self, self.config, self.log, open_backend(self.config.store.url), tables)
        self._runner = WindowRunner(
            self.config, self.log, NoBytes(), self._judge.judge, self._now, in_background=in_background
        )

    def run(self) -> None:
        """A window of a file."""
        folder = Path(self.config.store.path).parent / "in"
        source: Any = self.config.source
        files = tuple(stat_files([ListedFile(f"{folder / 'a'}", 7)]))
        self._runner.run(WindowInput("query", self.log.state.next_window, SourceFileBatch(source, files, UNREAD)))

    def wait_until_published(self) -> None:
        """Wait until the last window is public."""
        self._runner.wait_until_published()

    def close(self) -> None:
        """The end of the job."""
        self._runner.close()
        self._judge.close()

    def _now(self) -> int:
        return BEGIN_US + self.log.state.next_window * WINDOW_US

    def _commit(self) -> None:
        state = self.log.state
        pieces = tuple(made_up(state.next_window, shard) for shard in range(self.config.store.shards))
        counts = {"unique": len(pieces), "duplicate": 0, "expired": 0, "error": 0}
        self.log.place(
            CommitRecord(
                *(state.next_window, state.epoch, 0, "", 0, self._now(), "h", pieces[0].max_expiry, self._now()),
                *(counts, {}, pieces, (), (pieces[0].max_bucket,), pieces[0].max_expiry, None, {}),
            )
        )

    @contextmanager
    def open(self, epoch: int, attempt: int) -> Iterator[ManyShards]:
        """The jobs of one attempt."""
        yield self

    def read(self, records: Records, task: ReadTask) -> list[PartRead]:
        """One record a shard."""
        return [PartRead(noted=Noted(self.config.store.shards))]

    def judge(self, task: JudgeTask, views: Sequence[ShardView]) -> list[Receipt]:
        """A unique record and a piece a shard."""
        self.task, self.views = task, views
        return [self._receipt(made_up(task.window, view.shard)) for view in views]

    def write(self, task: WriteTask) -> list[WriterReceipt]:
        """There are no ports."""
        return []

    def _receipt(self, piece: PieceRef) -> Receipt:
        return Receipt(
            shard=piece.shard,
            counts=(1, 0, 0, 0),
            reasons={},
            max_admitted=piece.max_expiry,
            max_remembered=piece.max_expiry,
            piece=piece,
            buckets=(piece.max_bucket,),
            rows_by_partition={0: 1},
            first_windows={},
            table_counters={"hits": 1.0, "loaded": 0.0},
            seconds={"keys": 0.001, "judge": 0.002},
        )
