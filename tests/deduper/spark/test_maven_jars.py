"""Jars come whole and checked, or not at all. The repository is a folder of this machine, and Ivy a stand-in."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deduper.cli.main import app
from deduper.errors import CheckFailedError, DeduperError
from deduper.spark import kafka_jars
from deduper.spark.home import RELEASE
from deduper.spark.kafka_jars import connector_jars, default_folder
from deduper.spark.maven_jars import Jar, fetch_jars
from tests.ports import free_port
from tests.services.jars import BROKER_JARS, KAFKA_VERSION

ROOT = Path(__file__).parents[3]


@pytest.fixture
def jars(tmp_path: Path) -> list[Jar]:
    """Two artifacts, which the folder `repository` has."""
    made = []
    for name in ("one", "two"):
        data = name.encode() * 1000
        jar = Jar(hashlib.sha256(data).hexdigest(), "org.example.jars", name, "1.0")
        file = tmp_path / "repository" / jar.path
        file.parent.mkdir(parents=True)
        file.write_bytes(data)
        made.append(jar)
    return made


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The address of the repository."""
    return (tmp_path / "repository").as_uri()


def names(folder: Path) -> list[str]:
    """All that is in a folder."""
    return sorted(path.name for path in folder.iterdir())


def test_jars_are_fetched_once(jars: list[Jar], url: str, tmp_path: Path) -> None:
    """The second time nothing is asked of the repository; nothing but the jars remains in the folder."""
    folder = tmp_path / "some" / "jars"
    assert fetch_jars(jars, folder, url) == jars
    shutil.rmtree(tmp_path / "repository")
    assert fetch_jars(jars, folder, url) == []
    assert names(folder) == ["one-1.0.jar", "two-1.0.jar"]
    assert (folder / "two-1.0.jar").read_bytes() == b"two" * 1000


@pytest.mark.parametrize("damage", [lambda jar: jar.write_bytes(b"two" * 999), lambda jar: jar.unlink()])
def test_only_what_is_wrong_is_fetched_again(
    jars: list[Jar], url: str, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    """A jar that is short or absent, as after a fetch that was interrupted; the others stay."""
    fetch_jars(jars, tmp_path / "jars", url)
    damage(tmp_path / "jars" / "two-1.0.jar")
    (tmp_path / "jars" / ".fetching").mkdir()
    (tmp_path / "jars" / ".fetching" / "two-1.0.jar").write_bytes(b"tw")
    assert fetch_jars(jars, tmp_path / "jars", url) == [jars[1]]
    assert (tmp_path / "jars" / "two-1.0.jar").read_bytes() == b"two" * 1000
    assert names(tmp_path / "jars") == ["one-1.0.jar", "two-1.0.jar"]


def test_other_bytes_than_the_known_ones_are_refused(jars: list[Jar], url: str, tmp_path: Path) -> None:
    """The error names the jar; its bytes are nowhere, and the jar that was there before stays."""
    folder = tmp_path / "jars"
    fetch_jars(jars[:1], folder, url)
    (tmp_path / "repository" / jars[1].path).write_bytes(b"something else")
    with pytest.raises(CheckFailedError, match=rf"two-1\.0\.jar.*{jars[1].sha256}") as refused:
        fetch_jars(jars, folder, url)
    assert refused.value.exit_code == 3
    assert names(folder) == ["one-1.0.jar"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of the repository over HTTP."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "repository")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def test_a_repository_over_http(jars: list[Jar], served: str, tmp_path: Path) -> None:
    """A jar that it lacks is named; the one that was fetched before stays, and the next try fetches the other."""
    file = tmp_path / "repository" / jars[1].path
    file.rename(tmp_path / "away")
    with pytest.raises(DeduperError, match=r"two-1\.0\.jar: .*File not found"):
        fetch_jars(jars, tmp_path / "jars", served)
    (tmp_path / "away").rename(file)
    assert fetch_jars(jars, tmp_path / "jars", served) == [jars[1]]


@pytest.mark.parametrize("url", ["http://somebody:hunter2@127.0.0.1:9/x", "hunter2", "http://hunter2:x/"])
def test_an_address_is_not_shown(jars: list[Jar], url: str, tmp_path: Path) -> None:
    """It may hold a login."""
    with pytest.raises(DeduperError, match=r"one-1\.0\.jar: the repository of --repository") as failed:
        fetch_jars(jars, tmp_path / "jars", url)
    assert "hunter2" not in str(failed.value)


IVY = """\
#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "17.0.1"' >&2; exit; fi
echo "$@" > "$IVY_ARGUMENTS"
grep -o 'name="[a-z]*" rev="[0-9.]*" transitive="false"' ivy.xml | cut -d '"' -f 2 | while read -r name; do
  cp "$IVY_REPOSITORY/$name.jar" "$name-1.0.jar" || { echo "Server access error at url x ($IVY_SAYS)"; exit 1; }
done
"""


@pytest.fixture
def ivy(jars: list[Jar], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that does what Ivy would; the folder of its jars."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(IVY, encoding="ascii")
    java.chmod(0o755)
    for jar in jars:
        shutil.copy(tmp_path / "repository" / jar.path, tmp_path / f"{jar.artifact}.jar")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("IVY_ARGUMENTS", str(tmp_path / "arguments"))
    monkeypatch.setenv("IVY_REPOSITORY", str(tmp_path))
    return tmp_path


def test_a_repository_that_does_not_answer(jars: list[Jar], tmp_path: Path) -> None:
    """The reason in words, and what to do."""
    message = (
        r"one-1\.0\.jar: the repository of --repository or DEDUPER_MAVEN_URL does not give it: "
        r"Connection refused; correct the address, or see that the repository answers$"
    )
    with pytest.raises(DeduperError, match=message):
        fetch_jars(jars, tmp_path / "jars", f"http://127.0.0.1:{free_port()}")


def test_without_a_repository_ivy_fetches(jars: list[Jar], ivy: Path) -> None:
    """PySpark's own, with no more than the list."""
    assert fetch_jars(jars, ivy / "[jars]") == jars
    assert names(ivy / "[jars]") == ["one-1.0.jar", "two-1.0.jar"]
    assert re.search(r"-cp \S+/pyspark/jars/ivy-\S+\.jar org\.apache\.ivy\.Main ", (ivy / "arguments").read_text())


def test_what_ivy_does_not_find_is_named(jars: list[Jar], ivy: Path) -> None:
    """One line, with what to do."""
    (ivy / "two.jar").unlink()
    with pytest.raises(DeduperError, match=r"^Ivy cannot fetch two-1\.0\.jar .*; name a repository .*$"):
        fetch_jars(jars, ivy / "jars")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("java.net.ConnectException: Connection refused", "ConnectException: Connection refused; name"),
        ("java.net.UnknownHostException: repository", "UnknownHostException: repository; name"),
        (
            "javax.net.ssl.SSLHandshakeException: PKIX path building failed: unable to find",
            "SSLHandshakeException: PKIX path building failed: unable to find (Java does not trust the certificate: "
            "JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=FILE names others); name",
        ),
    ],
)
def test_why_ivy_fails_is_said(
    jars: list[Jar], ivy: Path, monkeypatch: pytest.MonkeyPatch, said: str, reason: str
) -> None:
    """Its own words for the first address."""
    (ivy / "two.jar").unlink()
    monkeypatch.setenv("IVY_SAYS", said)
    with pytest.raises(DeduperError, match=re.escape(f"two-1.0.jar from Maven Central: {reason} a repository")):
        fetch_jars(jars, ivy / "jars")


@pytest.mark.slow
def test_several_at_once_share_one_fetch(jars: list[Jar], url: str, tmp_path: Path) -> None:
    """Four processes fetch into the same folder: each gets whole jars, one has fetched them."""
    code = f"""\
from pathlib import Path
from deduper.spark.maven_jars import Jar, fetch_jars
print(len(fetch_jars({jars!r}, Path({str(tmp_path / "jars")!r}), {url!r})))
"""
    runs = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    printed = sorted(run.communicate(timeout=60)[0] for run in runs)
    assert printed == ["0\n", "0\n", "0\n", "2\n"]


def test_the_lists_are_whole() -> None:
    """Every line is, no artifact is there twice, and the versions are those that the code names."""
    for listed, main in (
        (BROKER_JARS, f"kafka_2.13-{KAFKA_VERSION}.jar"),
        (connector_jars(), f"spark-sql-kafka-0-10_2.13-{RELEASE}.jar"),
    ):
        assert main in [jar.file_name for jar in listed]
        assert len({(jar.group, jar.artifact) for jar in listed}) == len(listed)
        assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) for jar in listed)


def test_pyspark_is_pinned_to_the_release_of_the_connector() -> None:
    """In the extra by which environments and the image are made; the image fetches that connector."""
    pinned = re.findall(r'"(pyspark[<>=~!][^"]*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert pinned == ["pyspark>=3.5,<5", f"pyspark=={RELEASE}"]
    locked = re.findall(r"^pyspark==(\S+)", (ROOT / "deploy" / "requirements.txt").read_text(), re.MULTILINE)
    assert locked == [RELEASE]
    image = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    final = image.rpartition("\nFROM ")[2]
    # With the Java that fetches them.
    steps = ["openjdk-17-jre-headless", "COPY --from=build /opt/deduper ", "DEDUPER_SPARK_JARS=/opt/connector "]
    places = [final.find(step) for step in (*steps, "RUN deduper jars --into /opt/connector\n", "USER 10001")]
    assert -1 not in places
    assert places == sorted(places)


@pytest.fixture
def connector(jars: list[Jar], monkeypatch: pytest.MonkeyPatch) -> None:
    """The two artifacts count as the connector's."""
    monkeypatch.setattr(kafka_jars, "connector_jars", lambda: jars)


@pytest.mark.usefixtures("connector")
def test_the_command(url: str, tmp_path: Path) -> None:
    """Text and JSON; the folder's variable is named; the repository may come from the environment."""
    folder = tmp_path / "jars"
    told = CliRunner().invoke(app, ["jars", "--into", str(folder), "--repository", url])
    assert (told.exit_code, f"DEDUPER_SPARK_JARS={folder}" in told.stdout) == (0, True), told.output
    answer = CliRunner().invoke(app, ["jars", "--into", str(folder), "--json"], env={"DEDUPER_MAVEN_URL": "file:///no"})
    assert json.loads(answer.stdout) == {
        "folder": str(folder),
        "jars": ["one-1.0.jar", "two-1.0.jar"],
        "fetched": [],
    }
    (folder / "two-1.0.jar").unlink()
    failed = CliRunner().invoke(app, ["jars", "--into", str(folder)], env={"DEDUPER_MAVEN_URL": "file:///no"})
    assert (failed.exit_code, failed.stderr.count("\n")) == (1, 1), failed.output


@pytest.mark.usefixtures("connector")
def test_without_into_they_are_where_run_looks(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing has to be set."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = CliRunner().invoke(app, ["jars", "--repository", url])
    assert (done.exit_code, "DEDUPER_SPARK_JARS" in done.stdout) == (0, False), done.output
    folder = default_folder()
    assert folder is not None
    assert names(folder) == ["one-1.0.jar", "two-1.0.jar"]
