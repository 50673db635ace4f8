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
from deduper.table.change.rollback import rollback
from deduper.table.errors import IndexServerError, ServerRefusedError
from deduper.table.index.external import server as served
from deduper.table.index.external import tls
from deduper.table.index.protocol import Condition
from deduper.table.query.filter import filter_exists
from deduper.table.query.read import read
from deduper.table.query.tag import tag
from deduper.table.settings import load_config
from deduper.table.upkeep.rebuild import rebuild
from deduper.table.upkeep.status import table_status
from deduper.table.upkeep.verify import verify
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


@pytest.fixture(autouse=True)
def _servers_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """To say what they refuse, however busy this machine is: after a second without a word no reason is known."""
    monkeypatch.setattr(tls, "_ALERT_S", 30.0)


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


def refused(place: Place, what: str) -> None:
    """A load, an upsert and a question fail for a reason, and nothing is written."""
    folder = sorted(place.root.parent.rglob("*"))
    config = place.config()
    asks: tuple[Callable[[], object], ...] = (
        lambda: place.load(rows(0, 4)),
        lambda: place.upsert(rows(0, 4)),
        lambda: filter_exists(arrow(rows(0, 4)), config),
    )
    for ask in asks:
        with pytest.raises(ServerRefusedError, match=what) as caught:
            ask()
        assert caught.value.exit_code is ExitCode.USAGE
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
    assert place.load(rows(0, 10)).new == 10
    assert filter_exists(arrow(rows(8, 12)), place.config()).to_pylist() == [False, False, True, True]
    assert place.upsert(rows(5, 15), "keep_versions: 3\n").updated == 5
    assert place.delete(rows(0, 2), "keep_versions: 3\n").deleted == 2
    assert [len(files or ()) for files in tag(arrow(rows(0, 3)), place.config())["files"].to_pylist()] == [0, 0, 1]
    assert read(arrow(rows(0, 3)), place.config()).num_rows == 1
    assert verify(place.config()).is_sound
    assert rollback(place.config("keep_versions: 3\n"), 1).began_anew is None
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
    """Those of a reader; a write says which it lacks, and writes nothing."""
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
        with pytest.raises(ServerRefusedError, match=r"ACL SETUSER`: ~dd:\* .*\+mset .*\+watch"):
            write(rows(0, 6))
    assert len(place.rows()) == 4
    place.index = index(secured.url, "asks", password="wrong", **own_files(certificates))
    status = table_status(place.config()).index
    assert (status.state, "refuses the login" in (status.why or "")) == (Condition.AWAY, True)


def test_the_command(secured: RedisServer, certificates: Path, tmp_path: Path) -> None:
    """Ends with 2 and one message, without secrets and a trace."""
    (tmp_path / "in").mkdir()
    pq.write_table(arrow(rows(0, 4)), tmp_path / "in/a.parquet")
    files = own_files(certificates) | {"ca_file": certificates / "other-ca.pem"}
    place = Place(tmp_path, "delta", index(secured.url.replace("//", f"//{USER}:{PASSWORD}@"), **files))
    place.config()
    done = command("table", "load", str(tmp_path / "place.yaml"))
    assert done.returncode == ExitCode.USAGE
    shown = done.stdout + done.stderr
    assert "name the file with the certificate of the authority that signed it as `ca_file`" in " ".join(shown.split())
    assert PASSWORD not in shown
    assert "Traceback" not in shown
    assert place.rows() == []


@pytest.mark.night(but=["~dd:*", "+mset", "+info"])
@pytest.mark.parametrize("right", granted(USER))
def test_each_right_that_lacks(right: str, secured: RedisServer, certificates: Path, tmp_path: Path) -> None:
    """Is named before anything is written."""
    few = [one for one in granted(USER) if one != right]
    secured.client.execute_command("ACL", "SETUSER", "few", "reset", "on", f">{PASSWORD}", *few)
    place = Place(tmp_path, "delta", index(secured.url, "few", password=PASSWORD, **own_files(certificates)))
    place.config()
    with pytest.raises(ServerRefusedError, match=r"ACL SETUSER") as caught:
        place.load(rows(0, 4))
    assert right in str(caught.value) or (right == "+info" and "'info'" in str(caught.value))
    assert place.rows() == []
    assert not list(place.root.rglob("*.parquet"))


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({}, r"not trusted \(.*certificate.*\); name .* as `ca_file`"),
        ({"ca_file": "other-ca.pem"}, r"not trusted .* as `ca_file`"),
        ({"ca_file": "ca.pem"}, r"requires a client's certificate; set `certificate_file` and `key_file`"),
        ({"ca_file": "absent.pem"}, r"`ca_file` .*absent.pem cannot be read: No such file .*; correct the path"),
        ({"ca_file": "ca.key"}, r"`ca_file` .*ca.key has no certificate; name a PEM file of authorities"),
        (
            {"ca_file": "ca.pem", "certificate_file": "stranger.crt", "key_file": "stranger.key"},
            r"refuses the client's certificate, whose authority it does not have; name another `certificate_file`",
        ),
        (
            {"ca_file": "ca.pem", "certificate_file": "expired-client.crt", "key_file": "expired-client.key"},
            r"refuses the client's certificate, which has expired; renew `certificate_file`",
        ),
        (
            {"certificate_file": "deduper.crt", "key_file": "stranger.key"},
            r"`key_file` .*stranger.key is not the key of .*deduper.crt; name the two files of one certificate",
        ),
        (
            {"certificate_file": "deduper.crt", "key_file": "encrypted.key"},
            r"`key_file` .*encrypted.key is encrypted; correct `key_password`",
        ),
        (
            {"certificate_file": "deduper.crt", "key_file": "encrypted.key", "key_password": "wrong"},
            r"is encrypted with another password; correct `key_password`",
        ),
        ({"certificate_file": "deduper.crt"}, r"`certificate_file` .* is no certificate with its key; name PEM files"),
        ({"certificate_file": "deduper.crt", "key_file": "ca.pem"}, r"are no key and certificate; name PEM files"),
    ],
)
def test_files_that_do_not_fit(
    given: Mapping[str, str], what: str, secured: RedisServer, certificates: Path, tmp_path: Path
) -> None:
    """Each says which option to correct."""
    options = {name: certificates / value if name.endswith("_file") else value for name, value in given.items()}
    refused(Place(tmp_path, "delta", index(secured.url, USER, password=PASSWORD, **options)), what)


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
        refused(place, r"has a certificate that has expired; renew it on the server")
    with RedisServer(tmp_path / "redis", tls=Tls(certificates, "deduper")) as server:
        place = Place(tmp_path, "delta", index(server.url, ca_file=certificates / "ca.pem"))
        refused(place, r"for other names than the URL's host; write a `url` with a name|not trusted")


def test_plain_text_and_tls(
    secured: RedisServer, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the wrong one of both it is said which to write."""
    refused(
        Place(tmp_path, "delta", index(secured.url.replace("rediss", "redis"))), r"speaks TLS .*; write `rediss://`"
    )
    monkeypatch.setattr(served, "_CALL_S", 0.2)  # it waits for more of the handshake
    monkeypatch.setattr(served, "_RETRIES", 0)
    swapped = index(redis_server.url.replace("redis", "rediss"))
    refused(Place(tmp_path, "delta", swapped), r"answers without TLS .*; write `redis://`, or the port of TLS")


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
        assert place.load(rows(2, 6)).new == 2
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
