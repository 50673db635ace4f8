"""Before a commit record names a staged file, the file and every name on the way to it are durable."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import pytest

from bucket_store.filesystem import LocalFile, LocalFileSystem
from deduper.config.load import load_config
from deduper.config.sections import PORTS
from deduper.sinks import staging
from deduper.sinks.names import STAGING, Attempt
from deduper.sinks.staging import StagedFile
from tests.deduper.store_samples import CONFIG_TEXT

STORE_ID = "5a" * 16


class Watched(LocalFileSystem):
    """The machine's file system, and what was synced through it."""

    def __init__(self) -> None:
        self.files: list[Path] = []
        self.directories: list[Path] = []

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> LocalFile:
        """A file that tells when it is synced."""
        return _WatchedFile(super().open(path, write=write, create=create)._fd, path, self.files)

    def fsync_dir(self, path: Path) -> None:
        """Noted when it is through."""
        super().fsync_dir(path)
        self.directories.append(path)


class _WatchedFile(LocalFile):
    def __init__(self, fd: int, path: Path, synced: list[Path]) -> None:
        super().__init__(fd)
        self._path, self._synced, self._read_to = path, synced, 0

    def pread(self, length: int, at: int) -> bytes:
        data = super().pread(length, at)
        self._read_to = max(self._read_to, at + len(data))
        return data

    def sync(self) -> None:
        super().sync()
        assert self._read_to == self.size(), "the checksum in the record is of the whole file"
        self._synced.append(self._path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@pytest.mark.parametrize("files", [1, 3])
def test_all_that_a_record_will_name_is_durable(tmp_path: Path, files: int) -> None:
    """Every file once, every directory up to the port's own once; described as they lie there."""
    text = CONFIG_TEXT
    for port in PORTS:
        text = text.replace(f"{port}: {{format: none}}", f"{port}: {{format: parquet, path: out/{port}}}")
    (tmp_path / "job.yaml").write_text(text)
    config = load_config(tmp_path / "job.yaml", environment={})
    attempt = Attempt(4, 2, 1)
    staged: dict[str, list[StagedFile]] = {}
    for port in PORTS:
        folder = staging.staging_target(config, attempt) / f"_port={port}"
        folder.mkdir(parents=True)
        for number in reversed(range(files)):
            path = folder / f"part-{number}.parquet"
            path.write_bytes(b"x" * (number + 1))
            staged.setdefault(port, []).append(StagedFile(port, path, rows=10 + number))
    fs = Watched()
    outputs = staging.make_durable(config, STORE_ID, attempt, staged, fs=fs)
    target = staging.staging_target(config, attempt)
    paths = [file.path for of_port in staged.values() for file in of_port]
    assert sorted(fs.files) == sorted(paths)
    home = tmp_path / "out" / "unique"
    above = [home, home / STAGING, target]
    assert sorted(fs.directories) == sorted({*above, *(path.parent for path in paths)})
    assert [(output.port, output.staged, output.rows, output.size_bytes) for output in outputs] == [
        (
            port,
            str(staging.staging_target(config, attempt) / f"_port={port}" / f"part-{number}.parquet"),
            10 + number,
            number + 1,
        )
        for port in PORTS
        for number in range(files)
    ]
    assert len({output.final for output in outputs}) == len(outputs)


def test_a_file_that_cannot_be_synced_is_in_no_record(tmp_path: Path) -> None:
    """Neither is one whose name cannot be: the error comes before there is anything to put into a record."""
    (tmp_path / "job.yaml").write_text(
        CONFIG_TEXT.replace("unique: {format: none}", "unique: {format: json, path: out}")
    )
    config = load_config(tmp_path / "job.yaml", environment={})
    attempt = Attempt(0, 1, 0)
    path = staging.staging_target(config, attempt) / "unique.json" / "part-0.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{}\n")

    class BadDirectories(LocalFileSystem):
        def fsync_dir(self, path: Path) -> None:
            raise OSError(f"sync of {path}")

    class BadFiles(LocalFileSystem):
        def open(self, path: Path, *, write: bool = False, create: bool = False) -> LocalFile:
            file = super().open(path, write=write, create=create)

            class Bad(LocalFile):
                def sync(self) -> None:
                    raise OSError(f"sync of {path}")

            return Bad(file._fd)

    for fs in (BadDirectories(), BadFiles()):
        with pytest.raises(OSError, match="sync of"):
            staging.make_durable(config, STORE_ID, attempt, {"unique": [StagedFile("unique", path, 1)]}, fs=fs)
