"""Rules between settings: each reads the sections it needs and reports contradictions. PURE.

The rules apply to all sound sections, so a mistake in one section hides none between the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

from deduper.columns import Column, ColumnType
from deduper.config import fingerprint
from deduper.config.apart import clashes, overlap
from deduper.config.files import FileSink, FilesSource
from deduper.config.kafka.options import KafkaOptionsError, connection_options, librdkafka_options, reading_options
from deduper.config.kafka.sections import KafkaSink, KafkaSource
from deduper.config.problems import ConfigMistake, suggestion
from deduper.config.sections import (
    CategoryExpiry,
    EventTimeExpiry,
    ExpiryConfig,
    OrderedExpiry,
    ProcessingTimeExpiry,
    SinksConfig,
    SourceConfig,
    StoreConfig,
)
from deduper.config.values import unknown_groups
from deduper.expiry_key import ExpiryKeyScale
from deduper.log_formats import wrong_columns
from deduper.payload import USUAL_VERSIONS, leaves_named
from deduper.spark_promises import (
    DEFAULT_MASTER,
    EXECUTOR_JAVA_OPTIONS,
    FIXED_BY_STORE,
    JAVA_OPTIONS,
    TIME_ZONE,
    broken,
    is_one_process,
    is_this_machine,
)
from deduper.time_zones import time_zone
from deduper.units import MAX_I64, format_duration

_EPOCH_TYPES = ("int", "bigint")
_ORDERED_TYPES = ("int", "bigint", "decimal", "double")
_CATEGORY_TYPES = ("string", "date", "boolean", "tinyint", "smallint", "int", "bigint")
_LONGEST_LONG_DECIMAL = 18
_MASTER, _DEPLOY_MODE = "spark.master", "spark.submit.deployMode"


def disagreements(sections: Mapping[str, Any]) -> list[ConfigMistake]:
    """Everything that does not fit between the sections given by name; a section that is absent is not judged."""
    found: list[ConfigMistake] = []
    for needs, rule in _RULES:
        if all(sections.get(name) is not None for name in needs):
            found.extend(rule(*(sections[name] for name in needs)))
    return found


def _line_settings(source: SourceConfig) -> Iterator[ConfigMistake]:
    if not isinstance(source, FilesSource):
        return  # `KafkaValue` checks its own
    if source.file_format != "csv":
        for name in ("delimiter", "header"):
            if getattr(source, name) == FilesSource.model_fields[name].default:
                continue
            yield ConfigMistake(
                ("source", name),
                f"does not apply to {source.file_format} files",
                "remove it, or write `file_format: csv`",
                at_key=True,
            )
        for what, write in wrong_columns(source.file_format, source.parsed_columns, all_in_lines=False):
            yield ConfigMistake(("source", "schema"), what, write)
        return
    for column in source.parsed_columns:
        if not column.type.is_scalar:
            yield ConfigMistake(
                ("source", "schema"),
                f"a CSV field cannot hold column `{column.name}` of type {column.type.text}",
                "declare it as string, or read JSON or Parquet",
            )


def _name_groups(source: SourceConfig) -> Iterator[ConfigMistake]:
    if isinstance(source, FilesSource) and source.name_pattern is not None:
        for what, write in unknown_groups(source.name_pattern, source.parsed_columns):
            yield ConfigMistake(("source", "name_pattern"), what, write)


def _json_maps(source: SourceConfig) -> Iterator[ConfigMistake]:
    """The names of a JSON object are texts."""
    path: tuple[str, ...]
    if isinstance(source, FilesSource) and source.file_format == "json":
        path, columns = ("source", "schema"), source.parsed_columns
    elif isinstance(source, KafkaSource) and source.value.format == "json":
        path, columns = ("source", "value", "schema"), source.value.parsed_columns
    else:
        return
    for column in columns:
        kind = next((kind for kind in _map_keys(column.type) if kind.name != "string"), None)
        if kind is not None:
            what = f"column `{column.name}` has a map with keys of type {kind.text}, and names in JSON are texts"
            yield ConfigMistake(path, what, "write `map<string,…>`")


def _map_keys(kind: ColumnType) -> Iterator[ColumnType]:
    if kind.name == "map":
        yield kind.parts[0].type
    for part in kind.parts:
        yield from _map_keys(part.type)


def _key_columns(source: SourceConfig, key: tuple[str, ...]) -> Iterator[ConfigMistake]:
    for position, name in enumerate(key):
        path = ("key", str(position))
        column = source.column(name)
        if name in key[:position]:
            yield ConfigMistake(path, f"column `{name}` appears twice", "name every column once")
        elif column is None:
            parts = [part.strip() for part in name.split(",")]
            is_list = len(parts) > 1 and all(map(source.column, parts))
            missing = _no_column(path, name, source)
            yield replace(missing, write=f"write `key: [{', '.join(parts)}]`") if is_list else missing
        elif not column.type.is_scalar:
            yield ConfigMistake(
                path,
                f"column `{name}` is {column.type.text}, which cannot be part of a key",
                "name columns such as string, bigint, date or timestamp",
            )


_LEAST_SLACK_US = 1_000_000


def _order(source: SourceConfig, expiry: ExpiryConfig) -> Iterator[ConfigMistake]:
    if not isinstance(source, KafkaSource) or source.order != "time" or source.slack is None:
        return
    if not isinstance(expiry, EventTimeExpiry):
        what = f"`time` does nothing for records that expire by {expiry.by}"
        yield ConfigMistake(("source", "order"), what, "remove it and `slack`, or write `expiry: {by: event_time, …}`")
    elif source.slack > expiry.period:
        what = f"lets partitions be further apart than the period of {format_duration(expiry.period)}"
        yield ConfigMistake(("source", "slack"), what, "write a part of the period")
    elif source.slack < _LEAST_SLACK_US:
        what = "is less than time stamps tell apart"
        yield ConfigMistake(("source", "slack"), what, "write a second or more")


def _expiry_column(source: SourceConfig, expiry: ExpiryConfig) -> Iterator[ConfigMistake]:
    if not isinstance(expiry, EventTimeExpiry | OrderedExpiry | CategoryExpiry):
        return
    path = ("expiry", "field")
    column = source.column(expiry.field)
    if column is None:
        yield _no_column(path, expiry.field, source)
    elif isinstance(expiry, EventTimeExpiry):
        yield from _event_time_column(expiry, column)
    elif isinstance(expiry, OrderedExpiry):
        yield from _ordered_column(expiry, column)
    elif column.type.name not in _CATEGORY_TYPES:
        yield ConfigMistake(
            path,
            f"column `{column.name}` is {column.type.text}, which cannot be a category",
            f"name a column of type {_either(_CATEGORY_TYPES)}",
        )


def _event_time_column(expiry: EventTimeExpiry, column: Column) -> Iterator[ConfigMistake]:
    if column.type.name == "timestamp":
        if expiry.unit is not None:
            yield ConfigMistake(
                ("expiry", "unit"),
                f"column `{column.name}` is a timestamp, which has its own unit",
                "remove `unit`",
                at_key=True,
            )
    elif column.type.name in _EPOCH_TYPES:
        if expiry.unit is None:
            yield ConfigMistake(
                ("expiry", "unit"),
                f"is missing: column `{column.name}` is {column.type.text}, which has no unit of its own",
                "write `unit: s`, `unit: ms` or `unit: us`",
            )
    else:
        yield ConfigMistake(
            ("expiry", "field"),
            f"column `{column.name}` is {column.type.text}, which is not a time",
            "declare the column as timestamp, or as bigint and write its `unit`",
        )


def _ordered_column(expiry: OrderedExpiry, column: Column) -> Iterator[ConfigMistake]:
    kind = column.type
    if kind.name not in _ORDERED_TYPES or (kind.precision or 0) > _LONGEST_LONG_DECIMAL:
        advice = (
            "write `by: event_time` for times"
            if kind.name.startswith("timestamp")
            else "declare it as int, bigint, double, or a decimal of at most 18 digits"
        )
        yield ConfigMistake(
            ("expiry", "field"), f"column `{column.name}` is {kind.text}, which `ordered` cannot use", advice
        )
        return
    scale = ExpiryKeyScale.of("ordered", kind)
    for name in ("period", "span", "max_jump"):
        number = getattr(expiry, name)
        if number is None:
            continue
        try:
            steps = scale.steps(number)
        except ValueError:
            smallest = "whole numbers" if not kind.scale else f"{kind.scale} digits after the point"
            yield ConfigMistake(
                ("expiry", name),
                f"{number} is between two values of column `{column.name}`, which is {kind.text}",
                f"write it with {smallest}" if not kind.scale else f"write it with at most {smallest}",
            )
            continue
        if not scale.is_float and steps > MAX_I64:
            yield ConfigMistake(("expiry", name), f"{number} is too large for {kind.text}", "write a smaller number")


_COLUMNS_OF = {"files": "source.schema has", "kafka": "source.value.schema and source.record have"}


def _no_column(path: tuple[str, ...], name: str, source: SourceConfig) -> ConfigMistake:
    names = [column.name for column in source.parsed_columns]
    what = f"{_COLUMNS_OF.get(source.format, 'the DataFrame has')} no column `{name}`"
    if leaves_named(name, source.parsed_columns):
        column = name.replace(".", "_")
        write = f'`rows.withColumn("{column}", rows["{name}"])` in a query of your own, and `{column}` here'
        return ConfigMistake(path, f"{what}: it is a field of an object", f"write {write}")
    return ConfigMistake(path, what, suggestion(name, names, "columns are"))


def _span(expiry: ExpiryConfig) -> Iterator[ConfigMistake]:
    if (
        isinstance(expiry, EventTimeExpiry | OrderedExpiry | ProcessingTimeExpiry)
        and expiry.span is not None
        and expiry.span > expiry.period
    ):
        yield ConfigMistake(("expiry", "span"), "is longer than the period", "write at most the period")


def _sink_paths(sinks: SinksConfig) -> Iterator[ConfigMistake]:
    for clash in clashes({port: sink.url for port, sink in sinks.items() if isinstance(sink, FileSink)}):
        same = f"is also the path of port `{clash.other}`"
        inside = f"overlaps the path of port `{clash.other}`: one lies inside the other"
        yield ConfigMistake(
            ("sinks", clash.name, "path"), same if clash.is_same else inside, "give every port its own directory"
        )


def _sinks_apart_from_source(source: SourceConfig, sinks: SinksConfig) -> Iterator[ConfigMistake]:
    if not isinstance(source, FilesSource):
        return
    folder = source.folder
    for port, sink in sinks.items():
        if isinstance(sink, FileSink) and overlap(sink.url, folder):
            yield ConfigMistake(
                ("sinks", port, "path"),
                f"overlaps source.path ({folder}): the job would read its own output",
                "keep input and output in separate directories",
            )


def _store_apart_from_source(source: SourceConfig, store: StoreConfig) -> Iterator[ConfigMistake]:
    if isinstance(source, FilesSource) and store.is_local and overlap(store.path, source.folder):
        yield ConfigMistake(
            ("store", "url"),
            f"overlaps source.path ({source.folder}): one lies inside the other",
            "keep the store outside the input",
        )


def _sinks_apart_from_store(store: StoreConfig, sinks: SinksConfig) -> Iterator[ConfigMistake]:
    for port, sink in sinks.items():
        if isinstance(sink, FileSink) and overlap(sink.url, store.path if store.is_local else store.url):
            yield ConfigMistake(
                ("sinks", port, "path"),
                f"overlaps the store ({store.place}): one lies inside the other",
                "keep the store and the outputs in separate directories",
            )


def _conflicts_are_seen(setting: object, on_conflict: str) -> Iterator[ConfigMistake]:
    if setting == "none" and on_conflict != "duplicate":
        what = "does nothing without `fingerprint`: no payload is compared"
        yield ConfigMistake(("on_conflict",), what, "add `fingerprint: all`, or remove it", at_key=True)


def _versions_are_kept(on_conflict: str, max_versions: int) -> Iterator[ConfigMistake]:
    if on_conflict != "unique" and max_versions != USUAL_VERSIONS:
        what = f"does nothing with `on_conflict: {on_conflict}`: a key has one version"
        yield ConfigMistake(("max_versions",), what, "add `on_conflict: unique`, or remove it", at_key=True)


def _csv_sinks_are_flat(source: SourceConfig, sinks: SinksConfig) -> Iterator[ConfigMistake]:
    nested = [column for column in source.parsed_columns if not column.type.is_scalar or column.type.name == "binary"]
    for port, sink in sinks.items():
        if nested and isinstance(sink, FileSink) and sink.format == "csv":
            yield ConfigMistake(
                ("sinks", port, "format"),
                f"CSV cannot hold column `{nested[0].name}` of type {nested[0].type.text}",
                "write `format: parquet` or `format: json`",
            )


def _store_of_all_hosts(
    store: StoreConfig, spark: Mapping[str, object], shared: tuple[Path, ...]
) -> Iterator[ConfigMistake]:
    """With a local master any store will do; one that other hosts can reach too is only slower there."""
    master = str(spark.get(_MASTER, DEFAULT_MASTER))
    if is_one_process(master):
        return
    if store.backend == "rocksdb":
        yield ConfigMistake(
            ("store", "url"),
            f"`rocksdb:` stores are of one process, and `spark.master: {master}` has executors of their own",
            f"{_SHARED_STORE}, or `spark.master: local[*]`",
        )
    elif store.backend == "file" and not is_this_machine(master) and not _is_below(store.path, shared):
        yield ConfigMistake(
            ("store", "url"),
            f"{store.path} is a folder of this machine, and `spark.master: {master}` has executors on others",
            f"{_SHARED_STORE}, or `spark.master: local[*]`",
        )


def _files_of_all_hosts(
    source: SourceConfig, sinks: SinksConfig, spark: Mapping[str, object], shared: tuple[Path, ...]
) -> Iterator[ConfigMistake]:
    master = str(spark.get(_MASTER, DEFAULT_MASTER))
    if is_this_machine(master):
        return
    of_files = [(("source", "path"), source.folder)] if isinstance(source, FilesSource) else []
    ports = [
        (("sinks", port, "path"), sink.path)
        for port, sink in sinks.items()
        if isinstance(sink, FileSink) and sink.is_local
    ]
    for path, folder in (*of_files, *ports):
        if not _is_below(folder, shared):
            yield ConfigMistake(
                path,
                f"{folder} is a folder of this machine, and `spark.master: {master}` has executors on others",
                "name the mount that all hosts see in `shared_folders`, or write `spark.master: local[*]`",
            )


def _driver_is_here(spark: Mapping[str, object]) -> Iterator[ConfigMistake]:
    if str(spark.get(_DEPLOY_MODE, "client")).strip().lower() != "client":
        yield ConfigMistake(
            ("spark", _DEPLOY_MODE),
            "the driver is the process of `deduper run`: it stops at a signal, and serves metrics and status",
            "write `client`, and start `deduper run` on a host, or in a pod, of the cluster",
        )


_SHARED_STORE = "write `hdfs://…`, `s3://…`, or `file:PATH` on a mount that you name in `shared_folders`"


def _is_below(path: Path, folders: tuple[Path, ...]) -> bool:
    return any(folder == path or folder in path.parents for folder in folders)


def _promised_settings(spark: Mapping[str, object]) -> Iterator[ConfigMistake]:
    for name, needed in broken(spark):
        if name in (JAVA_OPTIONS, EXECUTOR_JAVA_OPTIONS):
            what, write = "changes a property of the JVM", f"write `{needed.value}`, or remove it"
        else:
            what = f"cannot be `{spark[name]}`"
            write = "remove it" + ("" if needed.value is None else f": the job sets `{needed.value}`")
        yield ConfigMistake(("spark", name), f"{what}: a promise depends on it ({needed.promise})", write)


def _zone_is_one(spark: Mapping[str, object]) -> Iterator[ConfigMistake]:
    name = str(spark.get(TIME_ZONE, FIXED_BY_STORE[TIME_ZONE]))
    if time_zone(name) is None:
        zones = sorted(zone for zone in available_timezones() if time_zone(zone) is not None)
        near = get_close_matches(name, zones, 1)
        write = f"write `{near[0]}`" if near else "write a name such as Europe/Paris, or an offset such as +02:00"
        yield ConfigMistake(("spark", TIME_ZONE), f"`{name}` is no time zone", write)


def _client_options(source: SourceConfig) -> Iterator[ConfigMistake]:
    """The job's clients must be able to connect and to read."""
    if isinstance(source, KafkaSource):
        path = ("source", "options")
        connecting = connection_options(source.options)
        yield from _refused(path, partial(librdkafka_options, source.bootstrap_servers, connecting))
        yield from _refused(path, partial(reading_options, source.options))


def _port_options(source: SourceConfig, sinks: SinksConfig) -> Iterator[ConfigMistake]:
    """Options that a port inherits from the source are checked there."""
    reported = source.options if isinstance(source, KafkaSource) else {}
    for port, sink in sinks.items():
        if not isinstance(sink, KafkaSink):
            continue
        path = ("sinks", port, "options")
        own = {name: value for name, value in sink.options.items() if reported.get(name) != value}
        yield from _refused(path, partial(librdkafka_options, sink.bootstrap_servers, own))


def _refused(path: tuple[str, ...], translated: Callable[[], object]) -> Iterator[ConfigMistake]:
    try:
        translated()
    except KafkaOptionsError as error:
        yield ConfigMistake((*path, error.option) if error.option else path, error.what, error.write, at_key=True)


def _ports_have_records(source: SourceConfig, sinks: SinksConfig) -> Iterator[ConfigMistake]:
    """A topic gets the records as they were read: key, value, headers, timestamp. Files have none of them."""
    if not isinstance(source, FilesSource):
        return
    for port, sink in sinks.items():
        if isinstance(sink, KafkaSink):
            yield ConfigMistake(
                ("sinks", port, "format"),
                "sends records of a Kafka source, but the source is files",
                f"write `{port}: {{format: parquet, path: out/{port}}}`, or read from Kafka",
            )


def _ports_send_elsewhere(source: SourceConfig, sinks: SinksConfig) -> Iterator[ConfigMistake]:
    """A job that reads what it wrote never ends."""
    if not isinstance(source, KafkaSource):
        return
    brokers = _brokers(source.bootstrap_servers)
    for port, sink in sinks.items():
        if not isinstance(sink, KafkaSink) or not source.reads(sink.topic):
            continue
        if not sink.bootstrap_servers or brokers & _brokers(sink.bootstrap_servers):
            which = f"`{sink.topic}` is a topic of the source"
            if source.topic_pattern is not None:
                which = f"`{sink.topic}` matches source.topic_pattern"
            what = f"{which}: the job would read its own output"
            yield ConfigMistake(("sinks", port, "topic"), what, "send to another topic")


def _brokers(servers: str) -> set[str]:
    """host:port of each, this machine under one name."""
    lowered = (server.lower() for server in servers.split(","))
    return {server.replace("127.0.0.1:", "localhost:").replace("[::1]:", "localhost:") for server in lowered}


def _tombstones_have_keys(
    source: SourceConfig, key: tuple[str, ...], null_keys: str, expiry: ExpiryConfig
) -> Iterator[ConfigMistake]:
    """A tombstone has no value: columns that must not be null have to come from elsewhere in the record."""
    if not isinstance(source, KafkaSource) or source.tombstones == "error":
        return
    path = ("source", "tombstones")
    of_value = [column.name for column in source.value.parsed_columns]
    in_value = [name for name in key if name in of_value]
    if in_value and null_keys == "error":
        yield ConfigMistake(
            path,
            f"key column `{in_value[0]}` is in the value, which a tombstone lacks: each tombstone would be an error",
            "take the key from the record (`record: {user: key}`), or write `null_keys: allow` or `tombstones: error`",
        )
    field = getattr(expiry, "field", None)
    if field in of_value:
        yield ConfigMistake(
            path,
            f"expiry.field `{field}` is in the value, which a tombstone lacks: each tombstone would be an error",
            "take it from the record (`record: {arrived: timestamp}`), or write `tombstones: error`",
        )


# Each rule with the sections it needs.
_RULES: tuple[tuple[tuple[str, ...], Callable[..., Iterator[ConfigMistake]]], ...] = (
    (("source",), _line_settings),
    (("source",), _name_groups),
    (("source",), _json_maps),
    (("source", "key"), _key_columns),
    (("source", "expiry"), _expiry_column),
    (("source", "expiry"), _order),
    (("source", "key", "fingerprint"), fingerprint.mistakes),
    (("fingerprint", "on_conflict"), _conflicts_are_seen),
    (("on_conflict", "max_versions"), _versions_are_kept),
    (("expiry",), _span),
    (("sinks",), _sink_paths),
    (("source", "sinks"), _sinks_apart_from_source),
    (("source", "store"), _store_apart_from_source),
    (("store", "sinks"), _sinks_apart_from_store),
    (("source", "sinks"), _csv_sinks_are_flat),
    (("store", "spark", "shared_folders"), _store_of_all_hosts),
    (("source", "sinks", "spark", "shared_folders"), _files_of_all_hosts),
    (("spark",), _driver_is_here),
    (("spark",), _promised_settings),
    (("spark",), _zone_is_one),
    (("source",), _client_options),
    (("source", "sinks"), _port_options),
    (("source", "sinks"), _ports_have_records),
    (("source", "sinks"), _ports_send_elsewhere),
    (("source", "key", "null_keys", "expiry"), _tombstones_have_keys),
)


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
