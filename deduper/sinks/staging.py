"""The rows of a window's ports as staged files, which no reader sees, and their later publication under final names.

The rows of a window are written once, into `<directory>/_staging/<window>-<epoch>-<attempt>/`. A port on another
storage or disk has its rows in a `_staging` of its own. Only files that a writer's receipt names are the window's;
others in these folders are ignored.

Readers of Spark, Arrow and most others skip names that begin with an underscore, so a port's directory can be read
while windows are staged below it.

Writers make their files durable. The driver reads none of them: it checks that they are there with their size, and
makes their names durable.

`names` is the storage of local places; tests pass one that fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from bucket_store import failpoints
from bucket_store.log.records import OutputFile
from bucket_store.places.local import LocalNames, on_one_volume
from bucket_store.places.open import open_place
from bucket_store.places.place import Names, Place
from deduper.errors import CheckFailedError, IntegrityError, telling_where
from deduper.sinks.names import (
    STAGING,
    Attempt,
    HasFilePorts,
    HasPorts,
    TopicPlace,
    final_name,
    function_place,
    is_of_file,
    staging_homes,
)
from deduper.tasks.write import StagedFile, WriterReceipt

_THREADS = 16
_COMMITTED = "rows of a committed window wait; bring it back (mkdir -p, chown), and start again"
_LOCAL: Names = LocalNames()
_T = TypeVar("_T")
_R = TypeVar("_R")


def staging_home(config: HasFilePorts) -> Place:
    """The directory whose `_staging` takes the one write: the first file port's, or the store's when there is none."""
    return next((sink.place for sink in config.file_ports.values()), config.store_place)


def make_port_directories(config: HasFilePorts, *, names: Names = _LOCAL) -> None:
    """Make the directories of the file ports, durably: a port without rows can be read too."""
    for sink in config.file_ports.values():
        through(names, sink.place).make_directories()


def staging_target(config: HasFilePorts, attempt: Attempt) -> Place:
    """The folder of the one write of an attempt."""
    return staging_home(config) / STAGING / attempt.folder


def make_staging(config: HasPorts, attempt: Attempt, *, names: Names = _LOCAL) -> dict[str, Place]:
    """Make the folders of the one write, durably, and give that of each port; writing tasks make no folder."""
    home = staging_home(config)
    ports = [through(names, sink.place) for sink in config.file_ports.values()]
    # A user may clear a port's directory away.
    for_each(lambda port: None if port.exists() else port.make_directories(), ports, threads_for(ports))
    homes = dict.fromkeys((*config.file_ports, *config.topic_ports, *config.function_ports), home)
    for port, sink in config.file_ports.items():
        if sink.place != home and not on_one_volume(home, sink.place):
            homes[port] = sink.place  # a rename is to publish it
    targets = {port: through(names, home) / STAGING / attempt.folder for port, home in homes.items()}
    for target in dict.fromkeys(targets.values()):
        with telling_where(str(target)):
            target.make_directories()
    return targets


def staged_files(written: Iterable[WriterReceipt]) -> dict[str, list[StagedFile]]:
    """The files of each port that has any, by the receipts of an attempt's writers."""
    staged: dict[str, list[StagedFile]] = {}
    for receipt in written:
        for file in receipt.files:
            staged.setdefault(file.port, []).append(file)
    return staged


def make_durable(
    config: HasPorts,
    store_id: str,
    attempt: Attempt,
    staged: Mapping[str, Sequence[StagedFile]],
    *,
    names: Names = _LOCAL,
) -> tuple[OutputFile, ...]:
    """Make the names of all staged files durable, and describe the files for the commit record.

    Their bytes are durable already. This checks that each file is there with the size in its receipt.

    Raises:
        IntegrityError: a file is gone, or has another size.
    """
    outputs = tuple(
        OutputFile(
            port=port,
            staged=str(file.place),
            final=_final(config, store_id, attempt, file, number),
            size_bytes=file.size_bytes,
            checksum=file.checksum,
            rows=file.rows,
        )
        for port, files in staged.items()
        for number, file in enumerate(sorted(files, key=lambda file: file.place.name))
    )
    places = [through(names, file.place) for files in staged.values() for file in files]
    folders = list(dict.fromkeys(place.parent for place in places))
    threads = threads_for(folders)
    there = {
        str(folder / entry.name): entry.size
        for folder, entries in zip(folders, for_each(Place.entries, folders, threads), strict=True)
        for entry in entries
    }
    for output in outputs:
        size_bytes = there.get(output.staged)
        if size_bytes != output.size_bytes:
            found = "is gone" if size_bytes is None else f"has {size_bytes} bytes"
            raise IntegrityError(f"{output.staged}: staged with {output.size_bytes} bytes, and now {found}")
    for_each(Place.sync, folders, threads)
    return outputs


def _final(config: HasPorts, store_id: str, attempt: Attempt, file: StagedFile, number: int) -> str:
    """The destination of a staged file's rows: a file, a topic or a function."""
    topics, sinks = config.topic_ports, config.file_ports
    if file.port in topics:
        return str(TopicPlace(topics[file.port].topic, file.slots, config.name))
    if file.port in config.function_ports:
        return function_place(file.port)
    return str(sinks[file.port].place / final_name(store_id, attempt, number, sinks[file.port].ending))


def publish(outputs: Sequence[OutputFile], *, names: Names = _LOCAL) -> list[OutputFile]:
    """Rename every staged file to its final name and sync the directories. Safe to repeat, and to race.

    A staged file that is gone was published before: it and its directory were synced before the record that names it.
    The process that renamed it may have died before the sync, so the directories are synced in any case. Gives the
    outputs whose published file is gone too: only a reader can have removed it.

    Raises:
        IntegrityError: a final name is taken while its staged file is still there.
    """
    renames = [
        (through(names, open_place(output.staged)), through(names, open_place(output.final))) for output in outputs
    ]
    touched = list(dict.fromkeys(place.parent for pair in renames for place in pair))
    threads = threads_for(touched)
    there = for_each(lambda pair: _rename(*pair), renames, threads)
    for_each(_sync_if_there, touched, threads)
    return [output for output, is_there in zip(outputs, there, strict=True) if not is_there]


def _rename(staged: Place, final: Place) -> bool:
    """Publish a file. False if it was published before and a reader has removed it."""
    try:
        staged.rename(final)
    except FileExistsError:
        if staged.exists():
            raise IntegrityError(
                f"{final}: the name of a committed output is taken by another file; move that away"
            ) from None
        return True
    except FileNotFoundError:
        if staged.exists():
            raise CheckFailedError(f"{final.parent}: the port's folder is gone, and {_COMMITTED}") from None
        return final.exists()
    except (PermissionError, NotADirectoryError) as exc:
        what = f"{final.parent}: the port's folder cannot be written to: {exc.strerror}"
        raise CheckFailedError(f"{what}, and {_COMMITTED}") from exc
    failpoints.hit("publish.renamed")
    return True


def _sync_if_there(directory: Place) -> None:
    # What was published earlier has been discarded, its folder with it.
    with contextlib.suppress(FileNotFoundError):
        directory.sync()


def where_they_lie(config: HasFilePorts, outputs: Sequence[OutputFile], *, names: Names = _LOCAL) -> list[OutputFile]:
    """Committed outputs with their present places: a store that was moved or copied publishes its own rows.

    The record names the folders in which the window was judged. Those of a copy's original may still exist, with the
    rows that the original has to publish.

    Raises:
        IntegrityError: rows of a moved store are neither beside it nor where they were.
    """
    sinks, homes = config.file_ports, [through(names, home) for home in staging_homes(config)]
    found = []
    for output in outputs:
        home, _, inside = output.staged.rpartition(f"/{STAGING}/")
        final = output.final
        if output.port in sinks and is_of_file(output):
            final = str(sinks[output.port].place / final.rpartition("/")[2])
        is_moved = home not in map(str, homes)
        for own in homes if is_moved else ():
            staged = own / STAGING / inside
            if staged.exists() or (final != output.final and through(names, open_place(final)).exists()):
                output = replace(output, staged=str(staged), final=final)
                break
        else:
            # The store was not moved. A file that is in neither place was published, and a reader has removed it.
            if is_moved and is_of_file(output):
                _require_there(output, homes, names)
        found.append(output)
    return found


def _require_there(output: OutputFile, homes: Sequence[Place], names: Names) -> None:
    if not any(through(names, open_place(place)).exists() for place in (output.staged, output.final)):
        raise IntegrityError(
            f"{output.staged}: {output.rows:,} rows of port {output.port} are committed and not published, and the "
            f"store or its ports were moved without them; bring this folder back, or put it into "
            f"{homes[0] / STAGING}, and start again"
        )


def discard_window(config: HasFilePorts, window: int, epoch: int, *, names: Names = _LOCAL) -> None:
    """Remove all folders that an epoch has staged for a window, once it is published."""
    for attempt, folder in _staged_folders(names, config):
        if (attempt.window, attempt.epoch) == (window, epoch):
            folder.remove_tree()


def discard_abandoned(
    config: HasFilePorts, below_epoch: int, *, keep: Collection[int] = (), names: Names = _LOCAL
) -> int:
    """Remove the folders staged by lower epochs, but for windows `keep` that are not published; gives their number.

    Never those of a higher epoch: this process may have been paused while another one took over.
    """
    abandoned = [
        folder
        for attempt, folder in _staged_folders(names, config)
        if attempt.epoch < below_epoch and attempt.window not in keep
    ]
    for folder in abandoned:
        folder.remove_tree()
        failpoints.hit("stage.discarded")
    return len(abandoned)


def _staged_folders(names: Names, config: HasFilePorts) -> list[tuple[Attempt, Place]]:
    homes = (through(names, home) / STAGING for home in staging_homes(config))
    return [
        (attempt, home / entry.name)
        for home in homes
        for entry in home.entries()
        if (attempt := Attempt.of_folder(entry.name)) is not None
    ]


def for_each(act: Callable[[_T], _R], many: Sequence[_T], threads: int = _THREADS) -> list[_R]:
    """The results of an action on many values, `threads` at a time. All end before the first error is raised."""
    if min(threads, len(many)) < 2:
        return [act(one) for one in many]
    with ThreadPoolExecutor(min(threads, len(many)), thread_name_prefix="staging") as pool:
        return list(pool.map(act, many))


def threads_for(places: Iterable[Place]) -> int:
    """1 for local places: a rename (16 µs) is cheaper than a thread (60 µs)."""
    return 1 if all(place.names.scheme == "file" for place in places) else _THREADS


def through(names: Names, place: Place) -> Place:
    """A local place on the given storage; any other as it is."""
    return Place(names, place.path) if place.names.scheme == names.scheme == "file" else place
