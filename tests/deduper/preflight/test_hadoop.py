"""Warnings of Hadoop's settings for a store in HDFS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bucket_store.places.kerberos import Ticket
from deduper.config.model import Config
from deduper.diagnostics import Diagnostic
from deduper.preflight import folders
from deduper.preflight.results import Start

ON_CLUSTER = {"spark.master": "spark://head:7077"}
HERE = {"spark.executorEnv.HADOOP_CONF_DIR": "/etc/hadoop"}
TICKET = {"spark.executorEnv.KRB5CCNAME": "/run/ticket"}
KERBEROS = {"hadoop.security.authentication": "kerberos"}


def config_of(url: str, spark: dict[str, str]) -> Config:
    """A job with its store there."""
    nothing: dict[str, Any] = {"format": "none"}
    return Config.model_validate(
        {
            "name": "job",
            "source": {"format": "files", "path": "/in", "file_format": "json", "schema": "k string"},
            "key": "k",
            "expiry": {"by": "never"},
            "store": {"url": url},
            "sinks": dict.fromkeys(("unique", "duplicate", "expired", "error"), nothing),
            "shared_folders": ["/in"] if spark else [],
            "spark": spark,
        },
        context={"base_dir": Path("/")},
    )


def found(url: str = "hdfs://namenode:8020/dedup", **spark: str) -> list[str]:
    """The warnings, as a start logs them."""
    warnings = list(folders.hadoop_settings(Start(config_of(url, spark))))
    assert all(isinstance(one, Diagnostic) for one in warnings)
    return [str(one) for one in warnings]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HADOOP_CONF_DIR."""
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("KRB5CCNAME", str(tmp_path / "no-ticket"))
    monkeypatch.delenv("HADOOP_TOKEN_FILE_LOCATION", raising=False)
    return tmp_path


def write(folder: Path, settings: dict[str, str], name: str = "core-site.xml", more: str = "") -> None:
    """A file of settings."""
    lines = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in settings.items()]
    text = f'<configuration xmlns:xi="http://www.w3.org/2001/XInclude">{more}{"".join(lines)}</configuration>'
    (folder / name).write_text(text, encoding="utf-8")


def test_sound_settings_are_no_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are bad ones of a store elsewhere, or none at all for one NameNode."""
    write(folder, {**KERBEROS, "hadoop.tmp.dir": "/tmp/${user.name}"})
    assert found() == []
    assert found(**ON_CLUSTER, **HERE, **TICKET) == []
    write(folder, {}, more='<xi:include href="other.xml"/>')
    assert found("file:state") == []
    monkeypatch.delenv("HADOOP_CONF_DIR")
    assert found() == []
    assert found(**ON_CLUSTER) == []


def test_what_the_client_does_not_understand(folder: Path) -> None:
    """Included files and variables, in what decides about the login and the NameNodes."""
    write(folder, KERBEROS, more='<xi:include href="other.xml"/>')
    write(folder, {"dfs.namenode.rpc-address.ns.nn1": "${host}:8020"}, "hdfs-site.xml")
    included, variable = found()
    assert included.startswith(f"{folder}/core-site.xml: has an xi:include")
    assert variable.startswith(f"{folder}: dfs.namenode.rpc-address.ns.nn1 is `${{host}}:8020`")


def test_files_that_are_none(folder: Path) -> None:
    """Without any the client takes Hadoop's defaults in silence."""
    (only,) = found()
    assert "has no settings in core-site.xml or hdfs-site.xml" in only
    (folder / "core-site.xml").write_text("<configuration>", encoding="utf-8")
    torn, empty = found()
    assert torn.startswith(f"{folder}/core-site.xml: cannot be read: no element found")
    assert empty == only


ENCRYPTED = {"spark.network.crypto.enabled": "true"}


@pytest.mark.parametrize(
    ("settings", "url", "spark", "missing"),
    [
        (KERBEROS, "hdfs://namenode:8020/dedup", {}, ["executorEnv.HADOOP_CONF_DIR", "network.crypto.enabled"]),
        (KERBEROS, "hdfs://namenode:8020/dedup", HERE, ["network.crypto.enabled"]),
        (KERBEROS, "hdfs://namenode:8020/dedup", {**HERE, **ENCRYPTED}, []),
        (KERBEROS, "hdfs://namenode:8020/dedup", {**HERE, **TICKET}, []),
        ({"dfs.nameservices": "ns"}, "hdfs://ns/dedup", {}, ["executorEnv.HADOOP_CONF_DIR"]),
        ({"dfs.nameservices": "ns"}, "hdfs://ns/dedup", HERE, []),
    ],
)
def test_executors_have_settings_of_their_own_and_tokens_of_the_driver(
    folder: Path, settings: dict[str, str], url: str, spark: dict[str, str], missing: list[str]
) -> None:
    """Tokens, which are secrets, where no host has a ticket. A local master has what the driver has."""
    write(folder, settings)
    warnings = found(url, **ON_CLUSTER, **spark)
    assert [f"spark.{name}" in text for name, text in zip(missing, warnings, strict=True)] == [True for _ in missing]
    assert found(url) == []


@pytest.mark.parametrize(
    ("seconds_left", "keytab", "said"), [(1799, "", "ends in 29 minutes"), (1801, "", ""), (1, "/a.keytab", "")]
)
def test_a_ticket_that_ends_soon(
    seconds_left: int, keytab: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keytab gives the next one."""
    write(folder, KERBEROS)
    monkeypatch.setattr(folders, "ticket", lambda: Ticket("job@REALM", seconds_left))
    if keytab:
        monkeypatch.setenv("KRB5_CLIENT_KTNAME", keytab)
    else:
        monkeypatch.delenv("KRB5_CLIENT_KTNAME", raising=False)
    warnings = found()
    assert [said in text for text in warnings] == [True] * bool(said)


def test_a_file_of_tokens_is_not_renewed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job outlives it."""
    write(folder, KERBEROS)
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", "/run/tokens")
    (only,) = found()
    assert only.startswith("HADOOP_TOKEN_FILE_LOCATION: ")


def test_a_command_without_a_job_has_the_same_warnings(folder: Path) -> None:
    """If one of its places is in HDFS; executors are no matter."""
    write(folder, KERBEROS, name="other.xml")
    assert [
        one.what
        for one in folders.hadoop_here(["/data/in", "hdfs://namenode:8020/dedup"])
        if isinstance(one, Diagnostic)
    ] == ["has no settings in core-site.xml or hdfs-site.xml"]
    assert list(folders.hadoop_here(["/data/in", "s3://bucket/dedup"])) == []
