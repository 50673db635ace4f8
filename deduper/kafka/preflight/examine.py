"""Checks a Kafka cluster before a job starts: all faults that would stop it later, at once, each with a remedy.

`probe_all` asks each server of the list whether it answers, `_described` asks the cluster, `rules` judges the answers.
A client with several servers needs only one of them and reports nothing of the others, so each is asked by a client of
its own, and that client's errors are the answer. No transactional id, group or record of the
job's slots is touched. To find out whether transactions are allowed, a producer with a name of its own (`probe_id`)
asks for its identity and begins none; the cluster forgets that name in time.

`require` is for a job that starts: brokers that are down are waited for, as in the middle of the stream, until the
source's deadline; anything else that is wrong ends the start. `examine` is for a person: it answers within seconds.
"""

from __future__ import annotations

import logging
import re
import ssl
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]  # not in its annotations

from bucket_store.log.manifest import FILE_NAME as MANIFEST_NAME
from deduper.config.kafka.options import KafkaOptionsError, librdkafka_options
from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.diagnostics import Diagnostic, Severity, error, note
from deduper.errors import CheckFailedError
from deduper.kafka.client import QUIET
from deduper.kafka.error_actions import BAD_LOGIN, error_of, names_a_missing_topic
from deduper.kafka.preflight.rules import (
    Access,
    Cluster,
    Server,
    Topic,
    accesses,
    kafka_diagnostics,
    probe_id,
    transaction_timeout_ms,
)
from deduper.kafka.retry import RetryDeadline, ThrottledLog

_POLL_S = 0.02
_SETTLE_S = 0.5
"""After the first error: a host may have several addresses, and the client tries the next one within 0.1 s."""
_MOST_AT_ONCE = 16
_DETAILS = re.compile(r"^\S+/bootstrap: | \(after \d+ms in state \w+\)$")
_TLS = re.compile(r"\bSSL\b")
_LOST = re.compile(r"/bootstrap: (Disconnected.*)\(after \d+ms in state (\w+)\)$")


def probe_all(addresses: str, options: Mapping[str, str], seconds: float) -> tuple[Server, ...]:
    """Every server of a list with commas, side by side; `options` are librdkafka's."""
    servers = addresses.split(",")
    with ThreadPoolExecutor(min(len(servers), _MOST_AT_ONCE), thread_name_prefix="probe") as pool:
        return tuple(pool.map(lambda address: probe(address, options, seconds), servers))


def probe(address: str, options: Mapping[str, str], seconds: float) -> Server:
    """One server, with its fault. A login that it refuses is no fault of the server."""
    errors: list[KafkaError] = []
    lost = _LostConnections()
    log = logging.Logger("probe")  # outside the tree of loggers: nothing is printed
    log.addHandler(lost)
    settings: dict[str, Any] = {**options, "bootstrap.servers": address, "error_cb": errors.append}
    try:
        client = AdminClient(settings, logger=log)
    except KafkaException as exc:
        return Server(address, f"our own options cannot be used: {error_of(exc).str()}", lasts=True)
    answer = client.describe_cluster(request_timeout=seconds)
    until, settled = time.monotonic() + seconds, None
    while time.monotonic() < min(until, settled or until):
        try:
            answer.result(_POLL_S)
        except FutureTimeoutError:
            client.poll(0)
        except KafkaException:
            break
        else:
            return Server(address)
        if any(error.code() in BAD_LOGIN - {KafkaError._SSL} for error in errors):
            return Server(address)
        if errors and settled is None:
            settled = time.monotonic() + _SETTLE_S
    protocol = options.get("security.protocol", "PLAINTEXT").upper()
    lasting = _lasting(errors)
    if "SASL" not in protocol and "UP" in lost.states:
        lasting = lasting or "it requires a login, and `kafka.security.protocol` has none"
    if "SSL" not in protocol and not lasting and lost.states and _speaks_tls(address, seconds):
        lasting = "it speaks TLS there, and `kafka.security.protocol` does not"
    if lasting:
        return Server(address, lasting, lasts=True)
    texts = [_words(error) for error in errors if error.code() != KafkaError._ALL_BROKERS_DOWN]
    return Server(address, (texts or lost.words or [f"no answer within {seconds:.0f} s"])[-1])


class _LostConnections(logging.Handler):
    """The connections that a client logs as lost: it reports no error if a server closes the connection.

    `states` has the state of each. A broker that requires a login answers the client's first request and closes at the
    next, when the client is `UP`. One that speaks TLS closes at the first, `APIVERSION_QUERY`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.states: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line when it is one."""
        found = _LOST.search(record.getMessage())
        if found is not None:
            self.words.append(found[1].strip())
            self.states.add(found[2])


def _lasting(errors: Iterable[KafkaError]) -> str:
    """The text of the first error that does not pass by waiting; empty when there is none."""
    for failure in errors:
        if failure.code() == KafkaError._SSL or _TLS.search(failure.str()):
            return f"TLS failed: {_words(failure)}"
        if failure.code() == KafkaError._BAD_MSG:
            return f"it is no Kafka broker: {_words(failure)}"
    return ""


def _speaks_tls(address: str, seconds: float) -> bool:
    """Whether a server that closes connections without TLS accepts one with TLS."""
    host, _, port = address.rpartition(":")
    try:
        ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=seconds)
    except ssl.SSLError as exc:
        return "ALERT" in str(exc.reason)  # it requires a certificate of the client
    except OSError:
        return False
    return True


def _words(error: KafkaError) -> str:
    """An error without the client's names and times."""
    return _DETAILS.sub("", error.str())


logger = logging.getLogger(__name__)

_PERSON_S, _START_S = 5.0, 20.0
"""Seconds for all answers of one access: for a command, and for the start of a job."""
_PROBE_SHARE = 0.4
"""The part of that time for the answer of each server of the list."""
_LEAST_S = 0.3
_AGAIN_S = 0.5
_T = TypeVar("_T")
_TOPIC_SETTINGS = (
    *("cleanup.policy", "retention.ms", "max.message.bytes", "min.insync.replicas", "message.timestamp.type"),
    *("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"),
)
_FILES = {
    "ssl.ca.location": "certificates of authorities",
    "ssl.certificate.location": "our certificate",
    "ssl.key.location": "our key",
    "ssl.keystore.location": "our key store",
}
_BROKER_SETTINGS = ("transaction.max.timeout.ms", "offsets.retention.minutes")


def require(config: Config) -> None:
    """Wait until the brokers answer, then check that the job can do its work; warnings go to the log.

    Raises:
        CheckFailedError: a fault that waiting does not mend; the message names all of them.
        BrokerUnavailableError: no answer within the source's deadline.
    """
    if not isinstance(config.source, KafkaSource):
        return
    began = time.monotonic()
    throttled = ThrottledLog()
    seen: list[tuple[Access, Cluster]] = []
    # Without its files no client could be made, and no broker waited for.
    files = file_diagnostics(config)
    has_files = not any(diagnostic.severity is Severity.ERROR for diagnostic in files)
    for access in accesses(config) if has_files else []:
        retry = RetryDeadline(access.place, config.source.deadline / 1_000_000, throttled)
        seen.append((access, _answered(config.name, access, retry)))
    found = [*files, *kafka_diagnostics(config, seen)]
    logger.debug("checked Kafka in %.1f s", time.monotonic() - began)
    for diagnostic in found:
        if diagnostic.severity is Severity.WARNING:
            logger.warning("%s", diagnostic)
    # With an old store a missing topic may be a loss, which the job itself reports.
    absent = ("topics", "source.topics") if (config.store.place / MANIFEST_NAME).exists() else None
    errors = [
        str(diagnostic)
        for diagnostic in found
        if diagnostic.severity is Severity.ERROR and (diagnostic.check, diagnostic.place) != absent
    ]
    if errors:
        listed = "".join(f"\n  - {text}" for text in errors)
        raise CheckFailedError(f"Kafka is not as the job needs it, nothing was started:{listed}")


def examine(config: Config, *, seconds: float = _PERSON_S) -> list[Diagnostic]:
    """All faults of this moment; notes at the end name the clusters. A broker has these seconds to answer."""
    seen = [(access, _described(config.name, access, seconds)) for access in accesses(config)]
    return [
        *file_diagnostics(config),
        *kafka_diagnostics(config, seen),
        *(_seen(access, cluster) for access, cluster in seen if cluster.cluster_id),
    ]


def file_diagnostics(config: Config) -> list[Diagnostic]:
    """The files of a login that are absent or may not be read: each once, at the first place that names it."""
    found: dict[Path, list[Diagnostic]] = {}
    for access in accesses(config):
        try:
            options = librdkafka_options(access.servers, access.options)
        except KafkaOptionsError:
            continue
        for option, what in _FILES.items():
            path = Path(options.get(option, ""))
            if options.get(option) and (option, options[option]) != ("ssl.ca.location", "probe"):
                found[path] = found.get(path) or _file_diagnostics(f"{access.place}.options", path, what)
    return [diagnostic for diagnostics in found.values() for diagnostic in diagnostics]


def _file_diagnostics(place: str, path: Path, what: str) -> list[Diagnostic]:
    try:
        if not path.is_dir():  # a folder holds certificates of authorities; OpenSSL reads it
            with path.open("rb") as stream:
                stream.read(1)
    except FileNotFoundError:
        return [error("files", place, f"{path} ({what}) is not there", "put it there, or correct the path")]
    except OSError as exc:
        remedy = "let the user that runs the job read it"
        return [error("files", place, f"{path} ({what}) cannot be read: {exc.strerror}", remedy)]
    return []


def _answered(job: str, access: Access, retry: RetryDeadline) -> Cluster:
    """The cluster's answers once it gives any. It must refuse twice in sequence.

    A broker that ends in the middle of a handshake looks like one that requires another protocol.
    """
    has_refused = False
    while True:
        cluster = _described(job, access, _START_S)
        if _is_silent(cluster):
            has_refused = False
            reason = cluster.silence or "; ".join(f"{server.address}: {server.error}" for server in cluster.servers)
            retry.wait("the brokers", reason)
        elif has_refused or not (cluster.refusal or any(server.lasts for server in cluster.servers)):
            return cluster
        else:
            has_refused = True
            time.sleep(_AGAIN_S)


def _described(job: str, access: Access, seconds: float) -> Cluster:
    """The cluster's answers about everything that the job needs there."""
    until = time.monotonic() + seconds
    try:
        options = librdkafka_options(access.servers, access.options)
    except KafkaOptionsError as exc:
        # Only of ports that Spark writes: the configuration refuses it for all others.
        return Cluster(unseen=str(exc))
    servers = probe_all(access.servers, options, _PROBE_SHARE * seconds)
    if all(server.error for server in servers):
        return Cluster(servers)
    try:
        questions = _Questions(job, access, options, until)
    except KafkaException as exc:
        return Cluster(servers, refusal=error_of(exc).str())
    try:
        return questions.all(Cluster(servers))
    except _RefusedError as exc:
        return Cluster(servers, refusal=str(exc))
    except KafkaException as exc:
        return Cluster(servers, silence="; ".join(filter(None, (error_of(exc).str(), questions.heard))))


class _RefusedError(Exception):
    """The brokers refuse this login."""


class _Questions:
    """The requests to one cluster, by one client, with one deadline."""

    def __init__(self, job: str, access: Access, options: Mapping[str, str], until: float) -> None:
        self._job = job
        self._access = access
        self._until = until
        self._options = dict(options)
        self._refusals: list[KafkaError] = []
        self.heard = ""
        settings: dict[str, Any] = {**options, "error_cb": self._note_error}
        self._admin = AdminClient(settings, logger=QUIET)

    def all(self, known: Cluster) -> Cluster:
        """Everything, beside what is known."""
        cluster = self._get(self._admin.describe_cluster(request_timeout=self._left))
        listed = self._admin.list_topics(timeout=self._left).topics
        named = {sink.topic for sink in self._access.ports.values()}
        source = self._access.source
        if source is not None:
            named |= {name for name in listed if source.reads(name)} | set(source.topics)
        groups = [probe_id(self._job, port) for port in self._access.ports]
        if source is not None and source.group is not None:
            groups.append(source.group)
        brokers = cluster.nodes or []
        return Cluster(
            servers=known.servers,
            cluster_id=cluster.cluster_id,
            brokers=len(brokers),
            names=frozenset(listed),
            topics=self._topics(sorted(named)),
            groups={group: self._group(group) for group in groups},
            settings=self._settings(ResourceType.BROKER, [str(brokers[0].id)], _BROKER_SETTINGS).popitem()[1]
            if brokers
            else None,
            transactions=self._transactions(),
        )

    @property
    def _left(self) -> float:
        return max(_LEAST_S, self._until - time.monotonic())

    def _note_error(self, failure: KafkaError) -> None:
        if failure.code() in BAD_LOGIN:
            self._refusals.append(failure)
        elif failure.code() != KafkaError._ALL_BROKERS_DOWN:
            self.heard = failure.str()

    def _get(self, future: Future[_T]) -> _T:
        """An answer. A refused login comes by `_note_error`; the question itself stays unanswered."""
        until = time.monotonic() + self._left + _LEAST_S
        while True:
            try:
                return future.result(_POLL_S)
            except FutureTimeoutError:
                if time.monotonic() > until:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
            self._admin.poll(0)
            if self._refusals:
                raise _RefusedError(self._refusals[0].str())

    def _topics(self, names: list[str]) -> dict[str, Topic]:
        if not names:
            return {}
        asked = self._admin.describe_topics(
            TopicCollection(names), include_authorized_operations=True, request_timeout=self._left
        )
        found = {name: self._topic(name, future) for name, future in asked.items()}
        there = [name for name, topic in found.items() if topic.partitions]
        for name, settings in self._settings(ResourceType.TOPIC, there, _TOPIC_SETTINGS).items():
            found[name] = replace(found[name], settings=settings)
        return found

    def _topic(self, name: str, future: Future[Any]) -> Topic:
        try:
            reported = self._get(future)
        except KafkaException as exc:
            failure = error_of(exc)
            if failure.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return Topic(name, is_denied=True)
            if names_a_missing_topic(failure):
                return Topic(name, is_there=False)
            raise
        return Topic(
            name,
            replicas=tuple(len(partition.replicas) for partition in reported.partitions),
            in_sync=tuple(len(partition.isr) for partition in reported.partitions),
            rights=_rights(reported.authorized_operations),
        )

    def _settings(
        self, kind: ResourceType, names: list[str], wanted: tuple[str, ...]
    ) -> dict[str, dict[str, str] | None]:
        """Those settings of topics or brokers; None where they may not be read."""
        if not names:
            return {}
        resources = [ConfigResource(kind, name) for name in names]
        asked = self._admin.describe_configs(resources, request_timeout=self._left)
        found: dict[str, dict[str, str] | None] = {}
        for resource, future in asked.items():
            try:
                reported = self._get(future)
            except KafkaException:
                found[resource.name] = None
            else:
                found[resource.name] = {
                    name: entry.value for name, entry in reported.items() if name in wanted and entry.value is not None
                }
        return found

    def _group(self, group: str) -> frozenset[str] | None:
        (future,) = self._admin.describe_consumer_groups(
            [group], include_authorized_operations=True, request_timeout=self._left
        ).values()
        try:
            return _rights(self._get(future).authorized_operations)
        except KafkaException as exc:
            return frozenset() if error_of(exc).code() == KafkaError.GROUP_AUTHORIZATION_FAILED else None

    def _transactions(self) -> dict[str, str | None]:
        """Side by side: the client waits half a second for a coordinator that it is not connected to yet."""
        ports = tuple(self._access.ports)
        with ThreadPoolExecutor(max(1, len(ports)), thread_name_prefix="probe") as pool:
            names = (probe_id(self._job, port) for port in ports)
            return dict(zip(names, pool.map(self._transaction, ports), strict=True))

    def _transaction(self, port: str) -> str | None:
        """Why the cluster refuses our transactional id, when that is a matter of rights; None otherwise."""
        options: dict[str, Any] = {
            **self._options,
            "transactional.id": probe_id(self._job, port),
            "transaction.timeout.ms": transaction_timeout_ms(self._access.ports[port]),
        }
        try:
            Producer(options, logger=QUIET).init_transactions(self._left)
        except KafkaException as exc:
            if error_of(exc).code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                return "not authorized"
        return None


def _rights(operations: Any) -> frozenset[str] | None:
    """The names of the operations that are allowed; None when the cluster does not report them.

    A user that may ask has at least one right. An answer without any comes from a broker too old for the question.
    """
    return frozenset(operation.name for operation in operations) if operations else None


def _seen(access: Access, cluster: Cluster) -> Diagnostic:
    counted = [f"{name} ({topic.partitions})" for name, topic in sorted(cluster.topics.items()) if topic.partitions]
    brokers = f"{cluster.brokers} broker{'' if cluster.brokers == 1 else 's'}"
    topics = ", ".join(counted) or "none"
    return note("cluster", access.place, f"cluster {cluster.cluster_id}: {brokers}; topics (partitions): {topics}")


def _is_silent(cluster: Cluster) -> bool:
    """Whether waiting may help."""
    if cluster.refusal or cluster.unseen or any(server.lasts for server in cluster.servers):
        return False
    return bool(cluster.silence) or not cluster.is_reached
