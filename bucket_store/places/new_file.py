"""New files under names of one writer: made at once, or growing piece by piece and described by what was written."""

from __future__ import annotations

import io

import xxhash

from bucket_store.filesystem import read_at, write_at
from bucket_store.places import steps
from bucket_store.places.local import LocalNames
from bucket_store.places.place import Place


def create_own(place: Place, data: bytes, *, failpoint: str = "") -> None:
    """`Place.create` under a name that no other writer uses: after an outage this very call may have taken it."""
    try:
        place.create(data, failpoint=failpoint)
    except FileExistsError:
        if place.read() != data:
            raise


class FileWriter:
    """A new file at a place whose name no other writer uses; for one thread.

    On this machine the bytes are written at once, and a file that was begun lies there even if nothing finishes it.
    Elsewhere they wait in memory until `finish` creates the file in one call: no connection is held open, and no other
    process ever sees a part. `size_bytes` and `checksum` (XXH3-64) are of the bytes that were handed over, not of what
    was read back: a disk that changes them is found out by the next reader.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.size_bytes = 0
        self.closed = False
        self._digest = xxhash.xxh3_64()
        names = place.names
        self._file = names.fs.open(place.local, create=True) if isinstance(names, LocalNames) else None
        self._held = io.BytesIO()

    @property
    def checksum(self) -> int:
        """The checksum of what was written so far."""
        return self._digest.intdigest()

    @property
    def is_held(self) -> bool:
        """Whether the bytes wait in memory."""
        return self._file is None

    def write(self, data: bytes | memoryview) -> int:
        """Add bytes at the end."""
        view = memoryview(data).cast("B")
        if self._file is None:
            self._held.write(view)
        else:
            write_at(self._file, view, self.size_bytes)
        self._digest.update(view)
        self.size_bytes += len(view)
        return len(view)

    def finish(self) -> None:
        """Make the bytes durable. Their name is so too where `Names.create` makes it; here after the directory's sync.

        Raises:
            OSError: the file is there or not, and counts as not written.
        """
        if self._file is not None:
            self._file.sync()
            return
        create_own(self.place, self._held.getvalue(), failpoint=steps.STAGED)

    def tail(self, length: int) -> bytes:
        """The last bytes as they lie in the file, once it is finished: on this machine they are read back."""
        start = max(0, self.size_bytes - length)
        if self._file is not None:
            return read_at(self._file, length, start)
        return bytes(self._held.getbuffer()[start:])

    def flush(self) -> None:
        """Nothing waits here for more: for Arrow, which takes this for a file of Python's."""

    def close(self) -> None:
        """Close the file and free the memory. Safe to repeat."""
        self.closed = True
        file, self._file = self._file, None
        self._held = io.BytesIO()
        if file is not None:
            file.close()
