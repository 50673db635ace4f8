"""The header of a CSV file beside the declared columns: what differs, in words without any value of a record. PURE.

Fields are columns by their order, so under another header each column would have the values of another. Names are equal
in any case, and blanks around them count for nothing. A header may end early: the columns that it lacks are null.
"""

from __future__ import annotations

from collections.abc import Sequence

from deduper.text.csv_exact import Layout, fields_in
from deduper.text.format import Malformed, TextFormat
from deduper.text.wrong import MASKED, masked

_MOST = 20
"""Names that are shown."""


def header_fault(line: bytes, declared: Sequence[str], delimiter: str) -> str | None:
    """What is wrong with the first line of a file of these columns; None when it is their header."""
    if not declared:
        return None
    expected = f"the header {_shown(declared)} is expected"
    try:
        text = line.decode().rstrip("\r")
        found = [name.strip() for name in fields_in(text, Layout(TextFormat((), "UTC", delimiter)))]
    except UnicodeDecodeError:
        return f"{expected}; the first line is not UTF-8"
    except Malformed as exc:
        return f"{expected}; in the first line {exc}"
    met, wanted = [name.lower() for name in found], [name.lower() for name in declared]
    if met == wanted[: len(met)]:
        return None
    if not text.strip():
        return f"{expected}; the first line is empty"
    # A line that is no header is a record, whose values are not shown.
    is_header = 2 * len({*met} & {*wanted}) > min(len(wanted), len(met))
    shown = found if is_header else [f'"{masked(name)}"' for name in found]
    return f"{expected}; the first line {'is' if is_header else 'has fields like'} {_shown(shown)}"


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(name if len(name) <= 2 * MASKED else f"{name[: 2 * MASKED]}…" for name in names[:_MOST])
    return shown + (f" and {len(names) - _MOST} more" if len(names) > _MOST else "")
