"""The page of a job's metrics, for as long as the job runs.

The port is bound first of all: a job whose page cannot be served does not start. Threads of its own serve the page, so
no window waits for a scrape.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from deduper.config.model import Config
from deduper.config.sections import MetricsConfig
from deduper.errors import DeduperError
from deduper.service.metrics import JobMetrics

logger = logging.getLogger(__name__)

_END_S = 2.0


@contextlib.contextmanager
def serving_metrics(config: Config, page: MetricsConfig, wall_clock_us: Callable[[], int]) -> Iterator[JobMetrics]:
    """The metrics of a job, on their page while the `with` block runs.

    Raises:
        DeduperError: the configured address cannot be listened on.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    metrics = JobMetrics(config, registry, wall_clock_us)
    with _served(page, registry):
        yield metrics


@contextlib.contextmanager
def _served(settings: MetricsConfig, registry: CollectorRegistry) -> Iterator[None]:
    try:
        server, thread = start_http_server(settings.port, settings.host, registry)
    except OSError as exc:
        raise DeduperError(
            f"metrics: {settings.host}:{settings.port} cannot be listened on: {exc.strerror or exc}. "
            "Set `metrics.port` to a free port (another job may have this one), `metrics.host` to an address of this "
            "machine, or leave the section out"
        ) from exc
    logger.info("metrics: http://%s:%d/metrics", settings.host, settings.port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_END_S)
