"""The tries of a new file in HDFS, without one: which names, how many replicas, when it is an error."""

from __future__ import annotations

import errno
import itertools
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("hdfs_native")

from hdfs_native import WriteOptions

from bucket_store.places import hdfs
from bucket_store.places.hdfs import HdfsNames
from bucket_store.places.hdfs_errors import as_os_error
from bucket_store.places.open import open_place
from bucket_store.places.place import NotPlacedError, UnansweredError

_PATH = PurePosixPath("/state/log/7")
_NAMES = HdfsNames("namenode:8020")


@dataclass
class Cluster:
    """A NameNode whose files are written, or fail with the next of these errors; time goes on as it sleeps."""

    failures: list[OSError]
    replicas: list[int | None] = field(default_factory=list)
    tried: list[PurePosixPath] = field(default_factory=list)
    to_have: dict[str, int] = field(default_factory=dict)
    deleted: list[PurePosixPath] = field(default_factory=list)
    is_away: bool = False
    now_s: float = 0.0
    seconds_a_try: float = 0.0

    def begin(self, path: PurePosixPath, data: bytes, replicas: int | None, **_: object) -> None:
        """See `HdfsNames.begin`."""
        self.tried.append(path)
        self.replicas.append(replicas)
        self.now_s += self.seconds_a_try
        if self.failures:
            self.now_s += 10 * (self.failures[0] is HANGS)
            raise self.failures.pop(0)

    def call(self, path: PurePosixPath, action: Callable[[Any], Any], size: int = 0) -> Any:
        """See `HdfsNames.call`."""
        if self.is_away:
            raise REFUSED

        def delete(path: str, _: bool) -> bool:
            self.deleted.append(PurePosixPath(path))
            return True

        return action(
            SimpleNamespace(
                get_file_info=lambda _: SimpleNamespace(replication=3),
                set_replication=self.to_have.__setitem__,
                delete=delete,
            )
        )

    def sleep(self, seconds: float) -> None:
        """Time goes on."""
        self.now_s += seconds


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    """A cluster with these failures."""

    def make(*failures: OSError) -> Cluster:
        one = Cluster(list(failures))
        monkeypatch.setattr(HdfsNames, "begin", one.begin)
        monkeypatch.setattr(HdfsNames, "call", one.call)
        monkeypatch.setattr(hdfs, "_left", [])
        monkeypatch.setattr(hdfs, "on_a_thread", lambda action: action())
        monkeypatch.setattr(hdfs, "time", SimpleNamespace(monotonic=lambda: one.now_s, sleep=one.sleep))
        return one

    return make


def named(number: int) -> PurePosixPath:
    return _PATH.with_name(f"7~{number}")


def written(names: HdfsNames = _NAMES) -> PurePosixPath:
    """Write a file whose tries have these names, in order."""
    numbers = itertools.count()
    return names.written(b"1", lambda: named(next(numbers)))


REFUSED = OSError(errno.EIO, "HDFS: Connection refused")
HANGS = OSError(errno.ETIMEDOUT, "HDFS gives no answer")


def test_a_file_is_written_once(cluster: Callable[..., Cluster]) -> None:
    """With the replicas of the cluster."""
    one = cluster()
    assert written() == named(0)
    assert (one.replicas, one.to_have) == ([None], {})


def test_after_two_tries_one_datanode_is_enough(cluster: Callable[..., Cluster]) -> None:
    """The NameNode is asked for the others; each try has a name of its own."""
    one = cluster(REFUSED, REFUSED, REFUSED)
    assert written() == named(3)
    assert one.replicas == [None, None, 1, 1]
    assert one.tried == [named(number) for number in range(4)]
    assert one.to_have == {str(named(3)): 3}


@pytest.mark.parametrize(
    ("failures", "replicas"),
    [
        ("h", [None, 1]),
        ("rh", [None, None, 1]),  # as when a DataNode is killed under a write
        ("hr", [None, 1, 1]),
        ("hrrr", [None, 1, 1, 1, 1]),
    ],
)
def test_a_call_may_hang_once(failures: str, replicas: list[int | None], cluster: Callable[..., Cluster]) -> None:
    """For 10 s; from then on one DataNode is enough, and refusals have their seconds again."""
    one = cluster(*(HANGS if kind == "h" else REFUSED for kind in failures))
    assert written() == named(len(failures))
    assert one.replicas == replicas


def test_two_calls_that_hang_are_an_error(cluster: Callable[..., Cluster]) -> None:
    """After 20 s."""
    one = cluster(HANGS, HANGS)
    with pytest.raises(OSError, match="no answer"):
        written()
    assert 20 <= one.now_s < 21


def test_a_namenode_that_is_away_is_no_dead_datanode(cluster: Callable[..., Cluster]) -> None:
    """Its call was repeated for seconds already."""
    one = cluster(REFUSED)
    one.seconds_a_try = 7
    with pytest.raises(OSError, match="Connection refused"):
        written()
    assert one.tried == [named(0)]


@pytest.mark.parametrize(
    ("withdrawn", "error"), [(True, NotPlacedError), (False, TimeoutError), (HANGS, UnansweredError)]
)
def test_a_rename_without_an_answer_is_as_clear_as_its_withdrawal(
    cluster: Callable[..., Cluster],
    monkeypatch: pytest.MonkeyPatch,
    withdrawn: bool | OSError,
    error: type[OSError],
) -> None:
    """With the temporary file it cannot happen any more; without that, reading tells; else it may still happen."""
    cluster()

    def call(_: object, path: PurePosixPath, action: Callable[[Any], Any], size: int = 0) -> Any:
        def rename(*_: object) -> None:
            raise HANGS

        def delete(*_: object) -> bool:
            if isinstance(withdrawn, OSError):
                raise withdrawn
            return withdrawn

        return action(SimpleNamespace(rename=rename, delete=delete))

    monkeypatch.setattr(HdfsNames, "call", call)
    with pytest.raises(OSError, match="no answer") as caught:
        _NAMES.create(_PATH, b"1")
    assert type(caught.value) is error


@pytest.mark.parametrize("failure", [REFUSED, HANGS, FileExistsError(errno.EEXIST, "taken")])
def test_the_file_of_a_failed_try_is_deleted(failure: OSError, cluster: Callable[..., Cluster]) -> None:
    """It would count against a quota as a whole block. A name that is taken is this very try's: all are new."""
    one = cluster(failure, failure) if failure is not HANGS else cluster(failure)
    whole = written()
    assert one.deleted == one.tried[:-1]
    assert whole == one.tried[-1]


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.EAGAIN])
def test_a_refused_block_leaves_no_file(code: int, cluster: Callable[..., Cluster]) -> None:
    """A quota or safe mode may refuse the block of a file that was begun."""
    one = cluster(OSError(code, "refused"))
    with pytest.raises(OSError, match="refused"):
        _NAMES.replace(_PATH, b"1")
    assert one.deleted == one.tried


def test_what_cannot_be_deleted_now_is_deleted_later(cluster: Callable[..., Cluster]) -> None:
    """By a thread, once the NameNode answers; this process would keep its lease for as long as it lives."""
    one = cluster(REFUSED, REFUSED)
    one.is_away = True

    def sleep(seconds: float) -> None:
        one.now_s += seconds
        one.is_away = one.now_s < 5

    one.sleep = sleep  # type: ignore[method-assign]
    hdfs.time.sleep = sleep
    assert written() == one.tried[-1]
    assert one.deleted == one.tried[:-1]
    assert hdfs._left == []


@pytest.mark.parametrize(
    ("size", "block"), [(0, 1 << 20), (1, 1 << 20), ((1 << 20) + 1, 2 << 20), (64 << 20, 64 << 20), (65 << 20, None)]
)
def test_a_block_is_no_larger_than_its_file(size: int, block: int | None) -> None:
    """While a file is open, the quota counts a whole block in all replicas."""
    assert hdfs._block_size(size) == block


def test_it_ends_in_the_last_error(cluster: Callable[..., Cluster]) -> None:
    """After some seconds: Spark and a supervisor try again."""
    one = cluster(*[REFUSED] * 100)
    with pytest.raises(OSError, match="Connection refused"):
        written()
    assert 6 < one.now_s < 8
    assert 20 < len(one.tried) < 30  # so many that one of two DataNodes, picked at random, is not missed each time


@pytest.mark.parametrize(("seconds", "tries"), [(0.6, 25), (3.0, 7)])
def test_a_slow_machine_has_its_tries(seconds: float, tries: int, cluster: Callable[..., Cluster]) -> None:
    """As many, or those of 20 s."""
    one = cluster(*[REFUSED] * 100)
    one.seconds_a_try = seconds
    with pytest.raises(OSError, match="Connection refused"):
        written()
    assert len(one.tried) == tries


@pytest.mark.parametrize("code", [errno.EACCES, errno.EAGAIN, errno.EDQUOT, errno.EINVAL, errno.ENOENT])
def test_a_refusal_is_not_tried_again(code: int, cluster: Callable[..., Cluster]) -> None:
    """Another try would be refused too."""
    one = cluster(OSError(code, "refused"))
    with pytest.raises(OSError, match="refused"):
        written()
    assert one.tried == [named(0)]


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ('RPCError("org.apache.hadoop.security.AccessControlException", "denied")', errno.EACCES, "hdfs dfs -chown"),
        ('RPCError("x.SafeModeException", "Name node is in safe mode")', errno.EAGAIN, "-safemode get"),
        ('RPCError("x.DSQuotaExceededException", "The quota")', errno.EDQUOT, "-setSpaceQuota"),
        ("GSSAPIError: No Kerberos credentials available", errno.EACCES, "kinit"),
        ("GSSAPIError: Ticket expired", errno.EACCES, "renew it"),
        ('InvalidArgument("No NameNode hosts found")', errno.EINVAL, "dfs.ha.namenodes.dedup"),
        ("Connection refused (os error 111)", errno.EIO, "Connection refused"),
    ],
)
def test_an_error_says_what_to_do(text: str, code: int, said: str) -> None:
    """In the cluster's words, and then in ours."""
    error = as_os_error(RuntimeError(text), "hdfs://dedup/state")
    assert error.errno == code
    assert said in str(error)
    assert error.filename == "hdfs://dedup/state"


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        ("RPC listener disconnected", [], "requires Kerberos, name the folder"),
        ("Connection reset by peer (os error 104)", ["hadoop.security.authentication"], "dfs.data.transfer.protection"),
    ],
)
def test_a_closed_connection_has_a_remedy(
    text: str, settings: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts are those of a NameNode that requires a login, and of a DataNode that requires a handshake.

    There is none where the settings have what is wanted.
    """
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    every = ("hadoop.security.authentication", "dfs.data.transfer.protection")
    for names, is_said in ((settings, True), (every, False)):
        lines = "".join(f"<property><name>{name}</name><value>kerberos</value></property>" for name in names)
        (tmp_path / "core-site.xml").write_text(f"<configuration>{lines}</configuration>", encoding="utf-8")
        assert (said in str(as_os_error(OSError(text), "hdfs://namenode:8020/state"))) is is_said


@pytest.mark.parametrize("is_public", [False, True])
def test_the_files_of_a_port_alone_are_for_others_to_read(is_public: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a place below it, in a task. Renaming leaves a mode as it is: public or not, a place is the same."""
    modes = []
    file = SimpleNamespace(write=lambda _: None, close=lambda: None)

    def create(_: str, options: WriteOptions) -> SimpleNamespace:
        modes.append(options.permission)
        return file

    client = SimpleNamespace(inner=SimpleNamespace(create=create))
    monkeypatch.setattr(HdfsNames, "call", lambda _, path, action, *args, **named: action(client))
    place = open_place("hdfs://namenode:8020/out/unique", is_public=is_public)
    names = pickle.loads(pickle.dumps(place / "_staging")).names
    names.begin(place.path, b"1")
    assert modes == [0o644 if is_public else 0o600]
    assert place == open_place(place.url)


def test_an_unknown_name_service_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's constructor refuses it."""
    monkeypatch.setenv("HADOOP_CONF_DIR", "/nowhere")
    with pytest.raises(OSError, match=r"name service, and /nowhere/hdfs-site\.xml has no NameNodes of it"):
        HdfsNames("nosuch").exists(_PATH)
