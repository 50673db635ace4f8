"""A real Kerberos on 127.0.0.1 and an HDFS that asks for its tickets: MIT's KDC, as Debian has it (`krb5-kdc`).

Everything of the KDC lies in one directory:

    krb5.conf          what clients read: KRB5_CONFIG, and Java's `java.security.krb5.conf`
    <name>.keytab      the keys of a principal
    kdc/               its database and settings
    kdc.log            what it said, of all its starts

It runs on a leash (leash.py), like every server here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port
from tests.services.hdfs import Hdfs
from tests.services.leashed import Daemon

REALM = "DEDUPER.TEST"
SERVER = "hdfs/localhost"
"""The principal of NameNode and DataNode."""
JOB = "deduper"
"""The principal of jobs."""


class Kdc:
    """One realm. Not for several threads at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.port = free_port()
        self._environment = {
            **os.environ,
            "KRB5_CONFIG": str(self.krb5_conf),
            "KRB5_KDC_PROFILE": str(self.directory / "kdc" / "kdc.conf"),
        }
        self._server = Daemon("kdc", self.directory, lambda: [program("krb5kdc"), "-n"], self._environment)

    @property
    def krb5_conf(self) -> Path:
        """The settings of clients."""
        return self.directory / "krb5.conf"

    def keytab(self, principal: str) -> Path:
        """The keys of a principal."""
        return self.directory / f"{principal.replace('/', '-')}.keytab"

    def start(self) -> None:
        """Make the realm with its two principals, and serve it."""
        (self.directory / "kdc").mkdir(parents=True, exist_ok=True)
        self.krb5_conf.write_text(_KRB5_CONF.format(realm=REALM, port=self.port), encoding="ascii")
        (self.directory / "kdc" / "kdc.conf").write_text(
            _KDC_CONF.format(realm=REALM, port=self.port, folder=self.directory / "kdc"), encoding="ascii"
        )
        # The key of the database is of use to nobody else: it is new each time and dies with the directory.
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", os.urandom(16).hex())
        for principal in (SERVER, JOB):
            self.add(principal)
        self._server.launch()
        deadline = time.monotonic() + 30
        while not self._server.says("commencing operation"):
            assert self._server.is_running, f"the KDC ended\n{self._server.last_words()}"
            assert time.monotonic() < deadline, f"no KDC within 30 s\n{self._server.last_words()}"
            time.sleep(0.05)

    def add(self, principal: str) -> None:
        """A principal with random keys, in a keytab."""
        self._run("kadmin.local", "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-q", f"ktadd -k {self.keytab(principal)} {principal}")

    def login(self, cache: Path, principal: str = JOB, life: str = "1h") -> None:
        """Put a ticket into a cache, in one step: a reader sees the old ticket or the new one."""
        new = cache.with_name(f"{cache.name}.new")
        self._run("kinit", "-k", "-t", str(self.keytab(principal)), "-c", str(new), "-l", life, f"{principal}@{REALM}")
        new.rename(cache)

    def environment(self, cache: Path) -> dict[str, str]:
        """What a client of this realm needs in its environment."""
        return {"KRB5_CONFIG": str(self.krb5_conf), "KRB5CCNAME": str(cache)}

    def without_server(self) -> Path:
        """Settings of clients that name a KDC where none is."""
        path = self.directory / "nowhere.conf"
        path.write_text(_KRB5_CONF.format(realm=REALM, port=free_port()), encoding="ascii")
        return path

    def stop(self) -> None:
        """Kill it."""
        self._server.kill()

    def _run(self, *words: str) -> None:
        done = subprocess.run(
            [program(words[0]), *words[1:]],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{words[0]}: {done.stderr or done.stdout}"


def program(name: str) -> str:
    """A program of Kerberos; Debian keeps most of them outside of a user's PATH.

    Raises:
        AssertionError: it is not installed; the message says how it is.
    """
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/bin")
    assert found, f"{name} is missing: apt-get install krb5-kdc krb5-admin-server krb5-user"
    return found


def secured(kdc: Kdc, protection: str) -> dict[str, str | int]:
    """Settings of an HDFS that asks for tickets; `protection` of calls and of blocks."""
    principal = f"{SERVER}@{REALM}"
    of_servers = {
        f"dfs.{server}.{what}": value
        for server in ("namenode", "datanode")
        for what, value in (("kerberos.principal", principal), ("keytab.file", str(kdc.keytab(SERVER))))
    }
    return {
        "hadoop.security.authentication": "kerberos",
        "hadoop.rpc.protection": protection,
        "dfs.data.transfer.protection": protection,
        "dfs.block.access.token.enable": "true",
        # Of DataNodes: else one without a privileged port needs a certificate for its pages. Blocks need none.
        "ignore.secure.ports.for.testing": "true",
        **of_servers,
    }


@contextmanager
def secure_hdfs(directory: Path, protection: str) -> Iterator[tuple[Kdc, Hdfs]]:
    """A KDC and an HDFS of its realm with one DataNode."""
    kdc = Kdc(directory / "kdc")
    kdc.start()
    try:
        hdfs = Hdfs(
            directory / "hdfs",
            early_close=True,
            settings=secured(kdc, protection),
            java_options=[f"-Djava.security.krb5.conf={kdc.krb5_conf}"],
        )
        with hdfs:
            yield kdc, hdfs
    finally:
        kdc.stop()


_KRB5_CONF = """\
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
  forwardable = true
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
[domain_realm]
  localhost = {realm}
"""
_KDC_CONF = """\
[kdcdefaults]
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {realm} = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
    acl_file = {folder}/kadm5.acl
    max_life = 1d
    max_renewable_life = 7d
    supported_enctypes = aes256-cts:normal aes128-cts:normal
  }}
[logging]
  kdc = STDERR
"""
