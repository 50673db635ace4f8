"""Whether a storage keeps two promises that owners rest on: it refuses a taken name, and a stale replacement."""

from __future__ import annotations

import re
import secrets
from contextlib import suppress

from bucket_store.errors import UnsafeStorageError
from bucket_store.places.place import Place

_USE = "Amazon S3, Google Cloud Storage, Azure Blob Storage, or a server of S3's protocol with conditional writes"


def is_probe(name: str) -> bool:
    """Whether a file of a store is one that a process left which died while it tried the storage."""
    return re.fullmatch(r"probe_[0-9a-f]{16}", name) is not None


def demand_refusal(directory: Place) -> None:
    """Create a file of a random name twice, replace it by a stale version, and remove it. Safe beside a running owner.

    Some servers of S3's protocol ignore the conditions of a put: two owners would then replace each other's records.

    Raises:
        UnsafeStorageError: the second creation, or the stale replacement, was not refused.
        OSError: as `Names.create`.
    """
    directory.make_directories()
    probe = directory / f"probe_{secrets.token_hex(8)}"
    try:
        probe.create(b"first")
        _refuses_a_taken_name(directory, probe)
        _refuses_a_stale_version(directory, probe)
    finally:
        with suppress(OSError):  # of no use, and of no harm
            probe.remove()


def _refuses_a_taken_name(directory: Place, probe: Place) -> None:
    try:
        probe.create(b"second")
    except FileExistsError:
        return
    raise UnsafeStorageError(
        f"{directory}: this storage does not refuse a name that is taken: it ignores `If-None-Match: *`, the condition "
        f"of a put, so two owners could overwrite each other's records; use {_USE}"
    )


def _refuses_a_stale_version(directory: Place, probe: Place) -> None:
    """As when another owner takes over between the two steps of a mark."""
    stale = probe.prepare(b"stale", epoch=0)
    try:
        probe.remove_prepared(below_epoch=1)
        probe.replace(b"newer")
        stale.put()
    except FileNotFoundError:
        return
    finally:
        stale.discard()
    raise UnsafeStorageError(
        f"{directory}: this storage replaces what has changed: it ignores `If-Match`, the condition of a put, "
        f"so an owner that was fenced could overwrite the newer one's mark; use {_USE}"
    )
