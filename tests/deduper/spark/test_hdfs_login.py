"""Tokens of HDFS come with a task, and the client of its process finds them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deduper.errors import DeduperError
from deduper.spark import hdfs_login
from deduper.spark.hdfs_login import Tokens, logged_in, travel_with_tasks
from deduper.spark.hdfs_tokens import TokenSource, tokens_are_needed

VARIABLE = "HADOOP_TOKEN_FILE_LOCATION"


@pytest.fixture(autouse=True)
def _no_tokens(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VARIABLE, "before")
    monkeypatch.setattr(hdfs_login, "_held", [])
    yield
    for _, file in hdfs_login._held:
        os.close(file)


def found(*arguments: int) -> tuple[int, bytes]:
    """The task's arguments, and what the client of its process would read."""
    return sum(arguments), Path(os.environ[VARIABLE]).read_bytes()


def test_a_task_has_the_newest_tokens() -> None:
    """And the arguments that it was given; the file before it stays for a connection that is under way."""
    assert logged_in(Tokens(b"one"), found, 1, 2) == (3, b"one")
    first = os.environ[VARIABLE]
    assert logged_in(Tokens(b"one"), found) == (0, b"one")
    assert os.environ[VARIABLE] == first
    assert logged_in(Tokens(b"another"), found) == (0, b"another")
    assert Path(first).read_bytes() == b"one"
    for number in range(8):
        assert logged_in(Tokens(b"%d" % number), found) == (0, b"%d" % number)
    assert len(hdfs_login._held) == 2


def test_no_text_has_a_token() -> None:
    """Tokens are in the arguments of tasks, which may be logged."""
    assert repr(Tokens(b"secret")) == "Tokens()"


class _Source(TokenSource):
    """Numbers for tokens, by a clock that stands, and from a KDC that may be away."""

    now_s = 0.0
    fetched = 0
    is_away = False

    def _fetched(self) -> bytes:
        if self.is_away:
            raise DeduperError("HDFS: no login: the KDC is away")
        self.fetched += 1
        return b"%d" % self.fetched


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Source:
    """Of a cluster whose tokens are good for 1,600 s."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    (tmp_path / "hdfs-site.xml").write_text(
        "<configuration><property><name>dfs.namenode.delegation.token.renew-interval</name><value>1600000</value>"
        "</property></configuration>",
        encoding="utf-8",
    )
    one = _Source(None, ["namenode:8020"])  # type: ignore[arg-type]  # only `_fetched` needs a session
    monkeypatch.setattr("deduper.spark.hdfs_tokens.time.monotonic", lambda: one.now_s)
    return one


def test_new_tokens_come_before_the_old_ones_end(source: _Source) -> None:
    """After a quarter of their time."""
    read = []
    for source.now_s in (1000.0, 1399.0, 1401.0, 1800.0, 1802.0):
        read.append(source.logged_in(found)()[1])
    assert read == [b"1", b"1", b"2", b"2", b"3"]


def test_old_tokens_serve_while_there_are_no_new_ones(source: _Source) -> None:
    """Until three quarters of their time are over, with a try a minute; then the job ends."""
    assert source.logged_in(found)()[1] == b"1"
    source.is_away = True
    for source.now_s in (401.0, 402.0, 800.0, 1199.0):
        assert source.logged_in(found)()[1] == b"1"
    source.now_s = 1300.0
    with pytest.raises(DeduperError, match="the KDC is away"):
        source.logged_in(found)
    source.is_away = False
    assert source.logged_in(found)()[1] == b"2"


def test_who_needs_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that use an HDFS with a login, on hosts that have none."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert not tokens_are_needed({}, ["namenode:8020"])
    file = tmp_path / "core-site.xml"
    file.write_text(
        "<configuration><property><name>hadoop.security.authentication</name><value>Kerberos</value></property>"
        "</configuration>",
        encoding="utf-8",
    )
    assert tokens_are_needed({}, ["namenode:8020"])
    assert not tokens_are_needed({}, [])
    for name in ("KRB5CCNAME", "KRB5_CLIENT_KTNAME", VARIABLE):
        assert not travel_with_tasks({f"spark.executorEnv.{name}": "x"})
        assert not tokens_are_needed({f"spark.executorEnv.{name}": "x"}, ["namenode:8020"])
