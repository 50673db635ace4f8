"""What a failure of Spark says, in one line."""

from __future__ import annotations

import re


def innermost_cause(error: BaseException) -> str:
    """The innermost cause of a Java exception, or the first line of any other; at most 500 characters."""
    text = str(error).strip()
    causes = re.findall(r"^Caused by: (?:[\w$]+\.)*(.+)$", text, re.MULTILINE)
    return (causes[-1] if causes else text.split("\n", 1)[0])[:500]
