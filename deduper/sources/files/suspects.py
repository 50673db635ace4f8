"""The files over which earlier starts of a job may have ended: each gets a window of its own.

A file may take all memory, or end a process: that may be the machine's fault too, so no file is written off for it, and
the next start meets the same window. In a window of one file, the last lines of the log name the file, and all before
it are judged. The store's log has what is needed: the intent of a window that was not committed, and the claims since
the last one that was.
"""

from __future__ import annotations

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.marks import read_intents

_STARTS = 3
"""When so many starts have found the last window uncommitted, this one included."""


def suspects(log: CommitLog) -> frozenset[bytes]:
    """The digests of the files that are to be judged alone; for the owner, before its first window.

    A window of one file that was not committed is begun again as such: nothing is known about other files.
    """
    state = log.state
    last = max(read_intents(log.root, fs=log.fs), key=lambda intent: intent.epoch, default=None)
    if last is None or last.window != state.next_window:
        return frozenset()
    starts = sum(first == state.next_window for first, _ in state.lineage)
    return frozenset(last.partitions) if starts >= _STARTS or len(last.partitions) == 1 else frozenset()
