"""How Java starts for tests: soon, as most of its processes here live for seconds.

Its second compiler and its parallel collector give back in hours what they take from a start: both are left out. Its
classes come from archives, which save half of what is left; `python -m tests.java` writes those that are missing, and
without them all is only slower. An archive is of one Java and one class path: Java itself leaves out what is not its.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

SPARK, BROKER, NAMENODE, DATANODE = "spark", "broker", "namenode", "datanode"
BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
CLASSES = Path(sys.prefix, "java-classes")
to_write: dict[str, Path] = {}
"""Where processes of a kind write their classes as they end."""


def brief(of: str) -> list[str]:
    """Options of a Java process of this kind."""
    if of in to_write:
        return [*BRIEF, f"-XX:ArchiveClassesAtExit={to_write[of]}"]
    classes = archive(of)
    # Java would say on its standard output that an archive is of another Java.
    return [*BRIEF, *(["-Xlog:disable", f"-XX:SharedArchiveFile={classes}"] if classes.is_file() else [])]


def start_sessions_soon() -> None:
    """Give these options to the driver of every Spark that this process or a child of it starts."""
    os.environ["SPARK_LAUNCHER_OPTS"] = " ".join(BRIEF)
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(brief(SPARK))


def archive(of: str) -> Path:
    """Where the classes of a kind of process lie, once they are written."""
    return CLASSES / f"{of}.jsa"
