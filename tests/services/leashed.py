"""Servers that cannot outlive the tests: started by leash.py, each in a session of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_LEASH = Path(__file__).parent / "leash.py"


def leashed(command: Sequence[str], log: Path, directory: Path | None = None) -> tuple[subprocess.Popen[bytes], int]:
    """The leash of a started command, and the command's process id, 0 if it could not be started.

    Its output goes to the end of `log`. Ctrl-C does not reach it: who asked for it stops it in order.
    """
    words = [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), *command]
    with log.open("ab") as out:
        leash = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=out,
            start_new_session=True,
            cwd=directory,
        )
    assert leash.stdout is not None
    with leash.stdout as said:
        line = said.readline()
    return leash, int(line or 0)
