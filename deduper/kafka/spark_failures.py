"""Kafka's part in a failure of Spark: it may pass, or the operator must act. PURE.

Spark's connector uses Kafka's Java client, and this process gets only the text of a Java exception with its causes. The
twin of `kafka.error_actions`, which has the errors of librdkafka.
"""

from __future__ import annotations

import re

from deduper.spark.failures import whole_text

_OF_KAFKA = re.compile(r"\borg\.apache\.kafka\.(?:\w+\.)*(\w+Exception)\b")
# Spark's own words for a consumer that was given nothing within `kafkaConsumer.pollTimeoutMs`.
_POLLED_FOR_NOTHING = re.compile(r"TimeoutException: Cannot fetch record for offset")

_PASSING = {
    "BootstrapResolutionException",
    "BrokerNotAvailableException",
    "ConcurrentTransactionsException",
    "ConfigException",  # Raised for a name that cannot be resolved at the moment, too: the brokers are asked next.
    "CoordinatorLoadInProgressException",
    "CoordinatorNotAvailableException",
    "DisconnectException",
    "FencedLeaderEpochException",
    "InvalidReplicationFactorException",
    "KafkaStorageException",
    "LeaderNotAvailableException",
    "NetworkException",
    "NotCoordinatorException",
    "NotControllerException",
    "NotEnoughReplicasAfterAppendException",
    "NotEnoughReplicasException",
    "NotLeaderOrFollowerException",
    "OffsetNotAvailableException",
    "ReplicaNotAvailableException",
    "TimeoutException",
    "UnknownLeaderEpochException",
    "UnknownTopicOrPartitionException",
    "UnstableOffsetCommitException",
}
_DENIED = re.compile(r"\w*(?:Authorization|Authentication)Exception")
_LASTING = {
    "InvalidRecordException",
    "InvalidTopicException",
    "OffsetOutOfRangeException",
    "PolicyViolationException",
    "RecordTooLargeException",
    "UnsupportedVersionException",
}


def may_pass(error: BaseException) -> bool:
    """Whether brokers that are down, slow or restarting explain it, so that the same may be tried again."""
    text = whole_text(error)
    names = set(_OF_KAFKA.findall(text))
    if names & _LASTING or any(_DENIED.fullmatch(name) for name in names):
        return False
    return bool(names & _PASSING) or _POLLED_FOR_NOTHING.search(text) is not None
