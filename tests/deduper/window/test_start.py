"""A start, step by step: what it gives, what it removes, what it sets aside, and what it says when it cannot go on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bucket_store.errors import FencedError, SettingsChangedError, StoreError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.heartbeat import read_beat
from bucket_store.log.marks import Intent, read_intents, read_published, write_intent
from bucket_store.log.sources_file import SourcePartition, write_sources
from bucket_store.pieces.open import open_backend
from bucket_store.places.local import local_place
from deduper.config.model import Config
from deduper.config.query import COUNTS, QUERIES
from deduper.errors import UsageError
from deduper.sinks import names, staging
from deduper.sources.files.source_file import source_digest
from deduper.window import recovery
from deduper.window.owner_alive import own_name
from tests.bucket_store.log_samples import commit
from tests.deduper.window.test_recovery import PORTS, committed, config_of, owned, recover

METADATA = '{"id":"4247c54c-6fb5-4ef2-bf01-c9b8aa2e1b96"}'


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A job with four file ports, whose store is not there yet."""
    return config_of(tmp_path)


def test_an_owned_store_is_claimed_and_shown_to_live(config: Config) -> None:
    """The log with its epoch, and the pieces; a heart beats until the end. Recovery is a step of its own."""

    def clock() -> int:
        return now_us[0]

    now_us = [7_000]
    for epoch in (1, 2):
        with recovery.owned_store(config, take_over=False, wall_clock_us=clock) as ownership:
            assert (ownership.log.epoch, ownership.log.state.epoch) == (epoch, epoch)
            assert ownership.log.root.local == config.store.path
            assert list(ownership.pieces.pieces()) == []
            beat = read_beat(local_place(config.store.path))
            assert beat is not None
            assert beat.owner == own_name()
            mark = config.sinks.error.path / names.PUBLISHED
            assert (read_published(local_place(mark)) is not None) == (epoch == 2), "it is not recovered yet"
            recovery.recover(config, ownership)
            assert read_published(local_place(mark)) is not None, "it is recovered"
            assert ownership.log.state.last_wall_us == 7_000
        assert read_beat(local_place(config.store.path)) is None
        now_us[0] = 6_000  # a clock that goes back does not take the log's with it


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_a_start_that_fails_says_why(config: Config, monkeypatch: pytest.MonkeyPatch, is_overtaken: bool) -> None:
    """As it is; that it was overtaken, when it was, since that alone explains whatever breaks."""
    broken = OSError("nothing there")

    def fail(*_: object, **__: object) -> None:
        if is_overtaken:
            owned(config)
        raise broken

    monkeypatch.setattr(staging, "discard_abandoned", fail)
    with (
        pytest.raises((OSError, FencedError)) as raised,
        recovery.owned_store(config, take_over=False, wall_clock_us=lambda: 1) as ownership,
    ):
        recovery.recover(config, ownership)
    assert isinstance(raised.value, FencedError) == is_overtaken
    assert raised.value.__cause__ is broken or raised.value is broken


@pytest.mark.parametrize("also", [OSError("disk"), StoreError("log")])
def test_an_error_stays_the_reason_when_the_log_cannot_be_read(
    config: Config, also: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other one is in the log."""
    log, error = owned(config), ValueError("first")

    def fail() -> None:
        raise also

    monkeypatch.setattr(log, "check_owner", fail)
    assert recovery.reason_to_stop(log, error) is error
    assert str(also) in caplog.text


def test_settings_that_are_fixed_are_named_when_they_differ(config: Config, tmp_path: Path) -> None:
    """Each with what the store has and what is asked for; also one that only one of the two has."""
    owned(config)
    with pytest.raises(SettingsChangedError) as raised:
        recovery.open_or_create(config.model_copy(update={"null_keys": "allow"}), 1)
    text = str(raised.value)
    assert "null_keys: the store has 'error', not 'allow'" in text
    assert "put them back" in text
    never = type(config).model_validate(
        {
            "name": "test",
            "source": {"format": "files", "path": "in", "file_format": "json", "schema": "k string, t long"},
            "key": "k",
            "expiry": {"by": "never"},
            "store": {"url": "file:state", "shards": 2},
            "sinks": {port: {"format": "none"} for port in PORTS},
        },
        context={"base_dir": tmp_path},
    )
    with pytest.raises(SettingsChangedError, match=r"expiry\.buckets: the store has None, not 64; .*expiry\.by: "):
        recovery.open_or_create(never, 1)


def test_a_window_that_is_marked_is_not_published_again(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    """Though the log does not know yet; the one after it is."""
    log = owned(config)
    recover(config, log)
    committed(config, log, 0)
    recover(config, owned(config))
    assert "window 0 was committed and perhaps not published" in caplog.text
    caplog.clear()
    log = owned(config)
    assert list(log.state.outputs) == [0], "no record has said so since"
    output = committed(config, log, 1)
    recover(config, owned(config))
    assert "window 0" not in caplog.text
    assert "window 1 was committed and perhaps not published" in caplog.text
    assert Path(output.final).read_bytes() == b"rows"


def sources_of(log: CommitLog, window: int, epoch: int) -> Any:
    """A sources file with one file of the source."""
    partition = SourcePartition(f"/in/{window:02d}.json", 1000 + window, 0, 9, 1, source_digest(*_listed(window)))
    return write_sources(log.root, window=window, epoch=epoch, attempt=0, partitions=[partition], is_kept=True)


def _listed(number: int) -> tuple[str, int]:
    return f"/in/{number:02d}.json", 1000 + number


def judged(log: CommitLog, window: int) -> None:
    """A window of one file."""
    named = sources_of(log, window, log.state.epoch)
    log.place(commit(window, log.state.epoch, pieces=(), outputs=(), sources=named, extra={}))


def test_what_no_record_names_is_removed(config: Config) -> None:
    """Sources files of lower epochs without a record; intents of all epochs but the newest that has one."""
    log = owned(config)
    judged(log, 0)
    (log.root.local / "sources").mkdir(exist_ok=True)
    unnamed = sources_of(log, 1, 1)
    log = owned(config)
    log = owned(config)
    own = sources_of(log, 1, 3)
    for epoch in (1, 2):
        write_intent(log.root, Intent(1, epoch, "q", 0, (), 0, None, 0, ""))
    recover(config, log)
    left = {path.name for path in (log.root.local / "sources").iterdir()}
    assert log.state.sources[0].name in left
    assert (unnamed.name in left, own.name in left) == (False, True)
    assert [intent.epoch for intent in read_intents(log.root)] == [2]
    recover(config, owned(config))
    assert [intent.epoch for intent in read_intents(log.root)] == [2], "the newest stays until there is a newer one"


def test_a_job_takes_no_store_of_a_deduper(config: Config) -> None:
    """Its commits would forget which batches of which queries were judged."""
    log = owned(config)
    judged(log, 0)
    recovery.require_of_job(log)
    log.place(commit(1, log.state.epoch, pieces=(), outputs=(), extra={QUERIES: [["query", 7, 1_000]]}))
    with pytest.raises(UsageError, match="this store is a `Deduper`'s, and a job has one of its own"):
        recovery.require_of_job(log)


def test_a_start_makes_the_folders_that_windows_write_into(config: Config) -> None:
    """Of the sources, and of every port: what is empty can be read, too."""
    log = owned(config)
    recover(config, log)
    assert list((log.root.local / "sources").iterdir()) == []
    assert all((config.store.path.parent / "out" / port).is_dir() for port in PORTS)


def test_a_start_says_what_it_discards(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    """And nothing when there is nothing."""
    log = owned(config)
    recover(config, log)
    assert "discarded" not in caplog.text
    (config.sinks.unique.path / names.STAGING / "000000000003-000001-000" / "x").mkdir(parents=True)
    recover(config, owned(config))
    assert "discarded what no record names: 1 staged attempts, 0 pieces" in caplog.text


def test_pieces_that_no_record_names_are_discarded_and_told(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    """Also when nothing else is."""
    log = owned(config)
    recover(config, log)
    pieces = open_backend(config.store.url)
    pieces.append(shard=0, epoch=1, name=f"{9:012d}-000001-000-0000-deadbeef", data=b"x" * 500)
    recover(config, owned(config))
    assert "discarded what no record names: 0 staged attempts, 1 pieces" in caplog.text
    assert list(pieces.pieces()) == []


@pytest.mark.parametrize(
    ("extra", "through", "windows"),
    [({COUNTS: {}}, 1, [2]), ({COUNTS: {}}, 2, []), ({}, 1, []), ({COUNTS: {}}, -1, [2])],
)
def test_a_window_for_functions_waits_without_outputs_too(
    tmp_path: Path, extra: dict[str, Any], through: int, windows: list[int]
) -> None:
    """Of a query, whose commits have counts: the newest window, unless the state says that it was published."""
    state: Any = SimpleNamespace(outputs={}, next_window=3, extra=extra, published_through=through)
    log: Any = SimpleNamespace(state=state, root=local_place(tmp_path))
    assert recovery.unpublished(log) == windows
