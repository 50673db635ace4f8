"""Commands as processes that tests kill, forked from one that has imported all there is: no start costs seconds.

The imports of `deduper table` take 1.5 s of a core, its work on a test's rows a tenth of that.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess

from bucket_store import failpoints

ROOT = Path(__file__).parent.parent
_CLI = "deduper.cli.main"
_IMPORTED = (
    *(_CLI, "deduper.table.job", "deduper.table.change.rollback", "deduper.cli.views.table.change"),
    *("deduper.ranges.stream.job", "deduper.admin.move.reshard", "deduper.admin.open_store", "deltalake"),
)
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(list(_IMPORTED))


def command(*words: str, armed: str = "", cwd: Path = ROOT, module: str = _CLI) -> CompletedProcess[str]:
    """`deduper WORDS` from start to end, in a session of its own; the exit code of one that was killed is negative.

    `armed` are its failpoints; `module` has the `main` that is run.
    """
    with tempfile.TemporaryDirectory() as directory:
        outputs = [Path(directory, name) for name in ("stdout", "stderr")]
        process = _SERVER.Process(target=_run, args=(words, armed, cwd, module, *outputs))
        process.start()
        process.join()
        assert process.exitcode is not None
        stdout, stderr = (path.read_text(encoding="utf-8", errors="replace") for path in outputs)
        return CompletedProcess(words, process.exitcode, stdout, stderr)


def _run(words: tuple[str, ...], armed: str, cwd: Path, module: str, stdout: Path, stderr: Path) -> None:
    os.setsid()
    for stream, path in ((1, stdout), (2, stderr)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream)
        os.close(file)
    os.chdir(cwd)
    os.environ[failpoints.ENVIRONMENT] = armed
    failpoints._ARMED = failpoints._armed(armed)
    sys.argv = ["deduper", *words]
    importlib.import_module(module).main()
