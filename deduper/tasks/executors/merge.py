"""The task of a merge on an executor: small pieces of a shard become one, see `pieces.compaction`.

It may run any number of times, also twice at once and after its driver is gone: each run appends a piece of its own, of
the same bytes, and only the one that the driver's record names counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from bucket_store.errors import StoreError
from bucket_store.maintenance.compactions import Answer
from bucket_store.pieces.compaction import CompactionTask, compact_pieces
from bucket_store.pieces.open import open_backend
from deduper.tasks.table_room import TableRoom


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Where the pieces of a store lie, and its copies of them on any host; pickled into the job."""

    store_url: str
    store_folder: str
    tables: TableRoom

    def merged(self, task: CompactionTask) -> Answer:
        """Merge, and give the answer. An error of the store is an answer too: a second run would end the same way.

        Raises:
            Exception: any other error; Spark runs the task again.
        """
        store = open_backend(self.store_url)
        try:
            return compact_pieces(store, task, self.tables.here().piece_cache(store, self.store_folder))
        except StoreError as error:
            return error
        finally:
            store.close()
