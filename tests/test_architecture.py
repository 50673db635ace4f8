"""docs/architecture.md names code that exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
ROOMS = sorted(path.parent.name for path in (ROOT / "deduper").glob("*/__init__.py"))


def names_on_the_page() -> list[str]:
    """Dotted names of code: `room.module.function`, or with `bucket_store` in front."""
    found = re.findall(r"`([a-z_]+(?:\.\w+)+)`", PAGE.read_text(encoding="utf-8"))
    return sorted({name for name in found if name.split(".")[0] in [*ROOMS, "bucket_store"]})


def exists(name: str) -> bool:
    """Whether a module of this name is there, and in it what the rest of the name says."""
    parts = name.split(".")
    place = ROOT if parts[0] == "bucket_store" else ROOT / "deduper"
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if not parts:
        return True
    file = place / f"{parts.pop(0)}.py"
    if not file.is_file():
        return False
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for part in parts:
        found = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part]
        if not found:
            return False
        body = found[0].body
    return True


def test_every_name_of_code_exists() -> None:
    """A function that was renamed or moved is renamed on the page too."""
    names = names_on_the_page()
    assert len(names) > 50
    assert [name for name in names if not exists(name)] == []


def test_every_room_is_in_the_picture() -> None:
    """Each package of `deduper` and of `bucket_store` stands in the drawing of the floors."""
    picture = re.findall(r"```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    rooms = [*ROOMS, *(path.parent.name for path in (ROOT / "bucket_store").glob("*/__init__.py"))]
    assert [room for room in rooms if not re.search(rf"\b{room}\b", picture)] == []


def test_every_room_is_in_the_readme() -> None:
    """Its tree of folders names each package of `deduper` and of `bucket_store`."""
    tree = (ROOT / "README.md").read_text(encoding="utf-8").split("## Development")[1]
    rooms = [*ROOMS, *(path.parent.name for path in (ROOT / "bucket_store").glob("*/__init__.py"))]
    assert [room for room in rooms if f" {room}/" not in tree] == []


def test_a_class_has_a_name_of_its_own() -> None:
    """One name, one meaning: whoever looks for it finds one class."""
    files = [path for top in ("deduper", "bucket_store") for path in sorted((ROOT / top).rglob("*.py"))]
    found = Counter(
        node.name
        for path in files
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert len(found) > 500
    assert [name for name, count in found.items() if count > 1] == []
