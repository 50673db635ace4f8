"""`deduper run` as a process that tests kill: `python -m tests.crash.driver run CONFIG --once`.

The same command line, but what takes hours or hundreds of windows comes at once: pieces are let go of as soon as they
are dead, and folded records as soon as there is a newer snapshot.
"""

from __future__ import annotations

from bucket_store.commit_log import CommitLog
from deduper import window_run
from deduper.cli import main

window_run._DELETION_BATCH = 1
window_run._DELETION_GRACE_US = 0
CommitLog.delete_folded.__kwdefaults__["grace_us"] = 0

if __name__ == "__main__":
    main()
