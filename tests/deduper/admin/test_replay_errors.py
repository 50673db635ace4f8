"""Error records are sent through the job once more: exactly once, wherever and however often the command is killed."""

from __future__ import annotations

import base64
import json
import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bucket_store.errors import CorruptionError, FencedError
from bucket_store.filesystem import LOCAL
from bucket_store.log.commit_log import CommitLog
from bucket_store.places.local import local_place
from deduper.admin.errors.new_files import is_replayed
from deduper.admin.errors.replay import REASONS, ReplayReport, read_replays, replay_errors, replays_held
from deduper.admin.errors.rows import Windows
from deduper.admin.move.backup import backup, restore
from deduper.admin.move.rewind import plan_rewind, rewind
from deduper.admin.open_store import open_store, store_url
from deduper.cli.main import app
from deduper.config.files import FilesSource
from deduper.errors import IntegrityError, UsageError
from deduper.sources.files.listing import list_files
from tests.deduper.small_service import Killed, armed
from tests.deduper.store_samples import Window, make_store, write_config
from tests.forked import command

pytestmark = pytest.mark.slow
POINTS = ["replay.written", "replay.recorded", "replay.renamed"]
Row = tuple[str, str, int, str | None]
"""Reason, file below the source's folder, position, text."""
ROWS: dict[int, list[Row]] = {
    0: [("null_key", "a.json", 4, '{"n":1}'), ("malformed", "a.json", 6, "{broken\r")],
    2: [("null_key", "b.json", 0, '\ufeff{"n":2}'), ("file_missing", "c.json", 0, "in/c.json: gone")],
    3: [("invalid_utf8", "d.json", 9, base64.b64encode(b"\xff").decode()), ("null_key", "d.json", 10, '{"n":3}')],
}
ALL = [b'{"n":1}', b"{broken\r", b'{"n":2}', b"\xff", b'{"n":3}']


class Job:
    """A store and an error port made by hand; no service runs."""

    def __init__(self, directory: Path, source: str | None = None) -> None:
        self.directory = directory
        self.file = write_config(directory)
        text = self.file.read_text().replace("  error: {format: none}", "  error: {format: json, path: out/error}")
        self.file.write_text(text if source is None else text.replace("path: in/, file_format: json", source))
        make_store(self.file, [Window()] * 4)
        self.folder = directory / "in"
        self.folder.mkdir()
        (directory / "out" / "error").mkdir(parents=True)
        self.put(ROWS)

    def put(self, rows: dict[int, list[Row]], part: int = 0) -> None:
        """Publish files of the error port, one a window."""
        prefix = open_store(str(self.file)).log.manifest.store_id[:8]
        for window, some in rows.items():
            lines = [
                {"reason": reason, "source": str(self.folder / source), "position": position, "raw": raw}
                for reason, source, position, raw in some
            ]
            path = self.directory / "out" / "error" / f"{prefix}-{window:012d}-{part:04d}.json"
            path.write_text("".join(json.dumps({"_dedup": line}) + "\n" for line in lines))

    def replay(self, windows: Windows = Windows(), reasons: Sequence[str] = (), **options: Any) -> ReplayReport:  # noqa: B008
        """A call of the command, in this process."""
        return replay_errors(open_store(str(self.file)), windows, reasons, **options)

    def source_files(self) -> list[str]:
        """The files that the source has now."""
        config = open_store(str(self.file)).config
        assert config is not None
        assert isinstance(config.source, FilesSource)
        return sorted(list_files(config.source))

    def lines(self) -> list[bytes]:
        """All their lines."""
        return [line for file in self.source_files() for line in Path(file).read_bytes().split(b"\n")[:-1]]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_records_come_into_the_source_once(job: Job) -> None:
    """As their bytes, in the order of the port; what is no record is left out; the same call again does nothing."""
    report = job.replay()
    assert job.lines() == ALL
    assert (report.number, report.rows) == (1, {"null_key": 3, "malformed": 1, "invalid_utf8": 1})
    assert report.left_out == {"file_missing": 1}
    assert [Path(file).parent for file in report.files] == [job.folder]
    second = job.replay()
    assert (second.number, second.rows, second.files) == (None, {}, ())
    assert job.lines() == ALL
    assert not list(job.folder.glob(".*"))


def test_selections_that_overlap_send_nothing_twice(job: Job) -> None:
    """By window and reason; what is left is sent by a later call."""
    assert job.replay(Windows(0, 2), ["null_key"]).rows == {"null_key": 2}
    assert job.replay(Windows(0, 0)).rows == {"malformed": 1}
    assert job.replay(Windows(2)).rows == {"null_key": 1, "invalid_utf8": 1}
    assert job.replay().rows == {}
    assert Counter(job.lines()) == Counter(ALL)


def test_a_dry_run_writes_nothing(job: Job) -> None:
    """And counts the same."""
    report = job.replay(dry_run=True)
    assert (report.is_done, report.rows["null_key"], job.lines()) == (False, 3, [])
    assert not (job.directory / "state" / "replays").exists()
    assert job.replay().rows == report.rows


def test_what_fails_again_is_not_sent_round_for_ever(job: Job) -> None:
    """Its rows are new errors, of the replayed file: only `again` sends them, and once too."""
    (file,) = job.replay().files
    job.put({3: ROWS[3], 5: [("malformed", Path(file).name, 1, "{broken\r")], 6: [("null_key", "e.json", 0, "{}")]})
    report = job.replay()
    assert (report.rows, report.left_out["replayed before"]) == ({"null_key": 1}, 1)
    assert job.replay(again=True).rows == {"malformed": 1}
    assert (job.replay().rows, job.replay(again=True).rows) == ({}, {})
    assert Counter(job.lines()) == Counter([*ALL, b"{}", b"{broken\r"])


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("other", [False, True], ids=["the same call", "another selection"])
def test_a_death_at_any_point_loses_and_repeats_nothing(job: Job, point: str, other: bool) -> None:
    """In a source of several folders, at each rename: the next call finishes it, whatever it selects."""
    job.put({1: [("null_key", f"day={day}/x.json", 7, f'{{"d":{day}}}') for day in range(3)]})
    everything = Counter([*ALL, *(f'{{"d":{day}}}'.encode() for day in range(3))])
    for nth in range(1, 5 if point == "replay.renamed" else 2):

        def die() -> None:
            raise Killed

        if nth > 1:
            job.put({10 + nth: [("null_key", f"day={day}/y.json", 7, f'{{"n{nth}":{day}}}') for day in range(4)]})
            everything.update(f'{{"n{nth}":{day}}}'.encode() for day in range(4))
        with armed(point, nth, die), pytest.raises(Killed):
            job.replay()
        if other:
            job.replay(Windows(99))
            assert sum(job.replay().rows.values()) == (sum(everything.values()) if point == "replay.written" else 0)
        else:
            job.replay()
        assert Counter(job.lines()) == everything
        assert job.replay().rows == {}
        assert not list(job.folder.rglob(".*"))


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_command_is_finished_by_the_next(job: Job, point: str) -> None:
    """SIGKILL to the real command; its lock dies with it."""
    words = ["replay-errors", str(job.file), "--json"]
    killed = command(*words, armed=f"{point}=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    report = json.loads(command(*words).stdout)
    assert job.lines() == ALL
    assert (report["number"] is None) == (point != "replay.written")
    assert len(report["completed"]) == (point == "replay.recorded")


def test_two_calls_at_once(job: Job) -> None:
    """The second one is refused, and has done nothing."""
    refused = []

    def second() -> None:
        with pytest.raises(FencedError, match="another `replay-errors`"):
            job.replay()
        refused.append(True)

    with armed("replay.written", 1, second):
        job.replay()
    assert (refused, job.lines()) == ([True], ALL)


def test_a_record_of_a_partition_folder_goes_there(tmp_path: Path) -> None:
    """Its column is in the name of the folder alone; of a source that has moved, below the new one."""
    job = Job(tmp_path)
    job.put(
        {
            0: [("null_key", "day=1/a.json", 0, "{}"), ("null_key", "/elsewhere/day=2/h=3/b.json", 0, "[]")],
            2: [],
            3: [],
        }
    )
    job.replay()
    found = {str(file.parent.relative_to(job.folder)): file.read_text() for file in job.folder.rglob("*.json")}
    assert found == {"day=1": "{}\n", "day=2/h=3": "[]\n"}


def test_csv_with_a_header_gets_one(tmp_path: Path) -> None:
    """A file's first line is no record there."""
    job = Job(tmp_path, "path: in/, file_format: csv, header: true, delimiter: ';'")
    job.put({0: [("malformed", "a.csv", 1, "x;y")], 2: [], 3: []})
    job.replay()
    assert job.lines() == [b'"user";"id";"ts";"n";"day"', b"x;y"]


@pytest.mark.parametrize(
    ("path", "original", "name"),
    [
        ("in/*.json", "a.json", "deduper-replay-"),
        ("in/{clicks,taps}-*.json", "clicks-7.json.gz", "clicks-7-deduper-replay-"),
        ("in/*/", "x/a.json", "x/deduper-replay-"),
    ],
)
def test_the_name_fits_the_source(tmp_path: Path, path: str, original: str, name: str) -> None:
    """A pattern decides which files are read."""
    job = Job(tmp_path, f"path: '{path}', file_format: json")
    job.put({0: [("malformed", original, 1, "x")], 2: [], 3: []})
    (file,) = job.replay().files
    assert file.startswith(str(job.folder / name))
    assert job.lines() == [b"x"]
    again = job.replay(again=True)
    assert again.rows == {}


@pytest.mark.parametrize(
    ("source", "port", "reasons", "message"),
    [
        ("path: 'in/[ab].json', file_format: json", None, (), "widen the pattern"),
        (None, "{format: none}", (), "the error port is `none`"),
        (None, None, ["nul_key"], "no reason of an error"),
        (None, None, ["file_missing"], "no records"),
    ],
)
def test_what_cannot_be_sent_again_is_refused(
    tmp_path: Path, source: str | None, port: str | None, reasons: Sequence[str], message: str
) -> None:
    """With the reason and what to do; nothing is recorded, and nothing is left in the source."""
    job = Job(tmp_path, source)
    if port is not None:
        job.file.write_text(job.file.read_text().replace("{format: json, path: out/error}", port))
    with pytest.raises(UsageError, match=message):
        job.replay(reasons=reasons)
    assert job.lines() == []
    assert not list((tmp_path / "state").glob("replays/0*"))


def test_a_source_that_moved_between_two_calls_is_noticed(job: Job) -> None:
    """The hidden files are where it was."""

    def die() -> None:
        raise Killed

    with armed("replay.recorded", 1, die), pytest.raises(Killed):
        job.replay()
    (job.directory / "new").mkdir()
    text = job.file.read_text()
    job.file.write_text(text.replace("path: in/", "path: new/"))
    with pytest.raises(UsageError, match="replay 1 was interrupted"):
        job.replay()
    job.file.write_text(text)
    job.replay()
    assert job.lines() == ALL


def test_a_taken_name_and_a_damaged_record_are_found(job: Job) -> None:
    """A file of another is never replaced; a record with a flipped bit is none."""

    def die() -> None:
        raise Killed

    with armed("replay.recorded", 1, die), pytest.raises(Killed):
        job.replay()
    (file,) = read_replays(local_place(job.directory / "state"))[1]["files"]
    other = job.folder / file["final"]
    other.write_text("mine")
    with pytest.raises(IntegrityError, match="is taken by another file"):
        job.replay()
    other.unlink()
    record = job.directory / "state" / "replays" / "000001"
    data = record.read_bytes()
    record.write_bytes(data[:30] + bytes([data[30] ^ 1]) + data[31:])
    with pytest.raises(CorruptionError):
        job.replay()
    record.write_bytes(data)
    job.replay()
    assert job.lines() == ALL


def test_a_record_is_whole_or_refused(job: Job) -> None:
    """Every truncation and every flipped byte: errors must not be sent a second time because a record is misread."""
    job.replay()
    record = job.directory / "state" / "replays" / "000001"
    data = record.read_bytes()
    damaged = [data[:length] for length in range(len(data))]
    damaged += [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data))]
    for one in damaged:
        record.write_bytes(one)
        with pytest.raises(CorruptionError):
            read_replays(local_place(job.directory / "state"))


def test_names_are_durable_before_they_are_recorded(job: Job) -> None:
    """Else a power cut after the record would lose the hidden files."""
    seen: list[str] = []

    class Watched(type(LOCAL)):  # type: ignore[misc]
        __slots__ = ()

        def fsync_dir(self, path: Path) -> None:
            seen.append(path.name)
            super().fsync_dir(path)

        def link(self, source: Path, target: Path) -> None:
            seen.append(f"link {target.name}")
            super().link(source, target)

    store = open_store(str(job.file))
    log = CommitLog.open(local_place(store.root.local, Watched()))
    replay_errors(replace(store, log=log), Windows(), fs=Watched())
    assert seen[-4:] == ["in", "link 000001", "replays", "in"]


def test_the_command(job: Job) -> None:
    """As text, and every reason may be named."""
    result = CliRunner().invoke(app, ["replay-errors", str(job.file), "--dry-run"])
    assert (result.exit_code, "5 error rows would be sent again" in result.output) == (0, True)
    result = CliRunner().invoke(app, ["replay-errors", str(job.file), "--window=0..2", "--reason=null_key"])
    assert (result.exit_code, "replay 1: 2 error rows in 1 new file of the source" in result.output) == (0, True)
    assert "null_key" in REASONS
    result = CliRunner().invoke(app, ["replay-errors", str(job.file), "--window=x"])
    assert result.exit_code == 2


@pytest.mark.parametrize("point", ["", "move.recorded", "replay.undone"])
def test_a_rewind_undoes_the_replays_of_the_rows_that_it_undoes(job: Job, point: str) -> None:
    """The next windows have other error rows under the same names: these are sent, and no record twice."""
    job.replay(Windows(0, 0))
    job.replay(Windows(2))
    kept = job.lines()[:2]
    config = open_store(str(job.file)).config
    assert config is not None

    def die() -> None:
        raise Killed

    if point:
        with armed(point, 1, die), pytest.raises(Killed):
            rewind(open_store(str(job.file)), 1)
        if point == "replay.undone":
            job.replay(Windows(9))  # completes what is recorded, and does not end the rewind
    assert plan_rewind(open_store(str(job.file)), 1).replays == (2,)
    assert rewind(open_store(str(job.file)), 1).replays == (2,)
    assert (job.lines(), [*read_replays(local_place(job.directory / "state"))]) == (kept, [1])
    job.put({2: [("null_key", "b.json", 0, '{"other":2}')], 3: ROWS[3]})
    assert job.replay().rows == {"null_key": 2, "invalid_utf8": 1}
    assert Counter(job.lines()) == Counter([*kept, b'{"other":2}', b"\xff", b'{"n":3}'])
    assert not list(job.folder.glob(".*"))


def test_no_replay_is_made_while_a_rewind_runs(job: Job) -> None:
    """Its rows would be of windows that are undone."""
    with replays_held(open_store(str(job.file))), pytest.raises(FencedError, match="another `replay-errors`"):
        rewind(open_store(str(job.file)), 1)


def test_a_store_that_is_put_back_from_a_copy_sends_nothing_twice_and_under_no_name_again(job: Job) -> None:
    """A copy has the records of replays. Without them (of an earlier release) the numbers begin again, no name does."""
    store = open_store(str(job.file))
    (first,) = job.replay(Windows(0, 0)).files
    copy = store_url(f"file:{job.directory}/copy")
    backup(store, copy).run()
    assert job.replay(Windows(2, 2)).number == 2
    backup(store, copy).run()
    (job.directory / "copy" / "replays" / "000003").write_bytes(b"of a store that was put back meanwhile")
    backup(store, copy).run()
    shutil.rmtree(job.directory / "state")
    restore(open_store(copy), store.url).run()
    assert [*read_replays(local_place(job.directory / "state"))] == [1, 2]
    assert job.replay(Windows(0, 2)).rows == {}
    (second,) = job.replay().files
    assert Counter(job.lines()) == Counter(ALL)

    shutil.rmtree(job.directory / "state" / "replays")
    Path(first).unlink()
    (again,) = job.replay(Windows(0, 0)).files
    assert again not in (first, second), "the path was judged: its records would be in no output"
    assert is_replayed(again)
