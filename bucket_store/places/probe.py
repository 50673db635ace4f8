"""Whether a storage keeps the one promise that no log can do without: a taken name is refused."""

from __future__ import annotations

import secrets
from contextlib import suppress

from bucket_store.errors import StoreError
from bucket_store.places.place import Place


def demand_refusal(directory: Place) -> None:
    """Create a file of a random name twice, and remove it. For storages that speak a protocol of others.

    The directory is made: the first start of a job makes its store afterwards.
    Some servers of S3's protocol ignore the condition of a put: two owners would then replace each other's records.

    Raises:
        StoreError: the second creation was not refused.
        OSError: as `Names.create`.
    """
    directory.make_directories()
    probe = directory / f"probe-{secrets.token_hex(8)}"
    try:
        probe.create(b"first")
        probe.create(b"second")
    except FileExistsError:
        return
    finally:
        with suppress(OSError):  # of no use, and of no harm
            probe.remove()
    raise StoreError(
        f"{directory}: this storage does not refuse a name that is taken (it ignores the condition of a put), so two "
        "owners could overwrite each other's records; use a storage with conditional writes"
    )
