"""How a job's files are read; see `tasks.readers`."""

from __future__ import annotations

from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.sources.declared_columns import declared
from deduper.tasks.readers.parquet import ParquetReading
from deduper.tasks.readers.reading_tasks import FileReading
from deduper.tasks.readers.text import TextReading


def file_reading(config: Config, source: FilesSource, salt: bytes) -> FileReading:
    """The reader of the files of a source, for a store with this salt."""
    columns = declared(config, salt)
    if source.is_text:
        return TextReading(columns, source.file_format, source.delimiter, source.header)
    return ParquetReading(columns)
