"""An S3 emulator (moto) for tests: a process on 127.0.0.1, its data in its memory.

It takes conditions of a put seriously but in the buckets `CARELESS`, which ignore the header that they are named for.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError

import pytest

from tests.ports import free_port

BUCKET = "deduper"
CARELESS = ("if-none-match", "if-match")
_READY_S = 60.0
_SERVER = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

moto, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

def one_at_a_time(environ, start_response):
    environ.pop("HTTP_" + environ["PATH_INFO"].split("/")[1].upper().replace("-", "_"), None)
    with lock:
        return list(moto(environ, start_response))

run_simple("127.0.0.1", int(sys.argv[1]), one_at_a_time, threaded=True)
"""
"""moto looks for an object and puts it in two steps: of two requests at once both would be the first."""


@contextmanager
def s3_server() -> Iterator[str]:
    """A running emulator with empty buckets, found by the variables of the environment: the URL of `BUCKET`."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-c", _SERVER, str(port)]
    with (
        pytest.MonkeyPatch.context() as environment,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server,
    ):
        for name, value in {
            "AWS_ENDPOINT": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": "us-east-1",
        }.items():
            environment.setenv(name, value)
        try:
            for bucket in (BUCKET, *CARELESS):
                _make_bucket(f"{endpoint}/{bucket}", server)
            yield f"s3://{BUCKET}"
        finally:
            server.kill()


def new_prefix(bucket_url: str) -> str:
    """The URL of a directory that is empty."""
    return f"{bucket_url}/{uuid.uuid4().hex}"


def _make_bucket(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_S
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()
        except URLError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
