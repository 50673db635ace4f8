"""The answers of `deduper table upsert`, `delete` and `rollback` as text."""

from __future__ import annotations

from rich.console import RenderableType

from deduper.cli.terminal import pairs
from deduper.cli.views.table.load import errors_line, tries_line, write_lines
from deduper.table.operations.receipts import ChangePlan, WriteReceipt
from deduper.table.operations.rollback import RollbackPlan, RollbackReceipt
from deduper.units import approximate_size, counted


def render_change(answer: ChangePlan | WriteReceipt) -> list[RenderableType]:
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
            tries_line(answer),
        ]
    return [pairs([*first, *_counts(answer), *last])]


def render_rollback(answer: RollbackPlan | RollbackReceipt) -> list[RenderableType]:
    """A plan, or what was done."""
    is_plan = not isinstance(answer, RollbackReceipt)
    goes = f"rollback to version {answer.to}"
    rows: list[tuple[str, object]] = [
        ("plan", f"{goes}; nothing is written") if is_plan else ("done", goes),
        ("files that go", _files(answer.removed_files, answer.removed_rows, answer.removed_bytes)),
        ("files that return", _files(answer.restored_files, answer.restored_rows, answer.restored_bytes)),
    ]
    rows += write_lines(answer) if isinstance(answer, RollbackReceipt) else [("table", f"version {answer.version}")]
    if not answer.is_needed:
        rows.append(("next", "nothing: the table is as it was in that version"))
    elif is_plan:
        rows.append(("next", "`deduper table rollback` with `--execute` does it"))
    return [pairs(rows)]


def _counts(answer: ChangePlan | WriteReceipt) -> list[tuple[str, object]]:
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


def _files(files: int, rows: int | None, size_bytes: int) -> str:
    if not files:
        return "no file"
    of_rows = "rows not known" if rows is None else counted(rows, "row")
    return f"{counted(files, 'file')}, {of_rows}, {approximate_size(size_bytes)}"
