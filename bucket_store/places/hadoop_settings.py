"""Hadoop's settings as the client of HDFS reads them: two files of one folder, and not all that stands there.

It reads `core-site.xml` and `hdfs-site.xml` in HADOOP_CONF_DIR, or else in `$HADOOP_HOME/etc/hadoop`; no defaults, no
variables, no included files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

FOLDER = "HADOOP_CONF_DIR"
FILES = ("core-site.xml", "hdfs-site.xml")
AUTHENTICATION = "hadoop.security.authentication"
PROTECTION = "dfs.data.transfer.protection"


def settings_folder() -> Path | None:
    """The folder that the environment names."""
    named, home = os.environ.get(FOLDER), os.environ.get("HADOOP_HOME")
    if named:
        return Path(named)
    return Path(home, "etc", "hadoop") if home else None


def files_of_settings() -> Iterator[tuple[Path, ElementTree.Element | OSError | ElementTree.ParseError]]:
    """The root of each file that is there, or the error of one that cannot be read."""
    folder = settings_folder()
    for name in FILES if folder is not None else ():
        assert folder is not None
        try:
            yield folder / name, ElementTree.parse(folder / name).getroot()
        except FileNotFoundError:
            continue
        except (OSError, ElementTree.ParseError) as exc:
            yield folder / name, exc


def properties(root: ElementTree.Element) -> dict[str, str]:
    """The settings of a file."""
    return {one.findtext("name", "").strip(): one.findtext("value", "").strip() for one in root.iter("property")}


def hadoop_settings() -> dict[str, str]:
    """The settings of both files; those of a file that cannot be read are missing, to the client too."""
    found: dict[str, str] = {}
    for _, root in files_of_settings():
        if isinstance(root, ElementTree.Element):
            found |= properties(root)
    return found


def asks_for_login(settings: dict[str, str]) -> bool:
    """Whether the client logs in by Kerberos."""
    return settings.get(AUTHENTICATION, "simple").lower() == "kerberos"
