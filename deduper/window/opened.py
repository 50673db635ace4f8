"""The runner of an owned store on a session, with all that it uses: jobs, a judge, and the worker for maintenance."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from pyspark.sql import SparkSession

from bucket_store.maintenance.worker_process import Maintenance, MaintenanceWorker
from bucket_store.tables.generation import table_folder
from deduper.config.model import Config
from deduper.sources.files.folding import FilesToFold
from deduper.spark.hdfs_login import LogsIn, needs_none
from deduper.spark_promises import DEFAULT_MASTER, is_one_process
from deduper.tasks.executors.steps import MergeTask
from deduper.window.attempt import WindowJudge
from deduper.window.jobs.cluster import ClusterJobs
from deduper.window.jobs.local import Jobs, SparkJobs
from deduper.window.jobs.merges import TaskMerges
from deduper.window.publishing import FunctionPorts, TopicPorts
from deduper.window.recovery import Ownership
from deduper.window.runner import WindowRunner
from deduper.window.stale_tables import note_store, remove_of_gone_stores
from deduper.window.table_folder import table_room, table_settings


@contextlib.contextmanager
def opened_runner(
    config: Config,
    owned: Ownership,
    session: SparkSession,
    logged_in: LogsIn,
    clock: Callable[[], int],
    *,
    by_tasks: bool,
    topics: TopicPorts | None = None,
    files: FilesToFold | None = None,
    functions: FunctionPorts | None = None,
    is_held: bool = False,
) -> Iterator[WindowRunner]:
    """The runner, closed at the end of the `with` block. `by_tasks`: executors have a core for merges."""
    remove_of_gone_stores(config)
    note_store(config, owned.log.manifest.store_id)
    jobs = _jobs(config, owned, session, logged_in)
    shared = owned.pieces if isinstance(jobs, ClusterJobs) and owned.pieces.is_remote else None
    with (
        contextlib.closing(MaintenanceWorker(owned.pieces.url)) as worker,
        _merging(worker, jobs, config, owned, by_tasks=by_tasks) as maintenance,
        contextlib.closing(WindowJudge(jobs, config, owned.log, owned.pieces, table_settings(config))) as judge,
        contextlib.closing(jobs),
        contextlib.closing(
            WindowRunner(
                config,
                owned.log,
                maintenance,
                judge.judge,
                clock,
                topics,
                files,
                pieces=shared,
                functions=functions,
                is_held=is_held,
            )
        ) as runner,
    ):
        yield runner


def _merging(
    worker: MaintenanceWorker, jobs: Jobs, config: Config, owned: Ownership, *, by_tasks: bool
) -> contextlib.AbstractContextManager[Maintenance]:
    """Merges by tasks if executors have a core for them, else by the worker. The worker always deletes."""
    if not by_tasks or not isinstance(jobs, ClusterJobs):
        return contextlib.nullcontext(worker)
    task = MergeTask(
        owned.pieces.url, table_folder(owned.log.manifest.store_id, config.store.place), table_room(config)
    )
    return contextlib.closing(
        TaskMerges(worker, jobs.session.sparkContext, task, lambda: jobs.tasks.last_places, jobs.logged_in)
    )


def _jobs(config: Config, owned: Ownership, session: SparkSession, logged_in: LogsIn = needs_none) -> Jobs:
    """The jobs for the session's master: keys travel by files on one machine, by Spark's shuffle on a cluster."""
    if is_one_process(session.sparkContext.master or DEFAULT_MASTER):
        return SparkJobs(session, config)
    return ClusterJobs(session, config, owned.log.manifest.store_id, logged_in)
