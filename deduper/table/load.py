"""A load into a table: the rows whose keys the table does not have are added to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from deduper.config.apart import clashes
from deduper.table.batch import ArrowBatch, Batch, FileBatch
from deduper.table.columns import KeyColumns, key_columns
from deduper.table.errors import SettingError
from deduper.table.formats.open import open_table
from deduper.table.formats.protocol import Snapshot
from deduper.table.index.kinds import index_of
from deduper.table.index.protocol import KeyIndex, TableIndex
from deduper.table.judge import Keep, KeepRule, Verdict, judge, require_rule
from deduper.table.receipt import LoadReceipt, load_receipt
from deduper.table.schema import require_same
from deduper.table.text_batch import TextBatch
from deduper.table.write.lock import locked
from deduper.table.write.new_files import TARGET_FILE_BYTES
from deduper.table.write.operation import Work
from deduper.table.write.staging import require_free_names
from deduper.table.write.steps import WriteSteps


def load(
    rows: Any,
    table: str | Path,
    *,
    key: Sequence[str],
    partition_by: Sequence[str] = (),
    table_format: str = "delta",
    scope: str = "partition",
    index: str | TableIndex = "exact",
    keep: str | Keep = "first",
    duplicates: str | Path | None = None,
    errors: str | Path | None = None,
    target_file_bytes: int = TARGET_FILE_BYTES,
    keep_versions: int = 0,
    lock_timeout_s: float = 60.0,
) -> LoadReceipt:
    """Adds the rows whose keys the table does not have; all others are duplicates or errors.

    `index`: its kind by name, or one that `index_of` made. `target_file_bytes`: about the size of new files.

    `rows`: an Arrow table, anything that exports one (`__arrow_c_stream__`: pandas, Polars, DuckDB), or a `Batch`.

    Raises:
        TableUsageError: columns, settings or a table that do not fit; nothing was written.
        TableHeldError: another load has held the table for `lock_timeout_s`.
        TableChangedError: other writers were faster, five times.
        TableError, CorruptionError: see their classes; the table is as its last commit left it.
    """
    batch: Batch = rows if isinstance(rows, ArrowBatch | FileBatch | TextBatch) else ArrowBatch(rows)
    columns = key_columns(batch.schema, key, partition_by, scope)
    rule = keep if isinstance(keep, Keep) else Keep(cast(KeepRule, keep))
    require_rule(rule, batch)
    require_free_names(batch)
    ports = {"duplicates": duplicates, "errors": errors}
    folders = {name: Path(folder).resolve() for name, folder in ports.items() if folder is not None}
    kind = index_of(index, {}) if isinstance(index, str) else index
    opened = open_table(table, table_format, columns.partition_by, keep_versions)
    for clash in clashes({"table": opened.root} | folders):
        raise SettingError(clash.name, clash.what, clash.write)
    operation = _Load(batch, opened.root, columns, rule)
    with locked(opened.root, lock_timeout_s):
        steps = WriteSteps(batch, opened, columns, kind, operation, folders, target_file_bytes)
        return load_receipt(steps.run())


@dataclass(frozen=True, slots=True)
class _Load:
    """New rows are added; see `Operation`."""

    batch: Batch
    root: Path
    columns: KeyColumns
    keep: Keep

    def require_fit(self, before: Snapshot) -> None:
        """See `Operation`."""
        if before.schema is not None:
            require_same(self.root, before.schema, self.batch.schema)

    def judge(self, index: KeyIndex, before: Snapshot) -> Work:
        """See `Operation`."""
        version = index.version(self.root, before.files)
        verdicts = judge(self.batch, self.columns, self.keep, version)
        return Work(
            verdict=verdicts.verdict,
            file=verdicts.file,
            paths={number: file.path for number, file in version.files.items()},
            to_table=frozenset({Verdict.NEW}),
            to_duplicates=frozenset({Verdict.SAME_LOAD, Verdict.IN_TABLE}),
            new=verdicts.new,
        )
