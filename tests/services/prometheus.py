"""A real Prometheus on 127.0.0.1: scrapes one page every second, evaluates the rules of deploy, answers queries."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.ports import free_port

READY_DEADLINE_S = 60.0
DEPLOY = Path(__file__).parent.parent.parent / "deploy"
RULES = (DEPLOY / "rules/recording.yml", DEPLOY / "alerts.yml")
_LEASH = Path(__file__).parent / "leash.py"
_MISSING = """\
Missing: Prometheus, which the tests of the metrics start. Install it, then run this again:
  sudo apt-get update && sudo apt-get install -y --no-install-recommends prometheus"""

Series = dict[str, str]


class PrometheusFailed(Exception):
    """It is not there, or does not answer in time; the message ends with what it said last."""


class Prometheus:
    """One server with its data in a directory of its own; it runs inside a `with` block, on a leash (leash.py)."""

    def __init__(self, directory: Path, target: str, rules: Sequence[str] | None = None) -> None:
        """`target` is the `host:port` of the page; `rules` are the texts of rules files, by default deploy's."""
        self._directory = directory
        self._rules = rules
        self._target = target
        self._port = free_port()
        self._leash: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def __enter__(self) -> Prometheus:
        program = shutil.which("prometheus")
        if program is None:
            raise PrometheusFailed(_MISSING)
        self._directory.mkdir(parents=True, exist_ok=True)
        settings = self._directory / "prometheus.yml"
        # Every second too; the rules' own interval would be half a minute.
        rules = self._rules
        if rules is None:
            rules = [re.sub(r"(?m)^    interval: .*\n", "", file.read_text(encoding="utf-8")) for file in RULES]
        for number, text in enumerate(rules):
            (self._directory / f"rules-{number}.yml").write_text(text, encoding="utf-8")
        settings.write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            "rule_files: ['rules-*.yml']\n"
            f"scrape_configs: [{{job_name: deduper, static_configs: [{{targets: ['{self._target}']}}]}}]\n",
            encoding="ascii",
        )
        command = [
            program,
            f"--config.file={settings}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        with self._log.open("wb") as log:
            self._leash = subprocess.Popen(
                [sys.executable, str(_LEASH), str(os.getpid()), *command], stdout=subprocess.PIPE, stderr=log
            )
        assert self._leash.stdout is not None
        self._pid = int(self._leash.stdout.readline())
        self.until(self._is_ready, "it is ready", READY_DEADLINE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._leash is not None
        if self._leash.poll() is None:
            # A kill suffices: nobody reads its data again.
            os.kill(self._pid, signal.SIGKILL)
            self._leash.wait(30)

    def query(self, expression: str) -> list[tuple[Series, float]]:
        """The instant vector of an expression now: labels and value of every series."""
        result = self._get("query", query=expression)["result"]
        if isinstance(result, list) and result and not isinstance(result[0], dict):
            return [({}, float(result[1]))]
        return [(series["metric"], float(series["value"][1])) for series in result]

    def one(self, expression: str) -> float | None:
        """The value of an expression that gives at most one series; None when it gives none."""
        found = self.query(expression)
        assert len(found) <= 1, (expression, found)
        return found[0][1] if found else None

    def wait_for(self, expression: str, value: float, deadline_s: float = 30.0) -> None:
        """Until the expression gives this value."""
        self.until(lambda: self.one(expression) == value, f"{expression} is {value}", deadline_s)

    def until(self, is_so: Callable[[], bool], what: str, deadline_s: float) -> None:
        """Until something holds.

        Raises:
            PrometheusFailed: not within the deadline.
        """
        until = time.monotonic() + deadline_s
        while not is_so():
            if time.monotonic() > until:
                said = self._log.read_text(errors="replace")[-2000:]
                raise PrometheusFailed(f"after {deadline_s:.0f} s it does not hold that {what}; it said:\n{said}")
            time.sleep(0.1)

    @property
    def _log(self) -> Path:
        return self._directory / "prometheus.log"

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _get(self, what: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]


def lint(page: bytes) -> str:
    """What `promtool check metrics` has to say against a page; nothing when it is in order."""
    program = shutil.which("promtool")
    if program is None:
        raise PrometheusFailed(_MISSING)
    done = subprocess.run([program, "check", "metrics"], input=page, capture_output=True, timeout=60, check=False)
    return (done.stdout + done.stderr).decode()
