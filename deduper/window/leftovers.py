"""Temporary files that crashed processes have left in a store or in ports that are not on this machine.

An open one counts against a quota as a whole block in all replicas, so an owner removes them after its claim; a start
that finds the quota full does so before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from bucket_store.filesystem import is_temporary
from bucket_store.log import commit_log, marks, sources_file
from bucket_store.places.place import Place
from bucket_store.places.probe import is_probe

logger = logging.getLogger(__name__)


def store_folders(root: Place) -> list[Place]:
    """The folders of a store in which temporary files may lie."""
    below = (commit_log.DIRECTORY, marks.INTENTS_DIRECTORY, sources_file.DIRECTORY, sources_file.FOLDED_DIRECTORY)
    return [root, *(root / name for name in below)]


def discard_temporary(folders: Iterable[Place]) -> int:
    """Remove the temporary files in these folders; gives their number. For an owner, before it writes there itself.

    What an earlier owner still has to rename is removed too: it is fenced. Folders of this machine are passed over.
    """
    left = [
        folder / name
        for folder in folders
        if not folder.is_local
        for name in folder.listed()
        if is_temporary(name) or is_probe(name)
    ]
    for file in left:
        file.remove()
    if left:
        logger.info("%d temporary files of earlier processes were removed", len(left))
    return len(left)
