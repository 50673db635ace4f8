"""What a failure of Spark says, in one line, or with all that it knows."""

from __future__ import annotations

import re


def innermost_cause(error: BaseException) -> str:
    """The innermost cause of a Java exception, or the first line of any other; at most 500 characters."""
    text = whole_text(error).strip()
    causes = re.findall(r"^Caused by: (?:[\w$]+\.)*(.+)$", text, re.MULTILINE)
    return (causes[-1] if causes else text.split("\n", 1)[0])[:500]


def whole_text(error: BaseException) -> str:
    """Its message, and the stack trace of the JVM with all causes, which PySpark keeps beside the message."""
    trace = getattr(error, "_stackTrace", None)
    return f"{error}\n{trace}" if isinstance(trace, str) else str(error)
