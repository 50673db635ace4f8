"""The answers of `deduper table upsert` and `deduper table delete` as text."""

from __future__ import annotations

from rich.console import RenderableType

from deduper.cli.terminal import counted, pairs
from deduper.cli.views.table import errors_line, write_lines
from deduper.table.change.receipt import ChangePlan, ChangeReceipt
from deduper.units import approximate_size


def render_change(answer: ChangePlan | ChangeReceipt) -> list[RenderableType]:
    """A plan, or what was done."""
    if isinstance(answer, ChangePlan):
        first: list[tuple[str, object]] = [("plan", f"{answer.operation}; nothing is written")]
        last: list[tuple[str, object]] = [
            ("table", f"version {answer.version}" if answer.version >= 0 else "none yet"),
            ("rewritten", _files(answer.files, answer.file_rows, answer.size_bytes)),
            ("small files filled", f"{answer.filled_files:,} of them" if answer.filled_files else None),
            ("next", f"`deduper table {answer.operation}` with `--execute` does it"),
        ]
    else:
        first = [(answer.operation, answer.load)]
        rows = answer.carried_rows + answer.removed_rows
        last = [
            ("rewritten", _files(answer.removed_files, rows, answer.removed_bytes)),
            ("rows carried over", f"{answer.carried_rows:,}"),
            ("new files", f"{answer.files:,}"),
            *write_lines(answer),
        ]
    return [pairs([*first, *_counts(answer), *last])]


def _counts(answer: ChangePlan | ChangeReceipt) -> list[tuple[str, object]]:
    if answer.operation == "upsert":
        of_kind = [("inserted", f"{answer.inserted:,}"), ("updated", f"{answer.updated:,}")]
    else:
        of_kind = [("deleted", f"{answer.deleted:,}"), ("not in the table", f"{answer.absent:,}")]
    return [
        ("rows", f"{answer.rows:,}"),
        *of_kind,
        ("repeats in the batch", f"{answer.repeats:,}"),
        ("errors", errors_line(answer.errors)),
    ]


def _files(files: int, rows: int, size_bytes: int) -> str:
    return f"{counted(files, 'file')}, {counted(rows, 'row')}, {approximate_size(size_bytes)}" if files else "no file"
