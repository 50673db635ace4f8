"""The configuration of a replay."""

from __future__ import annotations

from pathlib import Path

from deduper.config.files import FileSink
from deduper.config.load import load_config
from deduper.config.sections import NoneSink
from deduper.replay.settings import Asked, replay_config
from tests.deduper.store_samples import write_config


class _WithMore(FileSink):
    """A port with one more setting."""

    more: int = 0


def test_a_replay_writes_its_files_as_the_job_does(tmp_path: Path) -> None:
    """Only their folder is another one; a port that is written nowhere stays so."""
    config = load_config(write_config(tmp_path), environment={})
    sink = _WithMore(format="json", path="/out/unique", more=3)
    config = config.model_copy(update={"sinks": config.sinks.model_copy(update={"unique": sink})})
    assert isinstance(config.sinks.error, NoneSink)
    replayed = replay_config(config, Asked(tmp_path / "replayed"))
    assert replayed.sinks.unique == _WithMore(format="json", path=str(tmp_path / "replayed/unique"), more=3)
    assert replayed.sinks.error == config.sinks.error
