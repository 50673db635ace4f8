"""Jars come whole and checked, or not at all. No network: the repository is a directory, and Maven is not asked."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services import jars
from tests.services.jars import Jar, JarsMissing

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list of two artifacts, and a repository that has them."""
    lines = ["# two of them\n"]
    for name in ("one", "two"):
        data = name.encode() * 1000
        jar = Jar(hashlib.sha256(data).hexdigest(), "org.example.jars", name, "1.0")
        file = tmp_path / "repository" / jar.path
        file.parent.mkdir(parents=True)
        file.write_bytes(data)
        lines.append(f"{jar.sha256} {jar.group}:{jar.artifact}:{jar.version}\n")
    path = tmp_path / "list.txt"
    path.write_text("".join(lines), encoding="ascii")
    monkeypatch.setenv(jars.URL_VARIABLE, (tmp_path / "repository").as_uri())
    return path


def test_jars_are_fetched_once(listing: Path, tmp_path: Path) -> None:
    """The second time nothing is asked of the repository, and nothing but the jars lies in the folder."""
    directory = tmp_path / "cache" / "jars-1"
    paths = jars.jars_of(listing, directory)
    assert [path.name for path in paths] == ["one-1.0.jar", "two-1.0.jar"]
    assert paths[1].read_bytes() == b"two" * 1000
    (tmp_path / "repository").rename(tmp_path / "gone")
    assert jars.jars_of(listing, directory) == paths
    assert sorted(directory.iterdir()) == paths
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == ["jars-1"]


@pytest.mark.parametrize("damage", [lambda jar: jar.write_bytes(b"two" * 999), lambda jar: jar.unlink()])
def test_a_damaged_cache_is_rebuilt(listing: Path, tmp_path: Path, damage: object) -> None:
    """A jar that is short or absent is noticed and fetched again."""
    directory = tmp_path / "jars-1"
    _, two = jars.jars_of(listing, directory)
    damage(two)  # type: ignore[operator]
    jars.jars_of(listing, directory)
    assert two.read_bytes() == b"two" * 1000


def test_other_bytes_than_the_known_ones_are_refused(listing: Path, tmp_path: Path) -> None:
    """A repository with another jar of the same name gives an error that names it, and no folder."""
    next((tmp_path / "repository").rglob("two-1.0.jar")).write_bytes(b"something else")
    with pytest.raises(JarsMissing, match=r"two-1\.0\.jar"):
        jars.jars_of(listing, tmp_path / "jars-1")
    assert not (tmp_path / "jars-1").exists()


def test_a_jar_the_repository_lacks_is_named(listing: Path, tmp_path: Path) -> None:
    """The error says which, and which variable led there."""
    next((tmp_path / "repository").rglob("two-1.0.jar")).unlink()
    with pytest.raises(JarsMissing, match=rf"two-1\.0\.jar.*{jars.URL_VARIABLE}"):
        jars.jars_of(listing, tmp_path / "jars-1")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["repository"]


def test_without_maven_the_command_to_type_is_told(
    listing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No Maven and no repository: the error is what to type."""
    monkeypatch.delenv(jars.URL_VARIABLE)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JarsMissing, match=r"sudo apt-get .* install .* maven"):
        jars.jars_of(listing, tmp_path / "jars-1")


def test_several_runs_at_once_share_one_download(listing: Path, tmp_path: Path) -> None:
    """Four processes ask for the same folder: each gets whole jars, one has fetched them."""
    code = f"""\
from pathlib import Path
from tests.services import jars
fetch = jars._fetch
def told(*arguments):
    print("fetched")
    fetch(*arguments)
jars._fetch = told
assert len(jars.jars_of(Path({str(listing)!r}), Path({str(tmp_path / "jars-1")!r}))) == 2
"""
    runs = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    said = [run.communicate(timeout=60)[0] for run in runs]
    assert [run.returncode for run in runs] == [0] * 4
    assert "".join(said) == "fetched\n"


def test_the_lists_agree_with_the_versions() -> None:
    """Every line is whole, no artifact stands twice, and the versions are those the folders are named for."""
    for name, main in (
        ("kafka_jars.txt", f"kafka_2.13-{jars.KAFKA_VERSION}.jar"),
        ("spark_kafka_jars.txt", f"spark-sql-kafka-0-10_2.13-{jars.CONNECTOR_VERSION}.jar"),
    ):
        listed = jars.read_list(ROOT / "tests" / "services" / name)
        assert main in [jar.file_name for jar in listed]
        assert len({(jar.group, jar.artifact) for jar in listed}) == len(listed)
        assert all(len(jar.sha256) == 64 for jar in listed)
