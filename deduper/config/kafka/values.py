"""The kinds of values that only Kafka's settings have: brokers, topics, offsets, options; see `config.values`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from ipaddress import IPv6Address
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from deduper.config.kafka.avro_schema import AvroError, columns_of
from deduper.config.values import local_path, read_expression, read_schema, refusal, resolve, shown
from deduper.dedup_column import OWN_HEADERS
from deduper.units import MAX_I64

_SERVERS_ADVICE = 'write `"host:9092"`, several with commas'
_SERVER = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9_.-]+)):(?P<port>[0-9]{1,5})")


def _read_servers(value: object) -> object:
    servers = value.split(",") if isinstance(value, str) else value
    if not isinstance(servers, list | tuple) or not servers or value == "":
        raise refusal(f"`{shown(value)}` has no broker", _SERVERS_ADVICE)
    trimmed = [str(server).strip() for server in servers]
    for server in trimmed:
        _check_server(server)
    return ",".join(trimmed)


def _check_server(server: str) -> None:
    if "://" in server:
        what = f"`{shown(server)}` has a protocol"
        raise refusal(what, "write host:port, and the protocol as `options: {kafka.security.protocol: SASL_SSL}`")
    found = _SERVER.fullmatch(server)
    if found is None:
        is_v6 = server.count(":") > 1 and "[" not in server
        advice = 'write an IPv6 address as `"[::1]:9092"`' if is_v6 else _SERVERS_ADVICE
        raise refusal(f"`{shown(server)}` is not host:port", advice)
    if not 0 < int(found["port"]) < 65536:
        raise refusal(f"`{shown(server)}` has no port", "ports are 1 to 65535")
    if found["v6"] is not None:
        try:
            IPv6Address(found["v6"])
        except ValueError:
            raise refusal(f"`{shown(server)}` is not an IPv6 address", 'write it as `"[::1]:9092"`') from None


Servers = Annotated[
    str, BeforeValidator(_read_servers), WithJsonSchema({"type": ["string", "array"], "x-kind": "host:port, …"})
]
"""Brokers to connect to first, as host:port with commas."""


_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def _read_topic(value: object) -> object:
    if not isinstance(value, str):
        raise refusal(f"`{shown(value)}` is not a topic name", "put it in quotes")
    if not _TOPIC.fullmatch(value) or value in (".", ".."):
        raise refusal(f"`{shown(value)}` is not a topic name", "use letters, digits, `.`, `_` and `-`, at most 249")
    return value


Topic = Annotated[str, BeforeValidator(_read_topic)]
"""The name of one topic."""


def _read_topics(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise refusal(f"must be a list of topics, found `{shown(value)}`", "write `topics: [clicks]`")
    for position, topic in enumerate(value):
        if topic in value[:position]:
            raise refusal(f"topic `{shown(topic)}` appears twice", "name every topic once", at=(str(position),))
    return value


Topics = Annotated[
    tuple[Topic, ...],
    BeforeValidator(_read_topics),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
    ),
]
"""Topics, each once."""


DEDUP_HEADERS = tuple(OWN_HEADERS)
"""The headers of ours on a record that is sent, without `dedup-`."""


def _read_dedup_headers(value: object) -> object:
    if not isinstance(value, list | tuple):
        raise refusal(f"must be a list, found `{shown(value)}`", "write `dedup_headers: [verdict, origin]`, or `[]`")
    for position, name in enumerate(value):
        if name not in DEDUP_HEADERS:
            raise refusal(f"`{shown(name)}` is no header", f"use {', '.join(DEDUP_HEADERS)}", at=(str(position),))
        if name in value[:position]:
            raise refusal(f"`{shown(name)}` appears twice", "name every header once", at=(str(position),))
    return tuple(value)


DedupHeaders = Annotated[
    tuple[str, ...],
    BeforeValidator(_read_dedup_headers),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"enum": list(DEDUP_HEADERS)},
            "uniqueItems": True,
            "x-kind": "list of " + ", ".join(f"`{name}`" for name in DEDUP_HEADERS),
        }
    ),
]
"""Headers to add to a record, each once."""

_SCHEMA_IDS_ADVICE = "write the numbers that the registry gives the schema, such as `[17, 18]`, or `any`"


def _read_schema_ids(value: object) -> object:
    if value == "any" or value is None:
        return value
    if not isinstance(value, list | tuple) or not value:
        raise refusal(f"must be a list of numbers or `any`, found `{shown(value)}`", _SCHEMA_IDS_ADVICE)
    for position, number in enumerate(value):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MOST_SCHEMA_ID:
            raise refusal(f"`{shown(number)}` is no schema's number", _SCHEMA_IDS_ADVICE, at=(str(position),))
    return tuple(value)


_MOST_SCHEMA_ID = 2**31 - 1
SchemaIds = Annotated[
    tuple[int, ...] | Literal["any"],
    BeforeValidator(_read_schema_ids),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "any"},
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {"type": "integer", "minimum": 0, "maximum": _MOST_SCHEMA_ID},
                },
            ],
            "x-kind": "`any`, or a list of numbers",
        }
    ),
]
"""The numbers of schemas in the framing of Confluent's serializer."""


Pattern = Annotated[
    str,
    BeforeValidator(lambda value: read_expression(value, "clicks-.*")),
    WithJsonSchema({"type": "string", "x-kind": "regular expression"}),
]
"""A regular expression, Python's; it must match the whole name of a topic."""


_STARTING_ADVICE = 'write `earliest`, `latest`, `{time: "2025-03-01T00:00:00Z"}` or `{clicks: {"0": 12}}`'


def _read_starting(value: object) -> object:
    if value in ("earliest", "latest"):
        return value
    if isinstance(value, Mapping) and set(value) == {"time"} and not isinstance(value["time"], Mapping):
        return {"time": _time(value["time"])}
    if isinstance(value, Mapping) and value and all(isinstance(partitions, Mapping) for partitions in value.values()):
        return {_read_topic(topic): _offsets(topic, partitions) for topic, partitions in value.items()}
    raise refusal(f"`{shown(value)}` is not a starting position", _STARTING_ADVICE)


def _time(value: object) -> str:
    advice = 'write `{time: "2025-03-01T00:00:00Z"}`; without a zone it is UTC'
    try:
        when = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        when = None
    if when is None:
        raise refusal(f"`{shown(value)}` is not a time", advice, at=("time",))
    if (when if when.tzinfo is not None else when.replace(tzinfo=UTC)) < datetime(1970, 1, 1, tzinfo=UTC):
        raise refusal(f"`{shown(value)}` is before 1970", "write `starting_offsets: earliest`", at=("time",))
    return str(value)


def _offsets(topic: str, partitions: Mapping[object, object]) -> dict[str, int]:
    if not partitions:
        raise refusal("has no partition", 'write `{clicks: {"0": 12}}`', at=(topic,))
    offsets: dict[str, int] = {}
    for partition, offset in partitions.items():
        at = (topic, str(partition))
        if not re.fullmatch("[0-9]{1,9}", str(partition)):
            raise refusal(f"`{shown(partition)}` is not a partition", 'write `{clicks: {"0": 12}}`', at=at, at_key=True)
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= MAX_I64:
            advice = "write a whole number, 0 or more; a partition that is left out starts at its earliest offset"
            raise refusal(f"`{shown(offset)}` is not an offset", advice, at=at)
        number = str(int(str(partition)))
        if number in offsets:
            raise refusal(f"partition {number} appears twice", "name it once", at=at, at_key=True)
        offsets[number] = offset
    return offsets


Starting = Annotated[
    str | dict[str, Any],
    BeforeValidator(_read_starting),
    WithJsonSchema({"type": ["string", "object"], "x-kind": "`earliest`, `latest`, a time or offsets"}),
]
"""`earliest`, `latest`, `{"time": ISO 8601}` or `{topic: {partition: offset}}`, numbers of partitions as text."""


def _read_group(value: object) -> object:
    if value is False or value == "off":
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > 255:
        raise refusal(f"`{shown(value)}` is not the name of a group", "write a name, or `off`")
    return value


Group = Annotated[
    str | None,
    BeforeValidator(_read_group),
    PlainSerializer(lambda value: "off" if value is None else value, when_used="json"),
    WithJsonSchema({"type": ["string", "boolean"], "x-kind": "name or off"}),
]
"""A consumer group, or None for `off`."""


def _read_avro_schema(value: object, info: ValidationInfo) -> object:
    """The schema as JSON: of a file, of a text, or as YAML has read it, for which JSON is its own."""
    advice = "write the path of an .avsc file, or the schema as JSON"
    if isinstance(value, Mapping | list):
        text = json.dumps(value)
    elif not isinstance(value, str) or not value.strip():
        raise refusal(f"`{shown(value)}` is not a schema", advice)
    elif value.lstrip().startswith("{"):
        text = value
    else:
        path = resolve(local_path(value), info)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
            raise refusal(f"{path} cannot be read: {reason}", advice) from None
    try:
        read_schema(columns_of(text))
    except AvroError as error:
        raise refusal(error.what, error.write) from None
    except PydanticCustomError as error:  # its offset is one in the columns
        context = error.context or {}
        raise refusal(context["what"], context["write"]) from None
    return json.dumps(json.loads(text), separators=(",", ":"))


AvroSchema = Annotated[
    str,
    BeforeValidator(_read_avro_schema),
    WithJsonSchema({"type": ["string", "object"], "x-kind": "path or JSON"}),
]
"""The schema of an Avro record, as JSON on one line, wherever it was written."""


_DROPPED = "remove it: every record is read and written as its bytes"
_ONCE = "remove it: rows are sent exactly once"
# Names in small letters, without the prefix; some are Spark's own.
_OF_BOTH = {
    "bootstrap.servers": "write `bootstrap_servers`",
    "metadata.broker.list": "write `bootstrap_servers`",
    "key.deserializer": _DROPPED,
    "value.deserializer": _DROPPED,
    "key.serializer": _DROPPED,
    "value.serializer": _DROPPED,
    "enable.idempotence": _ONCE,
    "transactional.id": "remove it: the job makes it from its name, the store, the port and the slot",
    "acks": "remove it: all replicas acknowledge",
    "interceptor.classes": "remove it: they are of Java's client",
}
_OF_SOURCE = _OF_BOTH | {
    "group.id": "write `group`",
    "group.instance.id": "remove it: the job joins no group",
    "auto.offset.reset": "write `starting_offsets`",
    "enable.auto.commit": "write `group`: offsets are committed after each window",
    "subscribe": "write `topics`",
    "subscribepattern": "write `topic_pattern`",
    "assign": "write `topics`: all partitions are read",
    "startingoffsets": "write `starting_offsets`",
    "startingtimestamp": "write `starting_offsets`",
    "startingoffsetsbytimestamp": "write `starting_offsets`",
    "maxoffsetspertrigger": "write `max_offsets_per_batch`",
    "failondataloss": "write `data_loss`",
    "minpartitions": "remove it: a partition is read by one task, in order",
    "maxrecordsperpartition": "remove it: a partition is read by one task, in order",
    "includeheaders": "remove it: headers are read",
}
_OF_SINK = _OF_BOTH | {
    "group.id": "remove it: the job uses the transactional id",
    "isolation.level": _ONCE,
    "topic": "write `topic`",
}
_PREFIXES = ("kafka.", "librdkafka.")
_JAAS, _TRUST = "`kafka.sasl.jaas.config`", "`kafka.ssl.truststore.location` with `kafka.ssl.truststore.type: PEM`"
_STORE = "`kafka.ssl.keystore.location` with `kafka.ssl.keystore.type: PEM`"
_NATIVE_ALONE = {
    "sasl.username": _JAAS,
    "sasl.password": _JAAS,
    "sasl.mechanisms": "`kafka.sasl.mechanism`",
    "sasl.oauthbearer.method": _JAAS,
    "sasl.oauthbearer.client.id": _JAAS,
    "sasl.oauthbearer.client.secret": _JAAS,
    "ssl.ca.location": _TRUST,
    "ssl.ca.pem": "`kafka.ssl.truststore.certificates`",
    "ssl.certificate.location": _STORE,
    "ssl.certificate.pem": "`kafka.ssl.keystore.certificate.chain`",
    "ssl.key.location": _STORE,
    "ssl.key.pem": "`kafka.ssl.keystore.key`",
}
"""Options of the connection's security, each with Kafka's own option to write instead."""


def _checked_options(ours: Mapping[str, str]) -> Callable[[object], object]:
    def check(value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {name: _option(str(name), text, ours) for name, text in value.items()}

    return check


def _option(name: str, value: object, ours: Mapping[str, str]) -> str:
    """The value of an option as Kafka's clients want it, which is text."""
    bare = next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), name)
    if bare.lower() in ours:  # Spark ignores case
        raise refusal("is set by the job", ours[bare.lower()], at=(name,), at_key=True)
    if bare == name:
        raise refusal("is not a Kafka option", f"write it with its prefix: `kafka.{name}`", at=(name,), at_key=True)
    if name != name.lower():
        raise refusal("is not a Kafka option", f"write it in small letters: `{name.lower()}`", at=(name,), at_key=True)
    if name.startswith("kafka.") and bare in _NATIVE_ALONE:
        what = "is librdkafka's name, and no option of Kafka's"
        raise refusal(what, f"write {_NATIVE_ALONE[bare]}", at=(name,), at_key=True)
    if value is None:
        raise refusal("has no value", "write a value, or remove the line", at=(name,), at_key=True)
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise refusal(f"must be text, a number, true or false, found `{shown(value)}`", "put it in quotes", at=(name,))
    return str(value)


_OPTIONS_SCHEMA = WithJsonSchema(
    {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
)
SourceOptions = Annotated[dict[str, str], BeforeValidator(_checked_options(_OF_SOURCE)), _OPTIONS_SCHEMA]
"""Options of Kafka's clients, `kafka.*` or `librdkafka.*`, but those that other settings stand for."""

SinkOptions = Annotated[dict[str, str], BeforeValidator(_checked_options(_OF_SINK)), _OPTIONS_SCHEMA]
"""As `SourceOptions`, for a port."""
