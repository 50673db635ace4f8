"""A real HDFS on 127.0.0.1: a NameNode and any number of DataNodes, started, killed, frozen and counted at will.

Everything lies in one directory:

    conf/         core-site.xml and hdfs-site.xml: for HADOOP_CONF_DIR of clients
    name/         the NameNode's image and edits
    data-<n>/     the blocks of a DataNode
    <process>.log what a process said, of all its starts

Data and ports outlive kill and restart. Each process runs on a leash (leash.py): it ends with the process that made the
`Hdfs`, however that ends.

`python -m tests.services.hdfs` runs one in the foreground for a person.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from xml.sax.saxutils import escape

from tests.jvm import BRIEF
from tests.ports import free_ports
from tests.processes import freeze
from tests.services.jars import hadoop_jars
from tests.services.leashed import Daemon

READY_DEADLINE_S = 300.0
_SERVER = "org.apache.hadoop.hdfs.server"
_REGISTERED = "successfully registered with NN"
_ACTIVITY = "Hadoop:service=NameNode,name="

FAST: dict[str, str | int] = {
    # A dead DataNode is known to be dead after 12 s, not after 10 minutes.
    "dfs.heartbeat.interval": 1,
    "dfs.namenode.heartbeat.recheck-interval": 1000,
    # A restarted NameNode serves as soon as the blocks are reported.
    "dfs.namenode.safemode.extension": 0,
    "dfs.namenode.safemode.min.datanodes": 1,
    "dfs.namenode.redundancy.interval.seconds": 1,
    # Small. The NameNode counts a block that nobody wrote in the end as room taken, for ten minutes or more: of
    # 128 MiB each, a few dozen refused writes fill a small disk, and the DataNode gets no block until then.
    "dfs.blocksize": 4 << 20,
    "dfs.namenode.handler.count": 8,
    "dfs.datanode.handler.count": 3,
    "dfs.datanode.du.reserved": 0,
    "dfs.namenode.resource.du.reserved": 0,
    "dfs.block.access.token.enable": "false",
    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
}


class HdfsFailed(Exception):
    """A process isn't as asked within the deadline; the message ends with what it said last."""


class Server(Daemon):
    """One JVM: the NameNode or a DataNode. Not for several threads at once."""

    def __init__(
        self,
        name: str,
        directory: Path,
        conf: Path,
        main_class: str,
        options: Mapping[str, object],
        java_options: Sequence[str],
    ) -> None:
        """`options` are settings, in place of files of them."""
        super().__init__(name, directory, self.command)
        self._conf = conf
        self._main_class = main_class
        self._options = options
        self._java_options = java_options

    @property
    def pid(self) -> int:
        """Process id of the JVM, while it runs."""
        if not self.is_running:
            raise HdfsFailed(f"{self.name} is not running")
        return self._pid

    def command(self, *arguments: str) -> list[str]:
        """The command of the process."""
        home = os.environ.get("JAVA_HOME")
        class_path = os.pathsep.join(map(str, hadoop_jars()))
        options = [f"-D{name}={value}" for name, value in self._options.items()]
        return [
            str(Path(home) / "bin" / "java") if home else "java",
            "-Xmx256m",
            *BRIEF,
            "-XX:-UsePerfData",
            *self._java_options,
            f"-Dlog4j2.configurationFile={self._conf / 'log4j2.properties'}",
            "-cp",
            class_path,
            self._main_class,
            *options,
            *arguments,
        ]

    def stop(self, deadline_s: float = 30.0) -> None:
        """An orderly end (SIGTERM); killed when it takes too long. Nothing is done when it isn't running."""
        if self.is_running:
            self.thaw()
            os.kill(self.pid, signal.SIGTERM)
            try:
                assert self._leash is not None
                self._leash.wait(deadline_s)
            except subprocess.TimeoutExpired:
                os.kill(self.pid, signal.SIGKILL)
        self._gone()

    def freeze(self) -> None:
        """The process stands still (SIGSTOP): connections stay open, nothing is answered."""
        freeze(self.pid)

    def thaw(self) -> None:
        """A frozen process goes on; nothing is done to one that runs or has ended."""
        if self.is_running:
            os.kill(self.pid, signal.SIGCONT)


class Hdfs:
    """One cluster. `replication` is that of new files: at most the number of DataNodes, or appending fails."""

    def __init__(
        self,
        directory: Path,
        *,
        datanodes: int = 1,
        replication: int | None = None,
        early_close: bool = False,
        settings: Mapping[str, str | int] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        """`early_close` lets a file be closed before a DataNode reported its last block; `settings` go over FAST."""
        self._java_options = java_options
        self.directory = directory.absolute()
        self.conf = self.directory / "conf"
        names = ["rpc", "http"]
        for number in range(datanodes):
            names += [f"{kind}-{number}" for kind in ("transfer", "web", "ipc")]
        self._ports = free_ports(names, None)
        self.settings: dict[str, str | int] = {
            **FAST,
            "fs.defaultFS": self.url,
            "dfs.replication": replication or min(datanodes, 2),
            "dfs.namenode.rpc-address": f"127.0.0.1:{self._ports['rpc']}",
            "dfs.namenode.http-address": f"127.0.0.1:{self._ports['http']}",
            "dfs.namenode.name.dir": f"file://{self.directory / 'name'}",
            "dfs.namenode.file.close.num-committed-allowed": int(early_close),
            "hadoop.tmp.dir": str(self.directory / "tmp"),
            **(settings or {}),
        }
        self.namenode = self._server("namenode", f"{_SERVER}.namenode.NameNode", {})
        self.datanodes = [
            self._server(
                f"datanode-{number}",
                f"{_SERVER}.datanode.DataNode",
                {
                    "dfs.datanode.data.dir": f"file://{self.directory / f'data-{number}'}",
                    "dfs.datanode.address": f"127.0.0.1:{self._ports[f'transfer-{number}']}",
                    "dfs.datanode.http.address": f"127.0.0.1:{self._ports[f'web-{number}']}",
                    "dfs.datanode.ipc.address": f"127.0.0.1:{self._ports[f'ipc-{number}']}",
                },
            )
            for number in range(datanodes)
        ]

    @property
    def url(self) -> str:
        """`hdfs://127.0.0.1:port`, the same for the life of this object."""
        return f"hdfs://127.0.0.1:{self._ports['rpc']}"

    def start(self, deadline_s: float = READY_DEADLINE_S) -> float:
        """Start what does not run, and wait until files can be written. Gives the seconds it took.

        Raises:
            HdfsFailed: a process ended, or does not answer in time.
            DeduperError: the jars cannot be fetched.
        """
        began = time.monotonic()
        self._write_configuration()
        if not (self.directory / "name" / "current" / "VERSION").exists():
            with self.namenode.log.open("ab") as log:
                done = subprocess.run(
                    self.namenode.command("-format", "-nonInteractive"),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=deadline_s,
                    check=False,
                )
            if done.returncode != 0:
                raise HdfsFailed(f"its storage cannot be made\n{self.namenode.last_words()}")
        # The NameNode counts a DataNode as alive for seconds after its death, so its count alone proves nothing.
        starting = {server: server.says(_REGISTERED) for server in self.datanodes if not server.is_running}
        for server in (self.namenode, *self.datanodes):
            server.launch()
        self._until(
            lambda: all(server.says(_REGISTERED) > before for server, before in starting.items()),
            deadline_s - (time.monotonic() - began),
            "its DataNodes are registered",
            (self.namenode, *self.datanodes),
        )
        self.wait_until_ready(deadline_s - (time.monotonic() - began))
        return time.monotonic() - began

    def wait_until_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Until the NameNode serves, out of safe mode, and gives blocks to every DataNode that runs.

        A DataNode gets none between its registration and its first heartbeat: till then it has no room.
        """
        running = [server for server in self.datanodes if server.is_running]

        def serves() -> bool:
            info = self.bean("NameNodeInfo")
            with_room = [node for node in json.loads(info.get("LiveNodes", "{}")).values() if node["capacity"] > 0]
            return len(with_room) >= len(running) and info.get("Safemode") == ""

        self._until(serves, deadline_s, "it serves", (self.namenode, *running))

    def thaw(self) -> None:
        """Every frozen process goes on."""
        for server in (self.namenode, *self.datanodes):
            server.thaw()

    def stop(self) -> None:
        """Kill every process: nobody needs the data afterwards."""
        for server in (*self.datanodes, self.namenode):
            server.kill()

    def __enter__(self) -> Hdfs:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def administer(self, *words: str) -> None:
        """A command of `hdfs dfsadmin`."""
        tool = self._server("dfsadmin", "org.apache.hadoop.hdfs.tools.DFSAdmin", {})
        subprocess.run(tool.command(*words), check=True, capture_output=True, timeout=300)

    # ---- what it counts

    def bean(self, name: str) -> dict[str, Any]:
        """The attributes of one JMX bean of the NameNode; none before it is there."""
        address = f"http://127.0.0.1:{self._ports['http']}/jmx?qry={_ACTIVITY}{name}"
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                beans = json.load(answer)["beans"]
        except (urllib.error.URLError, OSError, ValueError):
            return {}
        return beans[0] if beans else {}

    def operations(self) -> dict[str, int]:
        """Calls of clients by method since the NameNode's start, and `transactions`: the number of edits."""
        detailed = self.bean(f"RpcDetailedActivityForPort{self._ports['rpc']}")
        counts = {
            name.removesuffix("NumOps"): int(value) for name, value in detailed.items() if name.endswith("NumOps")
        }
        of_datanodes = ("SendHeartbeat", "BlockReport", "BlockReceivedAndDeleted", "RegisterDatanode", "VersionRequest")
        calls = {name: count for name, count in counts.items() if name not in of_datanodes and "Overall" not in name}
        return calls | {"transactions": int(self.bean("FSNamesystem").get("LastWrittenTransactionId", 0))}

    def synced_blocks(self) -> tuple[int, int]:
        """Blocks that the DataNodes have written since their start, and those that they have synced to their disks."""
        written = synced = 0
        for number in range(len(self.datanodes)):
            address = f"http://127.0.0.1:{self._ports[f'web-{number}']}/jmx?qry=Hadoop:service=DataNode,name="
            with urllib.request.urlopen(f"{address}DataNodeActivity-*", timeout=5) as answer:
                (bean,) = json.load(answer)["beans"]
            written += int(bean["BlocksWritten"])
            synced += int(bean["FsyncCount"])
        return written, synced

    # ---- the processes

    def _server(self, name: str, main_class: str, options: Mapping[str, object]) -> Server:
        return Server(name, self.directory, self.conf, main_class, {**self.settings, **options}, self._java_options)

    def _write_configuration(self) -> None:
        self.conf.mkdir(parents=True, exist_ok=True)
        pairs = [
            f"<property><name>{name}</name><value>{escape(str(value))}</value></property>\n"
            for name, value in self.settings.items()
        ]
        for file in ("core-site.xml", "hdfs-site.xml"):
            (self.conf / file).write_text(f"<configuration>\n{''.join(pairs)}</configuration>\n", encoding="utf-8")
        (self.conf / "log4j2.properties").write_text(_LOG4J, encoding="ascii")

    def _until(self, is_so: Callable[[], bool], deadline_s: float, what: str, servers: tuple[Server, ...]) -> None:
        until = time.monotonic() + deadline_s
        while not is_so():
            for server in servers:
                if not server.is_running:
                    raise HdfsFailed(f"{server.name} ended before {what}\n{server.last_words()}")
            if time.monotonic() > until:
                raise HdfsFailed(f"not within {deadline_s:.0f} s: {what}\n{servers[0].last_words()}")
            time.sleep(0.2)


_LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1} %m%n
"""


def main() -> int:
    """Runs a cluster until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(prog="tests.services.hdfs", description="An HDFS in the foreground.")
    parser.add_argument("--directory", type=Path, default=Path("demo-hdfs"), help="its data, replaced at each start")
    parser.add_argument("--datanodes", type=int, default=1)
    parser.add_argument("--early-close", action="store_true")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.directory, ignore_errors=True)
    cluster = Hdfs(arguments.directory, datanodes=arguments.datanodes, early_close=arguments.early_close)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cluster.start()
        print(f"{cluster.url}, HADOOP_CONF_DIR={cluster.conf}", flush=True)
        for server in (cluster.namenode, *cluster.datanodes):
            print(f"  {server.name}: {server.pid}", flush=True)
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        return 0
    finally:
        cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
