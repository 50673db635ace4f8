"""How long the parts of judging a window took, as the driver and Spark's own books on its jobs have it.

    build      making the plan, in Python
    plan       Catalyst: analysis, optimisation, generated code, small broadcasts; until the job is handed in
    read       the stage before the exchange: reading, parsing, digesting, clock, writing the exchange
    verdicts   the stages after it: fetching the exchange, Arrow, the judge's tasks, writing the rows
    files      from the end of the last stage to the staged files with their counts, ports of other formats too

Spark keeps these books for its user interface, whether that is on or off. They are kept by a thread that may lag
behind: what is not there yet is left out, and nothing ever fails or waits for it.
"""

from __future__ import annotations

import time
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession


class JobClock:
    """Takes the times of a session's judging jobs. For one thread."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._books: tuple[Any, Any] | None = None

    def attempt(self) -> AttemptTimes:
        """The stop watch of one judging, running from now."""
        return AttemptTimes(self)

    def stages_of_last_job(self) -> tuple[float, float, float] | None:
        """When the newest job was handed in, its second stage began and its last ended, in seconds since the epoch."""
        try:
            if self._books is None:
                context: Any = self._session.sparkContext._jsc.sc()
                self._books = context.statusStore(), context.dagScheduler()
            store, scheduler = self._books
            job = store.job(scheduler.numTotalJobs() - 1)
            stages = [int(stage) for stage in job.stageIds().mkString(",").split(",")]
            if len(stages) < 2:
                return None
            second = store.lastStageAttempt(sorted(stages)[1]).submissionTime()
            moments = (job.submissionTime(), second, job.completionTime())
            handed_in, exchanged, ended = (moment.get().getTime() / 1000 for moment in moments)
        except (Py4JError, TypeError, ValueError):
            # TypeError: a method that a release of Spark no longer has.
            return None
        return handed_in, exchanged, ended


class AttemptTimes:
    """The times of one judging; `built` and `written` are called as it goes on."""

    def __init__(self, clock: JobClock) -> None:
        self._clock = clock
        self._began = self._built = self._written = time.time()
        self._job: tuple[float, float, float] | None = None

    def built(self) -> None:
        """The plan stands."""
        self._built = self._written = time.time()

    def written(self) -> None:
        """The job that judges has ended; the next one may be another's."""
        self._written = time.time()
        self._job = self._clock.stages_of_last_job()

    def seconds(self) -> dict[str, float]:
        """Seconds by part until now. Without Spark's books `job` stands for `plan`, `read` and `verdicts`."""
        now = time.time()
        build = {"build": self._built - self._began}
        if self._job is None or not self._built - _CLOCK_STEP_S <= self._job[0] <= self._written:
            return build | {"job": self._written - self._built, "files": now - self._written}
        handed_in, exchanged, ended = self._job
        return build | {
            "plan": max(0.0, handed_in - self._built),
            "read": exchanged - handed_in,
            "verdicts": ended - exchanged,
            "files": now - ended,
        }


_CLOCK_STEP_S = 0.002
"""Java's clock shows whole milliseconds."""
