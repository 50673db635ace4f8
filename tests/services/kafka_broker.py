"""A real Kafka broker on 127.0.0.1: broker and controller in one process (KRaft), started, killed and frozen at will.

Everything lies in one directory:

    server.properties   written at each start
    broker.log          what the process said, of all its starts
    data/               the log; it outlives stop, kill and restart
    tls/                certificates, when asked for

Listeners: PLAINTEXT always; TLS, which asks every client for a certificate, with `tls=True`; SASL/PLAIN with `users`,
and then only what an ACL allows is allowed, except to those who come by PLAINTEXT: they may do everything. With both
there is SASL/PLAIN inside TLS too, without a client's certificate.

The process runs on a leash (leash.py): it ends with the process that made the `Broker`, however that ends. The ports
are the same after a restart; they lie below the range from which the kernel serves outgoing connections, because a
client that keeps trying to reach a dead local port of that range sooner or later connects to itself, and holds it.

`python -m tests.services.kafka_broker` runs one in the foreground for a person.
"""

from __future__ import annotations

import argparse
import base64
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from deduper.errors import DeduperError
from deduper.service.current_step import CurrentStep
from deduper.window.progress import PROGRESS
from tests.jvm import BRIEF
from tests.ports import free_ports
from tests.processes import freeze
from tests.services.certificates import make_certificates
from tests.services.jars import broker_jars
from tests.services.kafka_connection import Connection
from tests.services.leashed import leashed

READY_DEADLINE_S = 500.0
_PORTS_BEFORE_THIS_ONE_FAILS = 3

FAST: dict[str, str | int] = {
    # A killed broker comes back when its old session is over. A machine that stands still for longer fences a broker
    # that lives: with 2 s one was fenced three times in 35 s, and answered nobody for the next 15 minutes.
    "broker.session.timeout.ms": 6000,
    "broker.heartbeat.interval.ms": 300,
    # Nobody to hand partitions over to; the log is closed in order all the same.
    "controlled.shutdown.enable": "false",
    # One broker holds everything.
    "default.replication.factor": 1,
    "min.insync.replicas": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.num.partitions": 1,
    # Tests wait for none of these.
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "log.retention.check.interval.ms": 1000,
    # Retention goes by the records' own timestamps: a record "of 1970" would be gone within a second. A topic that is
    # to lose records sets retention.ms itself.
    "log.retention.ms": -1,
    "log.initial.task.delay.ms": 500,
    "log.segment.delete.delay.ms": 500,
    # Small.
    "log.cleaner.dedupe.buffer.size": 4_194_304,
    "log.cleaner.threads": 1,
    "num.network.threads": 2,
    "background.threads": 2,
    "auto.create.topics.enable": "false",
}


class BrokerFailed(Exception):
    """The broker isn't as asked within the deadline; the message ends with what it said last."""


class Broker:
    """One broker. Not for several threads at once, but any one thread may start or stop it."""

    def __init__(
        self,
        directory: Path,
        *,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        port: int | None = None,
        settings: Mapping[str, str | int] | None = None,
        heap: str = "384m",
        fast_start: bool = True,
        node: int = 1,
        cluster_id: str = "",
    ) -> None:
        """`settings` go over FAST. `fast_start` is that of `tests.jvm`; measure without.

        `node` and `cluster_id` are for one of several, see `kafka.cluster`.
        """
        self.directory = directory.absolute()
        self.log = self.directory / "broker.log"
        self._users = dict(users or {})
        self._settings = FAST | dict(settings or {})
        self._jvm = [f"-Xmx{heap}", *(BRIEF if fast_start else ["-XX:+UseSerialGC"])]
        self._fixed_port = port
        self._node = node
        self._cluster_id = cluster_id
        self.quorum: list[Broker] = [self]
        """The brokers of its cluster, which all have a vote."""
        self._names = ["PLAINTEXT", "CONTROLLER", *(["TLS"] if tls else []), *(["SASL"] if users else [])]
        if tls and users:
            self._names.append("SASLTLS")
        self._ports: dict[str, int] = {}
        self._leash: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._frozen = False
        self._admin: AdminClient | None = None

    # ---- addresses

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:port` of the PLAINTEXT listener, the same for the life of this object."""
        return self._address("PLAINTEXT")

    @property
    def as_voter(self) -> str:
        """How the brokers of its cluster find its controller."""
        return f"{self._node}@{self._address('CONTROLLER')}"

    def plain(self) -> Connection:
        """The PLAINTEXT listener, where everybody may do everything."""
        return Connection(self.bootstrap)

    def tls(self, identity: str | None = "deduper") -> Connection:
        """The TLS listener, as `deduper`, as `stranger` with a certificate the broker doesn't trust, or with none."""
        folder = self.directory / "tls"
        return Connection(
            self._address("TLS"), authority=folder / "ca.pem", identity=folder / f"{identity}.pem" if identity else None
        )

    def sasl(self, user: str, password: str | None = None) -> Connection:
        """The SASL listener as this user; with another password than the right one if given."""
        right = self._users[user] if password is None else password
        return Connection(self._address("SASL"), user=user, password=right)

    def sasl_tls(self, user: str, password: str | None = None) -> Connection:
        """As `sasl`, inside TLS."""
        right = self._users[user] if password is None else password
        authority = self.directory / "tls" / "ca.pem"
        return Connection(self._address("SASLTLS"), authority=authority, user=user, password=right)

    def admin(self) -> AdminClient:
        """A client for administration by way of PLAINTEXT, one for each start."""
        if self._admin is None:
            self._admin = AdminClient(self.plain().confluent())
        return self._admin

    # ---- life

    def start(self, deadline_s: float = READY_DEADLINE_S) -> float:
        """Starts the broker and waits until it answers. Gives the seconds it took.

        Raises:
            BrokerFailed: it ended, or doesn't answer in time; then it is killed.
            DeduperError: its jars cannot be fetched.
        """
        began = time.monotonic()
        if self.is_running:
            raise BrokerFailed("it is running")
        jars = os.pathsep.join(map(str, broker_jars()))
        self.directory.mkdir(parents=True, exist_ok=True)
        if "TLS" in self._names:
            make_certificates(self.directory / "tls")
        for attempt in range(_PORTS_BEFORE_THIS_ONE_FAILS):
            first = not self._ports
            self.launch(jars)
            try:
                self.wait_until_ready(began + deadline_s)
            except BrokerFailed as exc:
                self.kill()
                last = attempt == _PORTS_BEFORE_THIS_ONE_FAILS - 1
                if last or not first or self._fixed_port or "Address already in use" not in str(exc):
                    raise
                # Somebody took one of the ports between our look and the start.
                self._ports = {}
            else:
                break
        return time.monotonic() - began

    def choose_ports(self) -> None:
        """Ports that are free, once."""
        if not self._ports:
            try:
                self._ports = free_ports(self._names, self._fixed_port)
            except OSError as exc:
                raise BrokerFailed(exc.strerror) from exc

    def launch(self, jars: str) -> None:
        """Starts the process, which answers some time later."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.choose_ports()
        properties = self._write_properties()
        if not (self.directory / "data" / "meta.properties").exists():
            self._format(jars, properties)
        self._launch(jars, properties)

    def wait_until_ready(self, until: float) -> None:
        """Until it answers: it does so only after the controller let it in. `until` is a time of `time.monotonic`."""
        self._until(self._answers, until - time.monotonic(), "it answers")

    def stop(self, deadline_s: float = 30.0) -> None:
        """An orderly end (SIGTERM); killed when it takes too long. Nothing is done when it isn't running."""
        if self.is_running:
            self.thaw()
            self._signal(signal.SIGTERM)
            try:
                self._leashed().wait(deadline_s)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
        self._gone()

    def kill(self) -> None:
        """`kill -9`, frozen or not; when this returns the process is gone. Nothing is done when it isn't running."""
        if self.is_running:
            self._signal(signal.SIGKILL)
        self._gone()

    def restart(self, deadline_s: float = READY_DEADLINE_S) -> float:
        """Stops it if it runs, and starts it on the same data and ports. Gives the seconds the start took."""
        self.stop()
        return self.start(deadline_s)

    def freeze(self) -> None:
        """The process stands still (SIGSTOP): connections stay open, nothing is answered."""
        self._frozen = True
        freeze(self.pid)

    def thaw(self) -> None:
        """A frozen process goes on."""
        if self._frozen:
            self._signal(signal.SIGCONT)
            self._frozen = False

    @property
    def is_running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._leash is not None and self._leash.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the broker itself (Java), while it runs."""
        if not self.is_running:
            raise BrokerFailed("it is not running")
        return self._pid

    @property
    def is_frozen(self) -> bool:
        """Whether it was frozen and not thawed since."""
        return self._frozen

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # ---- topics

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, made with the data."""
        lines = (self.directory / "data" / "meta.properties").read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)["cluster.id"]

    def create_topic(self, name: str, partitions: int = 1, **settings: str | int) -> str:
        """A new topic; `settings` are the topic's, with underscores for dots. Gives its name when it can be used."""
        config = {key.replace("_", "."): str(value) for key, value in settings.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=len(self.quorum), config=config)
        self.admin().create_topics([new])[name].result(30)
        self._wait_for_partitions(name, partitions)
        return name

    def add_partitions(self, name: str, total: int) -> None:
        """The topic has this many partitions, and they can be used, when this returns."""
        self.admin().create_partitions([NewPartitions(name, total)])[name].result(30)
        self._wait_for_partitions(name, total)

    def delete_topic(self, name: str) -> None:
        """The topic and its records are gone when this returns; the name may be taken again."""
        self.admin().delete_topics([name])[name].result(30)
        self._until(lambda: not self._partitions(name), 30, f"topic {name} is gone")

    def offsets(
        self, name: str, which: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[int, int]:
        """An offset of each partition, such as OffsetSpec.latest()."""
        found: dict[int, int] = {}

        def all_answer() -> bool:
            asked = {TopicPartition(name, number): which for number in self._partitions(name)}
            for place, answer in self.admin().list_offsets(asked, isolation_level=isolation).items():
                found[place.partition] = answer.result(10).offset
            return len(found) == len(asked) > 0

        self._until(all_answer, 30, f"all partitions of {name} answer")
        return found

    def _wait_for_partitions(self, name: str, count: int) -> None:
        """Until they are known and answer: the first comes before the second."""
        self._until(lambda: len(self._partitions(name)) == count, 30, f"{name} has {count} partitions")
        self.offsets(name, OffsetSpec.latest())

    def _partitions(self, name: str) -> list[int]:
        topics = self.admin().list_topics(timeout=10).topics
        return sorted(topics[name].partitions) if name in topics else []

    # ---- the process

    def _address(self, listener: str) -> str:
        if listener not in self._ports:
            raise BrokerFailed(f"it has no listener {listener}, or was never started")
        return f"127.0.0.1:{self._ports[listener]}"

    def _write_properties(self) -> Path:
        listeners = ",".join(f"{name}://{self._address(name)}" for name in self._names)
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", "TLS": "SSL", "SASL": "SASL_PLAINTEXT"}
        protocols["SASLTLS"] = "SASL_SSL"
        properties: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": self._node,
            "controller.quorum.voters": ",".join(one.as_voter for one in self.quorum),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": listeners,
            "listener.security.protocol.map": ",".join(f"{name}:{protocols[name]}" for name in self._names),
            "log.dirs": self.directory / "data",
        }
        folder = self.directory / "tls"
        for name, asks in (("TLS", "required"), ("SASLTLS", "none")):
            if name in self._names:
                listener = f"listener.name.{name.lower()}.ssl"
                properties |= {
                    f"{listener}.client.auth": asks,
                    f"{listener}.keystore.type": "PEM",
                    f"{listener}.keystore.location": folder / "broker.pem",
                    f"{listener}.truststore.type": "PEM",
                    f"{listener}.truststore.location": folder / "ca.pem",
                    "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
                }
        if self._users:
            passwords = " ".join(f'user_{name}="{password}"' for name, password in self._users.items())
            properties |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
            }
            for name in ("sasl", "sasltls"):
                properties |= {
                    f"listener.name.{name}.sasl.enabled.mechanisms": "PLAIN",
                    f"listener.name.{name}.plain.sasl.jaas.config": (
                        f"org.apache.kafka.common.security.plain.PlainLoginModule required {passwords};"
                    ),
                }
        path = self.directory / "server.properties"
        lines = [f"{key}={value}\n" for key, value in (properties | self._settings).items()]
        path.write_text("".join(lines), encoding="utf-8")
        return path

    def _java(self, jvm: list[str], jars: str, main_class: str, *arguments: str) -> list[str]:
        # Native libraries are unpacked into java.io.tmpdir and stay there after kill -9.
        scratch = self.directory / "tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        home = os.environ.get("JAVA_HOME")
        options = [
            "-XX:-UsePerfData",
            f"-Djava.io.tmpdir={scratch}",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            "-Dorg.slf4j.simpleLogger.showThreadName=false",
            "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
        ]
        return [
            str(Path(home) / "bin" / "java") if home else "java",
            *jvm,
            *options,
            "-cp",
            jars,
            main_class,
            *arguments,
        ]

    def _format(self, jars: str, properties: Path) -> None:
        """Makes the data directory, with a cluster id of its own."""
        cluster = self._cluster_id or new_cluster_id()
        words = ("format", "-t", cluster, "-c", str(properties))
        tool = self._java([*BRIEF], jars, "kafka.tools.StorageTool", *words)
        with self.log.open("ab") as log:
            done = subprocess.run(tool, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=120, check=False)
        if done.returncode != 0:
            raise BrokerFailed(f"its storage cannot be made\n{self._last_words()}")

    def _launch(self, jars: str, properties: Path) -> None:
        self._admin = None
        command = self._java(self._jvm, jars, "kafka.Kafka", str(properties))
        self._leash, self._pid = leashed(command, self.log)
        if not self._pid:
            raise BrokerFailed(f"it cannot be started\n{self._last_words()}")
        self._frozen = False

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", self._ports["PLAINTEXT"])) != 0:
                return False
        return self._node in self.admin().list_topics(timeout=5).brokers

    def _until(self, is_so: Callable[[], bool], deadline_s: float, what: str) -> None:
        until = time.monotonic() + deadline_s
        while True:
            if not self.is_running:
                raise BrokerFailed(f"it ended before {what}\n{self._last_words()}")
            try:
                if is_so():
                    return
            except KafkaException:
                pass
            if time.monotonic() > until:
                raise BrokerFailed(f"not within {deadline_s:.0f} s: {what}\n{self._last_words()}")
            time.sleep(0.05)

    def _leashed(self) -> subprocess.Popen[bytes]:
        assert self._leash is not None
        return self._leash

    def _signal(self, number: signal.Signals) -> None:
        # The leash collects the process, so while the leash lives the number is nobody else's.
        os.kill(self.pid, number)

    def _gone(self) -> None:
        """Waits for the process to be gone, and forgets it."""
        if self._leash is not None:
            self._leash.wait(30)
        self._leash = self._admin = None
        self._frozen = False

    def _last_words(self, size_bytes: int = 3000) -> str:
        data = self.log.read_bytes() if self.log.exists() else b""
        return f"{self.log}:\n{data[-size_bytes:].decode('utf-8', errors='replace')}"


def new_cluster_id() -> str:
    """As the storage tool wants it: as an argument, a leading dash would be an option."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")


def main() -> int:
    """Runs a broker until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(prog="make kafka", description="A Kafka broker in the foreground.")
    parser.add_argument("--directory", type=Path, default=Path("demo-kafka"), help="where its data lies and stays")
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--tls", action="store_true", help="a second listener, which asks clients for a certificate")
    parser.add_argument("topics", nargs="*", metavar="TOPIC[:PARTITIONS]", help="made unless they exist")
    arguments = parser.parse_args()
    broker = Broker(arguments.directory, tls=arguments.tls, port=arguments.port, heap="1g", fast_start=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    lines = logging.StreamHandler(sys.stdout)
    PROGRESS.addHandler(lines)
    PROGRESS.setLevel(logging.INFO)
    step = CurrentStep()
    try:
        with step.watched():
            with step.of("Fetching Kafka", "44 MB the first time"):
                broker_jars()
            with step.of("Starting Kafka", "which takes some seconds"):
                broker.start()
        existing = broker.admin().list_topics(timeout=10).topics
        for topic in arguments.topics:
            name, _, partitions = topic.partition(":")
            if name not in existing:
                broker.create_topic(name, int(partitions or 1))
        print(f"  bootstrap   {broker.bootstrap}")
        if arguments.tls:
            connection = broker.tls()
            print(f"  TLS         {connection.bootstrap}, certificates in {broker.directory / 'tls'}")
        print(f"  topics      {', '.join(sorted(broker.admin().list_topics(timeout=10).topics)) or 'none'}")
        print(f"  log, data   {broker.directory}; delete it to begin again")
        print(f"Ctrl-C or `kill {os.getpid()}` stops it.", flush=True)
        while broker.is_running:
            time.sleep(0.5)
        print(f"It ended by itself; see {broker.log}", file=sys.stderr)
    except KeyboardInterrupt:
        print("Stopping …", flush=True)
        return 0
    except (BrokerFailed, DeduperError) as exc:
        print(exc, file=sys.stderr)
        return 2
    finally:
        broker.stop()
    return 1


if __name__ == "__main__":
    sys.exit(main())
