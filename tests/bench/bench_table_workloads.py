"""Tables round by round, side by side: `python -m tests.bench.bench_table_workloads fact|dim|events [--help]`.

`table_workloads` has the workloads. Each contender has a copy of the first table, and each engine a process of its own.
All get the same Parquet file each round; the turn is rotated. The first two rounds, which compile and fill caches, do
not count. In between, untimed, files that a table has no more are deleted. At the end each table is compared with what
is to be in it, but for appends, which keep all repeats: of those the rows are counted. With `--deletes` a round deletes
rows by their keys; nothing is a floor of that, so multiples are those of deltalake's merge.

Delta on Spark needs the jars delta-spark and delta-storage of one version in the folder `--delta-jars`. Hudi needs a
Python that has PySpark 3.5, pyarrow and psutil (`--hudi-python`) and its bundle for Spark 3.5 in the folder
`--hudi-jars`; it writes its own first tables of the same rows, and its files are not counted. With `--first-tables`
these and the first table of the others are kept in a folder, and are made there once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from tests.bench.table_workloads import SHAPES, Int64s, Workload

_NOT_COUNTED = 2


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to write a batch, which is for `work`: insert, upsert or delete; None for both of the first."""

    name: str
    engine: str
    do: str
    work: str | None
    index: str | None = None
    """Of Hudi."""


CONTENDERS = (
    Contender("append (deltalake)", "append", "append", None),
    Contender("append (Spark)", "delta", "append", None),
    Contender("anti-join, append (Spark)", "delta", "anti_join", "insert"),
    *(
        Contender(name, engine, work, work)
        for name, engine in (("deltalake merge", "deltalake"), ("Delta `MERGE` (Spark)", "delta"))
        for work in ("insert", "upsert", "delete")
    ),
    Contender("`deduper table load`", "ours", "insert", "insert"),
    Contender("`deduper table upsert`", "ours", "upsert", "upsert"),
    Contender("`deduper table delete`", "ours", "delete", "delete"),
    *(
        Contender(f"Hudi, index {index} (Spark 3.5)", "hudi", work, work, index)
        for work in ("insert", "upsert")
        for index in ("simple", "bloom", "record")
    ),
)


class Engine:
    """A process of `table_contenders`; a context manager."""

    def __init__(self, name: str, log: Path, python: str = sys.executable) -> None:
        self._log = log
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [python, "-m", "tests.bench.table_contenders", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, **job: Any) -> dict[str, Any]:
        """The answer to a job."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            words = self._log.read_text(encoding="utf-8")[-2000:]
            raise RuntimeError(f"{job['do']} of {job['table']} failed: {words}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@dataclass(slots=True)
class Lane:
    """A contender with its table and its rounds; `rewritten` of the last round, of which `held` have a matched key."""

    contender: Contender
    table: Path
    rounds: list[dict[str, Any]] = field(default_factory=list)
    held: int = 0
    rewritten: int = 0
    rows: int = 0
    problem: str | None = None

    def median(self, what: str) -> float:
        """Of the rounds that count."""
        return statistics.median(one[what] for one in self.rounds[_NOT_COUNTED:])

    def files(self) -> set[Path]:
        """The files of the present version; none of Hudi."""
        if self.contender.engine == "hudi":
            return set()
        return {Path(unquote(urlparse(uri).path)) for uri in DeltaTable(str(self.table)).file_uris()}


class FirstTables:
    """The first table of a workload in the forms of the engines, each made when it is first asked for.

    A form that is there is whole: it has another name while it is made.
    """

    def __init__(self, folder: Path, workload: Workload) -> None:
        self._folder = folder / f"{workload.shape.name}-{workload.rows}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._workload = workload
        self._by = "day" if workload.shape.is_partitioned else None

    def copies(self, lanes: Sequence[Lane], hudi: Engine | None) -> None:
        """The tables of the lanes; each has its own log and links to the same files."""
        for lane in lanes:
            if lane.contender.engine == "hudi":
                assert hudi is not None
                shutil.copytree(self._hudi(lane.contender, hudi), lane.table, copy_function=_linked)
            else:
                shutil.copytree(self._delta(), lane.table, copy_function=_linked)

    def _delta(self) -> Path:
        with _made(self._folder / "delta") as making:
            if making is not None:
                for part in self._workload.first_table():
                    by = None if self._by is None else [self._by]
                    write_deltalake(str(making), part, mode="append", partition_by=by)
        return self._folder / "delta"

    def _hudi(self, contender: Contender, hudi: Engine) -> Path:
        # The kinds without entries of their own differ in the writes alone.
        table = self._folder / ("hudi-record" if contender.index == "record" else "hudi")
        first = str(self._delta())
        with _made(table) as making:
            if making is not None:
                made = hudi.ask(do="create", table=str(making), batch=first, by=self._by, index=contender.index)
                took = f"{made['seconds']:.0f} s, {made['cpu_seconds']:.0f} CPU s"
                print(f"{table.name}: {took}; load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        return table


@contextmanager
def _made(table: Path) -> Iterator[Path | None]:
    """A folder that becomes the table if all goes well; None if the table is there."""
    if table.exists():
        yield None
        return
    making = table.with_suffix(".making")
    shutil.rmtree(making, ignore_errors=True)
    yield making
    making.rename(table)


def _linked(old: str, new: str) -> None:
    if old.endswith(".parquet") and not {"_delta_log", ".hoodie"} & set(Path(old).parts):
        try:
            os.link(old, new)
        except OSError:  # first tables are kept on another disk
            shutil.copy(old, new)
    else:
        shutil.copy(old, new)


def sweep(lane: Lane) -> None:
    """Deletes the files that the present version does not have."""
    files = lane.files()
    for path in set(lane.table.glob("**/*.parquet")) - files if files else ():
        if not path.relative_to(lane.table).parts[0].startswith("_"):
            path.unlink()


def holding(files: set[Path], ids: Int64s) -> int:
    """The number of files with one of the ids."""
    wanted = pa.array(ids)
    return sum(pc.any(pc.is_in(pq.ParquetFile(path).read(["id"])["id"], wanted)).as_py() for path in files)


def run(
    lanes: Sequence[Lane], workload: Workload, rounds: int, folder: Path, engines: dict[str, Engine], *, deletes: bool
) -> None:
    """All rounds."""
    by = "day" if workload.shape.is_partitioned else None
    for number in range(rounds):
        rows, known = workload.next_deletes() if deletes else workload.next_batch()
        batch = folder / "batch.parquet"
        pq.write_table(rows, batch)
        days = [str(day) for day in pc.unique(rows["day"]).sort().to_pylist()] if by else []
        turn = number % len(lanes)
        for lane in (*lanes[turn:], *lanes[:turn]):
            before = lane.files()
            is_last = number + 1 == rounds
            if is_last and not workload.shape.inserts_only:
                lane.held = holding(before, known)
            job = {"do": lane.contender.do, "table": str(lane.table), "batch": str(batch), "by": by, "days": days}
            job["index"] = lane.contender.index
            lane.rounds.append(engines[lane.contender.engine].ask(**job) | {"load": os.getloadavg()[0]})
            lane.rewritten = len(before - lane.files())
            sweep(lane)
        took = ", ".join(f"{lane.contender.name} {lane.rounds[-1]['seconds']:.2f}" for lane in lanes)
        print(f"round {number + 1}: {took}; load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)


def check(lanes: Sequence[Lane], workload: Workload, engines: dict[str, Engine]) -> None:
    """Compares each table with what is to be in it."""
    for lane in lanes:
        if lane.contender.engine == "hudi":
            rows = lane.table.with_suffix(".rows")
            engines["hudi"].ask(do="rows", table=str(lane.table), batch=str(rows))
            table = ds.dataset(rows, format="parquet")
        else:
            table = DeltaTable(str(lane.table)).to_pyarrow_dataset()
        lane.rows = table.count_rows()
        if lane.contender.do != "append":
            # A few batches ahead: a table need not fit into memory.
            columns = table.to_batches(columns=["id", "version"], batch_readahead=2, fragment_readahead=1)
            lane.problem = workload.problem(columns)
        elif lane.rows != workload.rows + workload.appended:
            lane.problem = f"{lane.rows:,} rows of {workload.rows + workload.appended:,}"


def print_table(lanes: Sequence[Lane]) -> None:
    """The median of each contender, and its multiple of the first one's."""
    floor, cpu = lanes[0].median("seconds"), lanes[0].median("cpu_seconds")
    first = "an append" if lanes[0].contender.do == "append" else "the first"
    print(f"| | s a batch | least | greatest | of {first} | CPU s | of {first}'s | peak MB | files rewritten "
          "| with a matched key | rows |\n|---|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for lane in lanes:
        seconds = [one["seconds"] for one in lane.rounds[_NOT_COUNTED:]]
        memory = "" if lane.contender.engine in ("delta", "hudi") else f"{lane.median('peak_mb'):.0f}"
        files = " | " if lane.contender.engine == "hudi" else f"{lane.rewritten} | {lane.held}"
        print(
            f"| {lane.contender.name} | {lane.median('seconds'):.2f} | {min(seconds):.2f} | {max(seconds):.2f} "
            f"| {lane.median('seconds') / floor:.2f} | {lane.median('cpu_seconds'):.2f} "
            f"| {lane.median('cpu_seconds') / cpu:.2f} | {memory} | {files} | {lane.rows:,} |"
        )


def main() -> None:
    """Prints a table, and fails when a contender's is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=SHAPES)
    parser.add_argument("--scale", type=float, default=1.0, help="of the rows of the first table")
    parser.add_argument("--batch", type=int, help="rows of a round")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--deletes", action="store_true", help="rounds delete rows; of fact and dim")
    parser.add_argument("--delta-jars", type=Path, help="without it Spark's contenders are left out")
    parser.add_argument("--hudi-python", help="without it Hudi is left out")
    parser.add_argument("--hudi-jars", type=Path)
    parser.add_argument("--first-tables", type=Path, help="keeps them in this folder, and takes those that are there")
    parser.add_argument("--dir", type=Path, help="for the tables")
    parser.add_argument("--out", type=Path, help="JSON of all rounds")
    asked = parser.parse_args()
    shape = SHAPES[asked.workload]
    if asked.deletes and shape.inserts_only:
        parser.error("--deletes: rows of this workload are only inserted")
    workload = Workload(shape, int(shape.rows * asked.scale), asked.batch or shape.batch)
    os.environ.update(DELTA_JARS=str(asked.delta_jars), HUDI_JARS=str(asked.hudi_jars))
    absent = {"delta": asked.delta_jars is None, "hudi": asked.hudi_python is None}
    works = {"delete"} if asked.deletes else {None, "insert" if shape.inserts_only else "upsert"}
    chosen = [one for one in CONTENDERS if one.work in works and not absent.get(one.engine, False)]
    if asked.dir is not None:
        asked.dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-table-", dir=asked.dir))
    try:
        lanes = [Lane(one, folder / f"{one.engine}-{one.index or one.do}") for one in chosen]
        by = "day" if shape.is_partitioned else None
        with ExitStack() as stack:
            names = dict.fromkeys(one.engine for one in chosen)
            pythons = {"hudi": asked.hudi_python}
            engines = {
                name: stack.enter_context(Engine(name, folder / f"{name}.log", pythons.get(name, sys.executable)))
                for name in names
            }
            FirstTables(asked.first_tables or folder / "first", workload).copies(lanes, engines.get("hudi"))
            ours = next(lane for lane in lanes if lane.contender.engine == "ours")
            with Engine("ours", folder / "build.log") as builder:  # its memory is not that of writes
                built = builder.ask(do="build", table=str(ours.table), batch=str(folder), by=by)
            run(lanes, workload, asked.rounds, folder, engines, deletes=asked.deletes)
            check(lanes, workload, engines)
        if asked.out is not None:
            found = {"asked": vars(asked), "built": built, "rounds": {one.contender.name: one.rounds for one in lanes}}
            asked.out.write_text(json.dumps(found, default=str, indent=1), encoding="utf-8")
        size = sum(path.stat().st_size for path in (ours.table / "_deduper" / "index").rglob("*") if path.is_file())
    finally:
        shutil.rmtree(folder)
    loads = [one["load"] for lane in lanes for one in lane.rounds[_NOT_COUNTED:]]
    print(f"{shape.name}: {workload.rows:,} rows, {asked.rounds} rounds of {workload.batch:,}, {os.cpu_count()} cores, "
          f"load {min(loads):.1f} to {max(loads):.1f}\n")  # fmt: skip
    print_table(lanes)
    print(f"\nindex: built in {built['seconds']:.1f} s ({built['cpu_seconds']:.1f} CPU s), "
          f"{size / workload.keys:.1f} B a key afterwards")  # fmt: skip
    wrong = [f"{lane.contender.name}: {lane.problem}" for lane in lanes if lane.problem is not None]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
