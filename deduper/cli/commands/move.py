"""Commands that move a store's state: to other shards, elsewhere, out of it, or back in time."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from deduper.cli.command import (
    READING,
    ConfigArgument,
    ExecuteOption,
    JsonOption,
    Panel,
    StoreArgument,
    VerboseOption,
    answer,
    app,
    command,
    size_of,
)
from deduper.errors import ExitCode, UsageError


class FileFormat(StrEnum):
    """The formats of files of records."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


@command(app, "reshard", *READING, ExitCode.FENCED, panel=Panel.MOVE)
def reshard(
    store: StoreArgument,
    shards: Annotated[
        int,
        typer.Option("--shards", min=1, max=4096, metavar="N", help="The new number of shards.", show_default=False),
    ],
    execute: ExecuteOption = False,
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="Use about so much memory; more makes larger pieces.")
    ] = "512MiB",
    as_json: JsonOption = False,
) -> None:
    """Divide a store's keys among another number of shards.

    Interrupted, it continues when it is repeated.
    """
    from deduper.admin.move import reshard as resharding
    from deduper.admin.open_store import open_store
    from deduper.cli.views.move import PartsShown, render_reshard

    part_bytes = size_of(memory, "--memory") // resharding.MEMORY_PER_PART_BYTE
    opened = open_store(store)
    if execute:
        report = resharding.reshard(opened, shards, part_bytes=part_bytes, on_part=PartsShown())
    else:
        report = resharding.plan_reshard(opened, shards, part_bytes=part_bytes)
    answer(report, render_reshard, as_json=as_json)


@command(app, "forget", *READING, ExitCode.FENCED, raw_values=True, panel=Panel.MOVE)
def forget(
    store: StoreArgument,
    values: Annotated[
        list[str], typer.Argument(metavar="VALUE...", help="One value for each column of the key.", show_default=False)
    ],
    null: Annotated[str, typer.Option("--null", metavar="TEXT", help="The text that stands for a null.")] = r"\N",
    execute: ExecuteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take one key out of a store; its next copy is unique.

    An audit names its digest.
    """
    from deduper.admin.keys.values import parse_key
    from deduper.admin.move import forget as forgetting
    from deduper.admin.open_store import open_store
    from deduper.cli.views.move import render_forget

    opened = open_store(store)
    try:
        key = parse_key(values, opened.key_columns, null=null)
        report = forgetting.forget(opened, key) if execute else forgetting.plan_forget(opened, key)
    except ValueError as error:
        raise UsageError(str(error)) from error
    answer(report, render_forget, as_json=as_json)


@command(app, "rewind", *READING, ExitCode.FENCED, panel=Panel.MOVE)
def rewind(
    config: ConfigArgument,
    to: Annotated[
        int, typer.Option("--to", min=0, metavar="WINDOW", help="The last window that stays.", show_default=False)
    ],
    execute: ExecuteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go back to an earlier window, exactly or not at all.

    Later outputs are named and set aside.
    """
    from deduper.admin.move import rewind as rewinding
    from deduper.admin.open_store import open_store
    from deduper.cli.views.move import render_rewind

    opened = open_store(str(config))
    report = rewinding.rewind(opened, to) if execute else rewinding.plan_rewind(opened, to)
    answer(report, render_rewind, as_json=as_json)


@command(app, "backup", *READING, ExitCode.FENCED, panel=Panel.MOVE)
def backup(
    store: StoreArgument,
    into: Annotated[
        str,
        typer.Option(
            "--into",
            metavar="STORE",
            help="The place of the copy, as file:/backup/clicks; an older copy there is brought up to date.",
            show_default=False,
        ),
    ],
    execute: ExecuteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy a store consistently, also while its job runs.

    The copy is a store that every command reads.
    """
    from deduper.admin.move import backup as copying
    from deduper.admin.open_store import open_store, store_url
    from deduper.cli.views.move import PartsShown, render_copy

    copy = copying.backup(open_store(store), store_url(into))
    answer(copy.run(PartsShown("piece")) if execute else copy.plan(), render_copy, as_json=as_json)


@command(app, "export", *READING, panel=Panel.MOVE)
def export(
    store: StoreArgument,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder for the Parquet files.", show_default=False)
    ],
    execute: ExecuteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a store's live keys as Parquet, one file a shard.

    A row has a salted digest, expiry key, window and origin.
    """
    from deduper.admin.move import export as exporting
    from deduper.admin.open_store import open_store
    from deduper.cli.views.move import PartsShown, render_export

    opened = open_store(store)
    report = exporting.export(opened, out, PartsShown("shard")) if execute else exporting.plan_export(opened, out)
    answer(report, render_export, as_json=as_json)


@command(app, "restore", *READING, ExitCode.FENCED, panel=Panel.MOVE)
def restore(
    config: ConfigArgument,
    source: Annotated[
        str, typer.Option("--from", metavar="STORE", help="The copy, as file:/backup/clicks.", show_default=False)
    ],
    execute: ExecuteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make the store of a config from a copy.

    The copy is read back. There must be no store yet.
    """
    from deduper.admin.move import backup as copying
    from deduper.admin.open_store import named_store, open_store, store_url
    from deduper.cli.views.move import PartsShown, render_copy

    copy = copying.restore(open_store(store_url(source)), named_store(str(config))[0])
    answer(copy.run(PartsShown("piece")) if execute else copy.plan(), render_copy, as_json=as_json)


@command(app, "seed", *READING, ExitCode.FENCED, panel=Panel.MOVE)
def seed(
    config: ConfigArgument,
    files: Annotated[
        str | None,
        typer.Option(
            "--files",
            metavar="PATH",
            help="Records in files, read as the job reads: a folder or a pattern.",
            show_default=False,
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            metavar="NAME",
            help="Or the committed records of a topic, up to its end as the seed begins.",
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option("--from", metavar="START", help='Of --topic: earliest, a time, or offsets such as {"0": 12}.'),
    ] = "earliest",
    brokers: Annotated[
        str | None,
        typer.Option("--brokers", metavar="SERVERS", help="Of --topic, if they are not the job's own."),
    ] = None,
    record_format: Annotated[
        FileFormat | None,
        typer.Option("--format", metavar="FORMAT", help="Of the input, if it is not the job's: json, csv or parquet."),
    ] = None,
    outputs: Annotated[
        bool,
        typer.Option("--outputs", help="The input is what the unique port has written, before its store was lost."),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--complete-since",
            metavar="POINT",
            help="State that with this input the store has every key with an expiry key from here on; `ever`: all.",
        ),
    ] = None,
    execute: ExecuteOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Fill a job's new store with earlier keys, without outputs.

    Interrupted, it continues when it is repeated.
    """
    from deduper.spark.allocator import keep_few_arenas

    keep_few_arenas()
    from deduper.cli.terminal import Messages, WindowLines, answer_console
    from deduper.cli.views.move import render_seed
    from deduper.config.load import load_config
    from deduper.seeding import run as seeding
    from deduper.seeding.source import SeedInput
    from deduper.service.logs import configure_logging

    loaded = load_config(config)
    if (files is None) == (topic is None):
        raise UsageError("name one input: --files PATH or --topic NAME")
    form = None if record_format is None else record_format.value
    if topic is not None:
        given = SeedInput("topic", topic, form, start, brokers, outputs)
    elif start != "earliest" or brokers is not None:
        raise UsageError("--from and --brokers are of a --topic")
    elif outputs and form is not None:
        raise UsageError("--format: the endings of --outputs say it, leave it out")
    else:
        given = SeedInput("files", str(Path(files or "").absolute()), form, is_of_outputs=outputs)
    statement = None if since is None else seeding.Statement.of(since, loaded)
    configure_logging(as_json=as_json, verbose=verbose, handler=Messages)
    if execute:
        on_progress = (lambda _: None) if as_json else WindowLines(answer_console(err=True))
        report = seeding.seed(loaded, given, statement, on_progress=on_progress)
    else:
        report = seeding.plan_seed(loaded, given, statement)
    answer(report, render_seed, as_json=as_json)
