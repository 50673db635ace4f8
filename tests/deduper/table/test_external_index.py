"""The external index on a real server: what dies, is restored, emptied, shared or refused; its list of files."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from bucket_store.errors import CorruptionError, UnknownFormatError
from deduper.config.problems import ConfigError
from deduper.errors import ExitCode
from deduper.table.columns import KeyColumn, KeyColumns
from deduper.table.errors import IndexServerError, ServerRefusedError
from deduper.table.formats.protocol import PRIVATE, open_table
from deduper.table.index import external as indexing
from deduper.table.index import reading
from deduper.table.index import redis_server as served
from deduper.table.index.external import ServedIndex
from deduper.table.index.external_state import FORM, EarlierToken, ServedFile, ServedState
from deduper.table.index.keys import SortedKeys, in_order, row_keys
from deduper.table.index.protocol import Condition, VersionKeys
from deduper.table.index.redis_server import ServedEntries, ServerAddress
from deduper.table.operations.questions import filter_exists, tag
from deduper.table.operations.rollback import rollback
from deduper.table.operations.upkeep import rebuild, table_status
from deduper.table.operations.verify import verify
from tests.deduper.table.scene import Place, Row, arrow, dying, foreign
from tests.forked import command
from tests.processes import freeze
from tests.services.redis_server import RedisServer

SAMPLES = Path(__file__).parent / "samples"
COLUMNS = KeyColumns((KeyColumn("k", "bigint"),), (KeyColumn("d", "date"),), "partition")
STATE = ServedState(
    index_id="00112233445566778899aabbccddeeff",
    salt=bytes(range(16)),
    columns=COLUMNS,
    step=3,
    token="0123456789abcdef",
    announced="fedcba9876543210",
    earlier=(EarlierToken("aaaaaaaaaaaaaaaa", 1), EarlierToken("bbbbbbbbbbbbbbbb", 2)),
    files=(ServedFile(4, "d=1970-01-01/a.parquet", 1000, 5, 40, 0, 2), ServedFile(7, "b", 2000, 0, 0, -1, 3)),
    discarded=("ff" * 16,),
)


def services(test: Callable[..., None]) -> Callable[..., None]:
    """It needs a server of Redis, which is there at night alone."""
    return pytest.mark.services(pytest.mark.night(test))


def at(server: RedisServer, place: Place, more: str = "") -> Place:
    """The place with its index on a server."""
    place.index = f"{{kind: external, options: {{url: '{server.url}'{more}}}}}"
    return place


@pytest.fixture
def shared(redis_server: RedisServer, tmp_path: Path) -> Place:
    """A Delta table with two files, indexed on the shared server; it has the keys 0 to 9 on two days."""
    place = at(redis_server, Place(tmp_path, "delta"))
    place.load([(key, "a", key % 2) for key in range(10)])
    return place


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own, which persists nothing."""
    with RedisServer(tmp_path / "redis") as server:
        yield server


def rows(first: int, end: int) -> list[Row]:
    """Rows with these keys on two days."""
    return [(key, "b", key % 2) for key in range(first, end)]


def held(place: Place) -> list[int]:
    """The keys of the table, sorted."""
    return sorted(key for key, _, _ in place.rows())


@services
@pytest.mark.parametrize("persists", [True, False])
def test_a_server_that_is_killed_between_loads(persists: bool, tmp_path: Path) -> None:
    """What it has kept is believed; else the index is built from the table. The answers are the same."""
    with RedisServer(tmp_path / "redis", persists=persists) as server:
        _killed_between(server, Place(tmp_path, "delta"), persists)


def _killed_between(server: RedisServer, place: Place, persists: bool) -> None:
    at(server, place).load(rows(0, 10))
    server.restart()
    assert filter_exists(arrow(rows(8, 12)), place.config()).to_pylist() == [False, False, True, True]
    assert table_status(place.config()).index.state is (Condition.PRESENT if persists else Condition.ABSENT)
    receipt = place.load(rows(5, 15))
    assert (receipt.inserted, receipt.found) == (5, 5)
    assert (receipt.began_anew is None, receipt.read_files) == ((True, 0) if persists else (False, 2))
    assert place.load(rows(0, 15)).found == 15
    assert verify(place.config()).is_sound


CALLS = ("claim", "find", "take_numbers", "put", "add", "advance")


@services
@pytest.mark.night(but=["kill-put", "kill-claim", "restart-add", "flush-find"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("what", ["kill", "restart", "restart with its entries", "flush"])
def test_a_server_that_dies_amid_a_write(what: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any call: the write fails whole, or is done; the next one has each key once."""
    with RedisServer(tmp_path / "redis", persists="with" in what) as server:
        _dies_amid(server, at(server, Place(tmp_path, "delta")), what, name, monkeypatch)


def _dies_amid(own: RedisServer, place: Place, what: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place.load(rows(0, 10))
    monkeypatch.setattr(served, "_RETRIES", 0)
    hit: list[str] = []
    happens: dict[str, Callable[[], object]] = {
        "kill": own.daemon.kill,
        "restart": own.restart,
        "restart with its entries": own.restart,
        "flush": own.client.flushall,
    }
    whole = getattr(ServedEntries, name)

    def struck(*given: object) -> object:
        if not hit:
            hit.append(name)
            happens[what]()
        return whole(*given)

    monkeypatch.setattr(ServedEntries, name, struck)
    change = place.upsert if name == "add" else place.load
    before = held(place)
    try:
        change(rows(8, 14))
    except IndexServerError:
        assert held(place) == before
    else:
        assert held(place) == list(range(14))
    assert hit
    assert place.leftovers() == []
    own.start()
    change(rows(8, 14))
    assert held(place) == list(range(14))
    assert verify(place.config()).is_sound
    assert place.leftovers() == []


@services
def test_a_server_that_goes_after_the_commit(
    own: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The write succeeds with a warning, and the next one reads what the index lacks; so does a rollback."""
    place = at(own, Place(tmp_path, "delta"))
    place.load(rows(0, 2))
    whole = ServedEntries.put
    monkeypatch.setattr(ServedEntries, "put", lambda *given: (own.daemon.kill(), whole(*given))[1])
    with caplog.at_level(logging.WARNING):
        assert place.load(rows(2, 4)).inserted == 2
    assert "the write is done; the index lacks it" in caplog.text
    rolled = rollback(place.config(), 0)
    assert rolled.read_files == 0
    monkeypatch.undo()
    own.start()
    assert place.load(rows(0, 4)).inserted == 2
    assert held(place) == [0, 1, 2, 3]


@services
def test_an_emptied_server(shared: Place, redis_server: RedisServer) -> None:
    """`FLUSHALL` is noticed when the index is next opened."""
    redis_server.client.flushall()
    assert table_status(shared.config()).index.state is Condition.ABSENT
    assert verify(shared.config()).not_compared == "the server has none, or another state of it than the table's folder"
    receipt = shared.load(rows(0, 12))
    assert (receipt.inserted, receipt.found, receipt.read_files) == (2, 10, 2)
    assert receipt.began_anew is not None
    assert "it was emptied" in receipt.began_anew


@services
def test_a_server_that_is_restored(shared: Place, redis_server: RedisServer) -> None:
    """Files of later steps are read again, and no others; entries of files that have gone since do not count."""
    saved = redis_server.snapshot()
    shared.load(rows(10, 14))
    shared.upsert([(0, "c", 0)])
    redis_server.restore(saved)
    status = table_status(shared.config()).index
    assert (status.state, status.added) == (Condition.BEHIND, 3)
    assert filter_exists(arrow(rows(0, 16)), shared.config()).to_pylist() == [False] * 14 + [True] * 2
    receipt = shared.load(rows(0, 16))
    assert (receipt.inserted, receipt.found, receipt.read_files, receipt.began_anew) == (2, 14, 3, None)
    assert verify(shared.config()).is_sound


@services
@pytest.mark.parametrize("name", ["catch_up", "take_numbers", "add", "advance"])
def test_a_server_that_loses_its_last_writes_amid_a_write(
    name: str, shared: Place, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a crash with `appendfsync everysec`, with the same writer before: nothing is committed."""
    write_deltalake(str(shared.root), arrow(rows(10, 20)), mode="append")
    owner = ServedIndex if name == "catch_up" else ServedEntries
    whole = getattr(owner, name)

    def lost(*given: Any) -> Any:
        saved = redis_server.snapshot()
        found = whole(*given)
        redis_server.restore(saved)
        monkeypatch.undo()
        return found

    monkeypatch.setattr(owner, name, lost)
    with pytest.raises(IndexServerError, match=r"last writes"):
        shared.load(rows(10, 20))
    assert held(shared) == list(range(20))
    receipt = shared.load(rows(10, 20))
    assert (receipt.inserted, receipt.found) == (0, 10)
    assert verify(shared.config()).is_sound


@services
@pytest.mark.parametrize("step", ["index.piece", "index.served", "index.state", "index.dropped"])
def test_a_death_within_a_step(step: str, shared: Place) -> None:
    """Questions are right at once; the next write reads the files again unless the state has them."""
    with dying(step) as died:
        shared.upsert([(0, "c", 0), (50, "c", 0)])
    assert died
    asked = arrow([(0, "", 0), (2, "", 0), (50, "", 0), (51, "", 1)])
    assert filter_exists(asked, shared.config()).to_pylist() == [False, False, False, True]
    tags = tag(asked, shared.config())["files"].to_pylist()
    assert [len(files or ()) for files in tags] == [1, 1, 1, 0]
    receipt = shared.load([(0, "d", 0), (50, "d", 0), (51, "d", 1)])
    assert (receipt.inserted, receipt.found, receipt.began_anew) == (1, 2, None)
    assert receipt.read_files == (0 if step == "index.state" else receipt.read_files) <= 2
    assert verify(shared.config()).is_sound


def _asked(place: Place) -> tuple[VersionKeys, SortedKeys]:
    """The keys of the present version, and those of 12 rows."""
    table = open_table(place.root, "delta", COLUMNS.partition_by)
    files = table.snapshot().files
    version = place.config().config.table_index.view(place.root, COLUMNS).version(place.root, files)
    batch = arrow(rows(0, 12))
    _, keys = in_order(*row_keys([batch["d"].combine_chunks(), batch["k"].combine_chunks()], COLUMNS, version.salt))
    return version, keys


@services
@pytest.mark.crash
def test_real_kills_within_a_step(shared: Place, tmp_path: Path) -> None:
    """By SIGKILL, of the command: all rows, each once, and the entries are those of the rows."""
    shared.config()
    (tmp_path / "in").mkdir()
    keys = set(range(10))
    for number, step in enumerate(("index.dropped", "index.piece", "index.served", "index.state")):
        batch: list[Row] = [(key, step, key % 2) for key in (number, 20 + number)]
        pq.write_table(arrow(batch), tmp_path / "in/a.parquet")
        done = command("table", "upsert", str(tmp_path / "place.yaml"), "--execute", armed=f"{step}=kill")
        assert done.returncode == -signal.SIGKILL, done.stderr
        keys |= {key for key, _, _ in batch if key is not None}
        assert held(shared) == sorted(keys)
        receipt = shared.load([(key, "b", key % 2) for key in keys])
        assert (receipt.inserted, receipt.found, receipt.began_anew) == (0, len(keys), None)
    assert verify(shared.config()).is_sound
    assert shared.leftovers() == []


@services
def test_a_question_beside_writes(shared: Place) -> None:
    """It is answered for its version, whatever writes have dropped from the entries since."""
    config = shared.config()
    version, keys = _asked(shared)
    before = version.find(keys, {})
    assert len(before[0]) == 10
    for _ in range(2):
        shared.upsert([(key, "c", key % 2) for key in range(11)])
        after = version.find(keys, {})
        assert [part.tolist() for part in after] == [part.tolist() for part in before]
    rebuild(config)
    after = version.find(keys, {})
    assert [part.tolist() for part in after] == [part.tolist() for part in before]
    assert verify(config).is_sound


@services
def test_a_question_beside_another_copy(shared: Place, tmp_path: Path) -> None:
    """That has taken the index, and whose tokens the state does not have: the files are read."""
    shutil.copytree(shared.root, tmp_path / "copy/table")
    version, keys = _asked(shared)
    before = version.find(keys, {})
    copy = Place(tmp_path / "copy", "delta", shared.index)
    copy.upsert([(key, "c", key % 2) for key in range(11)])
    after = version.find(keys, {})
    assert [part.tolist() for part in after] == [part.tolist() for part in before]


@services
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_an_evicting_server_is_refused(policy: str, own: RedisServer, tmp_path: Path) -> None:
    """With what to set; afterwards the index is begun anew, since entries may be gone."""
    place = at(own, Place(tmp_path, "delta"))
    place.load(rows(0, 4))
    own.client.config_set("maxmemory-policy", policy)
    for asks in (place.load, place.upsert, lambda batch: filter_exists(arrow(batch), place.config())):
        with pytest.raises(ServerRefusedError, match=rf"{policy}.*set `maxmemory-policy noeviction`") as caught:
            asks(rows(0, 4))
        assert caught.value.exit_code is ExitCode.USAGE
    status = table_status(place.config()).index
    assert (status.state, "noeviction" in (status.why or "")) == (Condition.AWAY, True)
    own.client.config_set("maxmemory-policy", "noeviction")
    receipt = place.load(rows(0, 5))
    assert (receipt.inserted, receipt.found, receipt.began_anew is None) == (1, 4, False)


@services
def test_evictions_that_no_write_saw(tmp_path: Path) -> None:
    """The server's own count of evicted keys shows them."""
    with RedisServer(tmp_path / "redis") as server:
        place = at(server, Place(tmp_path, "delta"))
        place.load(rows(0, 2000))
        used = server.client.info()["used_memory"]
        (head,) = [key for key in server.client.scan_iter("dd:*") if key.count(b":") == 1]
        fields = server.client.hgetall(head)
        server.client.config_set("maxmemory-policy", "allkeys-random")
        for less in range(0, used, 20_000):
            server.client.config_set("maxmemory", used - less)
            server.client.get("something")
            if server.client.info()["evicted_keys"]:
                break
        server.client.config_set("maxmemory", 0)
        server.client.config_set("maxmemory-policy", "noeviction")
        assert 0 < server.client.info()["evicted_keys"] < 2000
        server.client.hset(head, mapping=fields)  # it may be among them
        receipt = place.load(rows(0, 2001))
        assert (receipt.inserted, receipt.found, receipt.began_anew is None) == (1, 2000, False)
        assert place.load(rows(0, 2001)).began_anew is None


@services
def test_a_full_server(own: RedisServer, tmp_path: Path) -> None:
    """It refuses entries, and a load fails before it commits."""
    place = at(own, Place(tmp_path, "delta"))
    place.load(rows(0, 4))
    own.client.config_set("maxmemory", 1)
    with pytest.raises(IndexServerError, match="not allowed when used memory"):
        place.load(rows(0, 8))
    assert held(place) == [0, 1, 2, 3]
    own.client.config_set("maxmemory", 0)
    assert place.load(rows(0, 8)).inserted == 4


@services
def test_passwords(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong one is refused; no message, text or log shows one. The right one may stand in the URL or beside it."""
    secret = "open-sesame"
    with RedisServer(tmp_path / "redis", password=secret) as server:
        place = Place(tmp_path, "delta")
        for more, url in (
            ("", server.url),
            (", password: wrong-word", server.url),
            ("", server.url.replace("//", "//:wrong-word@")),
        ):
            place.index = f"{{kind: external, options: {{url: '{url}'{more}}}}}"
            with pytest.raises(ServerRefusedError, match="refuses the login") as caught:
                place.load(rows(0, 4))
            assert caught.value.exit_code is ExitCode.USAGE
            assert "wrong-word" not in str(caught.value)
            assert table_status(place.config()).index.state is Condition.ABSENT
        assert place.rows() == []
        for more, url in ((f", password: {secret}", server.url), ("", server.url.replace("//", f"//:{secret}@"))):
            place.index = f"{{kind: external, options: {{url: '{url}'{more}}}}}"
            place.load(rows(0, 4))
            assert secret not in repr(place.config().config.table_index) + repr(ServerAddress(url, secret))
        server.daemon.kill()
        with pytest.raises(IndexServerError) as away:
            place.load(rows(0, 4))
        status = table_status(place.config()).index
        assert status.state is Condition.AWAY
        assert secret not in str(away.value) + str(status) + caplog.text
        kept = (place.root / PRIVATE / "external/state").read_bytes()
        assert secret.encode() not in kept


@services
def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    """Soon there is an error that names it, and nothing of the write is left."""
    with RedisServer(tmp_path / "redis") as server:
        place = at(server, Place(tmp_path, "delta"))
        place.load(rows(0, 4))
    began = time.monotonic()
    for asks in (place.load, place.upsert, lambda batch: filter_exists(arrow(batch), place.config())):
        with pytest.raises(IndexServerError, match=rf"{server.port}.*refused"):
            asks(rows(2, 6))
    assert time.monotonic() - began < 60
    assert held(place) == [0, 1, 2, 3]
    assert place.leftovers() == []


@services
def test_a_server_that_hangs(own: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call has a limit; with the tries it is less than a minute."""
    tries = served._RETRIES + 1
    assert tries * (served._CONNECT_S + served._CALL_S) + tries < 60
    place = at(own, Place(tmp_path, "delta"))
    place.load(rows(0, 4))
    monkeypatch.setattr(served, "_CALL_S", 0.2)
    freeze(own.daemon._pid)
    with pytest.raises(IndexServerError, match="Timeout"):
        place.load(rows(0, 6))
    os.kill(own.daemon._pid, signal.SIGCONT)
    assert held(place) == [0, 1, 2, 3]
    monkeypatch.undo()
    assert place.load(rows(0, 6)).inserted == 2


@services
def test_servers_that_cannot_hold_an_index(tmp_path: Path) -> None:
    """A replica, and a URL that the client does not take."""
    with RedisServer(tmp_path / "redis") as server:
        place = at(server, Place(tmp_path, "delta"))
        server.client.replicaof("127.0.0.1", 1)
        with pytest.raises(ServerRefusedError, match="is a replica"):
            place.load(rows(0, 1))
        for wrong in ("redis://127.0.0.1:port", "redis://127.0.0.1/?colour=blue"):
            place.index = f"{{kind: external, options: {{url: '{wrong}'}}}}"
            with pytest.raises(ServerRefusedError, match="the client does not take the URL"):
                place.load(rows(0, 1))


@services
def test_copies_of_a_folder(shared: Place, redis_server: RedisServer, tmp_path: Path) -> None:
    """They begin with one list and never believe each other's entries; the one that writes second begins anew."""
    shutil.copytree(shared.root, tmp_path / "copy/table")
    copy = Place(tmp_path / "copy", "delta", shared.index)
    assert shared.load(rows(10, 12)).inserted == 2
    assert filter_exists(arrow(rows(10, 12)), copy.config()).to_pylist() == [True, True]
    receipt = copy.load(rows(8, 14))
    assert (receipt.inserted, receipt.found, receipt.began_anew) == (4, 2, None)
    receipt = shared.load(rows(8, 14))
    assert (receipt.inserted, receipt.began_anew) == (2, "the server has another state of it than the table's folder")
    for place in (shared, copy):
        place.upsert([(0, "c", 0)])
        assert place.load(rows(0, 14)).found == 14
        assert verify(place.config()).is_sound


@services
@pytest.mark.parametrize("first", ["load", "upsert"])
def test_copies_that_write_at_one_time(first: str, shared: Place, tmp_path: Path) -> None:
    """The one that has lost its claim fails before it commits, or its entries do not count."""
    shutil.copytree(shared.root, tmp_path / "copy/table")
    copy = Place(tmp_path / "copy", "delta", shared.index)
    with pytest.MonkeyPatch.context() as patch:
        whole = ServedEntries.find
        once: list[bool] = []

        def overtaken(*given: object) -> object:
            if not once:
                once.append(True)
                getattr(copy, first)(rows(8, 12))
            return whole(*given)

        patch.setattr(ServedEntries, "find", overtaken)
        with pytest.raises(IndexServerError, match="another process took it"):
            shared.load(rows(8, 14))
    assert held(shared) == list(range(10))
    for place in (shared, copy):
        assert place.load(rows(0, 14)).rows == 14
        assert held(place) == list(range(14))
        assert verify(place.config()).is_sound


@services
@pytest.mark.parametrize("name", ["put", "add"])
def test_a_copy_that_takes_the_index_before_entries_are_written(
    name: str, shared: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No entry of either is lost: the write is done without its entries, or the copy has begun an index of its own."""
    shutil.copytree(shared.root, tmp_path / "copy/table")
    copy = Place(tmp_path / "copy", "delta", shared.index)
    whole = getattr(ServedEntries, name)

    def overtaken(*given: object) -> object:
        monkeypatch.undo()
        copy.upsert(rows(8, 14))
        return whole(*given)

    monkeypatch.setattr(ServedEntries, name, overtaken)
    (shared.load if name == "put" else shared.upsert)(rows(8, 14))
    # An upsert has dropped a file before: then the copy does not accept the server's token.
    assert ("the write is done; the index lacks it" in caplog.text) == (name == "put")
    for place in (copy, shared):
        assert verify(place.config()).is_sound
        receipt = place.load(rows(0, 14))
        assert (receipt.inserted, receipt.found) == (0, 14)
        assert verify(place.config()).is_sound


@services
@pytest.mark.night(but=["0"])
@pytest.mark.parametrize("seed", range(2))
def test_random_histories_of_copies(seed: int, redis_server: RedisServer, tmp_path: Path) -> None:
    """Two copies of a folder in turns, with deaths, snapshots and restores: each has its own keys, each once."""
    rng = random.Random(seed)
    places = [at(redis_server, Place(tmp_path / name, "parquet")) for name in ("a", "b")]
    places[0].load(rows(0, 10))
    shutil.copytree(places[0].root, places[1].root)
    keys = [set(range(10)), set(range(10))]
    saved = redis_server.snapshot()
    for turn in range(12):
        number = rng.randrange(2)
        batch = rng.sample(range(30), 4)
        what = rng.choice(["load", "upsert", "delete"])
        write = getattr(places[number], what)
        given: list[Row] = [(key, "c", key % 2) for key in batch]
        with dying(rng.choice(["never", "index.piece", "index.served", "index.dropped", "table.4.planned"])):
            write(given)
        if rng.random() < 0.2:
            saved = redis_server.snapshot()
        elif rng.random() < 0.2:
            redis_server.restore(saved)
        write(given)
        keys[number] = keys[number] - set(batch) if what == "delete" else keys[number] | set(batch)
        for place, of in zip(places, keys, strict=True):
            assert held(place) == sorted(of), f"seed {seed}, turn {turn}"
    for place in places:
        place.load([])
        assert verify(place.config()).is_sound, f"seed {seed}"


@services
def test_a_rebuild_deletes_what_it_replaces(redis_server: RedisServer, tmp_path: Path) -> None:
    """On the server are the entries of the table's keys and one head, whatever died; so with another key."""
    redis_server.client.flushall()
    place = at(redis_server, Place(tmp_path, "delta"))
    place.load(rows(0, 10))
    place.delete(rows(0, 4))
    assert redis_server.client.dbsize() == 11  # deleted keys too
    with dying("index.piece"):
        rebuild(place.config())
    with dying("index.rebuilt"):
        rebuild(place.config())
    assert table_status(place.config()).rebuilding == 6
    receipt = rebuild(place.config())
    assert (receipt.keys, receipt.is_continued) == (6, True)
    assert redis_server.client.dbsize() == 7
    assert verify(place.config()).is_sound
    place.load(rows(0, 0), scope="global")
    assert redis_server.client.dbsize() == 7
    assert place.load(rows(0, 10), scope="global").inserted == 4


@services
def test_what_verify_finds(shared: Place, redis_server: RedisServer) -> None:
    """An entry that is gone is missing; one that names another file is both; one of no row is extra."""
    foreign(shared, 3, 1)
    shared.load([])
    assert verify(shared.config()).repeated == 1
    state = FORM.read(shared.root / PRIVATE / "external/state")
    assert state is not None
    prefix = f"dd:{state.index_id[:16]}:".encode()
    entries = sorted(redis_server.client.scan_iter(prefix + b"*"))
    (double,) = [entry for entry in entries if b"," in redis_server.client.get(entry)]
    single = [entry for entry in entries if entry != double]
    of_first = [entry for entry in single if redis_server.client.get(entry) == redis_server.client.get(single[0])]
    other = next(entry for entry in single if entry not in of_first)
    redis_server.client.delete(of_first[0])
    redis_server.client.set(of_first[1], redis_server.client.get(other))
    redis_server.client.set(prefix + bytes(16), redis_server.client.get(other))
    report = verify(shared.config())
    assert (report.missing, report.extra, report.exit_code) == (2, 2, ExitCode.INTEGRITY)
    rebuild(shared.config())
    report = verify(shared.config())
    assert (report.missing, report.extra, report.repeated) == (0, 0, 1)
    redis_server.client.set(sorted(redis_server.client.scan_iter("dd:*:*"))[0], b"no number")


@services
def test_many_keys_in_many_blocks(redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block of look-ups and of entries is whole."""
    monkeypatch.setattr(served, "_BLOCK_KEYS", 7)
    place = at(redis_server, Place(tmp_path, "delta"))
    place.load(rows(0, 50))
    foreign(place, 4, 0)
    place.upsert(rows(40, 60))
    assert held(place) == sorted([*range(60), 4])
    assert [len(files or ()) for files in tag(arrow(rows(3, 6)), place.config())["files"].to_pylist()] == [1, 2, 1]
    report = verify(place.config())
    assert (report.missing, report.extra, report.repeated) == (0, 0, 1)


@services
def test_a_file_of_any_size_is_entered_in_steps(shared: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of several files, whose parts come in different steps, keeps all of them."""
    monkeypatch.setattr(reading, "_ROWS_OF_KEYS", 3)
    monkeypatch.setattr(indexing, "_STEP_ROWS", 8)
    for keys in ([*range(0, 60, 2), *range(0, 60, 6)], [0, 2, 58, 59]):
        others = arrow([(key, "f", 0) for key in keys])
        write_deltalake(str(shared.root), others, mode="append", partition_by=["d"])
    assert shared.load([]).read_files == 2
    assert verify(shared.config()).missing == 0
    files = tag(arrow([(key, "", 0) for key in (0, 2, 10, 58, 59, 61)]), shared.config())["files"].to_pylist()
    assert [len(of or ()) for of in files] == [3, 3, 1, 2, 1, 0]
    assert shared.upsert([(0, "c", 0)]).removed_rows == 4


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to install it; other kinds do not need it."""
    for module in ("redis_server", "external"):
        monkeypatch.delitem(sys.modules, f"deduper.table.index.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "redis", None)
    place = Place(tmp_path, "parquet", "{kind: external, options: {url: 'redis://127.0.0.1'}}")
    with pytest.raises(ConfigError, match=r"needs the package redis; pip install 'stream-deduper\[redis\]'"):
        place.config()
    place.index = "exact"
    assert place.load(rows(0, 1)).inserted == 1


def test_tokens() -> None:
    """Which states of the server the list accepts, and for which files."""
    assert [STATE.step_of(token) for token in (STATE.token, STATE.announced, "a" * 16, "b" * 16, "c" * 16)] == [
        *(3, 3, 1, 2, None),
    ]
    assert [file.number for file in STATE.files_up_to(2)] == [4]
    more = STATE.with_files([ServedFile(9, "c", 1, 0, 1, 0, 4)])
    assert (more.token, more.step, more.step_of(STATE.token), len(more.files)) == (STATE.announced, 4, 3, 3)
    fewer = STATE.without({4})
    assert [file.number for file in fewer.files] == [7]
    assert STATE.step_of(fewer.token) is STATE.step_of(fewer.announced) is None
    assert [fewer.step_of(token) for token in (STATE.token, STATE.announced, "a" * 16)] == [3, 3, 1]
    for _ in range(1100):
        more = more.without(set())
    assert len(more.earlier) <= 1001


@pytest.mark.slow
def test_the_committed_state_is_read_and_written(tmp_path: Path) -> None:
    """Version 1, byte for byte; each cut and each flipped bit is found."""
    data = (SAMPLES / "external-state-1.bin").read_bytes()
    (tmp_path / "state").write_bytes(data)
    assert FORM.read(tmp_path / "state") == STATE
    FORM.replace(tmp_path / "state", STATE)
    assert (tmp_path / "state").read_bytes() == data
    wrong = [data[:end] for end in range(len(data))]
    wrong += [data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in range(len(data)) for bit in range(8)]
    for one in wrong:
        (tmp_path / "state").write_bytes(one)
        with pytest.raises((CorruptionError, UnknownFormatError)):
            FORM.read(tmp_path / "state")
