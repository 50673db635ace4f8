"""Draws the picture of docs/architecture.md from docs/processes.dot: `python scripts/diagram.py`; needs Graphviz.

The picture is kept in the repository, so building the site needs neither Graphviz nor a network. A test compares the
names and texts of both.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
SOURCE, PICTURE = DOCS / "processes.dot", DOCS / "_static" / "processes.svg"

if __name__ == "__main__":
    PICTURE.write_bytes(subprocess.run(["dot", "-Tsvg", str(SOURCE)], check=True, capture_output=True).stdout)
