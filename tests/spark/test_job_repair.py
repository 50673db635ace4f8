"""Damage to a real job's store: the job stops and says where, a repair proves the piece, and the stream goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bucket_store.log.commit_log import CommitLog
from bucket_store.pieces import rocksdb_backend
from bucket_store.places.local import local_place
from deduper.admin.open_store import OpenStore, open_store
from deduper.admin.repair import apply as repair
from deduper.admin.repair import plan as repair_plan
from deduper.admin.repair.plan import QUARANTINE
from deduper.admin.repair.report import Way
from deduper.arrow_columns import arrow_type
from deduper.core.digests import key_type
from deduper.errors import ExitCode, exit_code_of
from deduper.window.table_folder import table_folders
from tests.deduper.digest_cases import SCALARS
from tests.spark.harness import PORTS, Job

pytestmark = pytest.mark.spark

EXPIRY = {"by": "ordered", "field": "t", "period": 100, "span": 10, "lookup": "all_live"}


def opened(job: Job) -> OpenStore:
    """The job's store, as a command in a process of its own opens it."""
    rocksdb_backend._readers.clear()
    return OpenStore(job.config.store.url, job.config, *_log_and_pieces(job))


def _log_and_pieces(job: Job) -> tuple[Any, Any]:
    store = open_store(job.config.store.url)
    return store.log, store.pieces


def forget_tables(job: Job) -> None:
    """As after a reboot: what the tables knew must be read from the pieces."""
    for folder in table_folders(job.config, CommitLog.open(local_place(job.config.store.path)).manifest.store_id):
        shutil.rmtree(folder, ignore_errors=True)


def fill(job: Job, first: int, files: int) -> None:
    """Files whose keys come again in later ones, within the period."""
    for number in range(first, first + files):
        records = [{"k": f"{(number * 7 + key) % 40}", "t": number * 10 + key % 7} for key in range(25)]
        job.add_records([*records, {"k": "late", "t": number * 10 - 200}])


def answers(job: Job) -> dict[str, list[tuple[str, int, int, int]]]:
    """Which record left where."""
    return {
        port: sorted(
            (Path(row["_dedup"]["source"]).name, row["_dedup"]["position"], row["_dedup"]["window"], row["t"])
            for row in job.rows(port)
        )
        for port in PORTS
    }


def flip_a_byte(store: OpenStore) -> None:
    """In the digests of the oldest piece."""
    ref = min((ref for refs in store.log.state.pieces.values() for ref in refs), key=lambda ref: ref.first_window)
    whole = store.pieces.read(ref)
    path = store.root.local / ref.file
    files = sorted(path.glob("*.sst")) if path.is_dir() else [path]
    for file in files:
        data = file.read_bytes()
        at = data.find(whole[-200:])
        if at >= 0:
            file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            return
    raise AssertionError("the piece's bytes are nowhere")


def lose_a_file(store: OpenStore) -> None:
    """A whole segment or database."""
    path = store.root.local / store.log.state.pieces[0][0].file
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


@pytest.mark.night(but=["rocksdb-flip_a_byte", "file-lose_a_file"])
@pytest.mark.parametrize("damage", [flip_a_byte, lose_a_file])
@pytest.mark.parametrize("backend", ["rocksdb", "file"])
def test_the_stream_goes_on_as_if_nothing_had_been(
    backend: str, damage: Callable[[OpenStore], None], new_job: Callable[..., Job]
) -> None:
    """Exit code 4 with file and offset, a plan, the proof, and then the answers of a job that nobody disturbed."""
    settings: dict[str, Any] = {"expiry": EXPIRY, "source": {"max_files_per_batch": 1}}
    store = {"url": f"{backend}:state", "shards": 2, "tables": "tables"}
    undisturbed, job = new_job("undisturbed", store=store, **settings), new_job("job", store=store, **settings)
    fill(undisturbed, 0, 6)
    undisturbed.run()
    fill(job, 0, 4)
    job.run()
    damage(opened(job))
    forget_tables(job)
    fill(job, 4, 2)
    rocksdb_backend._readers.clear()
    with pytest.raises(Exception, match=r"pieces/\d{4}/") as stopped:
        job.run()
    causes = str(stopped.value)
    assert "expected" in causes
    assert "at byte" in causes
    assert exit_code_of(stopped.value) is ExitCode.INTEGRITY, type(stopped.value)
    planned = repair_plan.plan(opened(job))
    assert planned.repairs
    assert {item.way for item in planned.repairs} == {Way.REBUILD}
    assert repair_plan.piece_damage(opened(job), planned.repairs[0].piece) is not None, "a plan changes nothing"
    assert repair.apply(opened(job)).is_sound
    assert list((job.config.store.path / QUARANTINE).glob("*.json"))
    job.run()
    assert answers(job) == answers(undisturbed)


@pytest.mark.night(but=["fast-parquet", "secure-json", "fast-csv"])
@pytest.mark.parametrize("sink", ["parquet", "json", "csv"])
@pytest.mark.parametrize("digest", ["fast", "secure"])
def test_keys_of_every_type_are_rebuilt_from_what_spark_writes(
    sink: str, digest: str, new_job: Callable[..., Job]
) -> None:
    """Every scalar type, its edges and null, out of every format; CSV holds no binary."""
    types = [name for name in SCALARS if not (sink == "csv" and name == "binary")]
    columns = {f"c{number}": name for number, name in enumerate(types)}
    job = new_job(
        f"{sink}-{digest}",
        source={"file_format": "parquet", "schema": ", ".join(f"{name} {kind}" for name, kind in columns.items())},
        key=list(columns),
        null_keys="allow",
        digest=digest,
        store={"url": "file:state", "shards": 2},
        sinks={"unique": {"format": sink, "path": "out/unique"}},
    )
    longest = max(map(len, SCALARS.values()))
    rows = [
        {name: ([*SCALARS[kind], None])[row % (len(SCALARS[kind]) + 1)] for name, kind in columns.items()}
        for row in range(2 * longest)
    ]
    schema = pa.schema([(name, arrow_type(key_type(kind))) for name, kind in columns.items()])
    job.add_table(pa.Table.from_pylist(rows, schema))
    job.run()
    state = opened(job).log.state
    assert sum(ref.entries for refs in state.pieces.values() for ref in refs) > longest
    shutil.rmtree(job.config.store.path / "pieces")
    planned = repair_plan.plan(opened(job))
    assert [(item.way, item.why) for item in planned.repairs if item.way is not Way.REBUILD] == []
    assert len(planned.repairs) == sum(map(len, state.pieces.values()))
