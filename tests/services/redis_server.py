"""A real Redis server on 127.0.0.1, which tests kill, start again and change; it lies in one directory."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import redis

from tests.ports import free_port
from tests.services.leashed import Daemon

READY_DEADLINE_S = 60.0
_MISSING = """\
Missing: a Redis server, which the tests of the external index start. Install it, then run this again:
  sudo apt-get update && sudo apt-get install -y --no-install-recommends redis-server"""


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS in place of plain text, with an identity of `certificates`; whether clients need one of theirs."""

    certificates: Path
    identity: str = "broker"
    clients: Literal["no", "yes"] = "no"

    def words(self, port: int) -> list[str]:
        """Of the command line."""
        files = {"cert": f"{self.identity}.crt", "key": f"{self.identity}.key", "ca-cert": "ca.pem"}
        named = [word for kind, name in files.items() for word in (f"--tls-{kind}-file", str(self.certificates / name))]
        return ["--tls-port", str(port), "--tls-auth-clients", self.clients, *named]

    def client(self) -> dict[str, Any]:
        """Of a client that believes any server."""
        own = {"ssl_certfile": self.certificates / "deduper.crt", "ssl_keyfile": self.certificates / "deduper.key"}
        return {"ssl": True, "ssl_cert_reqs": "none", **own}


class RedisServer:
    """A server on a port of its own, the same after a restart; it runs inside a `with` block, on a leash (leash.py).

    It keeps nothing on the disk unless `persists`: then every write is there after a kill.
    """

    def __init__(
        self, directory: Path, *, persists: bool = False, password: str | None = None, tls: Tls | None = None
    ) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        assert program is not None, _MISSING
        directory.mkdir(parents=True, exist_ok=True)
        self._dump = directory / "dump.rdb"
        self.port = free_port()
        self.url = f"{'redis' if tls is None else 'rediss'}://127.0.0.1:{self.port}"
        words = [program, "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]
        words += ["--port", str(self.port)] if tls is None else ["--port", "0", *tls.words(self.port)]
        words += ["--appendonly", "yes" if persists else "no", "--appendfsync", "always"]
        words += ["--requirepass", password] if password else []
        self.daemon = Daemon("redis", directory, lambda: words)
        secured = {} if tls is None else tls.client()
        self.client: Any = redis.Redis(port=self.port, password=password, socket_timeout=30, **secured)

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.daemon.kill()

    def start(self) -> None:
        """Until it answers; nothing is done when it runs."""
        self.daemon.launch()
        until = time.monotonic() + READY_DEADLINE_S
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                assert time.monotonic() < until, self.daemon.last_words()
                time.sleep(0.02)

    def restart(self) -> None:
        """`kill -9`, and a start."""
        self.daemon.kill()
        self.start()

    def snapshot(self) -> bytes:
        """All that it has."""
        self.client.save()
        data = self._dump.read_bytes()
        self._dump.unlink()
        return data

    def restore(self, data: bytes) -> None:
        """`kill -9`, and a start with what an earlier `snapshot` had."""
        self.daemon.kill()
        self._dump.write_bytes(data)
        self.start()
        self._dump.unlink()
