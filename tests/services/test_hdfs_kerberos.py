"""The store in an HDFS that asks for a login and encrypts calls and blocks: tickets, tokens, and their mistakes."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bucket_store.places import hdfs as client
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from tests.crash.scene import Scene
from tests.jvm import BRIEF
from tests.services.hdfs import Hdfs
from tests.services.hdfs_story import environment
from tests.services.kerberos import JOB, SERVER, Kdc, secure_hdfs

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200), pytest.mark.night]

_WINDOWS = 2


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kdc, Hdfs]]:
    """A KDC and an HDFS of its realm; `/jobs` belongs to the jobs' principal."""
    directory = tmp_path_factory.mktemp("secure")
    with secure_hdfs(directory, "privacy") as (kdc, hdfs):
        kdc.login(directory / "hdfs-ticket", SERVER)
        with environment(HADOOP_CONF_DIR=str(hdfs.conf), **kdc.environment(directory / "hdfs-ticket")):
            names = client.HdfsNames(hdfs.url.removeprefix("hdfs://"))
            jobs = open_place(f"{hdfs.url}/jobs")
            jobs.make_directories()
            names.call(jobs.path, lambda one: one.set_owner("/jobs", JOB, JOB))
        client._clients.clear()
        yield kdc, hdfs


@pytest.fixture
def cache(secure: tuple[Kdc, Hdfs], tmp_path: Path) -> Iterator[Path]:
    """The cache of this process's ticket, which has none yet; no connection is left of other tests."""
    kdc, hdfs = secure
    with environment(HADOOP_CONF_DIR=str(hdfs.conf), **kdc.environment(tmp_path / "ticket")):
        client._clients.clear()
        yield tmp_path / "ticket"
    client._clients.clear()


def test_a_login_that_is_wrong_is_named(secure: tuple[Kdc, Hdfs], cache: Path) -> None:
    """No ticket, no file of tickets, an expired one, another user's, no KDC; and after each the right one serves."""
    kdc, hdfs = secure
    place = open_place(f"{hdfs.url}/jobs/login")

    def says(text: str) -> None:
        with pytest.raises(OSError, match=text):
            place.make_directories()

    says("no login: no ticket: .*kinit")
    cache.write_bytes(b"\x05\x04\x00")
    says("no login: .* is no file of tickets")
    kdc.add("guest")
    kdc.login(cache, "guest")
    says("Permission denied: user=guest")
    with environment(KRB5_CONFIG=str(kdc.without_server())):
        client._clients.clear()
        kdc.login(cache)
        says("no login: .*Cannot contact any KDC")
    _connect_with_a_short_ticket(kdc, cache, place)
    place.make_directories()  # by the connection of the ticket
    _cut_connections(hdfs.url)
    with contextlib.suppress(OSError):  # a call that still meets the old connection
        place.exists()
    says("no login: the ticket in .* has expired")
    kdc.login(cache)
    (place / "a").create(b"1")
    assert (place / "a").read() == b"1"


def _connect_with_a_short_ticket(kdc: Kdc, cache: Path, place: Place) -> None:
    """Use a ticket and wait until it has expired. On a busy machine the shortest one does so before it is used."""
    for life_s in (2, 4, 8, 16):
        kdc.login(cache, life=f"{life_s}s")
        logged_in = time.monotonic()
        with contextlib.suppress(OSError):
            place.make_directories()
            time.sleep(max(0.0, logged_in + life_s + 0.5 - time.monotonic()))
            return
    pytest.fail("each ticket had expired before it was used")


def _cut_connections(url: str) -> None:
    """End this process's connections with a NameNode, as a NameNode does that restarts."""
    port = urlsplit(url).port
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the file of this list, and sockets without a connection
            if str(entry.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as one:
                    if one.getpeername()[1] == port:
                        one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def job(secure: tuple[Kdc, Hdfs], cache: Path, tmp_path: Path) -> Iterator[Scene]:
    """A job on an executor, with store and ports there. Its Python workers have no ticket."""
    kdc, hdfs = secure
    kdc.login(cache)
    python = tmp_path / "python-without-ticket"
    python.write_text(f'#!/bin/sh\nKRB5CCNAME={tmp_path}/nothing exec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    url, krb5 = f"{hdfs.url}/jobs/{tmp_path.name}", f"-Djava.security.krb5.conf={kdc.krb5_conf}"
    one = Scene(
        tmp_path / "job",
        store=f"{url}/state",
        ports=f"{url}/out",
        master="local-cluster[1,1,1024]",
        shared_folders=True,
        java_options=krb5,
        spark={
            "spark.pyspark.python": str(python),
            "spark.executor.extraJavaOptions": " ".join([*BRIEF, krb5]),
        },
    ).make(_WINDOWS)
    yield one
    one.clean_up()


def test_executors_without_tickets_get_tokens(secure: tuple[Kdc, Hdfs], cache: Path, job: Scene) -> None:
    """They judge, and write pieces and ports; the driver's tickets end meanwhile, one after another."""
    kdc, _ = secure
    kdc.login(cache, life="15s")
    done = threading.Event()

    def renew() -> None:
        while not done.wait(3):
            kdc.login(cache, life="15s")

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        code = job.run("--verbose")
    finally:
        done.set()
        renewing.join()
    assert code == 0, job.output()
    assert job.windows() == _WINDOWS
    job.check_store(settled=True)
    assert job.output().count("new tokens of HDFS") == 1, job.output()
