"""What a source of files costs after months of windows: a window, a start, memory and disk, files gone or still there.

    python -m tests.bench.bench_months [--windows 1000,100000,1000000] [--there] [--directory DIR]

A store is brought to where it stands after so many windows of one file each, all of whose keys are gone: the newest
table of judged files, the windows since the last fold, and one snapshot. Then the real code is timed: reading the log
and what is known at a start, the first listing, and per window a listing, a sources file, a commit record, and a fold
where one is due. `--there` leaves all files in the source; without, all but those of the newest windows are gone for
longer than seven days.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.judged_files import JudgedFiles, encode_judged, judged_ref
from bucket_store.log.records import CommitRecord, SourcesFoldRecord
from bucket_store.log.sources_file import FOLDED_DIRECTORY, write_sources
from bucket_store.places.local import local_place
from deduper.config.files import FilesSource
from deduper.sources.files.batch import FileBatches, SourceFileBatch
from deduper.sources.files.folding import FOLD_WINDOWS, FilesToFold, SourceFolding
from deduper.sources.files.judged import KnownFiles, stat
from deduper.sources.files.listing import list_files
from tests.deduper.unread import UNREAD

COUNTED = 40
BEGIN_US = 1_790_000_000_000_000


def commit(log: CommitLog, window: int, batch: SourceFileBatch, batches: FileBatches) -> None:
    """A window that remembers nothing, as the job commits it."""
    partitions = [partition.judged(0) for partition in batch.partitions]
    ref = write_sources(log.root, window=window, epoch=log.state.epoch, attempt=0, partitions=partitions)
    counts = {"unique": 1, "duplicate": 0, "expired": 0, "error": 0}
    log.place(
        CommitRecord(
            *(window, log.state.epoch, 0, "", window, BEGIN_US, "h", None, None),
            *(counts, {}, (), (), (), None, ref, batch.extra()),
        )
    )
    log.forget_outputs(window)
    batches.known.add(partitions)


def measure(directory: Path, windows: int, *, are_there: bool) -> None:
    """One line of the table."""
    folder, root = directory / "in", directory / "state"
    folder.mkdir(parents=True)
    raw = {"format": "files", "path": str(folder), "file_format": "json", "schema": "k string"}
    source = FilesSource.model_validate(raw | {"max_files_per_batch": 1}, context={"base_dir": directory})
    log = CommitLog.create(local_place(root), {}, wall_us=BEGIN_US)
    log.claim_epoch("bench", BEGIN_US)
    if are_there:
        for number in range(windows):
            os.close(os.open(folder / f"clicks-2026-11-23-{number:09d}.json", os.O_CREAT | os.O_WRONLY))
    known = KnownFiles(source, log)
    seeds = known.so_far()
    paths = list_files(source)
    seen = {path: stat(path) for path in paths}
    log._state = log.state  # the windows before are not written one by one: the fold below stands for them
    table = seeds.folded(str(folder), (), paths, BEGIN_US)
    if paths:
        from deduper.sources.files.judged import _digests

        hi, lo = _digests(paths, seeds.seed)
        times = np.array([file.modified_ms for file in seen.values() if file is not None], np.int64)
        order = np.lexsort((lo, hi))
        zeros = np.zeros(len(paths), np.int64)
        table = JudgedFiles(str(folder), hi[order], lo[order], times[order], zeros, zeros)
    # One commit that stands for all: its window is the last of them.
    from dataclasses import replace

    log._state = replace(log.state, next_window=windows)
    (root / FOLDED_DIRECTORY).mkdir()
    data = encode_judged(windows - 1, table)
    name = f"{windows - 1:012d}-000001-0a1b2c3d.judged"
    (root / FOLDED_DIRECTORY / name).write_bytes(data)
    ref = judged_ref(name, windows - 1, table, data)
    log.place(SourcesFoldRecord(windows - 1, None, ref, BEGIN_US))
    known = KnownFiles(source, log)
    batches = FileBatches(source, known, UNREAD)
    folding = SourceFolding(log, FilesToFold(known, str(folder), lambda: list_files(source)), lambda do: do())

    began = time.perf_counter()
    known = KnownFiles(source, log)
    start_s = time.perf_counter() - began
    batches = FileBatches(source, known, UNREAD)
    began = time.perf_counter()
    batches.list_new()
    first_listing_s = time.perf_counter() - began
    folding = SourceFolding(log, FilesToFold(known, str(folder), lambda: list_files(source)), lambda do: do())
    listings, commits = [], []
    for number in range(COUNTED):
        path = folder / f"new-{number:09d}.json"
        path.write_text("{}\n")
        began = time.perf_counter()
        batches.list_new()
        listings.append(time.perf_counter() - began)
        batch = batches.next_batch()
        assert batch is not None
        began = time.perf_counter()
        commit(log, windows + number, batch, batches)
        folding.record()
        folding.begin()
        commits.append(time.perf_counter() - began)
    began = time.perf_counter()
    folding.at_once()
    fold_s = time.perf_counter() - began
    on_disk = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{windows:>9,} windows, files {'there' if are_there else 'gone '}: "
        f"commit {np.median(commits) * 1e3:6.2f} ms, listing {np.median(listings) * 1e3:8.2f} ms, "
        f"start {start_s:5.2f} + {first_listing_s:5.2f} s, fold aside {fold_s:5.2f} s, "
        f"disk {on_disk / 1e6:7.2f} MB, greatest rss {rss} MB",
        flush=True,
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", default=f"1,{FOLD_WINDOWS},100000,1000000")
    parser.add_argument("--there", action="store_true")
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    for windows in map(int, options.windows.split(",")):
        directory = Path(tempfile.mkdtemp(prefix="months-", dir=options.directory))
        try:
            measure(directory, windows, are_there=options.there)
        finally:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
