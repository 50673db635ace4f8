"""Which reader each Parquet file of a window needs, by its own footer, whatever lies beside it in the window."""

from __future__ import annotations

from dataclasses import dataclass

from deduper.sources.files.batch import FileBatch
from deduper.tasks.parquet import NotPlain, ParquetPart, ParquetReading, UnreadableFile, check_footer


@dataclass(frozen=True, slots=True)
class Footers:
    """The files of a window by the way they are read.

    `parts` are read without Spark, `by_spark` by Spark, `unreadable` not at all; the last two are reasons by ordinal.
    Plain files without rows and error tuples are in none of them.
    """

    parts: tuple[ParquetPart, ...]
    by_spark: dict[int, str]
    unreadable: dict[int, str]


def footers_of(batch: FileBatch, reading: ParquetReading | None) -> Footers:
    """The way of each file by its footer; without a `reading`, Spark reads all that can be read."""
    if batch.source.file_format != "parquet":
        return Footers((), dict.fromkeys(batch.readable, ""), {})
    parts: list[ParquetPart] = []
    by_spark: dict[int, str] = {}
    unreadable: dict[int, str] = {}
    for ordinal, file in batch.readable.items():
        try:
            if reading is None:
                check_footer(file.path)
                by_spark[ordinal] = ""
            elif (part := reading.part(ordinal, file)) is not None:
                parts.append(part)
        except NotPlain as exc:
            by_spark[ordinal] = str(exc)
        except UnreadableFile as exc:
            unreadable[ordinal] = str(exc)
        except (OSError, MemoryError):
            raise  # over the machine
        except Exception as exc:  # noqa: BLE001 - no file may end the job
            by_spark[ordinal] = f"{file.path}: {type(exc).__name__}: {exc}"
    return Footers(tuple(parts), by_spark, unreadable)
