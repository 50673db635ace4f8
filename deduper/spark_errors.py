"""What a failure of Spark says, in one line, or with all that it knows."""

from __future__ import annotations

import re

# Behind the frames of a Python traceback, which are indented: the exception without its module.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?:\w+\.)*(\w.*)")


def innermost_cause(error: BaseException) -> str:
    """The innermost cause, what a Python worker has raised before all; else the first line; at most 500 characters."""
    text = whole_text(error).strip()
    raised = _TRACEBACK.findall(text)
    if raised:
        return str(raised[-1])[:500]
    causes = re.findall(r"^Caused by: (?:[\w$]+\.)*(.+)$", text, re.MULTILINE)
    return (causes[-1] if causes else text.split("\n", 1)[0])[:500]


def whole_text(error: BaseException) -> str:
    """Its message, and the stack trace of the JVM with all causes, which PySpark keeps beside the message."""
    trace = getattr(error, "_stackTrace", None)
    return f"{error}\n{trace}" if isinstance(trace, str) else str(error)
