"""Detects a store that is a copy of an existing one: its newest claim names the path at which it was owned.

A copy is a store of its own from its first claim on. Both may go on, and both judge right by the windows they hold; a
key that is new to both is unique in the outputs of both.
"""

from __future__ import annotations

import logging

from bucket_store.errors import StoreError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.manifest import read_manifest
from bucket_store.places.open import open_place
from bucket_store.places.place import Place

logger = logging.getLogger(__name__)


def original_of(log: CommitLog) -> Place | None:
    """The place at which this store was last owned, if it differs and holds a store of the same id now."""
    if not log.state.root:
        return None
    try:
        root = open_place(log.state.root)
        is_copied = read_manifest(root).store_id == log.manifest.store_id and not root.is_same(log.root)
    except (StoreError, OSError, ValueError, ImportError):
        return None
    return root if is_copied else None


def warn_of_original(log: CommitLog) -> None:
    """Logs that the store is a copy. Called by every owner before its claim, which names the copy's own path."""
    original = original_of(log)
    if original is not None:
        logger.warning(
            "%s is a copy of the store %s, which is still there. Each remembers by itself from here on: a key that is "
            "new to both is unique in both. If only one is to go on, stop this one and remove it",
            log.root,
            original,
        )
