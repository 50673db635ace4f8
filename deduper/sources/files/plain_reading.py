"""Whether a job's files can be read without Spark, and how; see `tasks.readers`."""

from __future__ import annotations

import logging

from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.sources.plain import OnlySpark, declared
from deduper.tasks.readers.parquet import ParquetReading
from deduper.tasks.readers.reading_tasks import PlainReading
from deduper.tasks.readers.text import TextReading

logger = logging.getLogger(__name__)


def plain_reading(config: Config, salt: bytes) -> PlainReading | None:
    """How a job's files are read; None when by Spark, and then the log says why."""
    source = config.source
    if not isinstance(source, FilesSource):
        return None
    try:
        columns = declared(config, salt)
    except OnlySpark as exc:
        logger.info("all files are read by Spark: %s", exc)
        return None
    if source.is_text:
        delimiter = source.delimiter if source.file_format == "csv" else None
        return TextReading(columns, config.time_zone, delimiter, source.header)
    return ParquetReading(columns)
