"""The answers of `deduper table` as text."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType
from rich.text import Text

from deduper.cli.terminal import pairs, table
from deduper.table.index.protocol import Condition, IndexStatus
from deduper.table.index.simple import NOT_KEPT
from deduper.table.operations.receipts import ChangePlan, WriteReceipt
from deduper.table.operations.rollback import RollbackPlan, RollbackReceipt
from deduper.table.operations.upkeep import PendingLoad, RebuildReceipt, TableStatus
from deduper.table.operations.verify import TableVerification
from deduper.units import approximate_size, counted


def render_load(receipt: WriteReceipt) -> list[RenderableType]:
    """The counts of a load, and the files in which keys were found."""
    rows: list[tuple[str, object]] = [
        ("load", receipt.load),
        ("rows", f"{receipt.rows:,}"),
        ("new", f"{receipt.inserted:,} in {counted(receipt.files, 'file')}"),
        ("repeats in the batch", f"{receipt.repeats:,}"),
        ("in the table", f"{receipt.found:,}"),
        ("errors", _errors_line(receipt.errors)),
        *_write_lines(receipt),
        _tries_line(receipt),
    ]
    parts: list[RenderableType] = [pairs(rows)]
    if receipt.found_in:
        parts.append(
            table(("first file of the keys found", "rows"), [(one.path, one.rows) for one in receipt.found_in])
        )
    return parts


def _errors_line(errors: Mapping[str, int]) -> str:
    """Errors by reason."""
    return ", ".join(f"{count:,} {reason}" for reason, count in errors.items()) or "0"


def _write_lines(receipt: WriteReceipt | RollbackReceipt) -> list[tuple[str, object]]:
    """Lines that all receipts of writes share."""
    index = f"built: {receipt.began_anew}" if receipt.began_anew else None
    if receipt.read_files:
        index = f"{index + ', ' if index else ''}{counted(receipt.read_files, 'file')} of the table read first"
    return [
        ("table", f"version {receipt.version}" if receipt.version >= 0 else "none yet"),
        ("index", index),
        ("completed", f"{counted(receipt.completed, 'earlier load')} that had died" if receipt.completed else None),
        ("time", f"{receipt.seconds:.1f} s"),
    ]


def _tries_line(receipt: WriteReceipt) -> tuple[str, object]:
    """How often the batch was judged, if more than once."""
    return "tries", f"{receipt.tries}: other writers were faster" if receipt.tries > 1 else None


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
            *_write_lines(answer),
            _tries_line(answer),
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
    rows += _write_lines(answer) if isinstance(answer, RollbackReceipt) else [("table", f"version {answer.version}")]
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
        ("errors", _errors_line(answer.errors)),
    ]


def _files(files: int, rows: int | None, size_bytes: int) -> str:
    if not files:
        return "no file"
    of_rows = "rows not known" if rows is None else counted(rows, "row")
    return f"{counted(files, 'file')}, {of_rows}, {approximate_size(size_bytes)}"


def render_status(status: TableStatus) -> list[RenderableType]:
    """The table, its index, and what loads have staged."""
    index = status.index
    table_line = f"version {status.version}, {counted(status.rows, 'row')} in {counted(status.files, 'file')}"
    size = None
    if index.keys:
        entries = counted(index.keys, "entry", "entries")
        size = f"{entries}, {approximate_size(index.size_bytes)}, {index.bytes_a_key:.1f} bytes each"
    rows: list[tuple[str, object]] = [
        ("table", table_line if status.version >= 0 else f"none yet in {status.path}"),
        ("index", _index_line(index)),
        ("size", size),
        ("new index", _rebuilding_line(status.rebuilding)),
        *(("pending load", _pending_line(load)) for load in status.pending),
    ]
    return [pairs(rows)]


def render_verify(report: TableVerification) -> list[RenderableType]:
    """Counts, findings by file, and the verdict."""
    index = f"not compared: {report.not_compared}" if report.not_compared else "compared"
    if report.not_compared not in (None, NOT_KEPT):
        index += "; the next load builds it"
    if report.unindexed:
        index += f"; it lacks {counted(report.unindexed, 'file')}, which the next load reads"
    wrong = [
        (report.missing, "key", "not in the index: a load would add such rows again"),
        (report.extra, "entry", "of no row: a load would take new rows for duplicates"),
        (report.repeated, "row", "whose key the table has before: another writer added them"),
    ]
    found = [f"{counted(count, noun, 'entries' * (noun == 'entry'))} {what}" for count, noun, what in wrong if count]
    rows: list[tuple[str, object]] = [
        ("table", f"version {report.version}, {counted(report.files, 'file')}"),
        ("rows", f"{report.rows:,}, {counted(report.keys, 'key')}"),
        ("index", index),
        *(("found", Text(line, style="red")) for line in found),
        ("verdict", Text("NOT sound", style="bold red") if found else Text("sound", style="green")),
        ("next", "`deduper table rebuild` builds the index again" if report.missing or report.extra else None),
    ]
    parts: list[RenderableType] = [pairs(rows)]
    if report.found_in:
        of_files = [(one.path, one.missing, one.extra, one.repeated) for one in report.found_in]
        parts.append(table(("file with findings", "missing", "extra", "repeated"), of_files))
    return parts


def render_rebuild(receipt: RebuildReceipt) -> list[RenderableType]:
    """The index that was made."""
    is_all = receipt.read_files == receipt.files
    read = f"{receipt.files:,}, all read" if is_all else f"{receipt.files:,}, {receipt.read_files:,} read"
    rows: list[tuple[str, object]] = [
        ("table", f"version {receipt.version}"),
        ("files", read),
        ("index", f"{counted(receipt.keys, 'key')}, {approximate_size(receipt.size_bytes)}"),
        ("began", "by an interrupted rebuild, which this one continued" if receipt.is_continued else None),
        ("time", f"{receipt.seconds:.1f} s"),
    ]
    return [pairs(rows)]


def _index_line(index: IndexStatus) -> str:
    gone = f"{counted(index.removed, 'file')} that the table has no more; their keys do not count"
    match index.state:
        case Condition.PRESENT:
            return "present: it has every file of the table, and no others"
        case Condition.BEHIND:
            lacks = f"behind: it lacks {counted(index.added, 'file')}, which the next load reads"
            return f"{lacks}; it has {gone}" if index.removed else lacks
        case Condition.AHEAD:
            return f"ahead: it has {gone}"
        case _:
            return f"{index.state.value.replace('_', ' ')}: {index.why}"


def _rebuilding_line(keys: int | None) -> str | None:
    if keys is None:
        return None
    return f"{counted(keys, 'key')} so far: a rebuild runs, or was interrupted and the next one continues"


def _pending_line(load: PendingLoad) -> str:
    rows = f"planned, {counted(load.rows, 'row' if load.removed_files else 'new row')} in {counted(load.files, 'file')}"
    if load.removed_files:
        rows += f" in the place of {counted(load.removed_files, 'file')}"
    step = rows if load.is_planned else "staging"
    return f"{load.load}, {step}: it runs, or has died and the next load completes or removes it"
