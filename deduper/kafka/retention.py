"""How long the cluster keeps the offsets of a group that is idle."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from deduper.kafka.calls import STEP_S
from deduper.kafka.client import QUIET

logger = logging.getLogger(__name__)

DEFAULT_OFFSETS_RETENTION_S = 7 * 86400.0
_MARGIN_S = 3600.0


def may_have_expired(client: Mapping[str, str], age_s: float, retention_s: float | None = None) -> bool:
    """Whether an offset that was committed this long ago may have expired; asks the cluster if necessary.

    True for a time ahead of now by more than an hour, since such a clock is wrong.
    """
    if abs(age_s) < _MARGIN_S:
        return False
    if retention_s is None:
        retention_s = offsets_retention_s(client) or DEFAULT_OFFSETS_RETENTION_S
    return age_s < 0 or age_s > retention_s - _MARGIN_S


def offsets_retention_s(client: Mapping[str, str]) -> float | None:
    """Seconds for which the cluster keeps the offsets of an idle group; None when it does not report them."""
    admin = AdminClient(dict(client), logger=QUIET)
    try:
        broker = next(iter(admin.list_topics(timeout=STEP_S).brokers))
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        (answer,) = admin.describe_configs([resource], request_timeout=STEP_S).values()
        return float(answer.result(STEP_S)["offsets.retention.minutes"].value) * 60
    except (KafkaException, StopIteration, KeyError, TimeoutError) as exc:
        logger.info("offsets.retention.minutes cannot be read, 7 days are assumed: %s", exc)
        return None
