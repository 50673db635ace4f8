"""The external index over TLS and as a user with few rights, on a real server; what is refused, and no secret shown."""

from __future__ import annotations

import json
import logging
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from deduper.config.problems import ConfigError
from deduper.errors import ExitCode
from deduper.table.errors import IndexServerError, ServerRefusedError, TableError
from deduper.table.index import redis_server as served
from deduper.table.index.protocol import Condition
from deduper.table.operations.questions import filter_exists, read, tag
from deduper.table.operations.rollback import rollback
from deduper.table.operations.upkeep import rebuild, table_status
from deduper.table.operations.verify import verify
from deduper.table.settings import load_config
from tests.deduper.table.scene import Place, Row, arrow
from tests.forked import ROOT, command
from tests.services.certificates import make_certificates, make_expired
from tests.services.redis_server import RedisServer, Tls

pytestmark = [pytest.mark.services, pytest.mark.night]
USER, PASSWORD, KEY_PASSWORD = "loads", "open-sesame-9", "key-word-7"
TABLES = ROOT / "docs/tables.md"


def granted(name: str) -> list[str]:
    """The rights of a user in the documentation."""
    found = re.search(rf"^ACL SETUSER {name} on >PASSWORD (.*)$", TABLES.read_text(encoding="utf-8"), re.M)
    assert found is not None
    return found[1].split()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of a test run, the expired ones, and an encrypted key."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    make_expired(folder)
    options = ["-aes256", "-passout", f"pass:{KEY_PASSWORD}"]
    files = ["-in", str(folder / "deduper.key"), "-out", str(folder / "encrypted.key")]
    subprocess.run(["openssl", "pkey", *files, *options], check=True)
    return folder


@pytest.fixture(scope="module")
def secured(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server with TLS that asks clients for a certificate; its user has the rights of the documentation."""
    with RedisServer(tmp_path_factory.mktemp("redis"), tls=Tls(certificates, clients="yes")) as server:
        server.client.execute_command("ACL", "SETUSER", USER, "on", f">{PASSWORD}", *granted(USER))
        yield server


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No log of the test, at any level, has a secret."""
    with caplog.at_level(logging.DEBUG):
        yield
    for secret in (PASSWORD, KEY_PASSWORD):
        assert secret not in caplog.text


def index(url: str, user: str | None = None, **options: object) -> str:
    """The setting `index`, as YAML."""
    login = url if user is None else url.replace("//", f"//{user}@")
    return f"{{kind: external, options: {json.dumps({'url': login, **options}, default=str)}}}"


def own_files(certificates: Path, name: str = "deduper") -> dict[str, object]:
    """The files of a client."""
    return {
        "ca_file": certificates / "ca.pem",
        "certificate_file": certificates / f"{name}.crt",
        "key_file": certificates / f"{name}.key",
    }


def rows(first: int, end: int) -> list[Row]:
    """Rows with these keys on two days."""
    return [(key, "b", key % 2) for key in range(first, end)]


def refused(place: Place, what: str, kind: type[TableError] = ServerRefusedError) -> None:
    """A load, an upsert and a question fail for a reason, and nothing is written."""
    folder = sorted(place.root.parent.rglob("*"))
    config = place.config()
    asks: tuple[Callable[[], object], ...] = (
        lambda: place.load(rows(0, 4)),
        lambda: place.upsert(rows(0, 4)),
        lambda: filter_exists(arrow(rows(0, 4)), config),
    )
    for ask in asks:
        with pytest.raises(kind, match=what) as caught:
            ask()
        assert not {PASSWORD, KEY_PASSWORD} & set(re.findall(r"[\w-]+", str(caught.value)))
    assert place.rows() == []
    assert place.leftovers() == []
    new = {path.name for path in place.root.parent.rglob("*") if path not in folder and path.suffix == ".parquet"}
    assert not new


@pytest.mark.usefixtures("logged")
def test_all_commands_with_few_rights(
    secured: RedisServer, certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With those that the documentation names: none was refused, and nothing but entries is on the server."""
    secured.client.flushall()
    secured.client.acl_log_reset()
    given = own_files(certificates) | {"key_file": certificates / "encrypted.key", "key_password": KEY_PASSWORD}
    place = Place(tmp_path, "delta", index(secured.url, USER, password=PASSWORD, **given))
    assert place.load(rows(0, 10)).inserted == 10
    assert filter_exists(arrow(rows(8, 12)), place.config()).to_pylist() == [False, False, True, True]
    assert place.upsert(rows(5, 15)).updated == 5
    assert place.delete(rows(0, 2)).deleted == 2
    assert [len(files or ()) for files in tag(arrow(rows(0, 3)), place.config())["files"].to_pylist()] == [0, 0, 1]
    assert read(arrow(rows(0, 3)), place.config()).num_rows == 1
    assert verify(place.config()).is_sound
    assert rollback(place.config(), 1).began_anew is None
    assert place.load(rows(0, 15)).found == 15
    assert rebuild(place.config()).keys == 15
    status = table_status(place.config()).index
    assert (status.state, status.keys) == (Condition.PRESENT, 15)
    assert verify(place.config()).is_sound
    assert secured.client.acl_log() == []
    assert "the index lacks it" not in caplog.text
    assert all(key.startswith(b"dd:") for key in secured.client.scan_iter())
    config = place.config()
    assert PASSWORD not in repr(config) + str(config)
    assert KEY_PASSWORD not in repr(config) + str(config)
    assert b"no permissions" in secured.client.execute_command("ACL", "DRYRUN", USER, "FLUSHALL")


@pytest.mark.usefixtures("logged")
def test_questions_need_fewer_rights(secured: RedisServer, certificates: Path, tmp_path: Path) -> None:
    """Those of a reader; a write says that it lacks one, and writes nothing."""
    place = Place(tmp_path, "delta", index(secured.url, USER, password=PASSWORD, **own_files(certificates)))
    place.load(rows(0, 4))
    secured.client.execute_command("ACL", "SETUSER", "asks", "on", f">{PASSWORD}", *granted("asks"))
    secured.client.acl_log_reset()
    place.index = index(secured.url, "asks", password=PASSWORD, **own_files(certificates))
    assert filter_exists(arrow(rows(2, 6)), place.config()).to_pylist() == [False, False, True, True]
    assert tag(arrow(rows(0, 3)), place.config()).num_rows == 3
    assert verify(place.config()).is_sound
    assert table_status(place.config()).index.state is Condition.PRESENT
    assert secured.client.acl_log() == []
    for write in (place.load, place.upsert):
        with pytest.raises(ServerRefusedError, match=r"refuses a command: .*; grant the right with `ACL SETUSER`"):
            write(rows(0, 6))
    assert len(place.rows()) == 4
    place.index = index(secured.url, "asks", password="wrong", **own_files(certificates))
    status = table_status(place.config()).index
    assert (status.state, "refuses the login" in (status.why or "")) == (Condition.AWAY, True)


def test_the_command(secured: RedisServer, certificates: Path, tmp_path: Path) -> None:
    """Ends with 1 and one message, without secrets and a trace."""
    (tmp_path / "in").mkdir()
    pq.write_table(arrow(rows(0, 4)), tmp_path / "in/a.parquet")
    files = own_files(certificates) | {"ca_file": certificates / "other-ca.pem"}
    place = Place(tmp_path, "delta", index(secured.url.replace("//", f"//{USER}:{PASSWORD}@"), **files))
    place.config()
    done = command("table", "load", str(tmp_path / "place.yaml"))
    assert done.returncode == ExitCode.FAILED
    shown = done.stdout + done.stderr
    assert "certificate verify failed" in shown
    assert "check that the server runs, and `url` (`ca_file`, `certificate_file`)" in " ".join(shown.split())
    assert PASSWORD not in shown
    assert "Traceback" not in shown
    assert place.rows() == []


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"ca_file": "absent.pem"}, r"`ca_file` .*absent.pem cannot be used: .*No such file"),
        ({"ca_file": "ca.key"}, r"`ca_file` .*ca.key cannot be used: "),
        ({"certificate_file": "deduper.crt", "key_file": "stranger.key"}, r"`key_file` .*stranger.key .*mismatch"),
        ({"certificate_file": "deduper.crt", "key_file": "encrypted.key"}, r"`key_file` .*needs `key_password`"),
        (
            {"certificate_file": "deduper.crt", "key_file": "encrypted.key", "key_password": "wrong"},
            r"`key_file` .*encrypted.key cannot be used: ",
        ),
        ({"certificate_file": "deduper.crt"}, r"`certificate_file` .*deduper.crt cannot be used: "),
        ({"certificate_file": "deduper.crt", "key_file": "ca.pem"}, r"`key_file` .*ca.pem cannot be used: "),
    ],
)
def test_files_that_do_not_fit(given: Mapping[str, str], what: str, certificates: Path, tmp_path: Path) -> None:
    """Each is a mistake in the configuration, with its place, before a server is asked."""
    options = {name: certificates / value if name.endswith("_file") else value for name, value in given.items()}
    place = Place(tmp_path, "delta", index("rediss://127.0.0.1:1", USER, password=PASSWORD, **options))
    with pytest.raises(ConfigError, match=rf"place.yaml:7:\d+: index.options: {what}") as caught:
        place.config()
    assert PASSWORD not in str(caught.value)


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"ca_file": "other-ca.pem"},
        {"ca_file": "ca.pem"},
        {"ca_file": "ca.pem", "certificate_file": "stranger.crt", "key_file": "stranger.key"},
        {"ca_file": "ca.pem", "certificate_file": "expired-client.crt", "key_file": "expired-client.key"},
    ],
)
def test_handshakes_that_fail(
    given: Mapping[str, str], secured: RedisServer, certificates: Path, tmp_path: Path
) -> None:
    """The client's words for what the server refuses, and the options to look at; nothing is written."""
    options = {name: certificates / value for name, value in given.items()}
    place = Place(tmp_path, "delta", index(secured.url, USER, password=PASSWORD, **options))
    refused(place, r"check that the server runs, and `url` \(`ca_file`, `certificate_file`\)", IndexServerError)


@pytest.mark.usefixtures("logged")
def test_logins_that_do_not_fit(secured: RedisServer, certificates: Path, tmp_path: Path) -> None:
    """Another password, none, a user that is off: what to correct."""
    login = r"refuses the login: .*; correct the user in `url`, or `password`"
    for user, options in ((USER, {"password": "wrong"}), ("nobody", {"password": PASSWORD})):
        refused(Place(tmp_path, "delta", index(secured.url, user, **options, **own_files(certificates))), login)
    with_login = secured.url.replace("//", f"//{USER}:wrong@")
    refused(Place(tmp_path, "delta", index(with_login, **own_files(certificates))), login)
    secured.client.execute_command("ACL", "SETUSER", "off", "off", f">{PASSWORD}")
    refused(Place(tmp_path, "delta", index(secured.url, "off", password=PASSWORD, **own_files(certificates))), login)


def test_an_expired_server(certificates: Path, tmp_path: Path) -> None:
    """And one of another name."""
    with RedisServer(tmp_path / "redis", tls=Tls(certificates, "expired-server")) as server:
        place = Place(tmp_path, "delta", index(server.url, ca_file=certificates / "ca.pem"))
        refused(place, "certificate has expired", IndexServerError)
    with RedisServer(tmp_path / "redis", tls=Tls(certificates, "deduper")) as server:
        place = Place(tmp_path, "delta", index(server.url, ca_file=certificates / "ca.pem"))
        refused(place, "certificate is not valid|verify failed", IndexServerError)


def test_plain_text_and_tls(
    secured: RedisServer, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the wrong one of both, the message names the URL."""
    monkeypatch.setattr(served, "_CALL_S", 0.2)  # it waits for more of the handshake
    monkeypatch.setattr(served, "_RETRIES", 0)
    in_plain = index(secured.url.replace("rediss", "redis"))
    refused(Place(tmp_path, "delta", in_plain), "`url` \\(`rediss://` for TLS\\)", IndexServerError)
    in_tls = index(redis_server.url.replace("redis", "rediss"))
    refused(Place(tmp_path, "delta", in_tls), "check that the server runs, and `url`", IndexServerError)


@pytest.mark.usefixtures("logged")
def test_a_server_that_goes(certificates: Path, tmp_path: Path) -> None:
    """Is away, as one without TLS is; when it is back, loads go on."""
    with RedisServer(tmp_path / "redis", tls=Tls(certificates, clients="yes"), persists=True) as server:
        place = Place(tmp_path, "delta", index(server.url, **own_files(certificates)))
        place.load(rows(0, 4))
        server.daemon.kill()
        with pytest.raises(IndexServerError, match=rf"{server.port}.*refused") as away:
            place.load(rows(2, 6))
        assert away.value.exit_code is not ExitCode.USAGE
        assert table_status(place.config()).index.state is Condition.AWAY
        server.start()
        assert place.load(rows(2, 6)).inserted == 2
        assert verify(place.config()).is_sound


def test_a_secret_of_the_environment(secured: RedisServer, certificates: Path, tmp_path: Path) -> None:
    """`${NAME}`, as in every configuration; an absent one is a mistake with its place."""
    (tmp_path / "in").mkdir()
    pq.write_table(arrow([]), tmp_path / "in/a.parquet")
    place = Place(tmp_path, "delta", index(secured.url, USER, password="${WORD}", **own_files(certificates)))
    with pytest.raises(ConfigError, match="WORD"):
        place.config()
    loaded = load_config(tmp_path / "place.yaml", environment={"WORD": PASSWORD})
    assert filter_exists(arrow(rows(0, 2)), loaded).to_pylist() == [True, True]
    assert PASSWORD not in repr(loaded) + str(loaded.config)
