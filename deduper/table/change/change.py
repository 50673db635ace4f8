"""An upsert or a delete of one batch: what it asks of its table, and what becomes of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from deduper.table.batch import Batch
from deduper.table.change.rewrite import Destination, FileRewrite
from deduper.table.change.workload import Filling, Workload, workload
from deduper.table.columns import KeyColumn, KeyColumns
from deduper.table.errors import TableUsageError, UnsupportedTableError
from deduper.table.formats.protocol import Snapshot
from deduper.table.index.protocol import KeyIndex, VersionKeys
from deduper.table.judge import Keep, Verdict, judge_changes
from deduper.table.schema import require_same
from deduper.table.write.operation import Work

Kind = Literal["upsert", "delete"]


@dataclass(frozen=True, slots=True)
class Change:
    """See `Operation`. The batch of a delete has keys, and may lack all other columns; it has no `filling`."""

    kind: Kind
    batch: Batch
    root: Path
    columns: KeyColumns
    keep: Keep
    update_partition_path: bool
    filling: Filling | None

    def require_fit(self, before: Snapshot) -> None:
        """See `Operation`."""
        if before.no_changes is not None:
            raise UnsupportedTableError(f"{self.root}: {before.no_changes}; nothing was written")
        if self.kind == "upsert":
            if before.schema is not None:
                require_same(self.root, before.schema, self.batch.schema)
            return
        if before.schema is None:
            raise TableUsageError(f"{self.root}: there is no table any more")
        wanted = pa.schema([before.schema.field(column.name) for column in self._asked])
        require_same(self.root, wanted, pa.schema([self.batch.schema.field(name) for name in wanted.names]))

    def judge(self, index: KeyIndex, before: Snapshot) -> Work:
        """See `Operation`."""
        version = index.version(self.root, before.files)
        work = self.workload(version)
        rewrite = None
        if work.removed:
            assert before.schema is not None
            place = Destination(self.root, before.schema, self.columns, self.update_partition_path)
            rewrite = FileRewrite(place, work, version.salt)
        is_upsert = self.kind == "upsert"
        return Work(
            verdict=work.verdicts.verdict,
            file=work.verdicts.first_files(),
            paths={number: file.path for number, file in version.files.items()},
            to_table=frozenset({Verdict.NEW, Verdict.IN_TABLE} if is_upsert else ()),
            to_duplicates=frozenset({Verdict.SAME_LOAD} if is_upsert else ()),
            new=work.verdicts.new if is_upsert else None,
            rewrite=rewrite,
        )

    def workload(self, version: VersionKeys) -> Workload:
        """The batch against a version of the table."""
        verdicts = judge_changes(self.batch, self.columns, self.keep, version, self._asked)
        return workload(self.root, self.batch, self.columns, verdicts, version, self.filling)

    @property
    def _asked(self) -> Sequence[KeyColumn]:
        return self.columns.all if self.kind == "upsert" else self.columns.digested
