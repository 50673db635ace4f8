"""Commands as processes that tests kill, forked from one that has imported all there is: no start costs seconds.

Imports take 1.5 s of a core: ten times what `deduper table` does with a test's rows, a sixth of a job's start.
"""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

from bucket_store import failpoints

ROOT = Path(__file__).parent.parent
_CLI = "deduper.cli.main"
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        *(
            _CLI,
            "deduper.table.operations.changes",
            "deduper.table.operations.rollback",
            "deduper.cli.views.tables",
            "deltalake",
        ),
        *("deduper.ranges.stream.job", "deduper.admin.move.reshard", "deduper.admin.open_store"),
        *("deduper.service.job", "deduper.spark.session", "deduper.window.jobs.local", "pyspark.sql"),
    ]
)


class Forked:
    """A command in a session of its own, as a `subprocess.Popen`; `module` has the `main` that is run.

    Its output goes to the ends of two files. `environment` is all of it; what was imported has read another one.
    """

    def __init__(
        self,
        words: tuple[str, ...],
        environment: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        *,
        cwd: Path = ROOT,
        module: str = _CLI,
    ) -> None:
        self.args = words
        self._process = _SERVER.Process(target=_run, args=(words, dict(environment), stdout, stderr, cwd, module))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        atexit.register(self._process.kill)  # before multiprocessing waits for its end
        while self.poll() is None and os.getsid(self.pid) != self.pid:
            time.sleep(0.001)

    @property
    def returncode(self) -> int | None:
        """None while it runs; of one that was killed it is negative."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code.

        Raises:
            TimeoutExpired: it runs on.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired(self.args, timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing if it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """By SIGKILL."""
        self._process.kill()


def command(*words: str, armed: str = "", cwd: Path = ROOT, module: str = _CLI) -> CompletedProcess[str]:
    """`deduper WORDS` from start to end, with these failpoints."""
    with tempfile.TemporaryDirectory() as directory:
        outputs = [Path(directory, name) for name in ("stdout", "stderr")]
        environment = {**os.environ, failpoints.ENVIRONMENT: armed}
        code = Forked(words, environment, *outputs, cwd=cwd, module=module).wait()
        return CompletedProcess(words, code, *(path.read_text(encoding="utf-8", errors="replace") for path in outputs))


def _run(
    words: tuple[str, ...], environment: Mapping[str, str], stdout: Path, stderr: Path, cwd: Path, module: str
) -> None:
    os.setsid()
    for stream, path in ((1, stdout), (2, stderr)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(file, stream)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    failpoints._ARMED = failpoints._armed(environment.get(failpoints.ENVIRONMENT, ""))
    sys.argv = ["deduper", *words]
    importlib.import_module(module).main()
