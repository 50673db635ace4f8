"""Runs a command that cannot outlive the process that asked for it.

`python leash.py PARENT COMMAND...` starts the command, prints its process id, waits for it, and ends with its exit code
(128 + signal for a killed one). The command's output goes to the leash's stderr.

- The process PARENT ends, in whatever way: the leash sees that it was handed to another parent and kills the command.
- The leash is killed: the kernel kills the command (PR_SET_PDEATHSIG).

The leash is needed because the kernel's signal alone comes when the *thread* that started the command ends, and tests
restart brokers from threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_LOOK_EVERY_S = 0.3


def main(parent: int, command: list[str]) -> int:
    """The exit code of the command."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def bind_to_leash() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # A blocked signal stays blocked across exec.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

    # Blocked so that sigtimedwait below is woken by the end of the command.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    # preexec_fn is safe: this process has one thread.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=bind_to_leash)  # noqa: PLW1509
    os.write(1, f"{child.pid}\n".encode())
    os.close(1)
    while child.poll() is None:
        if os.getppid() != parent:
            child.kill()
            child.wait()
            return 1
        signal.sigtimedwait({signal.SIGCHLD}, _LOOK_EVERY_S)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1]), sys.argv[2:]))
