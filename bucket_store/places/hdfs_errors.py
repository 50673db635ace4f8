"""What the errors of hdfs-native mean: an OSError in plain words, with its remedy, or a StorageAwayError.

The client gives Java's class and message, or a text of its own; the rest of the package knows neither.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from urllib.parse import urlsplit

from bucket_store.errors import StorageAwayError
from bucket_store.places.hadoop_settings import FOLDER, PROTECTION, asks_for_login, hadoop_settings
from bucket_store.places.kerberos import TOKENS, LoginError, ticket

_LISTENS_S = 2.0
_JAVA_ERROR = re.compile(r'RPCError\("[\w.$]*?(\w+)", "(.*?)(?:\\n|"\)$)', re.DOTALL)
_ERRORS = {
    "AccessControlException": errno.EACCES,
    "AlreadyBeingCreatedException": errno.EBUSY,
    "DSQuotaExceededException": errno.EDQUOT,
    "NSQuotaExceededException": errno.EDQUOT,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "PathIsNotDirectoryException": errno.ENOTDIR,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "RecoveryInProgressException": errno.EBUSY,
    "RetriableException": errno.EAGAIN,
    "SafeModeException": errno.EAGAIN,
    "StandbyException": errno.EAGAIN,
}
_LONGEST_REASON = 300
_NO_BLOCK = "no DataNode takes a block: they are down, full, or too few for the replication"
_NO_BYTES = "the DataNodes do not give the file's bytes"
_NODE = re.compile(r'ip_addr: \\?"([^"\\]+)\\?".*?xfer_port: (\d+)')
_NO_NAMENODE = "No NameNode hosts found"
# Of GSSAPI's texts for a ticket; they begin with its name, or are MIT Kerberos's own words.
_TICKET = re.compile(r"GSSAPI|[Kk]erberos|[Tt]icket|credentials? cache|libgssapi")
_NO_TOKENS = "the tokens are none of this cluster, or end within a minute, and "
_GSSAPI_TEXT = re.compile(r'GSSAPIError\(.*, "(.*)"\)$', re.DOTALL)
# What to do, behind the cluster's own words.
_REMEDIES = {
    errno.EACCES: "let this user write there (`hdfs dfs -chown`), or run the job as another one",
    errno.EDQUOT: "raise it (`hdfs dfsadmin -setSpaceQuota`, `-setQuota`), or delete files below it; an open one "
    "counts a block in each replica (`hdfs fsck PATH -openforwrite`)",
    "SafeModeException": "its DataNodes have not reported their blocks, or somebody keeps it there: "
    "`hdfs dfsadmin -safemode get`",
}


def as_os_error(error: BaseException, url: str, *, has_answered: bool = False, missing: str = "answers") -> OSError:
    """The OSError for an error of hdfs-native, without Java's stack, and with what to do about it.

    It is a StorageAwayError if waiting may mend it; `missing` is what HDFS does not do then, for all that the action
    shows. `has_answered`: the cluster has answered this process, so that it needs no other login.
    """
    text = str(error)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
    if isinstance(error, FileExistsError):
        return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), url)
    java = _JAVA_ERROR.search(text)
    name, reason = (java[1], java[2]) if java else (type(error).__name__, text.partition("\n")[0])
    code = _ERRORS.get(name, errno.EIO)
    authority = urlsplit(url).netloc
    if _NO_NAMENODE in reason:
        return OSError(errno.EINVAL, f"HDFS: {_unknown_name(authority)}", url)
    if java is None and _TICKET.search(reason):
        return PermissionError(errno.EACCES, f"HDFS: no login: {_why_no_login(reason)}", url)
    is_away = java is None or code == errno.EAGAIN
    if "could only be written to" in reason:
        reason, missing, is_away = _NO_BLOCK, "writes", True
    elif "All DataNodes failed" in reason:
        nodes = [f"{address}:{port}" for address, port in _NODE.findall(text)]
        reason, missing = f"{_NO_BYTES}: {', '.join(nodes) or 'none of those that live'}", "reads"
    elif name == "SafeModeException":
        missing = "takes changes"
    elif java is None:
        server = f"a DataNode of {authority}" if missing in ("writes", "reads") else f"the NameNode at {authority}"
        reason = f"{server}: {reason}"
    closed = None if missing == "answers" and has_answered else _remedy_of_closed(reason)
    remedy = _REMEDIES.get(name) or _REMEDIES.get(code) or closed
    is_away &= closed is None
    said = f"HDFS: {reason[:_LONGEST_REASON]}{f'; {remedy}' if remedy else ''}"
    return StorageAwayError.of(code, said, url, missing) if is_away else OSError(code, said, url)


def nodes_of(error: StorageAwayError) -> list[str]:
    """The DataNodes that did not give a file's bytes; none for another error."""
    _, is_of_bytes, nodes = str(error.strerror).partition(f"{_NO_BYTES}: ")
    return re.findall(r"[^\s,;]+:\d+", nodes) if is_of_bytes else []


def listens(node: str) -> bool:
    """Whether a DataNode takes a connection."""
    host, _, port = node.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_LISTENS_S).close()
    except OSError:
        return False
    return True


def _why_no_login(reason: str) -> str:
    try:
        ticket()
    except LoginError as exc:
        return f"{_NO_TOKENS if TOKENS in os.environ else ''}{exc}"
    message = _GSSAPI_TEXT.search(reason)
    text = message[1] if message else reason
    return f"{text[:_LONGEST_REASON]}; see that the KDC answers, and that the servers' principals are in its realm"


def _remedy_of_closed(reason: str) -> str | None:
    """A server that requires a login, or another one, closes the connection and says nothing."""
    if "RPC listener disconnected" in reason and not asks_for_login(hadoop_settings()):
        return f"if this NameNode requires Kerberos, name the folder of its client configuration in {FOLDER}"
    if "Connection reset" in reason or "onnection closed" in reason or "early eof" in reason:
        settings = hadoop_settings()
        if asks_for_login(settings) and PROTECTION not in settings:
            return f"{FOLDER} has no {PROTECTION}: if the DataNodes have one, write it into hdfs-site.xml"
    return None


def _unknown_name(authority: str) -> str:
    folder = os.environ.get("HADOOP_CONF_DIR")
    where = f"{folder}/hdfs-site.xml" if folder else "the hdfs-site.xml in HADOOP_CONF_DIR, which is not set,"
    return (
        f"`{authority}` has no port, so it is a name service, and {where} has no NameNodes of it "
        f"(dfs.ha.namenodes.{authority}, dfs.namenode.rpc-address.{authority}.…); or write hdfs://HOST:PORT/PATH"
    )
