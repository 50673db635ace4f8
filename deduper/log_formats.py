"""The formats of logs by their names in settings, and the fields of a web server's line. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from deduper.columns import Column

WEB_LOGS: Final = ("common_log", "combined_log")
LOGFMT: Final = "logfmt"
LOGS: Final = (*WEB_LOGS, LOGFMT)
COMMON_FIELDS: Final = ("host", "ident", "user", "time", "request", "method", "target", "protocol", "status", "bytes")
FIELDS: Final = (*COMMON_FIELDS, "referer", "agent", "rest")
"""In the order of the kernel's numbers. Lines of `common_log` lack `referer` and `agent`."""
TIME: Final = "time"


def fields_of(form: str) -> tuple[str, ...]:
    """The names of the fields of a web server's line."""
    return FIELDS if form == "combined_log" else (*COMMON_FIELDS, "rest")


def wrong_columns(form: str, columns: Iterable[Column], *, all_in_lines: bool) -> Iterator[tuple[str, str]]:
    """(what is wrong, what to write) of each column that lines of a log cannot give; none for other formats.

    `all_in_lines`: no column may come from elsewhere, as from the path of a file.
    """
    for column in columns if form in LOGS else ():
        if not column.type.is_scalar:
            what = f"a field of {form} cannot hold column `{column.name}` of type {column.type.text}"
            yield what, "declare it as string"
        elif form in WEB_LOGS and column.name == TIME and column.type.name not in ("timestamp", "string"):
            what = f"column `{TIME}` is {column.type.text}, and the time of {form} is an instant"
            yield what, f"declare it as timestamp, or as string: `{TIME} timestamp`"
        elif form in WEB_LOGS and all_in_lines and column.name not in fields_of(form):
            yield f"{form} has no field `{column.name}`", f"its fields are {', '.join(fields_of(form))}"
