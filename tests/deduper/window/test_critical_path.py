"""The files of a store that a window makes: which it waits for, and which are written beside it."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest

from bucket_store.places.local import LocalNames
from bucket_store.places.place import Place, Prepared
from bucket_store.threads import on_a_thread
from tests.deduper.window.many_shards import ManyShards


@dataclass(frozen=True, slots=True)
class Watched(LocalNames):
    """A storage that notes what is written in it, and whether on the thread that judges."""

    scheme: str = "elsewhere"
    written: list[tuple[str, bool]] = field(default_factory=list)

    def create(self, path: PurePosixPath, data: bytes, *, failpoint: str = "") -> None:
        """Noted."""
        self._note(path)
        LocalNames.create(self, path, data, failpoint=failpoint)

    def replace(self, path: PurePosixPath, data: bytes) -> None:
        """Noted."""
        self._note(path)
        LocalNames.replace(self, path, data)

    def prepare(self, path: PurePosixPath, data: bytes, *, epoch: int) -> Prepared:
        """Noted."""
        self._note(path)
        return LocalNames.prepare(self, path, data, epoch=epoch)

    def touch(self, path: PurePosixPath, data: bytes) -> None:
        """Noted."""
        self._note(path)
        LocalNames.touch(self, path, data)

    def _note(self, path: PurePosixPath) -> None:
        self.written.append(("/".join(path.parts[-2:]), threading.current_thread() is threading.main_thread()))


@pytest.mark.parametrize("scheme", ["elsewhere", "file"])
def test_a_window_waits_for_one_new_file_its_record(tmp_path: Path, scheme: str) -> None:
    """The list of its sources is in the record, the profile comes every ten seconds. On a store elsewhere the intent is
    written beside the judging, before the record, and the mark beside the next window; a file of this machine takes
    less time than a thread."""
    names = Watched(scheme=scheme)
    root = Place(names, PurePosixPath(tmp_path / "state"))
    with closing(ManyShards(tmp_path, shards=2, pieces=1, root=root, in_background=on_a_thread)) as job:
        for _ in range(3):
            record = f"log/{job.log.state.next_number:020d}"
            names.written.clear()
            job.run()
            job.wait_until_published()
            assert [name for name, _ in names.written] == ["intents/000001", record, "state/published"]
            assert [name for name, is_waited_for in names.written if is_waited_for] == (
                [record] if scheme == "elsewhere" else [name for name, _ in names.written]
            )
