"""Which reader each file of a window needs, by the file itself, whatever lies beside it in the window."""

from __future__ import annotations

from dataclasses import dataclass

from deduper.config.files import FilesSource
from deduper.sources.files.window_files import WindowFiles
from deduper.tasks.readers.parquet import check_footer
from deduper.tasks.readers.partition_folders import folder_texts
from deduper.tasks.readers.plain_file import FilePart, NotPlain, UnreadableFile
from deduper.tasks.readers.reading_tasks import PlainReading
from deduper.tasks.readers.text import first_line
from deduper.text.csv_header import header_fault


@dataclass(frozen=True, slots=True)
class FileWays:
    """The files of a window by the way they are read.

    `parts` are read without Spark, `by_spark` by Spark, `unreadable` and `misheaded` not at all; all but the first are
    reasons by ordinal. The header of a CSV file is held against the columns here, for both readers.
    Plain files without rows and error tuples are in none of them.
    """

    parts: tuple[FilePart, ...]
    by_spark: dict[int, str]
    unreadable: dict[int, str]
    misheaded: dict[int, str]


def file_ways(batch: WindowFiles, reading: PlainReading | None) -> FileWays:
    """The way of each file; without a `reading`, Spark reads all that can be read."""
    parts: list[FilePart] = []
    by_spark: dict[int, str] = {}
    unreadable: dict[int, str] = {}
    misheaded: dict[int, str] = {}
    for ordinal, file in batch.readable.items():
        try:
            fault = fault_of_header(batch.source, file.path)
            if fault is not None:
                misheaded[ordinal] = fault
                continue
            if reading is not None:
                part = reading.part(ordinal, file)
                parts += [] if part is None else [part]
                continue
            if not batch.source.is_text:
                check_footer(file.path)
            by_spark[ordinal] = ""
        except NotPlain as exc:
            by_spark[ordinal] = str(exc)
        except UnreadableFile as exc:
            unreadable[ordinal] = str(exc)
        except (OSError, MemoryError):
            raise  # over the machine
        except Exception as exc:  # noqa: BLE001 - no file may end the job
            by_spark[ordinal] = f"{file.path}: {type(exc).__name__}: {exc}"
    return FileWays(tuple(parts), by_spark, unreadable, misheaded)


def fault_of_header(source: FilesSource, path: str) -> str | None:
    """What is wrong with the header of a CSV file; None without one, and of a file without any text.

    Raises:
        NotPlain: the file cannot be read.
    """
    if not source.header:
        return None
    line = first_line(path)
    in_folders = folder_texts(path, source.folder, source.parsed_columns)
    declared = [column.name for column in source.parsed_columns if column.name not in in_folders]
    return None if line is None else header_fault(line, declared, source.delimiter)
