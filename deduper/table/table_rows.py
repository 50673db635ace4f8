"""The rows of a table's files as the table has them: its columns, those of the folders among them, in the one form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from deduper.table.columns import KeyColumns
from deduper.table.errors import SchemaDriftError
from deduper.table.formats.protocol import DataFile
from deduper.table.index.keys import array_of
from deduper.table.index.reading import key_arrays
from deduper.table.schema import in_form, one_form, type_name
from deduper.table.stored_times import StoredTimes

_BATCH_ROWS = 1 << 17


class TableRows:
    """Reads files that `index.reading.opened` has opened. `schema` is the table's, in the one form.

    `use_threads`: columns of a file are decoded side by side.
    """

    def __init__(self, root: Path, schema: pa.Schema, columns: KeyColumns, *, use_threads: bool = True) -> None:
        self._root = root
        self._schema = schema
        self._columns = columns
        self._use_threads = use_threads

    def keys(self, parquet: pq.ParquetFile, file: DataFile, groups: Sequence[int]) -> Iterator[list[pa.Array]]:
        """The columns of the key of these row groups, as `key_of` gives them."""
        return key_arrays(parquet, self._root, file, self._columns, groups)

    def key_of(self, records: pa.RecordBatch) -> list[pa.Array]:
        """The digested columns of rows of the table."""
        return [records.column(column.name) for column in self._columns.digested]

    def all(
        self, parquet: pq.ParquetFile, file: DataFile, groups: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of these row groups, None: of all. A column that the file lacks is null.

        Raises:
            SchemaDriftError: the file has a column with another type than the table.
        """
        values = dict(zip(self._columns.partition_by, file.partition, strict=True))
        in_folders = {column.name: (column, value) for column, value in values.items()}
        times = StoredTimes(parquet, self._root / file.path)
        found = times.schema
        stored = [name for name in self._schema.names if name not in in_folders and name in found.names]
        self._require_types(found, stored, file)
        # With a file of no column of the table, any column says how many rows there are.
        read = stored or found.names[:1]
        wanted = pa.schema([(self._schema if stored else found).field(name) for name in read])
        for stored_rows in parquet.iter_batches(_BATCH_ROWS, groups, read, use_threads=self._use_threads):
            for records in in_form(times.records(stored_rows).select(read), wanted, self._root / file.path):
                arrays = []
                for field in self._schema:
                    if field.name in in_folders:
                        column, value = in_folders[field.name]
                        arrays.append(array_of(value, column, records.num_rows))
                    elif field.name in stored:
                        arrays.append(records.column(field.name))
                    else:
                        arrays.append(pa.nulls(records.num_rows, field.type))
                yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _require_types(self, found: pa.Schema, stored: Sequence[str], file: DataFile) -> None:
        for field in one_form(pa.schema([found.field(name) for name in stored])):
            wanted = self._schema.field(field.name).type
            # Some writers leave the zone out of the file, and the time is UTC.
            if field.type != wanted and not (pa.types.is_timestamp(field.type) and pa.types.is_timestamp(wanted)):
                raise SchemaDriftError(
                    f"{self._root / file.path}: `{field.name}` is {type_name(field.type)}, and {type_name(wanted)} in "
                    "the table"
                )
