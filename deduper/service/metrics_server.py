"""The page of a job's metrics, and `/healthz`, for as long as the job runs.

The port is bound before the store is claimed: a job whose page cannot be served disturbs no other. Threads of its own
serve the page, so no window waits for a scrape.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app, start_http_server

from deduper.config.sections import MetricsConfig
from deduper.preflight.connections import cannot_listen
from deduper.service.window_metrics import WindowMetrics

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

logger = logging.getLogger(__name__)

Health: TypeAlias = Callable[[], list[str]]
_END_S = 2.0
_S = TypeVar("_S")
_M = TypeVar("_M", bound=WindowMetrics)


@contextlib.contextmanager
def serving_metrics(
    settings: _S,
    page: MetricsConfig,
    wall_clock_us: Callable[[], int],
    kind: Callable[[_S, CollectorRegistry, Callable[[], int]], _M],
) -> Iterator[_M]:
    """The metrics of a job, or of a range stream, on their page while the `with` block runs.

    Raises:
        DeduperError: the configured address cannot be listened on.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    metrics = kind(settings, registry, wall_clock_us)
    with _served_page(page, registry, metrics.health), metrics.log_counts.attached():
        yield metrics


@contextlib.contextmanager
def _served_page(settings: MetricsConfig, registry: CollectorRegistry, health: Health) -> Iterator[None]:
    """The page of a registry while the `with` block runs; `health` gives everything that is wrong, in one line each.

    Raises:
        DeduperError: the configured address cannot be listened on.
    """
    try:
        server, thread = start_http_server(settings.port, settings.host, registry)
    except OSError as exc:
        raise cannot_listen(settings, exc) from exc
    server.set_app(_with_health(make_wsgi_app(registry), health))
    logger.info("metrics: http://%s:%d/metrics", settings.host, settings.port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_END_S)


def _with_health(page: WSGIApplication, health: Health) -> WSGIApplication:
    """The page, and two answers in one line each.

    `/healthz`: 200 `ok`, or 503 and what is wrong; `/livez`: 200 while the process answers. A job that waits for
    brokers is alive and not healthy: a restart would not help it.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path not in ("/healthz", "/livez"):
            return page(environ, start_response)
        wrong = health() if path == "/healthz" else []
        start_response(
            "503 Service Unavailable" if wrong else "200 OK",
            [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")],
        )
        return [("; ".join(wrong) or "ok").encode() + b"\n"]

    return answer
