"""Storages that need a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.s3_server import s3_server


@pytest.fixture(scope="session")
def s3_bucket() -> Iterator[str]:
    """The URL of a bucket of an S3 emulator. Tests that ask for it are marked `services`."""
    with s3_server() as bucket:
        yield bucket
