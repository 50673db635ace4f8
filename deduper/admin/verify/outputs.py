"""The ports against the log: files and marks, without reading rows.

A committed file is staged or published, never both, with the size and checksum of its record. What a reader has taken
out of a port after it was published is a note, not a finding: that is what ports are for. Of windows whose record is
folded away only the names of their files are known to be the store's.

Rows that go to a topic or a function are staged until their window is marked, and must be there until then: they are
handed over from there. After the mark the staged rows are orphans. The topic itself is not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

import xxhash

from bucket_store.errors import StoreError
from bucket_store.framing import unframe
from bucket_store.log.marks import PUBLISHED_MAGIC, PUBLISHED_NAME, PUBLISHED_VERSION, Published, read_published
from bucket_store.log.records import LogState, OutputFile
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from bucket_store.places.reading import open_file
from deduper.admin.open_store import OpenStore
from deduper.admin.orphans import is_file
from deduper.admin.verify.findings import Check, Finding, Findings
from deduper.admin.verify.log import LogHistory
from deduper.errors import IntegrityError
from deduper.sinks.names import PUBLISHED, STAGING, FinalName, is_data_file, is_of_file
from deduper.tasks.row_files import rows_of

OUTPUTS_CHECKS = (
    Check.OUTPUTS_MISSING,
    Check.OUTPUTS_BYTES,
    Check.OUTPUTS_EARLY,
    Check.OUTPUTS_STRANGE,
    Check.OUTPUTS_TWICE,
    Check.MARKS_STORE,
    Check.MARKS_AHEAD,
)
_READ_BYTES = 1 << 20


@dataclass
class PublishedFiles:
    """The files in the ports, counted.

    `published` is the greatest window that any mark calls published, -1 when none does. `taken` counts the files that
    readers took away.
    """

    published: int = -1
    taken: int = 0
    files: int = 0
    size_bytes: int = 0


def check_outputs(store: OpenStore, state: LogState, history: LogHistory, findings: Findings) -> PublishedFiles:
    """Files and marks of every file port, against the records that still describe their windows."""
    findings.run(*OUTPUTS_CHECKS)
    store_id = store.log.manifest.store_id
    found = PublishedFiles(published=_published(store, state, findings))
    described = {window: known.record.outputs for window, known in history.commits.items()} | state.outputs
    for window, outputs in sorted(described.items()):
        for output in outputs:
            _check_output(store, window, output, found, findings)
    names = {(output.port, PurePosixPath(output.final).name) for outputs in described.values() for output in outputs}
    for port, folder in store.ports.items():
        _check_directory(port, folder, store_id, state, set(described), names, findings)
    if found.taken:
        findings.note(f"{found.taken} published files are gone from their ports: readers have taken them")
    waiting = [window for window in described if found.published < window < state.next_window]
    if waiting:
        findings.note(f"windows {min(waiting)} to {max(waiting)} are committed and not yet marked as published")
    return found


def _published(store: OpenStore, state: LogState, findings: Findings) -> int:
    """The greatest window that is called published, by the store's mark, a port's, or the log."""
    store_id = store.log.manifest.store_id
    marks = {"the store": store.root / PUBLISHED_NAME} | {
        f"port {port}": folder / PUBLISHED for port, folder in store.ports.items()
    }
    windows: dict[str, int | None] = {}
    for whose, path in marks.items():
        mark = _mark(path, findings)
        windows[whose] = None if mark is None else mark.window
        if mark is None:
            continue
        if mark.store_id != store_id:
            findings.wrong(
                Check.MARKS_STORE, f"mark of {whose}", file=path, expected=f"store {store_id}", found=mark.store_id
            )
            windows[whose] = None
        elif mark.window >= state.next_window:
            findings.wrong(
                Check.MARKS_AHEAD,
                f"mark of {whose}",
                file=path,
                expected=f"window {state.next_window - 1}, the newest committed one, or an earlier one",
                found=f"window {mark.window}",
            )
    if len(set(windows.values())) > 1:
        listed = ", ".join(f"{whose} {'none' if window is None else window}" for whose, window in windows.items())
        findings.note(f"the marks differ, as between two steps of a window: {listed}")
    return max([state.published_through, *(window for window in windows.values() if window is not None)])


def _mark(path: Place, findings: Findings) -> Published | None:
    """A mark; a damaged one counts as absent, with a note: it does no harm, but something damaged it."""
    try:
        mark = read_published(path)
        if mark is None and path.exists():
            unframe(path.read(), magic=PUBLISHED_MAGIC, version=PUBLISHED_VERSION, oldest=1, file=str(path))
    except FileNotFoundError:
        return None
    except (StoreError, OSError) as error:
        findings.note(f"a damaged mark counts as absent until the next window: {error}")
        return None
    return mark


def _check_output(store: OpenStore, window: int, output: OutputFile, found: PublishedFiles, findings: Findings) -> None:
    is_published = window <= found.published
    if is_published and not is_of_file(output):
        return
    final, staged = _places(store, output)
    if final is None and staged is None:
        if is_published:
            found.taken += 1
        else:
            findings.wrong(
                Check.OUTPUTS_MISSING,
                f"window {window}: {output.rows} rows of port {output.port}, not yet marked as published",
                file=output.final,
                expected=f"{output.size_bytes} bytes{', here or' if is_of_file(output) else ''} at {output.staged}",
                found="no file",
            )
        return
    if staged is not None and is_published:
        findings.wrong(
            Check.MARKS_AHEAD,
            f"window {window} is marked as published, a file of port {output.port} is not",
            file=staged,
            expected=output.final,
            found="still staged",
        )
    if final is not None and staged is not None:
        findings.wrong(
            Check.OUTPUTS_TWICE,
            f"window {window}: {output.rows} rows of port {output.port} are staged and published",
            file=final,
            expected="one of the two",
            found=f"{staged} too",
        )
    for path in (final, staged):
        if path is not None:
            _check_bytes(path, window, output, found, findings)


def _places(store: OpenStore, output: OutputFile) -> tuple[Place | None, Place | None]:
    """A committed file's place, published and staged: in the port of the config, else as the record says.

    In this order, because a store that was copied elsewhere still has records that name the old places. Rows that are
    handed over are never published as a file.
    """
    port = store.ports.get(output.port)
    inside = output.staged.rpartition(f"/{STAGING}/")[2]
    finals: list[Place] = []
    if is_of_file(output):
        finals = [] if port is None else [port / PurePosixPath(output.final).name]
        finals.append(open_place(output.final))
    staged = [*(home / STAGING / inside for home in store.staging_homes), open_place(output.staged)]
    return next(filter(is_file, finals), None), next(filter(is_file, staged), None)


def _check_bytes(path: Place, window: int, output: OutputFile, found: PublishedFiles, findings: Findings) -> None:
    def finding(what: str, expected: object, seen: object, *, offset: int = 0) -> Finding:
        reported = f"window {window}, port {output.port}: {what}"
        return Finding.of(Check.OUTPUTS_BYTES, reported, file=path, offset=offset, expected=expected, found=seen)

    digest = xxhash.xxh3_64()
    size = line_ends = 0
    try:
        with open_file(path) as stream:
            while block := stream.read(_READ_BYTES):
                digest.update(block)
                size += len(block)
                line_ends += block.count(b"\n")
    except FileNotFoundError:
        return  # taken at this very moment
    found.files += 1
    found.size_bytes += size
    if size != output.size_bytes:
        findings.add(finding("size", output.size_bytes, size, offset=min(size, output.size_bytes)))
    elif digest.intdigest() != output.checksum:
        findings.add(finding("checksum", f"{output.checksum:016x}", f"{digest.hexdigest()}"))
    else:
        rows = _rows(path, line_ends)
        if rows is not None and rows != output.rows:
            findings.add(finding("rows", output.rows, rows))


def _rows(path: Place, line_ends: int) -> int | str | None:
    """Rows of a file whose bytes are sound, if they are cheap to count."""
    try:
        return rows_of(path, line_ends)
    except FileNotFoundError:
        return None
    except (IntegrityError, OSError) as error:
        return str(error)


def _check_directory(
    port: str,
    folder: Place,
    store_id: str,
    state: LogState,
    described: set[int],
    names: set[tuple[str, str]],
    findings: Findings,
) -> None:
    numbers: dict[tuple[int, int], Place] = {}
    for path in (folder / entry.name for entry in folder.entries() if is_data_file(entry.name)):
        said = FinalName.of(path.name)
        if said is None or said.store != store_id[:8]:
            findings.wrong(
                Check.OUTPUTS_STRANGE,
                f"readers of port {port} take this for its rows",
                file=path,
                expected=f"a name such as {store_id[:8]}-000000000000-0000.parquet",
                found=path.name,
            )
            continue
        twin = numbers.setdefault((said.window, said.number), path)
        if twin != path:
            findings.wrong(
                Check.OUTPUTS_TWICE,
                f"window {said.window}: file {said.number} of port {port}",
                file=path,
                expected="one ending",
                found=f"{twin.name} too",
            )
        if said.window >= state.next_window:
            findings.wrong(
                Check.OUTPUTS_EARLY,
                f"port {port} shows a window that is not committed",
                file=path,
                expected=f"windows up to {state.next_window - 1}",
                found=f"window {said.window}",
            )
        elif said.window in described and (port, path.name) not in names:
            findings.wrong(
                Check.OUTPUTS_STRANGE,
                f"port {port}: the record of window {said.window} names no such file",
                file=path,
                expected="a file that the record names",
                found=path.name,
            )
