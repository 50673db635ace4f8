"""One mistake in a configuration, and how a person sees it. PURE.

A problem is one line, `file:line:column: setting: what is wrong; what to write`, and below it the line of the file
with a caret under the place. A setting that came from the environment or from a flag names that instead of a file.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a setting, or the value of one, was written.

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
    """What is wrong with one setting. `setting` is a dotted path, empty for the file as a whole."""

    place: Place
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
