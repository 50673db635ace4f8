"""The named places where tests kill: the list and the code agree, and each action does what it says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from bucket_store import failpoints
from tests.processes import is_alive

ROOT = Path(__file__).parent.parent


def test_the_list_and_the_code_agree() -> None:
    """Every failpoint of the code has its line in docs/failpoints.md, and no other has."""
    sources = [
        path.read_text(encoding="utf-8") for top in ("bucket_store", "deduper") for path in (ROOT / top).rglob("*.py")
    ]
    hit = {name for text in sources for name in re.findall(r"failpoints\.hit\(\"([^\"]+)\"\)", text)}
    listed = re.findall(
        r"^\| `([a-z0-9.]+)` \| (?:driver|worker|deleter|command) \|",
        (ROOT / "docs" / "failpoints.md").read_text("utf-8"),
        re.MULTILINE,
    )
    assert sorted(listed) == sorted(hit)
    assert not any("failpoints.hit(f" in text for text in sources), "a name that nobody can search for"


def start(code: str, armed: str) -> subprocess.Popen[bytes]:
    """A process in a session of its own that passes failpoints."""
    return subprocess.Popen(
        [sys.executable, "-c", f"from bucket_store import failpoints\n{code}"],
        cwd=ROOT,
        env={**os.environ, failpoints.ENVIRONMENT: armed},
        start_new_session=True,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("armed", "code"),
    [
        ("", 0),
        ("a=kill", -signal.SIGKILL),
        ("a=kill@2", -signal.SIGKILL),
        ("a=kill@3", 0),
        ("b=kill", 0),
        ("a=raise", 1),
    ],
)
def test_a_failpoint_acts_when_it_is_armed(armed: str, code: int) -> None:
    """At its own name and its own hit only."""
    process = start("failpoints.hit('a'); failpoints.hit('a')", armed)
    assert process.wait(30) == code


@pytest.mark.slow
def test_of_many_processes_one_dies(tmp_path: Path) -> None:
    """`once`: who creates the file."""
    armed = f"a=kill:once={tmp_path / 'one'}"
    codes = [start("failpoints.hit('a')", armed).wait(30) for _ in range(3)]
    assert codes == [-signal.SIGKILL, 0, 0]


@pytest.mark.slow
def test_a_test_decides_when(tmp_path: Path) -> None:
    """`on`: each time that the file is there."""
    on = tmp_path / "on"
    code = (
        f"from pathlib import Path\non, acted = Path({str(on)!r}), 0\nfor is_there in (0, 1, 0, 1):\n"
        "    on.touch() if is_there else None\n    try: failpoints.hit('a')\n"
        "    except failpoints.FailpointError: acted += 1\nraise SystemExit(10 * acted + on.exists())"
    )
    assert start(code, f"a=raise:on={on}").wait(30) == 20


@pytest.mark.slow
def test_kill_all_ends_the_session(tmp_path: Path) -> None:
    """A child kills its parent and its sibling with itself."""
    child = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    process = start(
        f"import os, subprocess, sys\nsibling = subprocess.Popen({child})\nprint(sibling.pid, flush=True)\n"
        "if os.fork() == 0: failpoints.hit('a')\nsibling.wait()",
        "a=kill-all",
    )
    assert process.stdout is not None
    sibling = int(process.stdout.readline())
    assert process.wait(30) == -signal.SIGKILL
    for _ in range(100):
        if not is_alive(sibling):
            return
        time.sleep(0.05)
    pytest.fail("the sibling lives")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "victim"),
    [
        ("kill-driver", "driver"),
        ("kill-executor", "jvm"),
        ("kill-jvm", "jvm"),
        ("kill-worker", "worker"),
        ("kill", "me"),
    ],
)
def test_one_of_a_session_is_killed(tmp_path: Path, action: str, victim: str) -> None:
    """A driver, its JVM, that one's daemon, two workers of it: the one that is meant dies, and no other."""
    (tmp_path / "java").symlink_to("/bin/bash")
    stay = "while :; do sleep 1; done"
    is_there = tmp_path / "worker"
    worker = f"{sys.executable} -c 'import pathlib, time; pathlib.Path(\"{is_there}\").touch(); time.sleep(60)'"
    me = f"{sys.executable} -c 'import time; from bucket_store import failpoints as f; f.hit(chr(97)); time.sleep(60)'"
    awaited = f"until [ -e {is_there} ]; do sleep 0.01; done"
    (tmp_path / "daemon").write_text(f"{worker} & echo worker $!; {awaited}; {me} & echo me $!; {stay}")
    (tmp_path / "jvm").write_text(f"bash {tmp_path / 'daemon'} & echo daemon $!; {stay}")
    (tmp_path / "driver").write_text(
        f"{tmp_path / 'java'} {tmp_path / 'jvm'} CoarseGrainedExecutorBackend & echo jvm $!; {stay}"
    )
    driver = subprocess.Popen(
        ["bash", str(tmp_path / "driver")],
        cwd=ROOT,
        env={**os.environ, failpoints.ENVIRONMENT: f"a={action}"},
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    processes = {"driver": driver.pid}
    for _ in range(4):
        name, process = driver.stdout.readline().split()
        processes[name] = int(process)
    try:
        deadline = time.monotonic() + 30
        while is_alive(processes[victim]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert {name for name, process in processes.items() if not is_alive(process)} == {victim}
    finally:
        for process in processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        driver.wait()


@pytest.mark.slow
def test_nobody_to_kill_is_no_hit() -> None:
    """The first hit at which there is a JVM counts, not one before."""
    code = (
        "import os, subprocess\nfailpoints.hit('a')\nos.symlink('/bin/sleep', 'java')\n"
        "jvm = subprocess.Popen(['./java', '60'])\nfailpoints.hit('a')\nraise SystemExit(jvm.wait() == -9)"
    )
    with tempfile.TemporaryDirectory() as directory:
        process = start(f"import os; os.chdir({directory!r})\n{code}", "a=kill-jvm")
        assert process.wait(30) == 1


@pytest.mark.slow
def test_of_many_threads_one_hangs() -> None:
    """The process goes on, and ends."""
    code = (
        "import threading, time\nthread = threading.Thread(target=failpoints.hit, args='a', daemon=True)\n"
        "thread.start(); thread.join(0.1)\nraise SystemExit(7 if thread.is_alive() else 0)"
    )
    assert start(code, "a=hang").wait(30) == 7


@pytest.mark.slow
def test_an_unknown_action_is_refused() -> None:
    """A typing error must not look like a test that passes."""
    assert start("", "a=kil").wait(30) == 1
