"""Options `kafka.*`, which are those of Kafka's Java client, as librdkafka wants them.

One set of options serves all clients, though librdkafka has other names for some, reads PEM where Java reads key
stores, and has no JAAS. An option without a translation is refused with advice, never left out: a client that leaves
out a security option connects in clear text.

`librdkafka.*` options go to librdkafka as they are and win. Options with neither prefix are for Spark alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from deduper.errors import DeduperError, ExitCode

_JAVA = "kafka."
_NATIVE = "librdkafka."

_RENAMED = {
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "sasl.oauthbearer.token.endpoint.url": "sasl.oauthbearer.token.endpoint.url",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.cipher.suites": "ssl.cipher.suites",
}

# Of no meaning here, and harmless to leave out.
_IGNORED = {
    "key.serializer",
    "value.serializer",
    "key.deserializer",
    "value.deserializer",
    "max.block.ms",
    "ssl.protocol",
    "ssl.provider",
    "ssl.keymanager.algorithm",
    "ssl.trustmanager.algorithm",
    "sasl.login.callback.handler.class",
    "metric.reporters",
}

_OURS = {
    "transactional.id": "the job makes it from its name, the store's id, the port and the slot",
    "group.id": "the job uses the transactional id",
    "enable.idempotence": "transactions require it",
    "isolation.level": "published offsets are read as read_committed",
    "partitioner.class": "keys go to the partitions of Kafka's default partitioner",
    "acks": "transactions require all",
}

_OF_CONSUMERS = {"check.crcs", "client.rack", "fetch.max.bytes", "max.partition.fetch.bytes"}
"""Options of consumers that both clients have."""
_IGNORED_IN_READING = {
    *("default.api.timeout.ms", "heartbeat.interval.ms", "isolation.level", "max.poll.interval.ms", "max.poll.records"),
    *("fetch.max.wait.ms", "fetch.min.bytes", "request.timeout.ms", "session.timeout.ms"),
}
"""Options that change nothing of what a consumer reads; it has values of its own for those of fetches."""

# librdkafka's security options. Any other option of Java's with such a name would be lost, so it is refused.
_SECURITY = ("security.", "ssl.", "sasl.")
_KNOWN_SECURITY = {
    "security.protocol",
    *("ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list", "ssl.endpoint.identification.algorithm"),
    *("ssl.key.location", "ssl.key.password", "ssl.key.pem", "ssl.certificate.location", "ssl.certificate.pem"),
    *("ssl.ca.location", "ssl.ca.pem", "ssl.keystore.location", "ssl.keystore.password"),
    *("sasl.mechanism", "sasl.username", "sasl.password", "sasl.kerberos.service.name"),
    *("sasl.kerberos.principal", "sasl.kerberos.keytab", "sasl.kerberos.kinit.cmd"),
    *("sasl.kerberos.min.time.before.relogin", "sasl.oauthbearer.method", "sasl.oauthbearer.client.id"),
    *("sasl.oauthbearer.client.secret", "sasl.oauthbearer.scope", "sasl.oauthbearer.extensions"),
    "sasl.oauthbearer.token.endpoint.url",
}
# Options by which a client finds its brokers and logs in.
_CONNECTING = (
    *_SECURITY,
    *("client.id", "client.dns.lookup", "reconnect.backoff.", "retry.backoff.", "connections.max.idle.ms"),
    *("metadata.max.age.ms", "socket.", "broker.address.", "enable.ssl.", "enable.sasl.", "https.", "debug"),
)

_JAAS = re.compile(r"^\s*([\w.$]+)\s+\w+\s*(.*?);?\s*$", re.DOTALL)
_JAAS_OPTION = re.compile(r'([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|\'([^\']*)\'|([^\s;]+))')
_PASSWORD_MODULES = ("PlainLoginModule", "ScramLoginModule")


class KafkaOptionsError(DeduperError):
    """An option that cannot be had. The operator: correct it as the message says; nothing was started.

    `option` is its name as it is written, if it is one option; `write` is the advice.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, what: str, write: str = "", *, option: str = "") -> None:
        super().__init__("; ".join(filter(None, (f"{option} {what}".strip(), write))))
        self.what = what
        self.write = write
        self.option = option


def librdkafka_options(bootstrap_servers: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a librdkafka client.

    Raises:
        KafkaOptionsError: an option it has no equal for, or that is not the user's to set.
    """
    java = {name.removeprefix(_JAVA): str(value) for name, value in options.items() if name.startswith(_JAVA)}
    native = {name.removeprefix(_NATIVE): str(value) for name, value in options.items() if name.startswith(_NATIVE)}
    for name in sorted(_OURS.keys() & (java.keys() | native.keys())):
        if not (name == "acks" and java.get(name) in ("all", "-1")):
            prefix = _JAVA if name in java else _NATIVE
            raise KafkaOptionsError(f"cannot be set: {_OURS[name]}", "leave it out", option=prefix + name)
    made = {"bootstrap.servers": bootstrap_servers}
    for name, translate in _TRANSLATED.items():
        made |= translate(java)
        java.pop(name, None)
    for name in (*_CONSUMED, *_OURS, "bootstrap.servers"):
        java.pop(name, None)
    for name, value in java.items():
        if name in _IGNORED:
            continue
        native_name = _RENAMED.get(name, name)
        if native_name.startswith(_SECURITY) and native_name not in _KNOWN_SECURITY:
            raise KafkaOptionsError(
                "does not exist in librdkafka, which the job uses",
                f"remove it, or write the `{_NATIVE}` option of the same meaning",
                option=_JAVA + name,
            )
        made[native_name] = value
    return made | native


def connection_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options by which a client finds its brokers and logs in; they are the same for all its tasks."""
    return {
        name: value
        for name, value in options.items()
        if name.removeprefix(_JAVA).removeprefix(_NATIVE).startswith(_CONNECTING)
    }


def reading_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a source's consumer beside those by which it finds its brokers.

    Raises:
        KafkaOptionsError: one of them only Java's client has.
    """
    made = {}
    for name, value in options.items():
        bare = name.removeprefix(_JAVA).removeprefix(_NATIVE)
        if bare.startswith(_CONNECTING) or bare in _IGNORED_IN_READING or bare in _IGNORED:
            continue
        if name.startswith(_JAVA) and bare not in _OF_CONSUMERS:
            advice = f"remove it, or write the `{_NATIVE}` option of the same meaning"
            raise KafkaOptionsError("is an option of Java's client alone, which no job uses", advice, option=name)
        made[bare] = value
    return made


def _login(java: Mapping[str, str]) -> dict[str, str]:
    """User and password, or client and secret, out of a JAAS line."""
    line = java.get("sasl.jaas.config")
    if line is None:
        return {}
    found = _JAAS.match(line)
    # Never the line itself in a message: it holds the password.
    option = "kafka.sasl.jaas.config"
    if found is None:
        form = 'write `class required name="value" ...;`'
        raise KafkaOptionsError("is not a JAAS line", form, option=option)
    module = found.group(1).rpartition(".")[2]
    values = {
        name: re.sub(r"\\(.)", r"\1", double) if double else single or bare
        for name, double, single, bare in _JAAS_OPTION.findall(found.group(2))
    }
    if module in _PASSWORD_MODULES and {"username", "password"} <= values.keys():
        return {"sasl.username": values["username"], "sasl.password": values["password"]}
    if module == "OAuthBearerLoginModule" and {"clientId", "clientSecret"} <= values.keys():
        login = {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": values["clientId"],
            "sasl.oauthbearer.client.secret": values["clientSecret"],
        }
        return login | ({"sasl.oauthbearer.scope": values["scope"]} if "scope" in values else {})
    raise KafkaOptionsError(
        f"has {module} with {', '.join(sorted(values)) or 'no options'}, which is not supported",
        "write PlainLoginModule or ScramLoginModule with username and password, OAuthBearerLoginModule with clientId "
        "and clientSecret, or librdkafka.sasl.* options",
        option=option,
    )


def _trusted(java: Mapping[str, str]) -> dict[str, str]:
    """Certificate authorities: PEM only."""
    location = java.get("ssl.truststore.location")
    if location is None:
        return {}
    _need_pem("truststore", java.get("ssl.truststore.type"), location, also=())
    return {"ssl.ca.location": location}


def _identity(java: Mapping[str, str]) -> dict[str, str]:
    """The client's own certificate and key: PEM, or PKCS12 as it is."""
    location = java.get("ssl.keystore.location")
    if location is None:
        return {}
    if _need_pem("keystore", java.get("ssl.keystore.type"), location, also=("PKCS12",)) == "PKCS12":
        password = java.get("ssl.keystore.password")
        return {"ssl.keystore.location": location} | ({"ssl.keystore.password": password} if password else {})
    return {"ssl.certificate.location": location, "ssl.key.location": location}


def _need_pem(store: str, kind: str | None, location: str, *, also: tuple[str, ...]) -> str:
    """The type of a key store, when it is PEM or one of the others; Java's default, JKS, is refused."""
    kind = (kind or _kind_by_name(location)).upper()
    if kind != "PEM" and kind not in also:
        raise KafkaOptionsError(
            f"is {location}, a key store of type {kind}, which librdkafka cannot read",
            f"make a PEM file of it (keytool -importkeystore -srckeystore {location} -destkeystore s.p12 "
            "-deststoretype PKCS12; openssl pkcs12 -in s.p12 -out s.pem), and write "
            f"`kafka.ssl.{store}.type: PEM` too",
            option=f"kafka.ssl.{store}.location",
        )
    return kind


def _kind_by_name(location: str) -> str:
    suffix = Path(location).suffix.lower()
    return {".pem": "PEM", ".crt": "PEM", ".p12": "PKCS12", ".pfx": "PKCS12"}.get(suffix, "JKS")


def _host_check(java: Mapping[str, str]) -> dict[str, str]:
    """Whether a certificate must be for the broker's name; Java says no with an empty text."""
    value = java.get("ssl.endpoint.identification.algorithm")
    return {} if value is None else {"ssl.endpoint.identification.algorithm": value or "none"}


def _buffer(java: Mapping[str, str]) -> dict[str, str]:
    value = java.get("buffer.memory")
    if value is None:
        return {}
    if not re.fullmatch("[0-9]{1,18}", value.strip()):
        what = f"is not a number of bytes: {value!r}"
        raise KafkaOptionsError(what, "write 33554432", option="kafka.buffer.memory")
    return {"queue.buffering.max.kbytes": str(max(1, int(value) >> 10))}


_TRANSLATED: dict[str, Callable[[Mapping[str, str]], dict[str, str]]] = {
    "sasl.jaas.config": _login,
    "ssl.truststore.location": _trusted,
    "ssl.keystore.location": _identity,
    "ssl.endpoint.identification.algorithm": _host_check,
    "buffer.memory": _buffer,
}
_CONSUMED = ("ssl.truststore.type", "ssl.truststore.password", "ssl.keystore.type", "ssl.keystore.password")
