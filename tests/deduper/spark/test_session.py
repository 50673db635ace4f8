"""What Spark is started with: the JVM's options, a user, the right version."""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from deduper.errors import DeduperError, UsageError
from deduper.sources.open import WORKER_DAEMON
from deduper.spark import class_archive, installed, session
from deduper.spark.installed import Java, require_java, require_own_spark, require_user_name
from deduper.spark.session import java_options
from deduper.spark_promises import JVM_PROPERTIES, broken


def test_ours_are_kept_and_those_asked_for_come_last() -> None:
    """Of two values for one property the JVM takes the last."""
    options = java_options("-Xss4m -Dlog4j2.configurationFile=/mine.properties").split()
    assert options[-2:] == ["-Xss4m", "-Dlog4j2.configurationFile=/mine.properties"]
    assert options[:-2] == java_options("").split()
    assert options[0].endswith("log4j2.properties")


@pytest.fixture
def no_java_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own are away."""
    for variable in ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("no_java_options")
def test_another_collector_takes_the_place_of_ours() -> None:
    """With two the JVM does not start."""
    assert "-XX:+UseParallelGC" in java_options("-Xss4m -XX:-UseStringDeduplication -XX:+UseNUMA").split()
    assert "-XX:+UseParallelGC" not in java_options("-XX:+UseG1GC -Xss4m").split()
    assert "-XX:+UseParallelGC" not in java_options("-Xss4m -XX:+UseSerialGC").split()


@pytest.mark.usefixtures("no_java_options")
@pytest.mark.parametrize("variable", ["SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"])
def test_a_collector_that_the_environment_names_is_alone(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these reaches the JVM beside our options."""
    monkeypatch.setenv(variable, "-Xss4m -XX:+UseZGC")
    assert "-XX:+UseParallelGC" not in java_options("").split()
    monkeypatch.setenv(variable, "-Xss4m")
    assert "-XX:+UseParallelGC" in java_options("").split()


@pytest.mark.parametrize(
    ("master", "loopback", "home"),
    [("local[2]", True, False), ("local-cluster[2,1,1024]", True, True), ("spark://host:7077", False, False)],
)
def test_a_driver_of_a_cluster_is_reached_from_other_hosts(
    master: str, loopback: bool, home: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loopback address is for executors of this machine alone."""
    for name in ("SPARK_LOCAL_IP", "SPARK_HOME", "PYSPARK_PYTHON", "PYTHONPATH"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    session._set_environment({"spark.master": master})
    assert (os.environ.get("SPARK_LOCAL_IP") == "127.0.0.1", "SPARK_HOME" in os.environ) == (loopback, home)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    session._set_environment({"spark.master": master, "spark.pyspark.python": "./environment/bin/python"})
    assert os.environ["PYSPARK_PYTHON"] == "./environment/bin/python"


def test_a_job_under_spark_submit_is_told_the_option_of_its_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was started before the settings of the job were read; for other settings the advice is the usual one."""
    monkeypatch.setattr(session, "_find_spark_home", lambda: "/nowhere")
    for variable in (
        "SPARK_CONF_DIR",
        "PYSPARK_SUBMIT_ARGS",
        "_JAVA_OPTIONS",
        "JAVA_TOOL_OPTIONS",
        "SPARK_SUBMIT_OPTS",
    ):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert "spark-submit" not in session._origin("-Duser.timezone")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    advice = session._origin("-Duser.timezone")
    (options,) = re.findall(r"add --conf 'spark\.driver\.extraJavaOptions=(.*)' to spark-submit", advice)
    assert options.split() == [f"-D{name}={value}" for name, value in JVM_PROPERTIES.items()]
    assert "spark-submit" not in session._origin("spark.sql.ansi.enabled")


def test_an_archive_that_has_no_folder_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As for a system user, whose home belongs to root; before Spark starts."""
    (tmp_path / "home").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home/.cache"))
    with pytest.raises(DeduperError, match=r"home/\.cache/deduper: cannot be made: .*; name .* in XDG_CACHE_HOME"):
        class_archive.make()


def test_java_starts_from_its_archive_if_it_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the user's cache, one for each Java and Spark."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    java = Java("/usr/bin/java", 'openjdk version "17.0.1"')
    monkeypatch.setattr(session, "_find_spark_home", lambda: "/opt/spark")
    assert session._archive_options(java) == ""
    archives = java.class_archives("/opt/spark")
    archives.folder.mkdir()
    made = tmp_path / "made"
    made.write_bytes(b"classes")
    archive = archives.place(made)
    options = session._archive_options(java)
    assert options.split()[0] == f'"-XX:SharedArchiveFile={archive}"'
    assert "-Xlog:cds=off" in options
    assert java.class_archives("/opt/other").whole() is None
    assert Java(java.path, "another").class_archives("/opt/spark").whole() is None
    archive.write_bytes(b"class")
    assert session._archive_options(java) == ""


def test_executors_are_set_like_the_driver() -> None:
    """Their JVMs read files too; a local master has none."""
    options = "spark.executor.extraJavaOptions"
    asked = {"spark.master": "yarn", options: "-Xss4m", "spark.executorEnv.PYTHONPATH": "elsewhere"}
    settings = session.session_options(asked)
    assert settings[options] == "-Duser.timezone=UTC -Duser.language=en -Dfile.encoding=UTF-8 -Xss4m"
    assert settings["spark.shuffle.reduceLocality.enabled"] == "false"
    assert settings["spark.executorEnv.PYTHONPATH"] == "elsewhere"
    assert options not in session.session_options({"spark.master": "local[4]"})
    assert [name for name, _ in broken({options: "-Duser.timezone=CET"})] == [options]


def test_a_user_without_a_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java has users by name alone, and Spark would end with `Invalid UID`."""
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 7)
    with pytest.raises(DeduperError, match="user 2147483641 has none; add a line for 2147483641 to /etc/passwd"):
        require_user_name()


def test_what_java_tells_of_its_options_is_not_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes first."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dversion=1")
    assert "version" in require_java().shown
    assert "JAVA_TOOL_OPTIONS" not in require_java().shown


def test_the_daemon_of_the_workers_is_a_module_that_is_there() -> None:
    """Were it moved, every task of Spark would fail."""
    assert find_spec(WORKER_DAEMON) is not None


@pytest.mark.parametrize("name", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_another_process_s_spark_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of Spark Connect has no JVM in which settings could be checked."""
    require_own_spark()
    monkeypatch.setenv(name, "sc://elsewhere")
    with pytest.raises(UsageError, match=f"{name} is `sc://elsewhere`.*; unset {name}"):
        require_own_spark()


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        (["{own}"], None),
        (["{own}-amzn-1"], None),
        (["3.5.6"], "which holds Spark 3.5.6, and the service needs {own}; unset SPARK_HOME"),
        (["{own}1"], "which holds Spark {own}1"),
        (["{own}", "3.5.6"], "which holds Spark 3.5.6 and {own}"),
        ([], "which holds no Spark"),
    ],
)
def test_a_spark_of_another_version_is_refused(
    versions: list[str], told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it starts: with it every call might mean something else."""
    own = metadata.version("pyspark")
    (tmp_path / "jars").mkdir()
    for version in versions:
        (tmp_path / "jars" / f"spark-core_2.13-{version.format(own=own)}.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    if told is None:
        require_own_spark()
        return
    with pytest.raises(UsageError, match=told.format(own=own)):
        require_own_spark()


def test_a_pyspark_that_is_too_old_for_a_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be there for a query with a `Deduper`, which asks for less."""
    monkeypatch.setattr(installed, "installed_pyspark", lambda: "4.1.3")
    with pytest.raises(UsageError, match=r"PySpark 4\.1\.3 is installed, and a job needs .*stream-deduper\[service\]"):
        require_own_spark()


@pytest.mark.parametrize("theirs", [None, "ipython"])
def test_a_jvm_looks_for_no_packages_of_sources(monkeypatch: pytest.MonkeyPatch, theirs: str | None) -> None:
    """It has no Python of the driver, which keeps its own."""
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    if theirs is not None:
        monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", theirs)
    with session._without_packages_of_sources():
        assert shutil.which(os.environ["PYSPARK_DRIVER_PYTHON"]) is None
    assert os.environ.get("PYSPARK_DRIVER_PYTHON") == theirs
