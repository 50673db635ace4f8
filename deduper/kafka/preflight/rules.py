"""PURE. The faults between a job and a Kafka cluster, found in the cluster's own answers.

An *access* is one way of connecting and all that the job does by it: the source's, and those of ports with brokers or a
login of their own. A missing answer is a note and no fault, because the job does not need the right to ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from deduper.config.kafka.options import connection_options
from deduper.config.kafka.sections import KafkaSink, KafkaSource
from deduper.config.model import Config
from deduper.diagnostics import Diagnostic, error, near, note, warning
from deduper.units import approximate_size, format_duration


@dataclass(frozen=True, slots=True)
class Server:
    """The result of probing one bootstrap server. `lasts`: no waiting mends the error."""

    address: str
    error: str = ""
    lasts: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the job. `rights` and `settings` are None when the cluster does not report them."""

    name: str
    is_there: bool = True
    is_denied: bool = False
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    rights: frozenset[str] | None = None
    settings: Mapping[str, str] | None = None

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.replicas)

    def number(self, name: str) -> int | None:
        """A setting that is a number; None when it is not known."""
        return _number(self.settings, name)

    def text(self, name: str) -> str | None:
        """A setting; None when it is not known."""
        return None if self.settings is None else self.settings.get(name)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster as its brokers describe it to one access. An answer that is missing is None, never a guess.

    `refusal`: why the login was refused. `silence`: why no question was answered, which may pass. `unseen`: why only
    Spark can ask. `groups` has the rights on each group of the job, `transactions` why a transactional id
    was refused: None if it was not.
    """

    servers: tuple[Server, ...] = ()
    refusal: str = ""
    silence: str = ""
    unseen: str = ""
    cluster_id: str | None = None
    brokers: int = 0
    names: frozenset[str] = frozenset()
    topics: Mapping[str, Topic] = field(default_factory=dict)
    groups: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    settings: Mapping[str, str] | None = None
    transactions: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def is_reached(self) -> bool:
        """Whether one of the servers answers."""
        return any(not server.error for server in self.servers)

    def number(self, name: str) -> int | None:
        """A broker's setting that is a number; None when it is not known."""
        return _number(self.settings, name)


def _number(settings: Mapping[str, str] | None, name: str) -> int | None:
    value = None if settings is None else settings.get(name)
    return int(value) if value is not None and value.lstrip("-").isdecimal() else None


HEADER_BYTES = 300
"""About how many bytes the job's headers add to a record."""
TRANSACTION_TIMEOUT_MS = 600_000
_BATCH_BYTES = 1_000_000
"""librdkafka's default of `batch.size`."""
_DAY_MIN = 24 * 60
_NO_LIMIT = 2**62


@dataclass(frozen=True)
class Access:
    """One way of connecting: the brokers, the options of the login, and the source and ports that use it."""

    servers: str
    options: Mapping[str, str]
    source: KafkaSource | None = None
    ports: Mapping[str, KafkaSink] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The section of the configuration with its settings."""
        return "source" if self.source is not None else f"sinks.{next(iter(self.ports))}"


def accesses(config: Config) -> list[Access]:
    """The ways by which a job connects, the source's first; none without Kafka."""
    if not isinstance(config.source, KafkaSource):
        return []
    source = config.source
    found = [Access(source.bootstrap_servers, connection_options(source.options), source)]
    for port, sink in config.sinks.items():
        if not isinstance(sink, KafkaSink):
            continue
        options = connection_options(sink.options)
        for number, access in enumerate(found):
            if (access.servers, dict(access.options)) == (sink.bootstrap_servers, options):
                found[number] = Access(access.servers, access.options, access.source, {**access.ports, port: sink})
                break
        else:
            found.append(Access(sink.bootstrap_servers, options, None, {port: sink}))
    return found


def probe_id(job: str, port: str) -> str:
    """A transactional id and group under the job's prefix that no slot ever has."""
    return f"{job}/preflight/{port}/0"


def transaction_timeout_ms(sink: KafkaSink) -> int:
    """The time for which a transaction of a port may stay open, in ms."""
    return _option(sink, "transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)


def batch_bytes(sink: KafkaSink) -> int:
    """The size up to which records of a port with transactions are sent as one batch."""
    return _option(sink, "batch.size", _BATCH_BYTES)


def _option(sink: KafkaSink, name: str, default: int) -> int:
    text = sink.options.get(f"librdkafka.{name}") or sink.options.get(f"kafka.{name}")
    return int(text) if text is not None and text.isdecimal() else default


def kafka_diagnostics(config: Config, seen: list[tuple[Access, Cluster]]) -> list[Diagnostic]:
    """The faults of all accesses."""
    found: list[Diagnostic] = []
    for access, cluster in seen:
        found += _of_servers(access, cluster)
        if cluster.unseen:
            what = f"these brokers cannot be checked before the start: {cluster.unseen}"
            found.append(note("brokers", f"{access.place}.options", what))
        if not cluster.is_reached or cluster.refusal or cluster.silence:
            continue
        if access.source is not None:
            found += _of_source(access.source, cluster)
        for port, sink in access.ports.items():
            found += _of_port(port, sink, cluster, seen)
        found += _of_transactions(config, access, cluster)
    found += _of_ports_together(seen)
    return found


def _of_servers(access: Access, cluster: Cluster) -> Iterator[Diagnostic]:
    place = f"{access.place}.bootstrap_servers"
    count = len(cluster.servers)
    for server in cluster.servers:
        if not server.error:
            continue
        what = f"{server.address} cannot be used: {server.error}"
        if server.lasts:
            yield error("brokers", place, what, "correct the address, or the `kafka.security`, `kafka.ssl` options")
        elif cluster.is_reached:
            yield warning("brokers", place, f"{what}; the job starts by the others of {count}", "correct or remove it")
        else:
            yield error("brokers", place, what, "start the broker, or correct the address")
    if cluster.refusal:
        remedy = f"correct `kafka.sasl` and `kafka.ssl` in {access.place}.options"
        yield error("login", f"{access.place}.options", f"the brokers refuse the login: {cluster.refusal}", remedy)
    elif cluster.silence and cluster.is_reached:
        remedy = "read the brokers' logs: they take connections and do not answer"
        yield error("brokers", place, f"the cluster does not answer: {cluster.silence}", remedy)


def _of_source(source: KafkaSource, cluster: Cluster) -> Iterator[Diagnostic]:
    if source.topic_pattern is not None and not any(source.reads(name) for name in cluster.names):
        what = f"`{source.topic_pattern}` matches no topic that this user may see"
        remedy = "correct it, or create the topics: they are found when they come"
        yield warning("topics", "source.topic_pattern", what, remedy)
    named = "source.topics" if source.topic_pattern is None else "source.topic_pattern"
    for topic in sorted(cluster.topics.values(), key=lambda topic: topic.name):
        if not source.reads(topic.name):
            continue
        yield from _of_presence(named, topic, cluster)
        yield from _of_rights(named, f"topic {topic.name}", topic.rights, ("READ", "DESCRIBE"))
        yield from _of_replicas(named, topic, cluster, writes=False)
        if "compact" in (topic.text("cleanup.policy") or ""):
            what = (
                f"topic {topic.name} is compacted: records are removed when a newer one has their key, and what is "
                "removed before the job reads it is never judged"
            )
            yield warning("cleanup.policy", named, what, "read a topic with cleanup.policy=delete to see every record")
    if source.group is not None and source.group in cluster.groups:
        rights = cluster.groups[source.group]
        if rights is not None and "READ" not in rights:
            remedy = f"grant Read on group {source.group}, or write `group: off`"
            what = f"no right Read on group {source.group}: lag tools would see no offsets of the job"
            yield warning("rights", "source.group", what, remedy)


def _of_presence(place: str, topic: Topic, cluster: Cluster) -> Iterator[Diagnostic]:
    like = near(topic.name, cluster.names - {topic.name})
    if topic.is_denied:
        what = f"topic {topic.name} does not exist, or this user has no right Describe on it"
        yield error("topics", place, what, f"{like}create it, or grant Read and Describe on it")
    elif not topic.is_there:
        yield error("topics", place, f"the cluster has no topic {topic.name}", f"{like}create it, or correct the name")


def _of_rights(place: str, what: str, rights: frozenset[str] | None, needed: tuple[str, ...]) -> Iterator[Diagnostic]:
    missing = [] if rights is None else [right.title() for right in needed if right not in rights]
    if missing:
        listed = " and ".join(missing)
        yield error("rights", place, f"no right {listed} on {what}", f"grant {listed} on {what} to the job's user")


def _of_replicas(place: str, topic: Topic, cluster: Cluster, *, writes: bool) -> Iterator[Diagnostic]:
    if not topic.replicas:
        return
    fewest, least = min(topic.replicas), topic.number("min.insync.replicas")
    if writes and least is not None and fewest < least:
        what = f"topic {topic.name} has {fewest} replicas and min.insync.replicas={least}: no write can ever succeed"
        yield error("replicas", place, what, "raise the number of replicas, or lower min.insync.replicas")
    elif writes and least is not None and min(topic.in_sync) < least:
        what = f"topic {topic.name} has {min(topic.in_sync)} replicas in sync and needs {least}: writes wait"
        yield warning("replicas", place, what, "bring the missing brokers back")
    elif not writes and not all(topic.in_sync):
        what = f"topic {topic.name} has partitions without a replica in sync: they cannot be read now"
        yield warning("replicas", place, what, "bring the missing brokers back")
    if fewest == 1 and cluster.brokers > 1:
        what = (
            f"topic {topic.name} has 1 replica on a cluster of {cluster.brokers} brokers: one lost disk loses records"
        )
        yield warning("replicas", place, what, "give it 3 replicas and min.insync.replicas=2")


def _of_port(port: str, sink: KafkaSink, cluster: Cluster, seen: list[tuple[Access, Cluster]]) -> Iterator[Diagnostic]:
    place = f"sinks.{port}.topic"
    topic = cluster.topics.get(sink.topic)
    if topic is None:
        return
    yield from _of_presence(place, topic, cluster)
    if not topic.is_there or topic.is_denied:
        return
    yield from _of_rights(place, f"topic {topic.name}", topic.rights, ("WRITE", "DESCRIBE", "READ"))
    yield from _of_replicas(place, topic, cluster, writes=True)
    if topic.settings is None:
        yield note("settings", place, f"the settings of topic {topic.name} may not be read", "grant DescribeConfigs")
    if "compact" in (topic.text("cleanup.policy") or ""):
        what = (
            f"topic {topic.name} is compacted: a record without a key is refused and stops the job, and of records "
            "with one key only the newest stays"
        )
        yield warning("cleanup.policy", place, what, "use cleanup.policy=delete, unless every record has a key")
    yield from _of_batches(port, sink, topic)
    source, read = seen[0][0].source, seen[0][1]
    assert source is not None
    if read.cluster_id is not None and read.cluster_id == cluster.cluster_id and source.reads(topic.name):
        what = f"topic {topic.name} is read by the source, by other names of the same brokers: an endless loop"
        yield error("loop", place, what, "send to another topic")
    origins = [origin for name, origin in read.topics.items() if source.reads(name) and origin.settings is not None]
    for origin in origins:
        yield from _of_times(place, topic, origin)
        yield from _of_sizes(place, topic, origin)


def _of_times(place: str, topic: Topic, origin: Topic) -> Iterator[Diagnostic]:
    """Faults of timestamps: rows keep those of their records, so a topic gets old ones."""
    if topic.text("message.timestamp.type") != "CreateTime":
        return
    kept, was_kept = _limit(topic, "retention.ms"), _limit(origin, "retention.ms")
    if "delete" in (topic.text("cleanup.policy") or "delete") and kept < was_kept:
        what = (
            f"topic {topic.name} deletes records {_ms(kept)} after their timestamp, which is that of the source's "
            f"record, and {origin.name} keeps them {_ms(was_kept)}: those older than {_ms(kept)} are gone soon after "
            "they are sent, perhaps before they are read"
        )
        remedy = "raise its retention.ms, or set message.timestamp.type=LogAppendTime on it"
        yield warning("retention", place, what, remedy)
    accepted = _limit(topic, "message.timestamp.before.max.ms")
    if accepted < was_kept:
        what = (
            f"topic {topic.name} refuses records older than {_ms(accepted)}, and {origin.name} keeps them "
            f"{_ms(was_kept)}: the first such record stops the job"
        )
        remedy = "raise its message.timestamp.before.max.ms, or set message.timestamp.type=LogAppendTime on it"
        yield warning("timestamps", place, what, remedy)
    ahead, was_ahead = (_limit(one, "message.timestamp.after.max.ms") for one in (topic, origin))
    if ahead < was_ahead and origin.text("message.timestamp.type") == "CreateTime":
        what = (
            f"topic {topic.name} refuses records more than {_ms(ahead)} ahead of its clock, and {origin.name} takes "
            f"them {_ms(was_ahead)} ahead: the first such record stops the job"
        )
        yield warning("timestamps", place, what, "raise its message.timestamp.after.max.ms")


def _of_sizes(place: str, topic: Topic, origin: Topic) -> Iterator[Diagnostic]:
    taken, largest = topic.number("max.message.bytes"), origin.number("max.message.bytes")
    if taken is None or largest is None or taken >= largest + HEADER_BYTES:
        return
    remedy = f"set its max.message.bytes to {largest + HEADER_BYTES} or more"
    if taken < largest:
        what = (
            f"topic {topic.name} takes records of {approximate_size(taken)}, {origin.name} of "
            f"{approximate_size(largest)}: the first larger one stops the job"
        )
        yield warning("sizes", place, what, remedy)
    else:
        what = (
            f"topic {topic.name} takes records as large as {origin.name} does; the headers that are added make each "
            f"some {HEADER_BYTES} bytes larger"
        )
        yield note("sizes", place, what, remedy)


def _of_batches(port: str, sink: KafkaSink, topic: Topic) -> Iterator[Diagnostic]:
    taken, sent = topic.number("max.message.bytes"), batch_bytes(sink)
    if taken is None or taken >= sent:
        return
    what = (
        f"topic {topic.name} takes batches of {taken} bytes (max.message.bytes), and the port sends batches of up to "
        f"{sent} before they are compressed (kafka.batch.size): the first larger one stops the job"
    )
    remedy = f"write `kafka.batch.size: {taken}` in sinks.{port}.options, or set max.message.bytes to {sent} or more"
    yield warning("batches", f"sinks.{port}.topic", what, remedy)


def _limit(topic: Topic, name: str) -> int:
    """A limit in ms, where -1 and the greatest number are none; none as well when it is not known."""
    value = topic.number(name)
    return _NO_LIMIT if value is None or value < 0 else min(value, _NO_LIMIT)


def _ms(value: int) -> str:
    return "for ever" if value >= _NO_LIMIT else format_duration(value * 1000)


def _of_transactions(config: Config, access: Access, cluster: Cluster) -> Iterator[Diagnostic]:
    most = cluster.number("transaction.max.timeout.ms")
    for port, sink in access.ports.items():
        place = f"sinks.{port}"
        timeout = transaction_timeout_ms(sink)
        if most is not None and timeout > most:
            what = f"a transaction may take {_ms(timeout)} here and {_ms(most)} on the brokers"
            remedy = f"write `kafka.transaction.timeout.ms: {most}` in {place}.options, or raise the brokers' limit"
            yield error("transactions", place, what, remedy)
        group = probe_id(config.name, port)
        rights = cluster.groups.get(group)
        if rights is not None and "READ" not in rights:
            what = f"no right Read on groups that begin with {config.name}/"
            yield error("rights", place, what, f"grant Read on group {config.name}/, pattern type prefixed")
        refused = cluster.transactions.get(group)
        if refused:
            what = f"transactional ids that begin with {config.name}/ are refused: {refused}"
            remedy = f"grant Write and Describe on transactional id {config.name}/, pattern type prefixed"
            yield error("rights", place, what, remedy)
    kept = cluster.number("offsets.retention.minutes")
    if access.ports and kept is not None and kept < _DAY_MIN:
        what = (
            f"the brokers forget offsets after {kept} min: whether a window that is not marked by then was published "
            "is unknown, and it stops the job"
        )
        yield warning("offsets", access.place, what, "set offsets.retention.minutes to 7 days, its default")


def _of_ports_together(seen: list[tuple[Access, Cluster]]) -> Iterator[Diagnostic]:
    places = [
        (port, sink.topic, cluster.cluster_id or access.servers)
        for access, cluster in seen
        for port, sink in access.ports.items()
    ]
    for (port, topic, cluster_id), (other, of_other, of_cluster) in combinations(places, 2):
        if topic == of_other and cluster_id == of_cluster:
            sinks = [sink for access, _ in seen for sink in access.ports.values() if sink.topic == topic]
            have_verdicts = all("verdict" in sink.dedup_headers for sink in sinks)
            separates = "only the header dedup-verdict separates them" if have_verdicts else "nothing separates them"
            what = f"topic {topic} is the one of port {port} too: {separates}"
            yield warning("ports", f"sinks.{other}.topic", what, "give each port a topic, unless that is intended")
