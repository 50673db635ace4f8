"""The errors between the job and a Kafka cluster, each with what the operator does.

`kafka.error_actions` maps librdkafka's errors to them: this module needs no client, so that a configuration can be
checked without one.
"""

from __future__ import annotations

from importlib.util import find_spec

from deduper import DISTRIBUTION
from deduper.errors import DeduperError, ExitCode

CLIENT_MISSING = "Kafka's client is not installed"
INSTALL_CLIENT = f"pip install '{DISTRIBUTION}[kafka]'"


def is_client_installed() -> bool:
    """Whether Kafka's client is installed (extra `kafka`). Does not import it, since that loads librdkafka."""
    return find_spec("confluent_kafka") is not None


class KafkaSinkError(DeduperError):
    """Root of these errors. The operator: read the message; what was not published is published at the next start."""


class ClientUnfitError(KafkaSinkError):
    """The installed confluent-kafka is not one whose librdkafka records can be handed to, or taken from.

    The operator: install the version that this package asks for, as the message says.
    """


class BrokerUnavailableError(KafkaSinkError):
    """The cluster did not answer a request within the deadline.

    The operator: bring the brokers back (the message names the request), then start the job again: it continues with
    the window that it could not publish.
    """


class ProducerFencedError(KafkaSinkError):
    """Another producer with the same transactional id has begun after this one: nothing of ours becomes visible.

    The caller checks the epochs: under a higher one this process must stop; otherwise it publishes again, and fences
    the other. The operator: nothing; if it repeats, two jobs of the same name work on copies of one store: stop one.
    """

    exit_code = ExitCode.FENCED


class KafkaDeniedError(KafkaSinkError):
    """The cluster refuses this user's login, or an operation that publishing needs.

    The operator: grant what the message names, or correct the credentials; then start the job again.
    """


class TopicMissingError(KafkaSinkError):
    """The topic of a sink does not exist. It is never created with the broker's defaults.

    The operator: create it, or correct `sinks.<port>.topic`; then start the job again.
    """


class RecordRefusedError(KafkaSinkError):
    """The topic does not take a record or the offset as it is: too large, a timestamp it forbids, a broken policy.

    The operator: change the topic's setting that the message names, then start the job again; no record is left out.
    """


class TransactionTooLongError(ProducerFencedError):
    """A transaction was open for longer than `transaction.timeout.ms`: the broker aborted it and fenced its producer.

    The cluster reports only that the producer is fenced, so the caller checks the epochs first. Under the
    highest one it may call again, a few times: the process may only have slept.

    The operator: raise `kafka.transaction.timeout.ms` (and the broker's `transaction.max.timeout.ms`), or make windows
    smaller; then start the job again.
    """

    exit_code = ExitCode.FAILED


class PublicationUnknownError(KafkaSinkError):
    """The cluster has forgotten whether a window was published, or error records were sent again.

    The operator: search the topic for the window's records (header `dedup-window`; `dedup-replay` for errors) with a
    read_committed consumer, then start once with `--unpublished publish` (send them again) or `--unpublished skip`
    (take them as published); a `Deduper` has the argument `unpublished`.
    """

    exit_code = ExitCode.INTEGRITY
