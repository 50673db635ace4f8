"""The action after a failed call of the Kafka client: the one place for librdkafka's error codes.

Every error of the client leads to one of five actions. RETRY: the same call is repeated, under a deadline. ABORT: the
transaction is aborted and the whole protocol repeated. RECREATE: the producer is unusable, and replaced. FENCED:
another producer has taken its place. FAIL: the operator must act.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from confluent_kafka import KafkaError, KafkaException

from deduper.config.kafka.options import KafkaOptionsError
from deduper.errors import DeduperError
from deduper.kafka.errors import KafkaDeniedError, RecordRefusedError


class ErrorAction(Enum):
    """The action after a failed call."""

    RETRY = "retry"
    ABORT = "abort"
    RECREATE = "recreate"
    FENCED = "fenced"
    FAIL = "fail"


@contextmanager
def client_errors() -> Iterator[None]:
    """Raises the client's errors as KafkaException, those too that reach Python as a SystemError.

    The error that ended a producer is raised by the next call that serves its callbacks. When the client logs a line in
    the same call, the logger is called with the error already set, and Python makes a SystemError of both.
    """
    try:
        yield
    except SystemError as exc:
        if isinstance(exc.__cause__, KafkaException):
            raise exc.__cause__ from None
        raise


_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED}

_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Write, Describe and, for the offset, Read on the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Read on the group (it has the name of the transactional id)",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Write and Describe on the transactional id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "IdempotentWrite on the cluster",
    KafkaError.SASL_AUTHENTICATION_FAILED: "a login that is valid",
    KafkaError._AUTHENTICATION: "a login that is valid",
    KafkaError.UNSUPPORTED_SASL_MECHANISM: "a SASL mechanism that the broker offers",
    KafkaError.ILLEGAL_SASL_STATE: "the broker's security.protocol",
}
BAD_LOGIN = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}

_NOT_READABLE = {**_DENIED, KafkaError.TOPIC_AUTHORIZATION_FAILED: "Read and Describe on the topic"}

_REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE: "a record, or a batch of them, is larger than the topic takes: raise "
    "its max.message.bytes (the headers that deduper adds make a record about 200 bytes larger), or set the sink's "
    "kafka.batch.size below it",
    KafkaError.RECORD_LIST_TOO_LARGE: "a batch of records is larger than a segment: raise the topic's segment.bytes",
    KafkaError.INVALID_TIMESTAMP: "a record's timestamp is outside what the topic takes: change its "
    "message.timestamp.before.max.ms or message.timestamp.after.max.ms, or set message.timestamp.type=LogAppendTime",
    KafkaError.INVALID_RECORD: "the broker calls a record invalid: a compacted topic takes none without a key",
    KafkaError.POLICY_VIOLATION: "a policy of the broker forbids it",
    KafkaError.OFFSET_METADATA_TOO_LARGE: "raise the broker's offset.metadata.max.bytes to its default, 4096",
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: "the broker does not know this kafka.compression.type",
}

_NO_TOPIC = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
}

_STALE_LEADER = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.REPLICA_NOT_AVAILABLE,
}

_OPTIONS = {
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "kafka.transaction.timeout.ms is larger than the broker's "
    "transaction.max.timeout.ms: lower the one or raise the other",
    KafkaError.TOPIC_EXCEPTION: "this is no name of a topic",
    KafkaError._INVALID_ARG: "correct the option",
    KafkaError._UNSUPPORTED_FEATURE: "the brokers are too old for transactions: use 2.5 or later",
    KafkaError.UNSUPPORTED_VERSION: "the brokers are too old for transactions: use 2.5 or later",
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the topic's message format is too old: set message.format.version",
}

# Seen from calls that succeed when they are repeated; librdkafka does not call all of them retriable.
_PASSING = {
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._WAIT_COORD,
    KafkaError._IN_PROGRESS,
    KafkaError._SSL,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError.INVALID_REPLICATION_FACTOR,  # Of an internal topic that is being made while brokers are missing.
}


def error_of(exc: KafkaException) -> KafkaError:
    """The error inside an exception."""
    error: KafkaError = exc.args[0]
    return error


def action_of(error: KafkaError) -> ErrorAction:
    """The action after a call that failed with this.

    A fatal error that is not a fence ends the producer only: its sequence numbers are lost, not the records in the log.
    An abort takes precedence over the error's cause, because only the abort shows whether this producer was fenced.
    """
    code = error.code()
    if code in _FENCED or (error.fatal() and code == KafkaError.INVALID_PRODUCER_EPOCH):
        return ErrorAction.FENCED
    if error.txn_requires_abort():
        return ErrorAction.ABORT
    if code in _DENIED or code in _REFUSED or code in _OPTIONS:
        return ErrorAction.FAIL
    if error.fatal():
        return ErrorAction.RECREATE
    if error.retriable() or code in _PASSING:
        return ErrorAction.RETRY
    # The producer's state forbids the call, or the error is unknown: begin from the start.
    return ErrorAction.RECREATE


def lasting_error(error: KafkaError, subject: str) -> DeduperError | None:
    """The error for the operator, when repeating would end the same way; None when it may pass."""
    code = error.code()
    text = error.str()
    if code in _DENIED:
        return KafkaDeniedError(f"{subject}: not allowed: {text}; it needs {_DENIED[code]}")
    if code in _REFUSED:
        return RecordRefusedError(f"{subject}: {text}; {_REFUSED[code]}")
    if code in _OPTIONS:
        return KafkaOptionsError(f"{subject}: {text}; {_OPTIONS[code]}")
    return None


def reading_error(error: KafkaError, subject: str) -> KafkaDeniedError | None:
    """The error for the operator, when records may not be read; None when it may pass."""
    code = error.code()
    if code not in _NOT_READABLE:
        return None
    return KafkaDeniedError(f"{subject}: not allowed: {error.str()}; it needs {_NOT_READABLE[code]}")


def names_a_missing_topic(error: KafkaError) -> bool:
    """Whether the cluster has no such topic."""
    return error.code() in _NO_TOPIC


def names_a_stale_leader(error: KafkaError) -> bool:
    """Whether a request named a leader, or an epoch of it, that has passed."""
    return error.code() in _STALE_LEADER
