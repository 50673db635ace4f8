"""Spark's Kafka options in the words of librdkafka: translated, passed on, or refused, never dropped."""

from __future__ import annotations

import pytest

from deduper.config.kafka.options import KafkaOptionsError, connection_options, librdkafka_options

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


def made(options: dict[str, str]) -> dict[str, str]:
    """What becomes of `kafka.` options."""
    result = librdkafka_options("b:9092", {f"kafka.{name}": value for name, value in options.items()})
    assert result.pop("bootstrap.servers") == "b:9092"
    return result


@pytest.mark.parametrize(
    ("java", "native"),
    [
        ({}, {}),
        ({"compression.type": "zstd", "linger.ms": "50"}, {"compression.type": "zstd", "linger.ms": "50"}),
        ({"max.request.size": "5000000"}, {"message.max.bytes": "5000000"}),
        ({"buffer.memory": "33554432"}, {"queue.buffering.max.kbytes": "32768"}),
        ({"acks": "all"}, {}),
        ({"key.serializer": "x", "max.block.ms": "5"}, {}),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{PLAIN} required username="a" password="p;\\"q\\\\";'},
            {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": 'p;"q\\'},
        ),
        (
            {"sasl.jaas.config": f"{SCRAM} required\n  username='a b'\n  password=secret;"},
            {"sasl.username": "a b", "sasl.password": "secret"},
        ),
        (
            {"sasl.jaas.config": f'{OAUTH} required clientId="c" clientSecret="s" scope="all";'},
            {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": "c",
                "sasl.oauthbearer.client.secret": "s",
                "sasl.oauthbearer.scope": "all",
            },
        ),
        ({"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca"}, {"ssl.ca.location": "/ca"}),
        ({"ssl.truststore.location": "/ca.pem"}, {"ssl.ca.location": "/ca.pem"}),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/me", "ssl.key.password": "k"},
            {"ssl.certificate.location": "/me", "ssl.key.location": "/me", "ssl.key.password": "k"},
        ),
        (
            {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "k"},
            {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "k"},
        ),
        ({"ssl.endpoint.identification.algorithm": ""}, {"ssl.endpoint.identification.algorithm": "none"}),
        (
            {"ssl.keystore.key": "K", "ssl.keystore.certificate.chain": "C"},
            {"ssl.key.pem": "K", "ssl.certificate.pem": "C"},
        ),
    ],
)
def test_translated(java: dict[str, str], native: dict[str, str]) -> None:
    """Each option under the name and in the form librdkafka has for it."""
    assert made(java) == native


@pytest.mark.parametrize(
    ("java", "said"),
    [
        ({"transactional.id": "x"}, "leave it out"),
        ({"acks": "1"}, "transactions require all"),
        ({"ssl.truststore.location": "/ca.jks"}, "keytool"),
        ({"ssl.truststore.location": "/ca.p12", "ssl.truststore.type": "PKCS12"}, "make a PEM file"),
        ({"ssl.keystore.location": "/me"}, "of type JKS"),
        ({"sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required keyTab=x;"}, "Krb5LoginModule"),
        ({"buffer.memory": "32MiB"}, "not a number of bytes"),
        ({"ssl.enabled.protocols": "TLSv1.3"}, "does not exist in librdkafka"),
        ({"sasl.jaas.config": "hunter2"}, "is not a JAAS line"),
    ],
)
def test_refused(java: dict[str, str], said: str) -> None:
    """What cannot be had, with what to write instead."""
    with pytest.raises(KafkaOptionsError, match=said):
        made(java)


def test_no_message_holds_a_secret() -> None:
    """Neither a password nor a line that may hold one."""
    for line in (f'{PLAIN} username="a" password="hunter2"', f'{PLAIN} required user="a" password="hunter2";'):
        with pytest.raises(KafkaOptionsError) as caught:
            made({"sasl.jaas.config": line})
        assert "hunter2" not in str(caught.value)


def test_native_options_win_and_sparks_own_are_left_out() -> None:
    """`librdkafka.` for what Java has no name for."""
    options = {"kafka.linger.ms": "5", "librdkafka.linger.ms": "7", "librdkafka.debug": "eos", "minPartitions": "3"}
    assert librdkafka_options("b:9092", options) == {"bootstrap.servers": "b:9092", "linger.ms": "7", "debug": "eos"}


def test_what_connects_is_told_from_what_only_a_consumer_or_a_producer_has() -> None:
    """So that one client's options serve another."""
    connecting = {"kafka.ssl.key.password": "k", "librdkafka.socket.keepalive.enable": "true", "kafka.client.id": "me"}
    others = {"kafka.isolation.level": "read_committed", "kafka.max.poll.records": "7", "kafka.acks": "all"}
    assert connection_options(connecting | others) == connecting
