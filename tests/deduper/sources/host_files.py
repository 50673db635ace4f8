"""The file that a reading run makes on its hosts, in a folder of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path


def sound_file_in(folder: Path) -> Callable[[bytes], AbstractContextManager[Path]]:
    """What `ReadingRun.file_on_hosts` is for one window; the file is `sound`, and stays for the test."""

    @contextmanager
    def made(data: bytes) -> Iterator[Path]:
        path = folder / "sound"
        path.write_bytes(data)
        yield path

    return made
