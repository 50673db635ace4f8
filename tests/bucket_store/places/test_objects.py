"""What an object store's answers become, and what a place in one gives beside the contract."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from bucket_store.errors import StorageAwayError, UnsafeStorageError
from bucket_store.places import objects, outages
from bucket_store.places.objects import ObjectNames
from bucket_store.places.open import open_place
from bucket_store.places.place import NotPlacedError, Place, UnansweredError
from bucket_store.places.probe import demand_refusal
from tests.s3_server import new_prefix

_CANARY = "canary-of-a-secret"


class _Scripted:
    """A server with given answers, which repeat parts of the request as real ones do."""

    def __init__(self) -> None:
        self.answers: list[int | None] = []
        self.requests: list[tuple[str, str]] = []
        self.over = Event()
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                script.requests.append((self.command, self.headers.get("If-None-Match", "")))
                status = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
                if status is None:
                    script.over.wait(30)
                    self.close_connection = True
                    return
                body = b"" if status < 300 or self.command == "HEAD" else f"<E>{self.headers}{_CANARY}</E>".encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", '"1"')
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _answer

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Scripted]:
    script = _Scripted()
    for name, value in {
        "AWS_ENDPOINT": f"http://127.0.0.1:{script.server.server_port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": f"{_CANARY}-id",
        "AWS_SECRET_ACCESS_KEY": f"{_CANARY}-key",
        "AWS_SESSION_TOKEN": f"{_CANARY}-token",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(objects, "_clients", {})
    monkeypatch.setattr(objects, "_REQUEST_S", 1)
    monkeypatch.setattr(objects, "_RETRY_S", 0.5)
    monkeypatch.setattr(objects, "_PAUSES_S", (0.01,))
    yield script
    script.close()


@pytest.fixture
def file(script: _Scripted) -> Place:
    return open_place("s3://bucket/store/log/1")


def test_creation_is_conditional(script: _Scripted, file: Place) -> None:
    """Of the storage itself: no look before the put."""
    script.answers = [200]
    file.create(b"1")
    assert script.requests == [("PUT", "*")]


def test_a_taken_name(script: _Scripted, file: Place) -> None:
    """Said after one request."""
    script.answers = [412]
    with pytest.raises(FileExistsError):
        file.create(b"1")
    assert len(script.requests) == 1


def test_a_server_that_ignores_conditions_is_refused(script: _Scripted, file: Place) -> None:
    """Before anything is written that counts."""
    script.answers = [200]
    with pytest.raises(UnsafeStorageError, match=r"If-None-Match.*use Amazon S3"):
        demand_refusal(file.parent)
    assert script.requests[:2] == [("PUT", "*"), ("PUT", "*")]
    assert len(script.requests) == 3  # the last one removes it


def test_a_conflict_is_not_a_taken_name(script: _Scripted, file: Place) -> None:
    """S3's 409 says that another request is under way, not that there is an object: sent again, then unclear."""
    script.answers = [409, 200]
    file.create(b"1")
    script.answers = [409]
    with pytest.raises(OSError, match="409") as caught:
        file.create(b"1")
    assert not isinstance(caught.value, FileExistsError | NotPlacedError | UnansweredError)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refused_creation_is_certainly_not_placed(script: _Scripted, file: Place, status: int) -> None:
    """The storage has read the request and declined it."""
    script.answers = [status]
    with pytest.raises(NotPlacedError):
        file.create(b"1")
    assert len(script.requests) == 1


def test_a_refusal_after_an_unclear_answer_is_unclear(script: _Scripted, file: Place) -> None:
    """The first request may have made the object."""
    script.answers = [500, 403]
    with pytest.raises(OSError, match="credentials") as caught:
        file.create(b"1")
    assert not isinstance(caught.value, FileExistsError | NotPlacedError)


def test_a_taken_name_after_an_unclear_answer(script: _Scripted, file: Place) -> None:
    """May be this call's own: the caller reads it back."""
    script.answers = [503, 412]
    with pytest.raises(FileExistsError):
        file.create(b"1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        lambda file: file.create(b"1"),
        lambda file: file.replace(b"1"),
        lambda file: file.read(),
        lambda file: file.read_range(0, 10),
        lambda file: file.stat(),
        lambda file: file.entries(),
        lambda file: file.remove(),
        lambda file: file.remove_tree(),
        lambda file: file.touch(b"2"),
    ],
)
def test_a_server_that_never_answers(script: _Scripted, file: Place, call: Callable[[Place], object]) -> None:
    """Every call ends, with a TimeoutError."""
    script.answers = [None]
    with pytest.raises(TimeoutError):
        call(file)


@pytest.mark.slow
def test_a_creation_without_an_answer_may_still_happen(script: _Scripted, file: Place) -> None:
    """Though a later try was answered: the server may act on the first one yet."""
    script.answers = [None, 503]
    with pytest.raises(UnansweredError):
        file.create(b"1")


@pytest.mark.slow
def test_a_server_that_is_not_there(script: _Scripted, file: Place) -> None:
    """Nothing was sent, so nothing is placed."""
    script.close()
    with pytest.raises(NotPlacedError, match="cannot be reached"):
        file.create(b"1")
    with pytest.raises(OSError, match="cannot be reached"):
        file.read()


def test_a_job_waits_for_a_server(script: _Scripted, file: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is throttled or away: until it answers, or until the deadline; each request is then sent once a try."""
    monkeypatch.setattr(outages, "_PAUSE_S", 0.01)
    with outages.waiting(30, Event(), RuntimeError):
        script.answers = [503, 500, 429, 200]
        file.create(b"1")
        assert script.requests == [("PUT", "*")] * 4
        script.answers = [503, 503, 200]
        file.replace(b"2")
        assert len(script.requests) == 7
    with outages.waiting(0.1, Event(), RuntimeError):
        script.answers = [503]
        with pytest.raises(StorageAwayError, match="answered 503; waited 0 s; nothing is lost"):
            file.read()
        with pytest.raises(OSError, match="answered 503") as unclear:
            file.create(b"1")
        assert not isinstance(unclear.value, NotPlacedError)


def test_http_must_be_allowed(script: _Scripted, file: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable."""
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(NotPlacedError, match="AWS_ALLOW_HTTP=true"):
        file.create(b"1")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 416, pytest.param(500, marks=pytest.mark.slow)])
def test_no_error_holds_a_secret(script: _Scripted, file: Place, status: int) -> None:
    """Servers repeat headers in their answers; neither an error nor its traceback does."""
    script.answers = [status]
    raised: list[OSError] = []
    for call in (
        lambda: file.create(b"1"),
        lambda: file.replace(b"1"),
        file.read,
        file.stat,
        lambda: file.touch(b"2"),
        file.remove,
    ):
        try:
            call()
        except OSError as exc:
            raised.append(exc)
    assert len(raised) >= 5
    for error in raised:
        assert _CANARY not in "".join(traceback.format_exception(error)) + repr(error)
        assert error.__cause__ is None
        assert _CANARY not in str(error.__context__)
    assert script.requests


@pytest.mark.parametrize(
    "url",
    [
        f"s3://id:{_CANARY}@bucket/prefix",
        f"s3://{_CANARY}@bucket/prefix",
        f"gs://bucket/prefix?key={_CANARY}",
        f"az://container/prefix#{_CANARY}",
        f"s3://bucket:{_CANARY}/prefix",
        "s3:///prefix",
    ],
)
def test_a_url_holds_bucket_and_prefix_only(url: str) -> None:
    """The refusal does not repeat it."""
    with pytest.raises(ValueError, match="//BUCKET/PREFIX") as caught:
        open_place(url)
    assert _CANARY not in str(caught.value)


_FORKED = """
import os, sys
from bucket_store.places.open import open_place
place = open_place(sys.argv[1])
place.entries()
child = os.fork()
if child == 0:
    try:
        place.entries()
    except OSError as exc:
        print(exc, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_child_of_a_process_that_used_it_gets_an_error(tmp_path: Path) -> None:
    """Its calls would never return."""
    command = [sys.executable, "-c", _FORKED, f"objects:{tmp_path}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "before it forked this one" in said


def test_a_forked_child_may_be_the_first(tmp_path: Path) -> None:
    """A parent that has only imported it harms nobody."""
    (tmp_path / "one").write_bytes(b"1")
    code = _FORKED.replace("place.entries()\nchild", "child").replace(
        "        place.entries()", "        print(place.entries(), flush=True)"
    )
    command = [sys.executable, "-c", code, f"objects:{tmp_path}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "'one'" in said


@pytest.mark.services
def test_one_of_all_racers_replaces_a_version(s3_bucket: str) -> None:
    """The others find another one; its bytes are the winner's."""
    place = open_place(new_prefix(s3_bucket)) / "mark"
    names = place.names
    assert isinstance(names, ObjectNames)
    place.create(b"first")
    with ThreadPoolExecutor(8) as pool:
        for _ in range(25):
            _, version = names.read_version(place.path)

            def race(racer: int, version: object = version) -> int | None:
                try:
                    names.replace_version(place.path, os.urandom(8) + bytes([racer]), version)  # type: ignore[arg-type]
                except FileExistsError:
                    return None
                return racer

            winners = [racer for racer in pool.map(race, range(8)) if racer is not None]
            assert len(winners) == 1
            assert place.read()[8] == winners[0]


@pytest.fixture(params=["objects", pytest.param("s3", marks=pytest.mark.services)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    url = f"objects:{tmp_path}" if request.param == "objects" else new_prefix(request.getfixturevalue("s3_bucket"))
    return open_place(url)


@pytest.mark.parametrize("before", [b"before", None])
def test_what_was_prepared_is_put_in_place_once(root: Place, before: bytes | None) -> None:
    """And not over what was put there meanwhile, nor over what was put first."""
    assert isinstance(root.names, ObjectNames)
    mark = root / "published"
    if before is not None:
        mark.replace(before)
    first, second = (root.names.prepare(mark.path, data, epoch=1) for data in (b"first", b"second"))
    first.put()
    assert mark.read() == b"first"
    with pytest.raises(FileNotFoundError):
        second.put()
    assert mark.read() == b"first"


def test_names_after_another(root: Place) -> None:
    """In order, each once, directories too."""
    assert isinstance(root.names, ObjectNames)
    for name in ("log/2", "log/10", "log/1", "log/3/deep", "log/3/er"):
        (root / name).create(b"")
    path = (root / "log").path
    assert root.names.listed(path) == ["1", "10", "2", "3"]
    assert root.names.listed(path, after="10") == ["2", "3"]
    assert root.names.listed(path, after="3") == []
    assert root.names.listed((root / "absent").path, after="3") == []
    assert [root.names.exists((root / name).path) for name in ("log/2", "log/3", "log/4", "lo")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.services
@pytest.mark.parametrize(
    ("bucket", "what"), [("if-none-match", "a name that is taken"), ("if-match", "what has changed")]
)
def test_an_emulator_that_ignores_a_condition_is_refused(s3_bucket: str, bucket: str, what: str) -> None:
    """Each of the two that one owner rests on; the probe is removed."""
    store = open_place(new_prefix(f"s3://{bucket}"))
    with pytest.raises(UnsafeStorageError, match=what):
        demand_refusal(store)
    assert store.entries() == []
