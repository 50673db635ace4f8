"""Files of stores and ports are reached through places alone, in every command and in the checks before a start."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROOMS = ("deduper/admin", "deduper/preflight")
NO_PLACES = {"os", "os.path", "shutil", "glob", "tempfile", "pathlib", "bucket_store.filesystem"}
"""Modules that do I/O on paths of this machine."""

OF_THIS_MACHINE = {
    "deduper/admin/gc.py": "tables and exchange files",
    "deduper/admin/move/export.py": "the folder of an export, which is of this machine",
    "deduper/admin/open_store.py": "the config file, and a folder that a person names",
    "deduper/admin/errors/export.py": "the folder of an export, which is of this machine",
    "deduper/admin/status.py": "files of the source, and the room on a store's disk",
    "deduper/preflight/connections.py": "texts of errors of sockets",
    "deduper/preflight/folders.py": "rights and room on disks, the tables, the folder of the source, Hadoop's settings",
    "deduper/preflight/machine.py": "the machine",
}
"""What the modules that may import them do with paths."""

HARMLESS = {"PurePosixPath", "is_temporary"}
"""Names without I/O."""


def importing(file: Path) -> bool:
    """Whether a module imports what reaches files of this machine."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import) and NO_PLACES & {alias.name for alias in node.names}:
            return True
        is_of_paths = isinstance(node, ast.ImportFrom) and node.module in NO_PLACES
        if is_of_paths and not {alias.name for alias in node.names} <= HARMLESS:
            return True
    return False


def test_only_these_modules_reach_files_of_this_machine() -> None:
    """A module that begins to is held against the list, and one that has stopped leaves it."""
    files = [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
    found = {file.relative_to(ROOT).as_posix() for file in files if importing(file)}
    assert found == set(OF_THIS_MACHINE)
