"""A YAML text as plain values, with the place of every key and every value.

The tree is composed but never constructed by the YAML library: no tag runs code, and a date stays the text it is.
Plain scalars become null, bool, int, float or str by the rules of YAML 1.2 (`off` and `yes` are text).

`${VAR}` and `${VAR:-default}` are filled in, `$$` is one `$`, a `$` before anything else is itself. The default counts
when the variable is unset or empty, as in a shell. The text of a variable is not interpolated again.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from deduper.config.problems import MASK, ConfigPlace, Problem, is_secret, mask_text

SettingPath = tuple[str, ...]
"""Keys from the root down; list positions as their decimal text."""

_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = tuple(_TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "value"))
# The library separates text from the rest; the meaning of the rest is decided here.
_TEXT_TAGS = (_TAG + "str", _TAG + "timestamp")
_MOST_DIGITS = 1000
"""Of an int; more are read as text, which no setting that wants a number takes."""
_MOST_OPEN = 100
"""Brackets open at once: for each the library looks at all others again, at every character."""
_REFERENCE = re.compile(r"\$\$|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{")
_SECRET_LINE = re.compile(r"(?P<name>[\w.\- ]+)(?P<colon>[\"']?\s*[:=]\s*)(?P<value>\S.*)$")


@dataclass(slots=True)
class Document:
    """One text as data. `keys` and `values` hold the places of settings, `raw` the text of scalars as written."""

    data: Any = None
    keys: dict[SettingPath, ConfigPlace] = field(default_factory=dict)
    values: dict[SettingPath, ConfigPlace] = field(default_factory=dict)
    raw: dict[SettingPath, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_document(text: str, source: str, environment: Mapping[str, str] | None, *, in_file: bool = True) -> Document:
    """The values and places of a YAML text; every mistake is in `problems`, none is raised.

    `source` names the text in places: a file, which then also have lines and columns, or (`in_file` False) a variable
    or flag, which do not. `${VAR}` is filled in from the environment, and left alone without one.
    """
    if _brackets_open(text) > _MOST_OPEN:
        return _too_deep(source, in_file)
    yaml = YAML(typ="rt", pure=True)
    try:
        root = yaml.compose(text)
    except MarkedYAMLError as error:
        return Document(problems=[_syntax_problem(error, text, source, in_file)])
    except (YAMLError, ValueError) as error:
        place = ConfigPlace(source, 1, 1) if in_file else ConfigPlace(source)
        return Document(problems=[Problem(place, "", f"is not YAML: {' '.join(str(error).split())}")])
    except RecursionError:
        return _too_deep(source, in_file)
    if root is None:
        return Document()
    walker = _Walker(text, source, environment, in_file)
    try:
        walker.find_secrets(root, hidden=False)
        walker.document.values[()] = walker.place(root)
        walker.document.data = walker.value(root, ())
    except RecursionError:
        return _too_deep(source, in_file)
    return walker.document


def _brackets_open(text: str) -> int:
    """The greatest number of brackets open at once, including those in texts."""
    steps = (1 if bracket in "[{" else -1 for bracket in re.findall(r"[\[\]{}]", text))
    return max(accumulate(steps), default=0)


def _too_deep(source: str, in_file: bool) -> Document:
    place = ConfigPlace(source, 1, 1) if in_file else ConfigPlace(source)
    return Document(problems=[Problem(place, "", "is nested too deep", "settings are nested four deep at most")])


class _Walker:
    """Turns nodes into values and writes down their places."""

    def __init__(self, text: str, source: str, environment: Mapping[str, str] | None, in_file: bool) -> None:
        self.document = Document()
        self._lines = text.splitlines()
        self._source = source
        self._environment = environment
        self._in_file = in_file
        self._open: list[Node] = []
        self._secrets: list[Node] = []

    def value(self, node: Node, path: SettingPath) -> Any:
        if any(node is outer for outer in self._open):
            self._problem(node, path, "contains itself", "remove the alias")
            return None
        if node.tag not in _PLAIN_TAGS:
            tag = str(node.tag).replace(_TAG, "!!")
            self._problem(node, path, f"has the tag `{tag}`", "remove the tag: values are plain YAML")
            return None
        self._open.append(node)
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            if isinstance(node, SequenceNode):
                return [self._item(item, (*path, str(position))) for position, item in enumerate(node.value)]
            assert isinstance(node, ScalarNode)  # there is no fourth kind
            return self._scalar(node, path)
        finally:
            self._open.pop()

    def _item(self, node: Node, path: SettingPath) -> Any:
        self.document.keys[path] = self.document.values[path] = self.place(node)
        return self.value(node, path)

    def _mapping(self, node: MappingNode, path: SettingPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._problem(key_node, path, "has a key that is not plain text", "write `name: value`")
                continue
            name = str(key_node.value)
            inner = (*path, name)
            if name == "<<":
                self._problem(key_node, path, "uses the merge key `<<`", "write the settings out")
                continue
            if name in result:
                first = self.document.keys[inner]
                where = f", first on line {first.line}" if first.line is not None else ""
                self._problem(key_node, inner, f"is set twice{where}", "remove one of the two")
                continue
            self.document.keys[inner] = self.place(key_node)
            self.document.values[inner] = self.place(value_node)
            result[name] = self.value(value_node, inner)
        return result

    def _scalar(self, node: ScalarNode, path: SettingPath) -> Any:
        text = str(node.value)
        self.document.raw[path] = text
        try:
            filled = text if self._environment is None else interpolate(text, self._environment)
        except InterpolationError as error:
            place = self.place(node)
            if self._is_verbatim(node, text):
                place = self._shifted(place, node, error.offset, error.width)
            self.document.problems.append(Problem(place, ".".join(path), error.what, error.write))
            return None
        if node.style is not None:
            return filled
        # A value from a variable stays text, which every setting reads: a password 007 is not the number 7.
        return _plain_value(text) if filled == text and node.tag not in _TEXT_TAGS else filled

    def place(self, node: Node) -> ConfigPlace:
        """The place of a node; the caret covers a scalar on one line, and the first character of anything else."""
        if not self._in_file:
            return ConfigPlace(self._source)
        start, end = node.start_mark, node.end_mark
        width = end.column - start.column if isinstance(node, ScalarNode) and end.line == start.line else 1
        if isinstance(node, ScalarNode) and node.style in ("|", ">"):
            width = 1
        return ConfigPlace(self._source, start.line + 1, start.column + 1, max(1, width), self._excerpt(start.line))

    def _is_verbatim(self, node: ScalarNode, text: str) -> bool:
        """Whether the file has the scalar's characters unchanged on one line: then offsets are columns."""
        start, end = node.start_mark, node.end_mark
        if not self._in_file or start.line != end.line:
            return False
        written: str = self._lines[start.line][start.column : end.column]
        return written == text if node.style is None else written[1:-1] == text

    def _shifted(self, place: ConfigPlace, node: ScalarNode, offset: int, width: int) -> ConfigPlace:
        assert place.column is not None
        quote = 0 if node.style is None else 1
        return ConfigPlace(place.source, place.line, place.column + quote + offset, width, place.excerpt)

    def find_secrets(self, node: Node, *, hidden: bool) -> None:
        """Notes the scalars whose names are secret, before any excerpt is made."""
        if any(node is outer for outer in self._open):
            return
        self._open.append(node)
        if isinstance(node, MappingNode):
            for key, value in node.value:
                name = str(key.value) if isinstance(key, ScalarNode) else ""
                self.find_secrets(value, hidden=hidden or is_secret(name))
        elif isinstance(node, SequenceNode):
            for item in node.value:
                self.find_secrets(item, hidden=hidden)
        elif hidden:
            self._secrets.append(node)
        self._open.pop()

    def _excerpt(self, line: int) -> str:
        """The line with every secret replaced by as many asterisks, so that columns stay where they are."""
        if line >= len(self._lines):
            return ""
        text = self._lines[line]
        for node in self._secrets:
            start, end = node.start_mark, node.end_mark
            if start.line <= line <= end.line:
                first = start.column if line == start.line else 0
                last = end.column if line == end.line else len(text)
                text = text[:first] + "*" * (last - first) + text[last:]
        return mask_text(text)

    def _problem(self, node: Node, path: SettingPath, what: str, write: str) -> None:
        self.document.problems.append(Problem(self.place(node), ".".join(path), what, write))


def shift(document: Document, path: SettingPath, offset: int) -> ConfigPlace:
    """The place of the character at `offset` inside a scalar, or of the whole scalar when that is unknown."""
    place = document.values[path]
    raw = document.raw.get(path, "")
    if place.line is None or place.column is None or "${" in raw or "$$" in raw:
        return place
    at = place.column - 1
    quote = 1 if place.width == len(raw) + 2 else 0
    if place.excerpt[at + quote : at + quote + len(raw)] != raw:
        return place
    return ConfigPlace(place.source, place.line, place.column + quote + offset, 1, place.excerpt)


def _plain_value(text: str) -> Any:
    """The value of a plain scalar: null, bool, int, float or str."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if re.fullmatch(r"[-+]?\d+", text) and len(text) <= _MOST_DIGITS:
        return int(text)
    if re.fullmatch(r"[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?", text):
        return float(text)
    return text


def _syntax_problem(error: MarkedYAMLError, text: str, source: str, in_file: bool) -> Problem:
    mark = error.problem_mark or error.context_mark
    what = f"is not YAML: {error.problem or error.context}"
    write = "indent with spaces, and put a value with `: `, `#`, `[` or `{` in quotes"
    if error.problem in ("mapping values are not allowed here", "could not find expected ':'"):
        write = f"put a colon and a blank behind each name, here and in the line before; {write}"
    elif error.problem == "expected <block end>, but found '<block mapping start>'":
        write = f"begin the names of a section in one column, here and in the lines before; {write}"
    if mark is None or not in_file:
        return Problem(ConfigPlace(source), "", what, write)
    lines = text.splitlines()
    if mark.line < len(lines) and "${" in lines[mark.line]:
        write = "inside { } and [ ] put `${...}` in quotes"
    excerpt = _SECRET_LINE.sub(_hide, lines[mark.line]) if mark.line < len(lines) else ""
    if _NAMED.match(excerpt) is None and any(map(is_secret, lines[: mark.line])):
        excerpt = ""  # it may continue a secret of several lines
    return Problem(ConfigPlace(source, mark.line + 1, mark.column + 1, 1, mask_text(excerpt)), "", what, write)


_NAMED = re.compile(r"\s*(?:- )?[\"']?[\w.$-]+[\"']?\s*:(?:\s|$)")


def _hide(match: re.Match[str]) -> str:
    # Without a tree the end of a value is unknown: everything after the first secret name on the line is hidden.
    whole = match.group()
    return whole if not is_secret(whole) else match["name"] + match["colon"] + MASK


class InterpolationError(ValueError):
    """A reference that cannot be filled in, at `offset` of the text and `width` characters long."""

    def __init__(self, what: str, write: str, offset: int, width: int) -> None:
        super().__init__(f"{what}; {write}")
        self.what = what
        self.write = write
        self.offset = offset
        self.width = width


def interpolate(text: str, environment: Mapping[str, str]) -> str:
    """The text with every reference filled in.

    Raises:
        InterpolationError: a variable that is not set and has no default, or a `${` that is no reference.
    """
    parts: list[str] = []
    position = 0
    for match in _REFERENCE.finditer(text):
        parts.append(text[position : match.start()])
        position = match.end()
        name, default = match.group("name", "default")
        if match.group() == "$$":
            parts.append("$")
        elif name is None:
            raise InterpolationError(
                "`${` does not begin a reference",
                "write `${NAME}` or `${NAME:-default}`, or `$$` for a dollar",
                match.start(),
                2,
            )
        elif name in environment and (environment[name] or default is None):
            parts.append(environment[name])
        elif default is not None:
            parts.append(default)
        else:
            close = difflib.get_close_matches(name, list(environment), n=1, cutoff=0.8)
            hint = f" (`{close[0]}` is)" if close else ""
            raise InterpolationError(
                f"the environment variable `{name}` is not set{hint}",
                f"set it, or write `${{{name}:-default}}`",
                match.start(),
                match.end() - match.start(),
            )
    return "".join(parts) + text[position:]
