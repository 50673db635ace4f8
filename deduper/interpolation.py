"""`${VAR}` and `${VAR:-default}` in the values of a configuration. PURE.

`$$` is one `$`; a `$` before anything else is itself. The default stands in when the variable is unset or empty, as in
a shell. What a variable holds is never looked at again: a value with `${` in it stays as it is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{")


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
                "`${` begins no reference",
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
