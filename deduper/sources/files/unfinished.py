"""Which listed files their writer has not finished: they are looked at again, and no window takes them yet.

- An empty file: were it judged, what its writer adds would never be read.
- A Parquet file without its end that is younger than a minute. An older one is an error.
- A file in a folder of Spark's file sink, which writes in place, that the sink's log (`_spark_metadata`) does not
  list yet, or never will: of an attempt that failed. Spark's own reader leaves these out too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from deduper.errors import SourceAwayError
from deduper.sources.files.source_file import ListedFile

_YOUNG_S = 60.0
_END = b"PAR1"
_LOG, _COMPACT = "_spark_metadata", ".compact"


def unfinished(files: Iterable[ListedFile], root: Path, *, is_parquet: bool) -> set[str]:
    """The paths of those that are not finished. `root` is the folder of the source.

    Raises:
        OSError, SourceAwayError: the log of a sink cannot be read.
    """
    names: dict[str, frozenset[str] | None] = {}
    found = set()
    for file in files:
        folder, _, name = file.path.rpartition("/")
        if folder not in names:
            names[folder] = _names_above(Path(folder), root)
        listed = names[folder]
        if not file.size_bytes or (listed is not None and name not in listed) or (is_parquet and _lacks_end(file)):
            found.add(file.path)
    return found


def _lacks_end(file: ListedFile) -> bool:
    if time.time() - file.modified_ms / 1000 > _YOUNG_S:
        return False
    try:
        with open(os.fsencode(file.path), "rb") as stream:  # noqa: PTH123  a name may be no UTF-8
            stream.seek(-min(len(_END), file.size_bytes), os.SEEK_END)
            return stream.read() != _END
    except OSError:
        return False  # the window that takes it says what is wrong


def _names_above(folder: Path, root: Path) -> frozenset[str] | None:
    """The names in the log of the sink that writes a folder, which lies beside or above its partition folders."""
    for above in (folder, *folder.parents):
        names = _listed(above / _LOG)
        if names is not None or above == root:
            return names
    return None


def _listed(log: Path) -> frozenset[str] | None:
    """The names that a sink's log has; None without one. A compact file has those of all before it."""
    try:
        files = os.listdir(log)  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return None
    newest = max((int(name.removesuffix(_COMPACT)) for name in files if name.endswith(_COMPACT)), default=-1)
    wanted = [name for name in files if name == f"{newest}{_COMPACT}" or (name.isdecimal() and int(name) > newest)]
    lines = [line for name in wanted for line in (log / name).read_text("utf-8").splitlines()[1:] if line]
    try:
        return frozenset(unquote(json.loads(line)["path"]).rpartition("/")[2] for line in lines)
    except (ValueError, KeyError, TypeError) as exc:
        raise SourceAwayError(f"{log}: the log of Spark's file sink cannot be read: {exc}") from exc
