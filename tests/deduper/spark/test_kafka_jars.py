"""Where a job finds Spark's Kafka connector, and what it says when it is not there."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from deduper.errors import UsageError
from deduper.spark import kafka_jars
from deduper.spark.kafka_jars import VARIABLE, default_folder, find_connector
from deduper.spark.maven_jars import Jar

CONNECTOR = (
    "spark-sql-kafka-0-10_2.13-4.2.0",
    "spark-token-provider-kafka-0-10_2.13-4.0.0",
    "kafka-clients-3.9.2",
    "commons-pool2-2.13.1",
)
AVRO = "spark-avro_2.13-4.1.1"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, no variable, and empty jars as the known ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    empty = hashlib.sha256().hexdigest()
    known = [Jar(empty, "g", *name.rsplit("-", 1)) for name in (*CONNECTOR, AVRO)]
    monkeypatch.setattr(kafka_jars, "connector_jars", lambda: known)


def filled(folder: Path | None, *names: str) -> Path:
    """A folder with these jars."""
    assert folder is not None
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}.jar").touch()
    return folder


def test_nothing_fetched(tmp_path: Path) -> None:
    """Exit code 2, one line, the command that fetches it."""
    with pytest.raises(UsageError) as missing:
        find_connector({})
    text = str(missing.value)
    assert text.startswith(f"Spark's Kafka connector is missing: {default_folder()} has no spark-sql-kafka-0-10 jar; ")
    assert "`deduper jars`" in text
    assert VARIABLE in text
    assert "\n" not in text
    assert missing.value.exit_code == 2


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no folder to look into; the command with a folder is named."""
    monkeypatch.setattr(kafka_jars, "default_folder", lambda: None)
    with pytest.raises(UsageError, match=f"`deduper jars --into DIR`, and set {VARIABLE}"):
        find_connector({})


def test_the_folder_of_the_variable_counts_before_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its jars are the session's, by absolute paths."""
    default = filled(default_folder(), *CONNECTOR)
    assert find_connector({}).folder == default
    named = filled(tmp_path / "named", *CONNECTOR, "more-1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "named")
    found = find_connector({})
    assert found.settings["spark.jars"].split(",") == [str(path) for path in sorted(named.iterdir())]
    assert found.release == "4.2.0"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match=f"`deduper jars --into {tmp_path / 'nowhere'}`"):
        find_connector({})


@pytest.mark.parametrize("absent", CONNECTOR)
def test_every_part_is_needed(absent: str) -> None:
    """Without one of them Spark would fail in words of the JVM."""
    filled(default_folder(), *(name for name in CONNECTOR if name != absent))
    with pytest.raises(UsageError, match=f"has no {absent.rsplit('-', 1)[0].removesuffix('_2.13')} jar"):
        find_connector({})


def test_the_avro_module_is_needed_for_avro_alone() -> None:
    """It comes with `deduper jars` too."""
    folder = filled(default_folder(), *CONNECTOR)
    find_connector({})
    with pytest.raises(UsageError, match="Avro module is missing"):
        find_connector({}, avro=True)
    (folder / f"{AVRO}.jar").touch()
    find_connector({}, avro=True)


def test_a_damaged_jar() -> None:
    """A known name with other bytes; an unknown name is the user's own choice."""
    folder = filled(default_folder(), *CONNECTOR)
    (folder / "kafka-clients-4.0.0.jar").write_bytes(b"own")
    find_connector({})
    (folder / "kafka-clients-3.9.2.jar").write_bytes(b"torn")
    with pytest.raises(UsageError, match=r"damaged: .*kafka-clients-3\.9\.2\.jar"):
        find_connector({})


def test_the_users_own_settings_count_first(tmp_path: Path) -> None:
    """Packages are Spark's to fetch; files must exist, unless the entry is a pattern or another address."""
    own = tmp_path / "own.jar"
    own.touch()
    listed = f"{own}, file:{own},{tmp_path}/*.jar,https://example.org/x.jar,hdfs:/x.jar"
    for settings in ({"spark.jars.packages": "a:b:1"}, {"spark.jars": listed}):
        assert find_connector(settings).settings == {}
    with pytest.raises(UsageError, match=r"spark\.spark\.jars: \S*gone\.jar does not exist"):
        find_connector({"spark.jars": f"{own},{tmp_path / 'gone.jar'}"})
