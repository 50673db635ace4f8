"""Mistakes in a configuration, their messages, and the masking of secrets. PURE.

A problem is one line, `file:line:column: setting: what is wrong; what to write`, and below it the line of the file
with a caret under the place. A setting that came from the environment or from a flag names that instead of a file.

A setting is secret by its name. Logins in URLs and broker lists, and the text after `password=` and the like, are
hidden in every setting.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from deduper.errors import DeduperError, ExitCode

MASK = "***"

_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|secret|token|credential|sasl\.jaas|key.*pass|private.?key|access.?key|account\.key"
    r"|keystore\.key"
    r"|\bkey\.pem",
    re.I,
)
# Up to the last @ of a URL's authority: a password may hold one. A broker list has no scheme.
_USER_INFO = re.compile(r"(?<=://)[^/\s]+(?=@)|(?<![\w.:/@-])[^\s/@:,\"'`]+:[^\s/@,]+(?=@[\w.\[-])")
_ASSIGNED = re.compile(r"(?i)((?:password|passwd|passphrase|secret|token|credential)[\w.]*=)[^\s,;&]+")


def is_secret(name: str) -> bool:
    """Whether the value of a setting of this name, or of any part of its dotted path, is secret."""
    return _SECRET_NAME.search(name) is not None


def masked(name: str, value: object) -> object:
    """The value as it may be printed."""
    if is_secret(name):
        return MASK
    return mask_text(value) if isinstance(value, str) else value


def mask_text(text: str) -> str:
    """The text without logins of URLs and brokers, and without what is assigned to a password."""
    return _ASSIGNED.sub(rf"\1{MASK}", _USER_INFO.sub(MASK, text))


@dataclass(frozen=True, slots=True)
class ConfigMistake:
    """A mistake in the setting at `path`; `at_key` puts the caret under its name instead of its value."""

    path: tuple[str, ...]
    what: str
    write: str
    at_key: bool = False
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class ConfigPlace:
    """The place where a setting, or its value, was written.

    `line` and `column` count from 1 and are None outside files; `excerpt` is the line with its secrets masked, and
    `width` is how many characters of it the caret underlines.
    """

    source: str
    line: int | None = None
    column: int | None = None
    width: int = 1
    excerpt: str = ""

    @property
    def label(self) -> str:
        """`file:line:column`, or the variable or flag."""
        if self.line is None:
            return self.source
        return f"{self.source}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake in one setting. `setting` is a dotted path, empty for the file as a whole."""

    place: ConfigPlace
    setting: str
    what: str
    write: str = ""

    @property
    def headline(self) -> str:
        """The problem on one line."""
        subject = f"{self.setting}: " if self.setting else ""
        advice = f"; {self.write}" if self.write else ""
        return f"{self.place.label}: {subject}{self.what}{advice}"

    @property
    def picture(self) -> list[str]:
        """The line of the file and a caret under the place, both indented; empty outside files."""
        place = self.place
        if place.line is None or place.column is None or not place.excerpt:
            return []
        gutter = f"{place.line:>5} | "
        before = place.excerpt[: place.column - 1]
        padding = "".join("\t" if character == "\t" else " " for character in before)
        return [gutter + place.excerpt, " " * 5 + " | " + padding + "^" * max(1, place.width)]

    def to_json(self) -> dict[str, object]:
        """Stable keys for `--json`."""
        return {
            "source": self.place.source,
            "line": self.place.line,
            "column": self.place.column,
            "setting": self.setting,
            "what": self.what,
            "write": self.write,
        }


def render(problems: tuple[Problem, ...]) -> str:
    """All problems as text, each with its picture."""
    return "\n".join(line for problem in problems for line in (problem.headline, *problem.picture))


class ConfigError(DeduperError):
    """All the mistakes of a configuration at once. The operator: correct them; nothing was started."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(render(self.problems))


def suggestion(wrong: str, known: list[str], listing: str) -> str:
    """`did you mean …?` when one known name is close, otherwise the list of them."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wrong.lower(), by_lower)
    if close:
        return f"did you mean `{by_lower[close[0]]}`?"
    return f"{listing} {', '.join(known)}"
