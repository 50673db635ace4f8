"""Before a commit record names a staged file, the file and every name on the way to it are durable."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
import xxhash

from bucket_store.filesystem import LocalFile, LocalFileSystem
from bucket_store.places.local import LocalNames, local_place
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.config.files import FileSink
from deduper.config.load import load_config
from deduper.config.model import Config
from deduper.config.sections import PORTS
from deduper.errors import IntegrityError
from deduper.sinks import staging
from deduper.sinks.names import STAGING, Attempt, final_name
from deduper.tasks.write import StagedFile
from tests.bucket_store.places.memory_names import MemoryNames, memory_place
from tests.deduper.staged_file import staged_file
from tests.deduper.store_samples import CONFIG_TEXT

STORE_ID = "5a" * 16


class Watched(LocalFileSystem):
    """The machine's file system, and what was opened and synced through it."""

    def __init__(self) -> None:
        self.opened: list[Path] = []
        self.directories: list[Path] = []

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> LocalFile:
        """Noted."""
        self.opened.append(path)
        return super().open(path, write=write, create=create)

    def read(self, path: Path) -> bytes:
        """Noted."""
        self.opened.append(path)
        return super().read(path)

    def fsync_dir(self, path: Path) -> None:
        """Noted when it is through."""
        super().fsync_dir(path)
        self.directories.append(path)


def config_of(folder: Path, path: str = "out/{port}") -> Config:
    """All four ports as Parquet."""
    text = CONFIG_TEXT
    for port in PORTS:
        text = text.replace(f"{port}: {{format: none}}", f"{port}: {{format: parquet, path: {path.format(port=port)}}}")
    (folder / "job.yaml").write_text(text)
    return load_config(folder / "job.yaml", environment={})


def staged_by(targets: dict[str, Place], files: int) -> dict[str, list[StagedFile]]:
    """Files of several writers of each port; their receipts come in any order."""
    return {
        port: [
            staged_file(port, targets[port] / f"{port}-{number}.parquet", b"x" * (number + 1), 10 + number)
            for number in reversed(range(files))
        ]
        for port in PORTS
    }


@pytest.mark.parametrize("files", [1, 3])
def test_all_that_a_record_will_name_is_durable(tmp_path: Path, files: int) -> None:
    """Every directory up to the port's own; described as they lie there, without a look into any file."""
    config, attempt, fs = config_of(tmp_path), Attempt(4, 2, 1), Watched()
    targets = staging.make_staging(config, attempt, names=LocalNames(fs))
    staged = staged_by(targets, files)
    assert fs.opened == [file.place.local for of_port in staged.values() for file in of_port]
    fs.opened.clear()
    made, fs.directories = fs.directories, []
    outputs = staging.make_durable(config, STORE_ID, attempt, staged, names=LocalNames(fs))
    assert fs.opened == []
    target = staging.staging_target(config, attempt).local
    home = tmp_path / "out" / "unique"
    assert {tmp_path, tmp_path / "out", home, home / STAGING} <= set(made)
    assert fs.directories == [target]
    assert [(output.port, output.staged, output.rows, output.size_bytes) for output in outputs] == [
        (port, str(target / f"{port}-{number}.parquet"), 10 + number, number + 1)
        for port in PORTS
        for number in range(files)
    ]
    assert {output.checksum for output in outputs} == {xxhash.xxh3_64_intdigest(b"x" * n) for n in range(1, files + 1)}
    assert len({output.final for output in outputs}) == len(outputs)


@pytest.mark.parametrize("harm", ["gone", "longer", "empty"])
def test_a_file_that_is_not_as_its_writer_left_it_is_in_no_record(tmp_path: Path, harm: str) -> None:
    """The look at the folder finds it."""
    config, attempt = config_of(tmp_path), Attempt(4, 2, 1)
    staged = staged_by(staging.make_staging(config, attempt), 2)
    path = staged["duplicate"][1].place.local
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(b"" if harm == "empty" else b"xx")
    with pytest.raises(IntegrityError, match=r"duplicate-0.*staged with 1 bytes, and now (is gone|has [02] bytes)"):
        staging.make_durable(config, STORE_ID, attempt, staged)


def test_a_name_that_cannot_be_synced_is_in_no_record(tmp_path: Path) -> None:
    """The error comes before there is anything to put into a record."""
    config, attempt = config_of(tmp_path), Attempt(0, 1, 0)
    staged = staged_by(staging.make_staging(config, attempt), 1)

    class Bad(LocalFileSystem):
        def fsync_dir(self, path: Path) -> None:
            raise OSError(f"sync of {path}")

    with pytest.raises(OSError, match="sync of"):
        staging.make_durable(config, STORE_ID, attempt, staged, names=LocalNames(Bad()))
    with pytest.raises(OSError, match="sync of"):
        staging.make_staging(config, Attempt(0, 1, 1), names=LocalNames(Bad()))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> MemoryNames:
    """A storage with a scheme of its own, on which ports may lie."""
    names = MemoryNames()
    opened = open_place

    def open_any(url: str) -> Place:
        return memory_place(names) / url.removeprefix("memory:///") if url.startswith("memory:") else opened(url)

    monkeypatch.setattr(staging, "open_place", open_any)
    monkeypatch.setattr(FileSink, "place", property(lambda sink: memory_place(names) / Path(sink.url).name))
    return names


def published(config: Config) -> dict[str, list[str]]:
    """Every port's files, without what readers skip."""
    return {
        port: [entry.name for entry in sink.place.entries() if not entry.name.startswith("_")]
        for port, sink in config.file_ports.items()
    }


@pytest.mark.parametrize("files", [1, 40])
def test_a_window_goes_out_on_any_storage(tmp_path: Path, elsewhere: MemoryNames, files: int) -> None:
    """Staged, described, published and discarded on one without paths; published again, nothing changes."""
    config, attempt = config_of(tmp_path), Attempt(4, 2, 1)
    staging.make_port_directories(config)
    staged = staged_by(staging.make_staging(config, attempt), files)
    outputs = staging.make_durable(config, STORE_ID, attempt, staged)
    assert all(output.staged.startswith("memory:///") and output.final.startswith("memory:///") for output in outputs)
    assert published(config) == {port: [] for port in PORTS}
    assert staging.where_they_lie(config, outputs) == list(outputs)
    for _ in range(2):
        assert staging.publish(outputs) == []
        there = {port: [final_name(STORE_ID, attempt, n, "parquet") for n in range(files)] for port in PORTS}
        assert published(config) == there
    assert staging.discard_abandoned(config, 2) == 0
    staging.discard_window(config, 4, 2)
    assert staging.publish(outputs) == []
    assert published(config) == there
    assert not [path for path in elsewhere.files if STAGING in path.parts]
    (config.file_ports["unique"].place / there["unique"][0]).remove()
    assert [output.final for output in staging.publish(outputs)] == [outputs[0].final], "a consumer has taken it"


def test_a_publication_that_was_cut_short_is_finished(tmp_path: Path, elsewhere: MemoryNames) -> None:
    """Whatever part of the files has its final name already."""
    config, attempt = config_of(tmp_path), Attempt(4, 2, 1)
    staging.make_port_directories(config)
    outputs = staging.make_durable(config, STORE_ID, attempt, staged_by(staging.make_staging(config, attempt), 20))
    renamed = elsewhere.rename
    left = iter(range(30))

    def dying(source: PurePosixPath, target: PurePosixPath) -> None:
        if next(left, None) is None:
            raise TimeoutError("the storage is away")
        renamed(source, target)

    elsewhere.rename = dying  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        staging.publish(outputs)
    assert sum(map(len, published(config).values())) == 30
    elsewhere.rename = renamed  # type: ignore[method-assign]
    assert staging.publish(outputs) == []
    assert {port: len(names) for port, names in published(config).items()} == dict.fromkeys(PORTS, 20)


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_final_name_of_another_file_is_never_taken(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    """The other program's file stays, all others are published."""
    if kind == "memory":
        request.getfixturevalue("elsewhere")
    config, attempt = config_of(tmp_path), Attempt(4, 2, 1)
    staging.make_port_directories(config)
    outputs = staging.make_durable(config, STORE_ID, attempt, staged_by(staging.make_staging(config, attempt), 20))
    taken = config.file_ports["error"].place / final_name(STORE_ID, attempt, 19, "parquet")
    taken.create(b"another's")
    with pytest.raises(IntegrityError, match="taken by another file"):
        staging.publish(outputs)
    assert taken.read() == b"another's"
    assert sum(map(len, published(config).values())) == 80


def test_a_port_on_another_disk_has_its_rows_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written there at once, and renamed: nothing is copied."""
    other = local_place(tmp_path / "out" / "error")
    monkeypatch.setattr(staging, "on_one_volume", lambda one, two: (one == other) == (two == other))
    config, attempt = config_of(tmp_path), Attempt(4, 2, 1)
    staging.make_port_directories(config)
    targets = staging.make_staging(config, attempt)
    home = local_place(tmp_path / "out" / "unique")
    folders = {port: (other if port == "error" else home) / STAGING / attempt.folder for port in PORTS}
    assert targets == folders
    outputs = staging.make_durable(config, STORE_ID, attempt, staged_by(targets, 1))
    assert staging.publish(outputs) == []
    assert {port: len(names) for port, names in published(config).items()} == dict.fromkeys(PORTS, 1)
