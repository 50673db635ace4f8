"""Sphinx's settings: `make docs` builds the pages of this folder into build/docs, and every warning is an error.

The pages are plain Markdown that any viewer of the repository shows too. Two things differ on the site: SEMANTICS.md
and FORMAT.md, which the packages carry, are pages of it; and other files of the repository are named, not linked.
"""

from __future__ import annotations

import re
from pathlib import Path

from deduper import __version__

ROOT = Path(__file__).parent.parent
PAGES_OF_PACKAGES = {"semantics": "deduper/SEMANTICS.md", "format": "bucket_store/FORMAT.md", "changes": "CHANGELOG.md"}

project = "deduper"
author = copyright = "the authors of deduper"
release = version = __version__
extensions = ["myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 4
exclude_patterns = ["bench/**"]
nitpicky = True
html_theme = "furo"
html_title = f"deduper {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = html_show_sphinx = html_show_copyright = False
pygments_style, pygments_dark_style = "friendly", "github-dark"

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)#\s]*)(#[^)\s]*)?\)")


def _to_pages(_: object, page: str, source: list[str]) -> None:
    """Reads the pages of the packages, and turns links out of this folder into links to them or into names."""
    if page in PAGES_OF_PACKAGES:
        source[0] = (ROOT / PAGES_OF_PACKAGES[page]).read_text(encoding="utf-8")
    place = ROOT / PAGES_OF_PACKAGES.get(page, f"docs/{page}.md")
    up = "../" * page.count("/")
    known = {ROOT / file: f"{name}.md" for name, file in PAGES_OF_PACKAGES.items()}

    def replaced(link: re.Match[str]) -> str:
        label, path, anchor = link[1], link[2], link[3] or ""
        target = (place.parent / path).resolve()
        if target in known:
            return f"[{label}]({up}{known[target]}{anchor})"
        if target.is_relative_to(ROOT / "docs") and not target.is_relative_to(ROOT / "docs" / "bench"):
            return f"[{label}]({up}{target.relative_to(ROOT / 'docs')}{anchor})"
        name = str(target.relative_to(ROOT))
        return f"`{name}`" if label.strip("`") == name else f"{label} (`{name}`)"

    source[0] = _LINK.sub(replaced, source[0])


def setup(app: object) -> None:
    """Sphinx calls this once."""
    app.connect("source-read", _to_pages)  # type: ignore[attr-defined]
