"""Which reader each file of a window needs, by the file itself, whatever lies beside it in the window."""

from __future__ import annotations

from dataclasses import dataclass

from deduper.sources.files.window_files import WindowFiles
from deduper.tasks.readers.parquet import check_footer
from deduper.tasks.readers.plain_file import FilePart, NotPlain, UnreadableFile
from deduper.tasks.readers.reading_tasks import PlainReading


@dataclass(frozen=True, slots=True)
class FileWays:
    """The files of a window by the way they are read.

    `parts` are read without Spark, `by_spark` by Spark, `unreadable` not at all; the last two are reasons by ordinal.
    Plain files without rows and error tuples are in none of them.
    """

    parts: tuple[FilePart, ...]
    by_spark: dict[int, str]
    unreadable: dict[int, str]


def file_ways(batch: WindowFiles, reading: PlainReading | None) -> FileWays:
    """The way of each file; without a `reading`, Spark reads all that can be read."""
    parts: list[FilePart] = []
    by_spark: dict[int, str] = {}
    unreadable: dict[int, str] = {}
    for ordinal, file in batch.readable.items():
        try:
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
    return FileWays(tuple(parts), by_spark, unreadable)
