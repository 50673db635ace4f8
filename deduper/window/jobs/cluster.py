"""The jobs of windows on a session whose executors are other processes; see `local` for those of one machine."""

from __future__ import annotations

import logging
from functools import partial

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bucket_store.tables.generation import table_folder
from deduper.config.model import Config
from deduper.sources.read_plan import read_plan
from deduper.spark.hdfs_login import LogsIn, needs_none
from deduper.tasks.executors import steps
from deduper.tasks.executors.host_folder import HostFolder
from deduper.window.jobs.cluster_run import ClusterRun
from deduper.window.jobs.executor_tasks import ExecutorTasks
from deduper.window.jobs.window_sizes import WindowSizes
from deduper.window.table_folder import table_room

logger = logging.getLogger(__name__)


class ClusterJobs:
    """The jobs on a session whose executors are other processes."""

    def __init__(
        self, session: SparkSession, config: Config, store_id: str, salt: bytes, logged_in: LogsIn = needs_none
    ) -> None:
        """`logged_in` is for tasks that use the store or the ports."""
        self.session = session
        self.logged_in = logged_in
        self.tasks = ExecutorTasks(session.sparkContext, config)
        self._sizes = WindowSizes(config.store.shards)
        self._store_folder = table_folder(store_id, config.store.place)
        self._plan = read_plan(session, config, salt)
        self._tables = table_room(config)
        self._last: HostFolder | None = None

    def open(self, epoch: int, attempt: int) -> ClusterRun:
        """The jobs of one attempt at a window."""
        self._last = HostFolder(self._store_folder, epoch, attempt, self._tables)
        return ClusterRun(self.session, self.tasks, self._sizes, self._plan, self._last, self.logged_in)

    def close(self) -> None:
        """No window comes any more: remove the last one's folders, if that can be. Safe to repeat."""
        self.tasks.close()
        last, self._last = self._last, None
        if last is None:
            return
        try:
            self.tasks.on_each_executor(partial(steps.remove_folders, last))
        except (PySparkException, Py4JJavaError, OSError) as exc:
            logger.info("records of the last window stay on their hosts until another job finds them: %s", exc)
