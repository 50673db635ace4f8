"""The files of a replay that come into a source: under hidden names beside the place where they are to stand.

One a folder and 256 MB. `LineFiles` writes records that are lines, `parquet_rows.ParquetCopies` rows of Parquet files.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wcmatch import glob

from bucket_store.filesystem import FileSystem, listed, make_directories, write_at
from deduper.config.files import FilesSource
from deduper.errors import UsageError
from deduper.sources.files.listing import is_pattern

PART_BYTES = 256 << 20
_REPLAYED = re.compile(r"deduper-replay-[0-9a-f]{8}-\d{6}-(?:[0-9a-f]{8}-)?\d{4}\.")
_PATTERN = glob.BRACE | glob.DOTMATCH | glob.NODOTDIR | glob.FORCEUNIX


def is_replayed(path: str) -> bool:
    """Whether a file of the source is one of a replay."""
    return _REPLAYED.search(Path(path).name) is not None


@dataclass(slots=True)
class Part:
    """A file of a replay that is being written; `hidden` and `final` are below the source's folder."""

    hidden: Path
    final: Path
    size_bytes: int = 0
    rows: int = 0


class NewFiles:
    """The files of one replay.

    Their names have eight random digits: a store that was put back without its records of replays counts again from 1,
    and a name that was judged is never read.
    """

    def __init__(self, fs: FileSystem, source: FilesSource, store: str, number: int) -> None:
        self.fs = fs
        self.source = source
        self._name = f"deduper-replay-{store}-{number:06d}-{secrets.token_hex(4)}"
        self._hidden = f".deduper-replay-{store}-"
        self._parts: list[Part] = []

    def folder_of(self, source: str) -> Path:
        """The folder of a file of the source, below the source's; of a source that has moved, its partition folders."""
        parent = Path(source).parent
        if parent.is_relative_to(self.source.folder):
            return parent.relative_to(self.source.folder)
        return Path(*[part for part in parent.parts if "=" in part])

    def path_of(self, part: Part) -> Path:
        """Where a part lies while it is hidden."""
        return self.source.folder / part.hidden

    def begin(self, folder: Path, source: str) -> Part:
        """One more file in a folder, for records of this file of the source."""
        absolute = self.source.folder / folder
        make_directories(self.fs, absolute)
        if all(part.hidden.parent != folder for part in self._parts):
            for name in listed(self.fs, absolute):
                if name.startswith(self._hidden):
                    self.fs.remove(absolute / name)  # of a call that was interrupted before its record
        final = folder / self._final_name(absolute, Path(source).name)
        self._parts.append(Part(folder / f"{self._hidden}{secrets.token_hex(8)}.tmp", final))
        return self._parts[-1]

    def finish(self) -> list[dict[str, Any]]:
        """Make the files durable under their hidden names, and give them as the record names them."""
        for part in self._parts:
            with self.fs.open(self.path_of(part), write=True) as file:
                file.sync()
        for folder in sorted({part.hidden.parent for part in self._parts}):
            self.fs.fsync_dir(self.source.folder / folder)
        return [{"hidden": str(part.hidden), "final": str(part.final), "rows": part.rows} for part in self._parts]

    def _final_name(self, folder: Path, original: str) -> str:
        name = f"{self._name}-{len(self._parts):04d}.{self.source.file_format}"
        stem, dot, ending = original.partition(".")
        for ending in (".gz", ".bz2", ".zst", ".deflate", ".lz4", ".snappy"):
            original = original.removesuffix(ending)
        ending = original.rpartition(".")[2]
        behind = f"{stem}-{self._name}-{len(self._parts):04d}.{ending if dot else self.source.file_format}"
        for candidate in (name, behind):
            if self._takes(folder / candidate):
                return candidate
        raise UsageError(
            f"a new file {folder / behind} would not match the source's path {self.source.path}: widen the pattern, "
            f"such as {self.source.folder}/*"
        )

    def _takes(self, path: Path) -> bool:
        """Whether the source reads a file of this name."""
        if not is_pattern(self.source.path):
            return True
        above = [path, *path.parents]
        return any(glob.globmatch(str(one), self.source.path, flags=_PATTERN) for one in above)


class LineFiles:
    """Records that are lines, one file a folder and 256 MB."""

    def __init__(self, files: NewFiles) -> None:
        self._files = files
        self._open: dict[Path, Part] = {}
        self._buffers: dict[Path, bytearray] = {}

    def add(self, source: str, line: bytes) -> None:
        """A record of this file of the source."""
        folder = self._files.folder_of(source)
        part = self._open.get(folder)
        if part is None or part.size_bytes >= PART_BYTES:
            self._flush(folder)
            part = self._open[folder] = self._begin(folder, source)
        buffer = self._buffers.setdefault(folder, bytearray())
        buffer += line + b"\n"
        part.size_bytes += len(line) + 1
        part.rows += 1
        if len(buffer) >= PART_BYTES // 256:
            self._flush(folder)

    def finish(self) -> list[dict[str, Any]]:
        """As `NewFiles.finish`."""
        for folder in list(self._open):
            self._flush(folder)
        return self._files.finish()

    def _begin(self, folder: Path, source: str) -> Part:
        part, declared = self._files.begin(folder, source), self._files.source
        if declared.header:
            names = [column.name for column in declared.parsed_columns]
            head = declared.delimiter.join(f'"{name.replace(chr(34), 2 * chr(34))}"' for name in names)
            self._buffers[folder] = bytearray(head.encode() + b"\n")
            part.size_bytes = len(self._buffers[folder])
        return part

    def _flush(self, folder: Path) -> None:
        buffer = self._buffers.pop(folder, None)
        if buffer:
            with self._files.fs.open(self._files.path_of(self._open[folder]), write=True, create=True) as file:
                write_at(file, bytes(buffer), file.size())
