"""Outputs that appear whole: hidden folders beside their places, synced and renamed when all is written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bucket_store.filesystem import LOCAL, make_directories
from deduper.errors import telling_where
from deduper.ranges.batch.settings import OutputFiles


@contextmanager
def written_whole(outputs: Sequence[OutputFiles]) -> Iterator[list[Path]]:
    """Paths of absent folders to make and fill; without an error they then take the places of the outputs, in order.

    The order is a promise to readers: once the last output is there, everything is.
    """
    folders = [one.path.with_name(f".{one.path.name}.{os.getpid()}.writing") for one in outputs]
    try:
        for output in outputs:
            with telling_where(output.path):
                make_directories(LOCAL, output.path.parent)
        yield folders
        for output, folder in zip(outputs, folders, strict=True):
            with telling_where(output.path):
                for file in folder.iterdir():
                    with LOCAL.open(file) as opened:
                        opened.sync()
                LOCAL.fsync_dir(folder)
        for output, folder in zip(outputs, folders, strict=True):
            with telling_where(output.path):
                folder.rename(output.path)
                LOCAL.fsync_dir(output.path.parent)
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
