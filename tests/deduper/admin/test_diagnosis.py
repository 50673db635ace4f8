"""What `check` says of a machine, and of files that a login needs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from deduper.cli.main import app
from deduper.config.load import load_config
from deduper.config.model import Config
from deduper.diagnostics import Severity
from deduper.errors import UsageError
from deduper.kafka.preflight.examine import file_diagnostics
from deduper.preflight import checks, folders, machine
from deduper.service.job import run
from deduper.window.recovery import open_or_create

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
    found = checks.diagnose(load_config(file)).diagnostics
    assert all(diagnostic.remedy for diagnostic in found if diagnostic.severity is Severity.ERROR)
    return [(diagnostic.check, diagnostic.what) for diagnostic in found if diagnostic.severity is Severity.ERROR]


def test_a_sound_machine_is_healthy(job: Path) -> None:
    """Exit code 0, in both forms; nothing is made on disk."""
    before = sorted(job.parent.rglob("*"))
    text = CliRunner().invoke(app, ["check", str(job)], env={"COLUMNS": "300"})
    assert (text.exit_code, "ready to start" in text.stdout) == (0, True), text.output
    answer = CliRunner().invoke(app, ["check", str(job), "--json"])
    assert json.loads(answer.stdout)["healthy"] is True
    assert sorted(job.parent.rglob("*")) == before


@pytest.mark.slow
def test_all_that_is_wrong_is_told_at_once(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java, a file in the way and brokers that are down, in one answer with exit code 3."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    (tmp_path / "state").write_text("in the way", encoding="utf-8")
    answer = CliRunner().invoke(app, ["check", str(written(tmp_path, kafka())), "--json"])
    assert answer.exit_code == 3
    found = json.loads(answer.stdout)
    wrong = {diagnostic["check"] for diagnostic in found["diagnostics"] if diagnostic["severity"] == "error"}
    assert (found["healthy"], wrong) == (False, {"java", "folders", "brokers"})


@pytest.mark.slow
def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    """Spark would refuse it, once it has started; of a pattern nobody can say."""
    file = written(tmp_path, FILES)
    (tmp_path / "in").rmdir()
    (found,) = errors(file)
    assert found == ("folders", f"{tmp_path / 'in'} does not exist")
    with pytest.raises(UsageError, match=r"source\.path: .*/in does not exist; make it \(mkdir -p .*/in\)"):
        run(load_config(file), once=True, max_windows=None, take_over=False, on_progress=print)
    assert errors(written(tmp_path, FILES.replace("in/", "no/*.json"))) == []


@pytest.mark.slow
def test_little_room_is_told_before_it_is_none(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides of both limits: without a byte a start would fail."""
    for free, severity in (
        (0, Severity.ERROR),
        (1, Severity.WARNING),
        ((2 << 30) - 1, Severity.WARNING),
        (2 << 30, Severity.NOTE),
    ):
        monkeypatch.setattr(folders.shutil, "disk_usage", lambda _, free=free: shutil._ntuple_diskusage(free, 0, free))
        reported = [
            diagnostic.severity
            for diagnostic in checks.diagnose(load_config(job)).diagnostics
            if diagnostic.check in ("space", "folders")
        ]
        assert set(reported) == {severity}, free


MOUNTS = [
    SimpleNamespace(mountpoint="/", fstype="ext4"),
    SimpleNamespace(mountpoint="/net", fstype="tmpfs"),
    SimpleNamespace(mountpoint="/net", fstype="nfs4"),
    SimpleNamespace(mountpoint="/net/my disk", fstype="xfs"),
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/var/state", "ext4"), ("/net/a", "nfs4"), ("/net/my disk/a", "xfs"), ("/network", "ext4"), ("/", "ext4")],
)
def test_on_what_a_path_lies(path: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest mount point counts, and of two at one place the later."""
    monkeypatch.setattr(machine.psutil, "disk_partitions", lambda *, all: MOUNTS)
    assert machine.file_system_of(Path(path)) == kind


def test_this_machine_says_on_what_a_path_lies() -> None:
    """As it mounts its file systems."""
    assert machine.file_system_of(Path("/proc/self")) == "proc"


def test_a_store_on_the_network_is_a_warning(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks and renames may not hold there."""
    monkeypatch.setattr(folders, "file_system_of", lambda *_: "nfs4")
    found = checks.diagnose(load_config(job))
    assert [diagnostic.place for diagnostic in found.diagnostics if diagnostic.check == "disk"] == ["store"]
    assert found.is_healthy


def tls(directory: Path, identity: Path) -> Config:
    """A job that shows this certificate."""
    names = {"kafka.security.protocol": "SSL", "kafka.ssl.keystore.type": "PEM"}
    return load_config(written(directory, kafka(**names, **{"kafka.ssl.keystore.location": str(identity)})))


def test_files_that_no_client_can_use(tmp_path: Path) -> None:
    """Absent, or not to be read: named, once each. A file that is there, and a folder of authorities, are no fault."""
    path = tmp_path / "own.pem"
    (diagnostic,) = file_diagnostics(tls(tmp_path, path))
    assert (diagnostic.severity, diagnostic.check) == (Severity.ERROR, "files")
    assert f"{path} (" in diagnostic.what
    assert "is not there" in diagnostic.what
    path.symlink_to(path)
    (diagnostic,) = file_diagnostics(tls(tmp_path, path))
    assert "cannot be read" in diagnostic.what
    path.unlink()
    path.touch()
    assert file_diagnostics(tls(tmp_path, path)) == []
    assert file_diagnostics(tls(tmp_path, tmp_path)) == []


def test_a_copy_of_a_store_is_told(job: Path) -> None:
    """The original is said to be still there, as a warning; of the original nothing is said."""
    log = open_or_create(load_config(job, environment={}), 5)
    log.claim_epoch("somebody:1", 6)
    copied = job.parent.with_name("copied")
    shutil.copytree(job.parent, copied)
    (reported,) = [
        diagnostic
        for diagnostic in checks.diagnose(load_config(copied / job.name, environment={})).diagnostics
        if "copy" in diagnostic.what
    ]
    assert (reported.severity, reported.check) == (Severity.WARNING, "owner")
    assert str(log.root.local) in reported.what
    assert "is a copy of" not in str(checks.diagnose(load_config(job, environment={})).diagnostics)
