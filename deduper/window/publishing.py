"""Steps 5 and 6: a committed window becomes public on every port, then the marks say so.

A window with rows for topics is published on a thread of its own, while the next one is read and judged; so is every
window of a store that is not on this machine, where each name takes long. The commit of the next window waits for the
mark of the one before, so at most one committed window is unpublished, with the thread or without it. Other windows are
published at once, by renames.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bucket_store import failpoints
from bucket_store.errors import FencedError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.marks import PUBLISHED_NAME, Published, prepare_published
from bucket_store.log.records import OutputFile
from bucket_store.maintenance.background_task import BackgroundTask, InBackground
from bucket_store.places.place import Place, Prepared
from deduper.config.model import Config
from deduper.errors import UsageError
from deduper.sinks import staging
from deduper.sinks.names import PUBLISHED as PORT_MARK
from deduper.sinks.names import HasFilePorts, TopicPlace, outputs_of
from deduper.window.progress import Phases
from deduper.window.storage_wait import StorageWait

logger = logging.getLogger(__name__)


class TopicPorts(Protocol):
    """Publishes to topics; the service's is `KafkaPorts`."""

    def publish(self, window: int, outputs: Sequence[tuple[OutputFile, TopicPlace]]) -> None:
        """Publish those rows of a committed window that go to topics. Called in step 5; safe to repeat."""

    def extra(self) -> dict[str, Any]:
        """What a commit notes of the topics, in its `extra`. Called before step 4, beside `publish`."""


class FunctionPorts(Protocol):
    """Hands rows to functions; a `Deduper`'s is `FunctionCalls`."""

    def publish(self, window: int, outputs: Sequence[OutputFile]) -> None:
        """Call the functions with the staged rows of a committed window. Called last in step 5.

        After a crash before the window's mark, or a failure of a mark, it is called again, with the same rows.

        Raises:
            UsageError: there are rows for a port that is no function any more.
        """


class Publishing:
    """Publishes the windows of one owner, one after another. For the thread that judges; `failure` is for any thread.

    Each window: `begin`, then `report`, then `wait` before the next window is committed. `is_held`: a
    caller still uses the staged rows, so `wait` publishes the window, and `close` does not.
    """

    def __init__(
        self,
        config: Config,
        log: CommitLog,
        topics: TopicPorts | None,
        in_background: InBackground,
        functions: FunctionPorts | None = None,
        *,
        is_held: bool = False,
    ) -> None:
        self._config = config
        self._log = log
        self._topics = topics
        self._functions = functions
        self._is_held = is_held
        self._storages = StorageWait(config)
        self._in_background = in_background
        self._beside: _Publication | None = None
        self._is_failure_raised = False

    def begin(self, window: int, outputs: Sequence[OutputFile], phases: Phases) -> None:
        """Publish a window that was just committed, or begin to; the window before is published.

        Raises:
            Exception: why publishing in this call failed.
        """
        self._beside = None
        is_slow = bool(outputs_of(outputs).topics) or not self._log.root.is_local
        is_beside = is_slow and not self._config.function_ports
        if not is_beside and not self._is_held:
            self._publish(window, outputs, phases)
            return
        self._beside = _Publication(lambda: self._publish(window, outputs, Phases()))
        if not self._is_held:
            self._in_background(self._beside.run)

    def report(self, action: Callable[[float | None], None]) -> None:
        """Run an action once the window of the last `begin` is published, on the thread of that; never if it fails.

        The action gets the seconds of a publication beside the judging, None for another one. Its error counts as the
        publication's. A held window is with its caller: the action is not put off until the next one comes.
        """
        if self._beside is None or self._is_held:
            action(None)
        else:
            self._beside.then(action)

    def wait(self) -> float | None:
        """Wait until all committed windows are published. Gives the seconds waited, None if no thread published.

        Raises:
            Exception: why the publication failed; the same at every call.
        """
        if self._beside is None:
            return None
        began = time.perf_counter()
        if self._is_held and not self._beside.is_over.is_set():
            self._beside.run()
        self._beside.is_over.wait()
        failure = self.failure
        if failure is not None:
            self._is_failure_raised = True
            raise failure
        return time.perf_counter() - began

    @property
    def failure(self) -> Exception | None:
        """Why the publication beside the judging failed; None while it runs, and if it succeeded."""
        beside = self._beside
        if beside is None or not beside.is_over.is_set() or beside.is_done:
            return None
        return beside.failure or RuntimeError("the thread of a publication has ended early")

    def close(self) -> None:
        """Wait for a running publication. Its failure is logged unless `wait` has raised it."""
        if self._beside is not None and not self._is_held:
            self._beside.is_over.wait()
            if self.failure is not None and not self._is_failure_raised:
                logger.error("the last window is committed, the next start publishes it: %s", self.failure)

    def _publish(self, window: int, outputs: Sequence[OutputFile], phases: Phases) -> None:
        with phases.of("publish"):
            while True:
                try:
                    publish_window(self._config, self._log, window, outputs, self._topics, self._functions)
                    break
                except Exception as exc:
                    if not self._storages.is_over(exc):
                        raise
            self._storages.succeeded()
        failpoints.hit("window.6.marked")
        with phases.of("clean"):
            # With those of attempts that failed: otherwise they would stay until the next start.
            staging.discard_window(self._config, window, _own_epoch(self._log), names=self._log.root.names)


class _Publication(BackgroundTask):
    """The publication of one window, on a thread of its own."""

    def __init__(self, publish: Callable[[], None]) -> None:
        super().__init__()
        self._publish = publish
        self._lock = threading.Lock()
        self._took_s: float | None = None
        self._report: Callable[[float], None] | None = None
        self.is_done = False

    def act(self) -> None:
        began = time.perf_counter()
        self._publish()
        with self._lock:
            self._took_s = time.perf_counter() - began
            report = self._report
        if report is not None:
            report(self._took_s)
        self.is_done = True

    def then(self, report: Callable[[float], None]) -> None:
        """Call `report` with the seconds of the publication: now if it is over, else at its end."""
        with self._lock:
            if self._took_s is None:
                self._report = report
                return
        report(self._took_s)


def publish_window(
    config: HasFilePorts,
    log: CommitLog,
    window: int,
    outputs: Sequence[OutputFile],
    topics: TopicPorts | None = None,
    functions: FunctionPorts | None = None,
) -> None:
    """Steps 5 and 6. Safe to repeat. Functions come last: if one fails, all other ports are published.

    Every file port has the mark of the greatest published window beside its files, put there after all ports.
    """
    log.check_owner()
    by_kind = outputs_of(outputs)
    if by_kind.topics:
        if topics is None:
            raise UsageError(f"window {window} was staged for topics, and no port is a topic now: put the sinks back")
        topics.publish(window, by_kind.topics)
    for output in staging.publish(by_kind.files, names=log.root.names):
        logger.warning("window %d: %s was published and is gone: a reader must have taken it", window, output.final)
    if functions is not None:
        functions.publish(window, by_kind.functions)
    elif by_kind.functions:
        raise UsageError(f"window {window} has rows for the functions of a query: start the query that has this store")
    failpoints.hit("window.5.published")
    mark_published(config, log, window)
    log.forget_outputs(window)


def mark_published(config: HasFilePorts, log: CommitLog, window: int) -> None:
    """Mark, in the store and in each file port, that every port is out up to this window (-1: none is).

    A process that resumes after a take-over never sets the mark back: see `marks`.
    """
    # By the epoch that was claimed here: another thread may have read a later claim already.
    mark = Published(log.manifest.store_id, window, _own_epoch(log))
    places = mark_places(config, log)
    prepared = staging.for_each(lambda place: prepare_published(place, mark), places, staging.threads_for(places))
    try:
        log.check_owner()
        failpoints.hit("window.6.checked")
        for number, place in enumerate(places):
            try:
                prepared[number].put()
            except FileNotFoundError:
                # A resumed earlier owner has put its mark, which is true too; or a later owner has removed this one.
                log.check_owner()
                prepared[number] = prepare_published(place, mark)
                log.check_owner()
                prepared[number].put()
            if number == 0:
                failpoints.hit("window.6.half")
    except FencedError:
        _discard(prepared)
        raise


def _discard(prepared: Sequence[Prepared]) -> None:
    """Remove an overtaken owner's marks that it has not put in place.

    The new owner has removed those that were there before its start; the next start would find the others. Each has a
    random name of this process, so no file of another process is touched.
    """
    for one in prepared:
        try:
            one.discard()
        except OSError as exc:
            logger.warning("a mark that was prepared and not set is left for the next start: %s", exc)


def mark_places(config: HasFilePorts, log: CommitLog) -> list[Place]:
    """The marks of a job: the store's, then each file port's."""
    ports = [staging.through(log.root.names, sink.place / PORT_MARK) for sink in config.file_ports.values()]
    return [log.root / PUBLISHED_NAME, *ports]


def _own_epoch(log: CommitLog) -> int:
    assert log.epoch is not None, "no epoch was claimed"
    return log.epoch
