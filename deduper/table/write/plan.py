"""The plan of a write: what it has staged, and where all of it belongs. With it the next write completes a dead one.

    <table>/_deduper/staging/<load>/plan    a framed file: magic "BSTABPLN", version 1, `LoadPlan` as its body
    <table>/_deduper/staging/<load>/rows    the new rows
    <port>/_staging/<load>                  the rows of a port

A load without a plan has committed nothing. One with a plan is committed if its table has the commit, or if it has
nothing for the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bucket_store import failpoints
from bucket_store.filesystem import LOCAL, listed, make_directories, place_new, remove_tree
from bucket_store.framing import frame
from bucket_store.wire import encode
from deduper.table.errors import UnsupportedTableError
from deduper.table.formats.paths import place
from deduper.table.formats.protocol import PRIVATE, Commit, NewFile, Table
from deduper.table.framed import read_framed

_MAGIC = b"BSTABPLN"
_VERSION = 1
_PLAN = "plan"
PORT_STAGING = "_staging"


@dataclass(frozen=True, slots=True)
class PortFiles:
    """The staged files of a port, and its folder."""

    root: str
    files: tuple[NewFile, ...]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A load that is staged. `ports` with their folders, even of no file: their staging folders are removed.

    With an empty `commit` there is nothing for the table, so the plan itself is the commit.
    """

    table_format: str
    commit: Commit
    ports: tuple[PortFiles, ...]


def staging_folder(table: Path, load: str) -> Path:
    """The folder of a load."""
    return table / PRIVATE / "staging" / load


def write_plan(table: Path, plan: LoadPlan) -> None:
    """Makes the plan of a load durable."""
    folder = staging_folder(table, plan.commit.load)
    make_directories(LOCAL, folder)
    place_new(LOCAL, folder / _PLAN, frame(_MAGIC, _VERSION, encode(plan)))


def read_plan(table: Path, load: str) -> LoadPlan | None:
    """The plan of a load; None when it has none yet.

    Raises:
        CorruptionError, UnknownFormatError: it cannot be read.
    """
    path = staging_folder(table, load) / _PLAN
    return read_framed(LoadPlan, path, magic=_MAGIC, version=_VERSION, what="plan of a load")


def staged_loads(table: Path) -> list[str]:
    """The loads that have staged something: dead ones, and the one that runs."""
    return listed(LOCAL, table / PRIVATE / "staging")


def publish_ports(plan: LoadPlan) -> None:
    """Gives the files of the ports their places. Safe to repeat."""
    for port in plan.ports:
        place(Path(port.root), port.files)
        failpoints.hit("table.6.port")


def discard(table: Path, load: str, ports: tuple[str, ...]) -> None:
    """Removes what a load has staged. The folder with the plan goes last: by it alone a repetition finds the rest."""
    for port in ports:
        remove_tree(LOCAL, Path(port) / PORT_STAGING / load)
        failpoints.hit("table.7.port")
    remove_tree(LOCAL, staging_folder(table, load))


def finish_all(table: Table, ports: tuple[str, ...]) -> int:
    """Completes or removes what dead loads have left; gives the number of those that were completed.

    `ports` are the folders of the load that begins: a load without a plan has staged rows in the same ones, or leaves
    hidden files in others. The caller holds the table's lock.

    Raises:
        CorruptionError: a plan cannot be read.
        UnsupportedTableError: a dead load was of another format.
    """
    finished = 0
    for load in staged_loads(table.root):
        plan = read_plan(table.root, load)
        if plan is None:
            discard(table.root, load, ports)
            continue
        if plan.table_format != table.format:
            raise UnsupportedTableError(
                f"{table.root}: load {load} of a {plan.table_format} table has died, and has to be completed; "
                f"write `format: {plan.table_format}`"
            )
        if plan.commit.is_empty or table.finish(plan.commit):
            publish_ports(plan)
            finished += 1
        discard(table.root, load, tuple(port.root for port in plan.ports))
    return finished
