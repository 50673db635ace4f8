"""How to reach one listener of a broker, as one identity, in the words of each client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Connection:
    """A listener's address, and who comes.

    `identity` is a .pem with key and certificate, None for a client that shows none; `authority` makes it TLS;
    `user` makes it SASL/PLAIN.
    """

    bootstrap: str
    authority: Path | None = None
    identity: Path | None = None
    user: str | None = None
    password: str = ""

    @property
    def protocol(self) -> str:
        """Kafka's name of how it is spoken to."""
        return ("SASL_" if self.user else "") + ("SSL" if self.authority else "PLAINTEXT")

    def confluent(self, **more: Any) -> dict[str, Any]:
        """Settings of librdkafka; `more` with underscores for dots.

        It says only what is critical: otherwise it speaks of every refused connection while a broker is down.
        """
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": self.protocol,
            "log_level": 2,
        }
        if self.authority:
            settings["ssl.ca.location"] = str(self.authority)
        if self.identity:
            settings |= {"ssl.key.location": str(self.identity), "ssl.certificate.location": str(self.identity)}
        if self.user:
            settings |= {"sasl.mechanism": "PLAIN", "sasl.username": self.user, "sasl.password": self.password}
        return settings | {name.replace("_", "."): value for name, value in more.items()}

    def spark(self) -> dict[str, str]:
        """Options of Spark's source and sink called kafka: the Java client's settings with `kafka.` before them."""
        settings = {"bootstrap.servers": self.bootstrap, "security.protocol": self.protocol}
        if self.authority:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority)}
        if self.identity:
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.identity)}
        if self.user:
            login = f'username="{self.user}" password="{self.password}"'
            settings |= {
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f"org.apache.kafka.common.security.plain.PlainLoginModule required {login};",
            }
        return {f"kafka.{name}": value for name, value in settings.items()}
