"""Delegation tokens of HDFS for the tasks of a job, which have no ticket.

The driver's JVM gets them with the driver's ticket, by a login of its own: Spark may have put tokens into the JVM's
login, and a token gets no token. New ones are had long before the old ones end, so nothing has to renew them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from bucket_store.places.hadoop_settings import FOLDER, asks_for_login, hadoop_settings
from bucket_store.places.kerberos import CACHE, LoginError, cache_name, ticket
from deduper.errors import DeduperError
from deduper.spark import hdfs_login
from deduper.spark.failures import readable_cause

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_INTERVAL = "dfs.namenode.delegation.token.renew-interval"
"""Milliseconds for which a token is valid without renewal; Hadoop's default is a day."""
_DAY_MS = 86_400_000
_PAUSE_S = 60.0
"""Before another try, while the tokens at hand are good."""


def tokens_are_needed(spark: Mapping[str, object], clusters: Sequence[str]) -> bool:
    """Whether the tasks of a job on a cluster need tokens."""
    return bool(clusters) and hdfs_login.travel_with_tasks(spark) and asks_for_login(hadoop_settings())


class TokenSource:
    """The tokens of a session for some clusters, `HOST:PORT` or a name service each. For all threads."""

    def __init__(self, session: SparkSession, clusters: Sequence[str]) -> None:
        self._session = session
        self._clusters = clusters
        self._lock = threading.Lock()
        self._data = b""
        self._new_at = self._end_at = 0.0

    def logged_in(self, function: Callable[..., _T], /) -> Callable[..., _T]:
        """See `LogsIn`."""
        return partial(hdfs_login.logged_in, hdfs_login.Tokens(self._current()), function)

    def _current(self) -> bytes:
        """A file of tokens, in Hadoop's form."""
        with self._lock:
            now = time.monotonic()
            if now < self._new_at:
                return self._data
            good_s = int(hadoop_settings().get(_INTERVAL, _DAY_MS)) / 1000
            try:
                self._data = self._fetched()
            except DeduperError as exc:
                if now >= self._end_at:
                    raise
                logger.warning("no new tokens of HDFS, the old ones are good for a while: %s", exc)
                self._new_at = now + min(_PAUSE_S, good_s / 16)
            else:
                self._new_at, self._end_at = now + good_s / 4, now + good_s * 3 / 4
                logger.info("new tokens of HDFS")
            return self._data

    def _fetched(self) -> bytes:
        try:
            principal = ticket().principal
        except LoginError as exc:
            raise DeduperError(f"HDFS: no login: {exc}") from exc
        jvm: Any = self._session._jvm
        java: Any = self._session.sparkContext._jsc
        conf = jvm.org.apache.hadoop.conf.Configuration(java.hadoopConfiguration())
        conf.set("hadoop.security.kerberos.ticket.cache.path", cache_name())
        text = jvm.org.apache.hadoop.io.Text
        credentials = jvm.org.apache.hadoop.security.Credentials()
        for cluster in self._clusters:
            try:
                client = jvm.org.apache.hadoop.fs.FileSystem.newInstance(
                    jvm.java.net.URI(f"hdfs://{cluster}"), conf, principal
                )
                try:
                    token = client.getDelegationToken(principal)
                finally:
                    client.close()
            except Py4JError as exc:
                raise DeduperError(
                    f"HDFS: {cluster} gives the driver's Java no token for the executors: {readable_cause(exc)}; Java "
                    f"has to read {FOLDER}, krb5.conf (`-Djava.security.krb5.conf`) and the ticket's file ({CACHE})"
                ) from exc
            if token is None:
                raise DeduperError(f"HDFS: {cluster} gives no token: it asks for no login, but {FOLDER} says so")
            # Java names the server by its address; the client of the tasks looks for what stands in the URL.
            token.setService(text(cluster if ":" in cluster else f"ha-hdfs:{cluster}"))
            credentials.addToken(text(cluster), token)
        written = jvm.java.io.ByteArrayOutputStream()
        credentials.writeTokenStorageToStream(jvm.java.io.DataOutputStream(written))
        return bytes(written.toByteArray())
