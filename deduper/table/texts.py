"""PURE. Texts are UTF-8: of a file in which one is not, strict readers read no row, and no folder has such a name."""

from __future__ import annotations

import pyarrow as pa

from deduper.table.errors import TableUsageError


def require_utf8(records: pa.RecordBatch, where: object, write: str) -> None:
    """All texts of rows are UTF-8, nested ones too. `write`: what to do.

    Raises:
        TableUsageError: naming `where` and the column.
    """
    for name, column in zip(records.schema.names, records.columns, strict=True):
        if not _has_text(column.type):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise TableUsageError(
                f"{where}: `{name}` has a text that is not UTF-8 ({error}); {write}; nothing was committed"
            ) from error


def _has_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or any(_has_text(kind.field(at).type) for at in range(kind.num_fields))
