"""Names on a real HDFS: the contract of every storage, races of processes, and what its processes' deaths become."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import multiprocessing.synchronize
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

import pytest
from hdfs_native import Client

from bucket_store.errors import StorageAwayError
from bucket_store.log.marks import Published, prepare_published
from bucket_store.places.hdfs import HdfsNames
from bucket_store.places.hdfs_errors import as_os_error
from bucket_store.places.new_file import FileWriter
from bucket_store.places.open import open_place
from bucket_store.places.place import NotPlacedError, Place
from deduper.config.files import FileSink
from deduper.sinks.names import PUBLISHED
from tests.bucket_store.places.test_names_contract import *  # noqa: F403  the contract's tests
from tests.services.hdfs import Hdfs

pytestmark = [pytest.mark.services, pytest.mark.night]

ONE_AND_TWO = ("hdfs", pytest.param("hdfs_pair", marks=pytest.mark.night))
"""Fixtures: an HDFS with one DataNode, and with two."""
_NO_HANG_S = 60.0


@pytest.fixture(params=ONE_AND_TWO)
def root(request: pytest.FixtureRequest) -> Place:
    """An empty directory, with one DataNode and with two; in place of the contract's own storages."""
    cluster: Hdfs = request.getfixturevalue(request.param)
    return new_root(cluster)


@pytest.fixture
def pair(hdfs_pair: Hdfs) -> Place:
    """An empty directory on two DataNodes."""
    return new_root(hdfs_pair)


def new_root(cluster: Hdfs) -> Place:
    """An empty directory."""
    place = open_place(f"{cluster.url}/{uuid.uuid4().hex[:8]}")
    place.make_directories()
    return place


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    """What is inside ends, in whatever way, within a minute."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < _NO_HANG_S


def _create_all(url: str, rounds: int, racer: int, barrier: multiprocessing.synchronize.Barrier) -> None:
    root = open_place(url)
    won = []
    for number in range(rounds):
        barrier.wait(120)
        with contextlib.suppress(FileExistsError):
            (root / f"slot-{number}").create(bytes([racer]) * 1000)
            won.append(number)
    (root / f"won-{racer}").replace(",".join(map(str, won)).encode())


@pytest.mark.night
@pytest.mark.timeout(1800)
def test_races_have_one_winner(pair: Place) -> None:
    """A thousand rounds of eight processes: one winner each, its bytes, no temporary file left."""
    rounds = 1000
    spawning = multiprocessing.get_context("spawn")
    barrier = spawning.Barrier(8)
    racers = [spawning.Process(target=_create_all, args=(pair.url, rounds, racer, barrier)) for racer in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * 8
    winner = {}
    for racer in range(8):
        for number in (pair / f"won-{racer}").read().decode().split(","):
            if number:
                assert winner.setdefault(int(number), racer) == racer, f"slot {number} has two winners"
    assert sorted(winner) == list(range(rounds))
    for number, racer in winner.items():
        assert (pair / f"slot-{number}").read() == bytes([racer]) * 1000
    assert len(pair.entries()) == rounds + 8


def _modes(root: Place) -> dict[str, int]:
    """The modes of the files of a folder, by name."""
    statuses = Client(f"hdfs://{_authority(root)}").list_status(str(root.path))
    return {PurePosixPath(status.path).name: status.permission for status in statuses}


def test_files_are_their_owners_alone(root: Place) -> None:
    """A manifest holds a salt."""
    (root / "created").create(b"1")
    (root / "replaced").replace(b"1")
    assert _modes(root) == {"created": 0o600, "replaced": 0o600}


def test_files_of_a_port_are_for_others_to_read(root: Place) -> None:
    """Rows, which are renamed when they are published, and marks."""
    port = FileSink(format="parquet", path=root.url).place
    rows = FileWriter(port / "staged")
    rows.finish()
    (port / "staged").rename(root / "rows")
    prepare_published(port / PUBLISHED, Published("id", 0, 1)).put()
    assert _modes(root) == {"rows": 0o644, PUBLISHED: 0o644}


def test_a_touch_is_dated_by_the_namenode(root: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """However wrong this machine's clock is."""
    (root / "beat").create(b"1")
    wrong = time.time_ns() - 3600 * 10**9
    monkeypatch.setattr("bucket_store.places.hdfs._clocks", {})
    monkeypatch.setattr("bucket_store.places.hdfs.time.time_ns", lambda: wrong)
    before = (root / "beat").stat().modified_us
    (root / "beat").touch(b"1")
    monkeypatch.undo()
    assert before <= (root / "beat").stat().modified_us <= time.time_ns() // 1000 + 60_000_000
    assert [entry.name for entry in root.entries()] == ["beat"]


def test_a_child_of_a_process_that_used_hdfs_says_so(root: Place) -> None:
    """It has its parent's connections and none of its threads: a call would hang. Before one a fork is fine."""
    (root / "a").create(b"1")
    code = (
        "import os, sys\n"
        "from bucket_store.places.open import open_place\n"
        "place = open_place(sys.argv[1])\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(7 if place.read() == b'1' else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "assert place.read() == b'1'\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try:\n"
        "        place.read()\n"
        "    except OSError as error:\n"
        "        os._exit(8 if 'before it forked' in str(error) else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8\n"
    )
    subprocess.run([sys.executable, "-c", code, (root / "a").url], check=True, timeout=_NO_HANG_S)


@pytest.mark.night
def test_a_frozen_namenode_is_an_error_and_the_next_call_works(hdfs: Hdfs) -> None:
    """The call that hangs is left behind, with its client."""
    root = new_root(hdfs)
    (root / "a").create(b"1")
    hdfs.namenode.freeze()
    with no_hang(), pytest.raises(TimeoutError, match="HDFS gives no answer"):
        (root / "a").stat()
    hdfs.namenode.thaw()
    assert (root / "a").read() == b"1"


@pytest.mark.night
def test_a_killed_namenode_is_a_clear_error_until_it_is_back(hdfs: Hdfs) -> None:
    """Nothing is placed meanwhile, and everything is there afterwards."""
    root = new_root(hdfs)
    (root / "a").create(b"1")
    hdfs.namenode.kill()
    with no_hang(), pytest.raises(NotPlacedError, match="HDFS"):
        (root / "b").create(b"2")
    hdfs.start()
    with no_hang():
        (root / "b").create(b"2")
    assert [(root / name).read() for name in "ab"] == [b"1", b"2"]


@pytest.mark.night
def test_a_process_ends_while_a_call_hangs(hdfs: Hdfs) -> None:
    """Its threads do not keep it."""
    root = new_root(hdfs)
    code = (
        "import sys\n"
        "from bucket_store.places.open import open_place\n"
        "place = open_place(sys.argv[1])\n"
        "place.stat()\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    place.stat()\n"
        "except TimeoutError:\n"
        "    print('late', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, root.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        hdfs.namenode.freeze()
        out, _ = child.communicate("go\n", timeout=_NO_HANG_S)
        assert (out, child.returncode) == ("late\n", 0)


@pytest.mark.night
def test_records_go_on_while_a_datanode_dies(hdfs_pair: Hdfs) -> None:
    """Killed under a row of small files: each is placed whole, or its error says that it is not."""
    root = new_root(hdfs_pair)
    failed = _beside(lambda number: (root / f"{number:03d}").create(b"%d" % number * 1000), hdfs_pair.datanodes[0].kill)
    assert failed <= 1  # a call that was under way may hang
    placed = [entry.name for entry in root.entries() if not entry.name.startswith(".")]
    assert len(placed) == 30 - failed
    for name in placed:
        assert (root / name).read() == b"%d" % int(name) * 1000
    client = Client(f"hdfs://{_authority(root)}")
    assert {client.get_file_info(str(root.path / name)).replication for name in placed} == {2}


@pytest.mark.night
def test_a_refused_write_is_over_at_once(hdfs_pair: Hdfs) -> None:
    """One DataNode of two is dead, then both, and the NameNode misses neither yet: no call hangs."""
    root = new_root(hdfs_pair)
    for number, datanode in enumerate(hdfs_pair.datanodes):
        datanode.kill()
        with pytest.raises(OSError, match="HDFS") as refused:
            HdfsNames(_authority(root)).begin(root.path / str(number), b"1")
        assert refused.value.errno == errno.EIO, refused.value


def _beside(write: Callable[[int], None], kill: Callable[[], None]) -> int:
    """Kill after some writes, go on for 20 more; gives how many failed, each within a minute."""
    failed = 0
    killer = threading.Thread(target=kill)
    for number in range(30):
        if number == 10:
            killer.start()
        with no_hang():
            try:
                write(number)
            except OSError:
                failed += 1
    killer.join()
    return failed


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            'RPCError("org.apache.hadoop.security.AccessControlException", "denied\\\\n\\\\tat x")',
            PermissionError,
            "denied",
        ),
        ('RPCError("org.apache.hadoop.fs.ParentNotDirectoryException", "/a\\\\n")', NotADirectoryError, "/a"),
        ("IOError(Os { code: 111 })", StorageAwayError, "the NameNode at h: IOError"),
        ('DataTransferError("All DataNodes failed: []")', StorageAwayError, "none of those that live"),
        (
            'RPCError("java.io.IOException", "File /a could only be written to 0 of the 1")',
            StorageAwayError,
            "no DataNode",
        ),
    ],
)
def test_errors_are_plain(text: str, kind: type[OSError], said: str) -> None:
    """Java's names and stacks are not for people."""
    error = as_os_error(RuntimeError(text), "hdfs://h/a")
    assert type(error) is kind
    assert said in str(error)
    assert "Exception" not in str(error)
    assert "\\tat" not in str(error)


@pytest.mark.parametrize("url", ["hdfs:/path", "hdfs://me:secret@host/path", "hdfs://host/path?x=1"])
def test_a_url_is_authority_and_path(url: str) -> None:
    """No login is repeated."""
    with pytest.raises(ValueError, match="HOST:PORT") as caught:
        open_place(url)
    assert "secret" not in str(caught.value)


def _authority(place: Place) -> str:
    assert isinstance(place.names, HdfsNames)
    assert isinstance(place.path, PurePosixPath)
    return place.names.authority
