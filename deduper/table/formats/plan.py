"""The plan of a write: what it has staged, and where all of it belongs. With it the next write completes a dead one.

    <table>/_deduper/staging/<load>/ports   a framed file: magic "BSTABPRT", version 1, `StagedPorts` as its body
    <table>/_deduper/staging/<load>/plan    a framed file: magic "BSTABPLN", version 1, `LoadPlan` as its body
    <table>/_deduper/staging/<load>/done    the same, once all files of the write have their places
    <table>/_deduper/staging/<load>/rows    the new rows
    <port>/_staging/<load>                  the rows of a port
    <port>/_staging/<load>/of               a framed file: magic "BSTABOWN", version 1, `Owner` as its body

A load without a plan has committed nothing; `ports` says where it may have staged rows, whatever the settings of the
next write are. One with a plan is committed if its table has the commit, or if it has nothing for the table. Neither
file has an absolute path: table and ports may be moved or copied before the load is completed. Files of a write that is
done are the readers': one that is gone was taken, and is not missed.

A copy of a table that was made while a load ran names the same staged rows of ports. `of` says whose they are, and only
the table whose they are removes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bucket_store import failpoints
from bucket_store.filesystem import LOCAL, make_directories, place_new, remove_tree
from deduper.table.errors import StagedFileGoneError, UnsupportedTableError
from deduper.table.formats.files import FramedFile, first_lost, give_up, place, staged_loads, staging_folder
from deduper.table.formats.protocol import Commit, NewFile, Table

_PLAN, _DONE, _PORTS, _OWNER = "plan", "done", "ports", "of"
PORT_STAGING = "_staging"


@dataclass(frozen=True, slots=True)
class PortFiles:
    """The staged files of a port by its name; `folder` is its folder from the table's, links resolved."""

    name: str
    folder: str
    files: tuple[NewFile, ...]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A load that is staged. `ports` even of no file: their staging folders are removed.

    With an empty `commit` there is nothing for the table, so the plan itself is the commit.
    """

    table_format: str
    commit: Commit
    ports: tuple[PortFiles, ...]


@dataclass(frozen=True, slots=True)
class StagedPorts:
    """The folders of a load's ports by name, as `PortFiles` has them."""

    folders: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Owner:
    """(device, inode) of the staging folder that the rows of a port belong to, and of the folder with the rows.

    A rename keeps them; a copy of either folder has others.
    """

    staging: tuple[int, int]
    rows: tuple[int, int]


_PLANS = FramedFile(LoadPlan, b"BSTABPLN", 1, "plan of a load")
_STAGED_PORTS = FramedFile(StagedPorts, b"BSTABPRT", 1, "ports of a load")
_OWNERS = FramedFile(Owner, b"BSTABOWN", 1, "owner of a port's staged rows")


def relative_folder(port: Path, table: Path) -> str:
    """`PortFiles.folder`."""
    return os.path.relpath(port.resolve(), table.resolve())


def port_staging(port: Path, load: str) -> Path:
    """The staging folder of a load in a port's folder."""
    return port / PORT_STAGING / load


def begin(table: Path, load: str, ports: Mapping[str, Path]) -> None:
    """Makes the staging folder of a load, and durable which ports it has."""
    folder = staging_folder(table, load)
    make_directories(LOCAL, folder)
    if ports:
        staged = StagedPorts(tuple((name, relative_folder(port, table)) for name, port in ports.items()))
        place_new(LOCAL, folder / _PORTS, _STAGED_PORTS.framed(staged))


def begin_port(table: Path, load: str, port: Path) -> Path:
    """Makes the staging folder of a load in a port's folder, and durable whose it is."""
    folder = port_staging(port, load)
    make_directories(LOCAL, folder)
    owner = Owner(_identity(staging_folder(table, load)), _identity(folder))
    place_new(LOCAL, folder / _OWNER, _OWNERS.framed(owner))
    return folder


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _is_own(table: Path, load: str, port: Path) -> bool:
    """Whether the staged rows of a port are this table's: not those of one that this is a copy of.

    Rows that were copied with the table are its own: their folder is another one than it was.
    """
    rows, staging = port_staging(port, load), staging_folder(table, load)
    owner = _OWNERS.sound(rows / _OWNER)
    return owner is None or owner.rows != _identity(rows) or owner.staging == _identity(staging)


def write_plan(table: Path, plan: LoadPlan) -> None:
    """Makes the plan of a load durable."""
    folder = staging_folder(table, plan.commit.load)
    make_directories(LOCAL, folder)
    place_new(LOCAL, folder / _PLAN, _PLANS.framed(plan))


def planned(table: Path, load: str) -> LoadPlan | None:
    """The plan of a write that is under way; None before it has one, and once it is done.

    Raises:
        CorruptionError, UnknownFormatError: it cannot be read.
    """
    return _PLANS.read(staging_folder(table, load) / _PLAN)


def read_plan(table: Path, load: str) -> LoadPlan | None:
    """The plan of a write, done or not; None when it has none yet.

    Raises: as `planned`.
    """
    return planned(table, load) or _PLANS.read(staging_folder(table, load) / _DONE)


def is_planned(table: Path, load: str) -> bool:
    """Whether a write has a plan, and so may be committed."""
    return is_done(table, load) or LOCAL.exists(staging_folder(table, load) / _PLAN)


def is_done(table: Path, load: str) -> bool:
    """Whether all files of a write have their places."""
    return LOCAL.exists(staging_folder(table, load) / _DONE)


def publish_ports(table: Path, plan: LoadPlan, folders: Mapping[str, Path]) -> None:
    """Gives the files of the ports their places, in the ports' folders by name; then the plan is done. Safe to repeat.

    Raises:
        StagedFileGoneError: a file is neither staged nor in its place.
    """
    load = plan.commit.load
    for port in plan.ports:
        if port.files:
            place(folders[port.name], port.files, port_staging(folders[port.name], load))
        failpoints.hit("table.6.port")
    # From here on, a reader may take files away.
    LOCAL.replace(staging_folder(table, load) / _PLAN, staging_folder(table, load) / _DONE)
    if any(port.files for port in plan.ports):
        LOCAL.fsync_dir(staging_folder(table, load))


def discard(table: Path, load: str, ports: Iterable[Path]) -> None:
    """Removes what a load has staged. The folder with the plan goes last: by it alone a repetition finds the rest.

    Rows of ports that belong to another copy of the table stay.
    """
    for port in ports:
        if _is_own(table, load, port):
            remove_tree(LOCAL, port_staging(port, load))
        failpoints.hit("table.7.port")
    remove_tree(LOCAL, staging_folder(table, load))


def finish_all(table: Table, ports: Mapping[str, Path]) -> int:
    """Completes or removes what dead loads have left; gives the number of those that were completed.

    `ports` are the folders of the load that begins, by name. The caller holds the table's lock.

    Raises:
        CorruptionError: a plan cannot be read.
        UnsupportedTableError: a dead load was of another format.
        StagedFileGoneError: a file of a committed load is lost; nothing of that load was written.
    """
    finished = 0
    for load in staged_loads(table.root):
        plan = read_plan(table.root, load)
        if plan is None:
            discard(table.root, load, _begun_in(table.root, load, ports))
            continue
        if plan.table_format != table.format:
            raise UnsupportedTableError(
                f"{table.root}: load {load} of a {plan.table_format} table has died, and has to be completed; "
                f"write `format: {plan.table_format}`"
            )
        finished += _finish(table, plan, ports)
        own = [folder for port in plan.ports for folder in _folders(table.root, port.name, port.folder, ports)]
        discard(table.root, load, dict.fromkeys(own))
    return finished


def _finish(table: Table, plan: LoadPlan, ports: Mapping[str, Path]) -> bool:
    """Completes a load, if it was committed; else removes its files from the table."""
    if planned(table.root, plan.commit.load) is None:
        return True
    if not plan.commit.is_empty and not table.is_taken(plan.commit):
        return table.finish(plan.commit)
    # Before the table: a write that cannot be completed makes no version.
    folders = {port.name: _found(table.root, plan.commit.load, port, ports) for port in plan.ports if port.files}
    if not plan.commit.is_empty:
        table.finish(plan.commit)
    publish_ports(table.root, plan, folders)
    return True


def _begun_in(table: Path, load: str, ports: Mapping[str, Path]) -> Iterable[Path]:
    """Where a load without a plan may have staged rows of ports."""
    staged = _STAGED_PORTS.read(staging_folder(table, load) / _PORTS)
    found = () if staged is None else staged.folders
    return dict.fromkeys(folder for one in found for folder in _folders(table, *one, ports))


def _folders(table: Path, port: str, recorded: str, ports: Mapping[str, Path]) -> list[Path]:
    """Where a port may be: as it lay from the table, or as the settings say, if the table was moved without it."""
    folder = Path(os.path.normpath(table.resolve() / recorded))
    return [folder, *(other for name, other in ports.items() if name == port)]


def _found(table: Path, load: str, port: PortFiles, ports: Mapping[str, Path]) -> Path:
    """The folder that has the files of a port, staged or in their places."""
    folders = _folders(table, port.name, port.folder, ports)
    for folder in folders:
        if first_lost(folder, port.files, port_staging(folder, load)) is None:
            return folder
    rows = sum(file.rows for file in port.files)
    raise StagedFileGoneError(
        f"{' and '.join(map(str, dict.fromkeys(folders)))}: neither has the {rows:,} rows of `{port.name}` of a write "
        f"that died ({port_staging(folders[0], load)}); name the port's present folder as `{port.name}`; or "
        f"{give_up(load)}"
    )
