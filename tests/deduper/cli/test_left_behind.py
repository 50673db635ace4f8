"""The command's end while a call to a storage hangs."""

from __future__ import annotations

import subprocess
import sys

_HANGS = """
import atexit, sys, time
from bucket_store.threads import bounded
from deduper.cli import main

def app():
    atexit.register(lambda: print("closed"))
    try:
        bounded(lambda: time.sleep(600), 0.01)
    except TimeoutError:
        sys.exit(3)

main.app = app
main.main()
"""


def test_a_hanging_call_does_not_change_the_exit_code() -> None:
    """Nor is it waited for; what is to be closed at the end is closed."""
    done = subprocess.run([sys.executable, "-c", _HANGS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "closed\n", "")
