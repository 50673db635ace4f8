"""What `doctor` says of a machine, and of files that a login needs."""

from __future__ import annotations

import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deduper import doctor, kafka_files, kafka_jars
from deduper.certificates import validities
from deduper.cli import app
from deduper.concerns import Severity
from deduper.config import Config
from deduper.config_file import load_config
from deduper.errors import UsageError
from deduper.job import run

CONFIG = """\
name: clicks
source: {source}
key: k
expiry: {{by: never}}
store: {{url: "rocksdb:state", shards: 2}}
sinks:
  unique: {{format: parquet, path: out/unique}}
  duplicate: {{format: none}}
  expired: {{format: none}}
  error: {{format: none}}
"""
FILES = '{format: files, path: in/, file_format: json, schema: "k string"}'


def kafka(**options: object) -> str:
    """A source at a port where nobody listens."""
    value = {"format": "json", "schema": "k string"}
    servers = {"format": "kafka", "bootstrap_servers": "127.0.0.1:9", "topics": ["in"], "value": value}
    return json.dumps(servers | {"options": options})


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A config file of a job from files."""
    return written(tmp_path, FILES)


def written(directory: Path, source: str) -> Path:
    """A config file with this source."""
    file = directory / "clicks.yaml"
    file.write_text(CONFIG.format(source=source), encoding="utf-8")
    (directory / "in").mkdir(exist_ok=True)
    return file


def errors(file: Path) -> list[tuple[str, str]]:
    """Check and text of what would keep the job from starting."""
    found = doctor.diagnose(load_config(file)).concerns
    assert all(concern.remedy for concern in found if concern.severity is Severity.ERROR)
    return [(concern.check, concern.what) for concern in found if concern.severity is Severity.ERROR]


def test_a_sound_machine_is_healthy(job: Path) -> None:
    """Exit code 0, in both forms; nothing is made on disk."""
    before = sorted(job.parent.rglob("*"))
    text = CliRunner().invoke(app, ["doctor", str(job)], env={"COLUMNS": "300"})
    assert (text.exit_code, "ready to start" in text.stdout) == (0, True), text.output
    answer = CliRunner().invoke(app, ["doctor", str(job), "--json"])
    assert json.loads(answer.stdout)["healthy"] is True
    assert sorted(job.parent.rglob("*")) == before


def test_all_that_is_wrong_is_told_at_once(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java, a file in the way and brokers that are down, in one answer with exit code 3."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    (tmp_path / "state").write_text("in the way", encoding="utf-8")
    answer = CliRunner().invoke(app, ["doctor", str(written(tmp_path, kafka())), "--json"])
    assert answer.exit_code == 3
    found = json.loads(answer.stdout)
    wrong = {concern["check"] for concern in found["concerns"] if concern["severity"] == "error"}
    assert (found["healthy"], wrong) == (False, {"java", "folders", "brokers"})


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    """Spark would refuse it, once it has started; of a pattern nobody can say."""
    file = written(tmp_path, FILES)
    (tmp_path / "in").rmdir()
    (found,) = errors(file)
    assert found == ("folders", f"{tmp_path / 'in'} does not exist")
    with pytest.raises(UsageError, match=r"source\.path: .*/in does not exist: make it \(mkdir -p .*/in\)"):
        run(load_config(file), once=True, max_batches=None, take_over=False, on_progress=print)
    assert errors(written(tmp_path, FILES.replace("in/", "no/*.json"))) == []


def test_little_room_is_told_before_it_is_none(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides of both limits."""
    for free, severity in (
        ((64 << 20) - 1, Severity.ERROR),
        (64 << 20, Severity.WARNING),
        ((2 << 30) - 1, Severity.WARNING),
        (2 << 30, Severity.NOTE),
    ):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _, free=free: shutil._ntuple_diskusage(free, 0, free))
        told = [concern.severity for concern in doctor.diagnose(load_config(job)).concerns if concern.check == "space"]
        assert set(told) == {severity}, free


MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:20 / /net rw - tmpfs tmpfs rw
23 22 0:21 / /net rw shared:2 - nfs4 server:/export rw
24 23 0:22 / /net/my\\040disk rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/var/state", "ext4"), ("/net/a", "nfs4"), ("/net/my disk/a", "xfs"), ("/network", "ext4"), ("/", "ext4")],
)
def test_on_what_a_path_lies(path: str, kind: str) -> None:
    """The longest mount point counts, and of two at one place the later."""
    assert doctor.file_system_of(Path(path), MOUNTS) == kind


def test_a_store_on_the_network_is_a_warning(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks and renames may not hold there."""
    monkeypatch.setattr(doctor, "file_system_of", lambda *_: "nfs4")
    found = doctor.diagnose(load_config(job))
    assert [concern.place for concern in found.concerns if concern.check == "disk"] == ["store"]
    assert found.is_healthy


def test_where_the_connector_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without it is an error; without a folder Spark fetches it, and that is said."""
    file = written(tmp_path, kafka())
    monkeypatch.setenv(kafka_jars.VARIABLE, str(tmp_path))
    assert ("connector", True) in [(check, str(tmp_path) in what) for check, what in errors(file)]
    monkeypatch.delenv(kafka_jars.VARIABLE)
    told = [concern.what for concern in doctor.diagnose(load_config(file)).concerns if concern.check == "connector"]
    assert [text.partition(":")[0] for text in told] == ["org.apache.spark"]
    assert "package mechanism" in told[0]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate in one file, good for ten days."""
    file = tmp_path_factory.mktemp("tls") / "own.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made = subprocess.run(
        [*command, "-subj", "/CN=own", "-days", "10", "-keyout", "-"], capture_output=True, check=True
    )
    file.write_bytes(made.stdout)
    return file


def tls(directory: Path, identity: Path) -> Config:
    """A job that shows this certificate."""
    names = {"kafka.security.protocol": "SSL", "kafka.ssl.keystore.type": "PEM"}
    return load_config(written(directory, kafka(**names, **{"kafka.ssl.keystore.location": str(identity)})))


def test_certificates_hold_for_a_time(certificate: Path, tmp_path: Path) -> None:
    """Before it, in it, shortly before its end, after it; each edge from both sides."""
    (held,) = validities(certificate.read_text(encoding="ascii"))
    assert held.not_after - held.not_before == timedelta(days=10)
    assert abs(held.not_before - datetime.now(UTC)) < timedelta(minutes=5)
    second, job = timedelta(seconds=1), tls(tmp_path, certificate)
    for now, severity, says in (
        (held.not_before - second, Severity.ERROR, "holds only from"),
        (held.not_before, Severity.WARNING, "expires on"),
        (held.not_after - second, Severity.WARNING, "expires on"),
        (held.not_after, Severity.ERROR, "has expired"),
    ):
        (concern,) = kafka_files.file_concerns(job, now)
        assert (concern.severity, says in concern.what) == (severity, True), concern


def test_files_that_no_client_can_use(certificate: Path, tmp_path: Path) -> None:
    """Absent, without a certificate, cut off: named, once each."""
    text = certificate.read_text(encoding="ascii")
    begin = text.index("-----BEGIN CERTIFICATE")
    body = "".join(text[begin:].splitlines()[1:-1])
    cut = f"-----BEGIN CERTIFICATE-----\n{body[:60]}\n-----END CERTIFICATE-----\n"
    for name, content, says in (
        ("gone.pem", None, "is not there"),
        ("key.pem", text[:begin], "holds no certificate"),
        ("cut.pem", cut, "damaged"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_text(content, encoding="ascii")
        (concern,) = kafka_files.file_concerns(tls(tmp_path, path))
        assert (concern.severity, says in concern.what, str(path) in concern.what) == (Severity.ERROR, True, True)


def test_no_cut_of_a_certificate_is_a_crash(certificate: Path) -> None:
    """Every truncation of its bytes is told as damage."""
    text = certificate.read_text(encoding="ascii")
    body = "".join(text[text.index("-----BEGIN CERTIFICATE") :].splitlines()[1:-1])
    for length in range(0, len(body) - 4, 4):
        with pytest.raises(ValueError, match="damaged"):
            validities(f"-----BEGIN CERTIFICATE-----\n{body[:length]}\n-----END CERTIFICATE-----")
