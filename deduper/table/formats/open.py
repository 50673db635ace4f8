"""Opens a table by its folder and format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deduper.table.columns import KeyColumn
from deduper.table.errors import SettingError, UnsupportedTableError
from deduper.table.formats.protocol import Table

FORMATS = ("delta", "parquet")


def open_table(path: str | Path, table_format: str, partition_by: Sequence[KeyColumn], keep_versions: int = 0) -> Table:
    """The table in a folder, which need not exist yet. `keep_versions`: for writes of plain Parquet tables.

    Raises:
        SettingError: another format.
        TableUsageError: the package of Delta tables is not installed.
        UnsupportedTableError: the folder holds a Delta table and the format is another, or it is on another storage.
    """
    if "://" in str(path):
        raise UnsupportedTableError(f"{path}: tables lie on this machine in this release; write a path")
    root = Path(path).resolve()
    if table_format == "delta":
        from deduper.table.formats.delta import DeltaFiles  # deltalake need not be installed

        return DeltaFiles(root, partition_by)
    if table_format == "parquet":
        from deduper.table.formats.plain import PlainFiles

        if (root / "_delta_log").is_dir():
            raise UnsupportedTableError(f"{root}: is a Delta table; write `format: delta`")
        return PlainFiles(root, partition_by, keep_versions)
    raise SettingError("table.format", f"`{table_format}` is not a valid choice", f"write {' or '.join(FORMATS)}")
