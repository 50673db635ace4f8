"""Checks of connections: the metrics' port, Kafka's client, the brokers and what they hold."""

from __future__ import annotations

import errno
import os
import socket

from deduper.config.kafka.sections import KafkaSource
from deduper.config.sections import MetricsConfig
from deduper.diagnostics import error, warning
from deduper.errors import DeduperError, PortTakenError, UsageError
from deduper.kafka.errors import CLIENT_MISSING, INSTALL_CLIENT, is_client_installed
from deduper.kafka.offsets import after_losses, judged_ends
from deduper.preflight.results import Results, Start
from deduper.preflight.store import store_log

_ANSWER_S = 2.0


def metrics_port(start: Start) -> Results:
    """The page of the metrics can be served. The start itself binds the port before it claims the store."""
    page = start.config.metrics
    if page is not None and not start.is_beside:  # else the job itself listens there
        try:
            family = socket.getaddrinfo(page.host, page.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            # As the server does: a port with only closed connections is free.
            socket.create_server((page.host, page.port), family=family).close()
        except OSError as exc:
            raise cannot_listen(page, exc) from exc
    yield from ()


def cannot_listen(page: MetricsConfig, reason: OSError) -> DeduperError:
    """The error of a page that cannot be served."""
    # Python adds the address to the text of some errors. The number of a name that is not known is negative.
    why = os.strerror(reason.errno) if reason.errno is not None and reason.errno > 0 else reason.strerror or reason
    kind = PortTakenError if reason.errno == errno.EADDRINUSE else DeduperError
    return kind(
        f"metrics: {page.host}:{page.port} cannot be listened on: {why}; set `metrics.port` to a "
        "free port (another job may have this one), `metrics.host` to an address of this machine, or leave the section "
        "out"
    )


def client(start: Start) -> Results:
    """Kafka's client is installed."""
    if isinstance(start.config.source, KafkaSource) and not is_client_installed():
        raise UsageError(f"{CLIENT_MISSING}; {INSTALL_CLIENT}")
    yield from ()


def kafka(start: Start) -> Results:
    """The brokers, topics and rights. A start waits for brokers that are down, and logs warnings."""
    if not isinstance(start.config.source, KafkaSource) or not is_client_installed():
        return
    from deduper.kafka.preflight.examine import examine, require

    if start.waits:
        require(start.config)
    else:
        yield from examine(start.config)


def offsets(start: Start) -> Results:
    """What the store has judged of the source's topics is followed by what the brokers hold; a start sees it by itself.

    Brokers that do not answer are a matter of `kafka`.
    """
    source = start.config.source
    if start.waits or not isinstance(source, KafkaSource) or not is_client_installed():
        return
    log = store_log(start)
    judged = {} if log is None else judged_ends(log.state, source.reads)
    if not judged:
        return
    from deduper.kafka.cluster import ClusterOffsets

    try:
        cluster = ClusterOffsets(source, answer_s=_ANSWER_S)
        held = cluster.written({*judged, *cluster.places()})
    except DeduperError:
        return
    _, losses = after_losses(judged, held)
    if losses:
        what = f"offsets are gone that were not judged: {'; '.join(map(str, losses))}"
        if source.data_loss == "fail":
            yield error(
                "offsets", "source", what, "find out why; `source.data_loss: continue` goes on with what is left"
            )
        else:
            yield warning("offsets", "source", what, "`source.data_loss: continue` goes on with what is left")
