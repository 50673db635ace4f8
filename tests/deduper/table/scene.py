"""A table of (k, v, d) in a folder of its own, with its ports; what readers see of it; deaths of a load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from bucket_store import failpoints
from deduper.table.batch import Keep
from deduper.table.formats.protocol import PRIVATE
from deduper.table.operations.changes import delete, load, upsert
from deduper.table.operations.receipts import WriteReceipt
from deduper.table.operations.write import WriteSteps
from deduper.table.settings import LoadedLoad, load_config

EPOCH = date(1970, 1, 1)
ROWS = pa.schema([("k", pa.int64()), ("v", pa.string()), ("d", pa.date32())])
Row = tuple[int | None, str, int | None]
CONFIG = """\
source: {path: in}
table: {path: table, format: FORMAT}
key: k
partition_by: d
duplicates: duplicates
errors: errors
"""

STEPS = (
    *("table.1.locked", "index.piece", "index.state", "index.merged", "table.2.index", "table.3.staged"),
    *("table.4.planned", "table.placed", "table.5.placed", "table.5.committed", "table.6.port", "table.6.published"),
    *("table.7.index", "table.7.port"),
)
CHANGE_STEPS = (*STEPS, "table.removed")
"""Those of an upsert and a delete."""
SERVER_STEPS = ("index.dropped", "index.served")
"""Those of an external index besides."""
ROLLBACK_STEPS = ("table.1.locked", "table.5.committed", "index.piece", "index.state", "table.7.index")
"""Those of a rollback."""


def arrow(rows: Sequence[Row]) -> pa.Table:
    """Rows of (k, v, days of d)."""
    days = pa.array([row[2] for row in rows], pa.int32()).cast(pa.date32())
    columns = [pa.array([row[0] for row in rows], pa.int64()), pa.array([row[1] for row in rows], pa.string()), days]
    return pa.table(columns, schema=ROWS)


class Place:
    """A table of one format."""

    def __init__(self, folder: Path, table_format: str, index: str = "exact") -> None:
        self.index = index
        self.root = folder / "table"
        self.format = table_format
        self.ports = {"duplicates": folder / "duplicates", "errors": folder / "errors"}

    def load(
        self, rows: Sequence[Row] | pa.Table, *, keep: str | Keep = "first", scope: str = "partition"
    ) -> WriteReceipt:
        """A load with key `k`, by `d`."""
        batch = rows if isinstance(rows, pa.Table) else arrow(rows)
        return load(
            batch,
            self.root,
            key=["k"],
            partition_by=["d"],
            table_format=self.format,
            scope=scope,
            keep=keep,
            index=self.config().config.table_index,
            **self.ports,  # type: ignore[arg-type]
        )

    def config(self, more: str = "") -> LoadedLoad:
        """The settings of `load`, with more of them, from a file."""
        file = self.root.parent / "place.yaml"
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(f"{CONFIG.replace('FORMAT', self.format)}index: {self.index}\n{more}", encoding="utf-8")
        return load_config(file)

    def upsert(self, rows: Sequence[Row] | pa.Table, more: str = "") -> WriteReceipt:
        """An upsert, with more settings."""
        return upsert(rows if isinstance(rows, pa.Table) else arrow(rows), self.config(more))

    def delete(self, keys: Sequence[Row] | pa.Table, more: str = "") -> WriteReceipt:
        """A delete, with more settings."""
        return delete(keys if isinstance(keys, pa.Table) else arrow(keys), self.config(more))

    def files(self) -> list[str]:
        """The paths of the files, relative."""
        if self.format == "delta":
            return sorted(Path(uri).relative_to(self.root).as_posix() for uri in DeltaTable(str(self.root)).file_uris())
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.glob("d=*/*.parquet"))

    def rows(self) -> list[tuple[int, str, int]]:
        """All rows, as other readers of this format see them."""
        if self.format == "delta":
            if not (self.root / "_delta_log").exists():
                return []
            found = DeltaTable(str(self.root)).to_pyarrow_table()
        else:
            files = [str(self.root / path) for path in self.files()]
            partitioning = ds.partitioning(pa.schema([("d", pa.date32())]), flavor="hive")
            found = ds.dataset(
                files, schema=ROWS, partitioning=partitioning, partition_base_dir=str(self.root)
            ).to_table()
        days = [(day - EPOCH).days for day in found["d"].to_pylist()]
        return list(zip(found["k"].to_pylist(), found["v"].to_pylist(), days, strict=True))

    def held(self) -> list[tuple[int, int]]:
        """(k, days of d) of all rows, sorted."""
        return sorted((k, d) for k, _, d in self.rows())

    def port(self, name: str) -> list[tuple[int | None, str, str | None]]:
        """(k, reason, first file) of the rows of a port, sorted."""
        found = [pq.ParquetFile(file).read() for file in sorted(self.ports[name].glob("*.parquet"))]
        rows = [row for table in found for row in table.to_pylist()]
        return sorted(((row["k"], row["_load"]["reason"], row["_load"]["first_file"]) for row in rows), key=str)

    def leftovers(self) -> list[Path]:
        """Staged files, and files of rows that no version of the table has."""
        staged = [*self.root.glob(f"{PRIVATE}/staging/*"), *self.root.parent.glob("*/_staging/*")]
        named = {self.root / path for path in self.files()} if self.rows() else set()
        for log in self.root.glob("_delta_log/*.json"):
            actions = map(json.loads, log.read_text(encoding="utf-8").splitlines())
            named |= {self.root / action["add"]["path"] for action in actions if "add" in action}
        return staged + [path for path in self.root.glob("d=*/part-????????????????-*.parquet") if path not in named]


def foreign(place: Place, key: int, day: int) -> None:
    """Another writer adds a row."""
    if place.format == "delta":
        write_deltalake(str(place.root), arrow([(key, "foreign", day)]), mode="append", partition_by=["d"])
    else:
        folder = place.root / f"d=1970-01-0{day + 1}"
        folder.mkdir(exist_ok=True, parents=True)
        pq.write_table(arrow([(key, "foreign", day)]).drop_columns(["d"]), folder / f"foreign-{key}.parquet")


@contextmanager
def dying(name: str, nth: int = 1) -> Iterator[list[bool]]:
    """A death at the n-th hit of a failpoint, as far as files go: no cleaning up. [True] afterwards if it came."""
    died: list[bool] = []
    failpoints._ARMED[name] = failpoints._Armed(name, f"raise@{nth}")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WriteSteps, "_give_up", lambda *_: None)
            yield died
    except failpoints.FailpointError:
        died.append(True)
    finally:
        failpoints._ARMED.pop(name)
