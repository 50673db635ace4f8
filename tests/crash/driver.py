"""`deduper run` as a process that tests kill: `python -m tests.crash.driver run CONFIG --once`.

The same command line, but what takes hours or hundreds of windows comes at once: pieces are released as soon as they
are dead, and folded records as soon as there is a newer snapshot. Small windows are written as large ones are, by
several workers, each of which may die or sleep, unless there is `CRASH_SMALL`. `CRASH_CLOCK` names a file with the wall
clock in µs since the epoch, which a test may set as it likes, also while the driver runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """The command line, in a hurry. Imports here: an interrupt among them ends as one of the command itself does."""
    try:
        from bucket_store.log.commit_log import CommitLog
        from deduper.cli import main as cli
        from deduper.service import job
        from deduper.sources.files import folding
        from deduper.tasks import write
        from deduper.window import runner
    except KeyboardInterrupt:
        sys.exit(130)
    if "CRASH_SMALL" not in os.environ:
        write._WRITER_BYTES = 1
    runner._DELETION_BATCH = 1
    runner._DELETION_GRACE_US = 0
    folding.FOLD_WINDOWS = 3
    CommitLog.delete_folded.__kwdefaults__["grace_us"] = 0
    if "CRASH_CLOCK" in os.environ:
        job.run.__kwdefaults__["clock"] = lambda: int(Path(os.environ["CRASH_CLOCK"]).read_text())
    cli.main()


if __name__ == "__main__":
    main()
