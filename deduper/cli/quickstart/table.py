"""`deduper table quickstart`: two days of files, loaded twice into a table, and the plan of an upsert."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer

from deduper.cli.terminal import answer_console, print_parts
from deduper.cli.views.table.change import render_change
from deduper.errors import CheckFailedError, UsageError
from deduper.service.logs import configure_logging
from deduper.table.operations.changes import run_change, run_load
from deduper.table.operations.receipts import WriteReceipt
from deduper.table.settings import load_config

_FIRST_DAY = date(2025, 3, 1)
_REPEATED = 20
"""Of so many records one is delivered twice."""
_CHANGED = 10
_CONFIG = """\
source: {path: "in/*.parquet"}
table: {path: payments, format: delta}
key: [user, id]
partition_by: [day]
duplicates: duplicates
errors: errors
"""


def run_quickstart(directory: Path, records: int) -> None:
    """Makes the files, loads them twice, prints both receipts, and compares them with what was made.

    At last it prints the plan of an upsert, of payments of the first day with other amounts and a new one.

    Raises:
        UsageError: the folder has files already.
        CheckFailedError: a count is not the expected one.
    """
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; name another folder, or remove it")
    made, distinct = _make_files(directory / "in", records)
    file = directory / "load.yaml"
    file.write_text(_CONFIG, encoding="utf-8")
    loaded = load_config(file)
    typer.echo(f"{directory}/in: two days, {made:,} payments, {made - distinct:,} of them delivered twice")
    configure_logging(as_json=False, verbose=False)
    receipts = {"first load": run_load(loaded), "second load": run_load(loaded)}
    for name, receipt in receipts.items():
        typer.echo(f"{name:<12} {_line(receipt)}")
    expected = [(made, distinct, made - distinct, 0), (made, 0, 0, made)]
    found = [(one.rows, one.inserted, one.repeats, one.found) for one in receipts.values()]
    if found != expected:
        raise CheckFailedError(f"rows, new, repeats, in the table are {found}, and should be {expected}")
    typer.echo(f"as expected. Load again: deduper table load {file}")
    _make_changes(directory, distinct)
    change = directory / "upsert.yaml"
    change.write_text(_CONFIG.replace("in/*", "changed/*"), encoding="utf-8")
    typer.echo(f"\n{directory}/changed: {_CHANGED} payments of the first day with other amounts, and a new one")
    plan = run_change("upsert", load_config(change), execute=False)
    print_parts(answer_console(), render_change(plan))
    if (plan.updated, plan.inserted) != (_CHANGED, 1):
        raise CheckFailedError(f"{plan.updated} updates and {plan.inserted} inserts, and should be {_CHANGED} and 1")
    typer.echo(f"as expected. Do it: deduper table upsert {change} --execute")


def _line(receipt: WriteReceipt) -> str:
    return (
        f"{receipt.rows:>9,} rows  new {receipt.inserted:>9,}  repeats in the batch {receipt.repeats:>7,}  "
        f"in the table {receipt.found:>9,}  {receipt.seconds:5.1f} s"
    )


def _make_files(folder: Path, records: int) -> tuple[int, int]:
    """(records, different ones) in a file for each of two days."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    repeated = records // _REPEATED
    for number in range(2):
        day = _FIRST_DAY + timedelta(days=number)
        ids = np.arange(records) + number * records
        rows = rng.permutation(np.concatenate([np.arange(records), rng.choice(records, repeated, replace=False)]))
        users = [f"user-{user}" for user in rng.integers(0, 500, records)]
        payments = pa.table(
            {
                "user": pa.array(users),
                "id": pa.array(ids),
                "day": pa.array([day] * records, pa.date32()),
                "amount": pa.array(rng.integers(1, 10_000, records) / 100),
            }
        )
        pq.write_table(payments.take(pa.array(rows)), folder / f"payments-{day}.parquet")
    return 2 * (records + repeated), 2 * records


def _make_changes(directory: Path, new_id: int) -> None:
    """A file with payments of the first day and one more, with other amounts."""
    rows = pq.ParquetFile(min((directory / "in").iterdir())).read()
    old = rows.filter(pc.is_in(rows["id"], pc.unique(rows["id"])[:_CHANGED]))
    new = old.slice(0, 1).set_column(1, "id", pa.array([new_id]))
    changed = pa.concat_tables([old, new])
    (directory / "changed").mkdir()
    changed = changed.set_column(3, "amount", pa.array([0.5] * changed.num_rows))
    pq.write_table(changed, directory / "changed/payments.parquet")
