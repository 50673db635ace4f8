"""Checks of a source's first files, or last records, before a job judges any: names and values beside its columns.

Values are examined by the code that explains the rows of the error port. A result names columns and the classes of a
value's characters, and no value: a name of a file is in it, if it is near that of a declared column.
"""

from __future__ import annotations

import base64
import codecs
import csv
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

import pyarrow as pa
from pyarrow import parquet

from deduper.arrow_columns import DeclaredColumn
from deduper.config.files import FilesSource
from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.config.sections import EventTimeExpiry
from deduper.core.verdict import REASONS, Admission
from deduper.diagnostics import Diagnostic, warning
from deduper.errors import DeduperError, UsageError
from deduper.kafka.errors import is_client_installed
from deduper.log_formats import LOGS
from deduper.preflight.results import Failure, Results, Start
from deduper.sources.declared_columns import path_rule
from deduper.sources.error_details import error_details
from deduper.sources.files.listing import any_file, listed_files
from deduper.tasks.errors.causes import ErrorRow, likely_causes, misnamed
from deduper.tasks.errors.detail import ErrorDetails, LineDetails
from deduper.tasks.readers.file_parts import FileGone, UnreadableFile
from deduper.tasks.readers.parquet import opened_parquet
from deduper.tasks.readers.path_columns import NoValue, name_texts
from deduper.tasks.readers.text import fault_of_header
from deduper.text.log_exact import pairs_of
from deduper.text.values import Token, timestamp_of
from deduper.time_zones import time_zone
from deduper.units import UNIT_US

CHECK, TOPIC_PLACE = "columns", "source.value.schema"
_ANSWER_S = 2.0
BY_NAME = "correct the schema: a column without a field of its name is null"
MOST = 100
_MOST_NAMES = 3
_SHARE = 0.05
"""Fewer errors are unusual data, and no mistake in the settings."""


def would_be_errors(config: Config, place: str, what: str, records: Sequence[bytes], source: str = "") -> Results:
    """A warning if many of these lines or values would leave by the error port, with the likely causes.

    `what` names the records; `source` is their file, whose folders may give columns.
    """
    details = error_details(config)
    lines = LineDetails(details, source)
    if lines.explainer is None:
        return
    rows: list[ErrorRow] = []
    says: Counter[str] = Counter()
    for record in records[:MOST]:
        code, why = _examined(config, details, lines, record)
        if code is not Admission.ADMITTED:
            is_text = code is not Admission.INVALID_UTF8
            rows.append(ErrorRow(code, record.decode() if is_text else base64.b64encode(record).decode(), source))
            says[f"{REASONS[code]}: {why}" if why else REASONS[code]] += 1
    if not rows or len(rows) <= _SHARE * len(records[:MOST]):
        return
    causes = likely_causes(details, rows)
    count, of = len(rows), len(records[:MOST])
    (most, _), *_ = says.most_common(1)
    found = f"{count} of the {of} {what} would leave by the error port" if of > 1 else f"the one of the {what} would"
    yield warning("records", place, f"{found} ({most})", "; ".join(causes) or "correct the settings, or the producer")


def _examined(config: Config, details: ErrorDetails, lines: LineDetails, record: bytes) -> tuple[Admission, str]:
    """The admission of a record, as far as its text alone decides it, and why."""
    try:
        text = record.decode()
    except UnicodeDecodeError:
        return Admission.INVALID_UTF8, ""
    assert lines.explainer is not None
    wrong = lines.explainer.malformed(text)
    if wrong is not None:
        return Admission.MALFORMED, wrong
    places = {lines.stored.index(number): number for number in range(details.of_value) if number in lines.stored}
    absent = {places[place]: way for place, way in lines.explainer.absent(text, list(places)).items()}
    for numbers, code in ((details.key, Admission.NULL_KEY), ((details.expiry,), Admission.NULL_EXPIRY)):
        missing = [number for number in numbers if number is not None and number in absent]
        if missing and not (code is Admission.NULL_KEY and config.null_keys == "allow"):
            return code, f"{details.columns[missing[0]].name}: {absent[missing[0]]}"
    expiry = config.expiry
    if isinstance(expiry, EventTimeExpiry) and expiry.max_ahead_of_now is not None and details.expiry in lines.stored:
        time_us = _time_us(details, *lines.explainer.token(text, lines.stored.index(details.expiry)))
        if time_us is not None and time_us > time.time_ns() // 1000 + expiry.max_ahead_of_now:
            return Admission.AHEAD_OF_NOW, details.fixed.get(Admission.AHEAD_OF_NOW, "")
    return Admission.ADMITTED, ""


def _time_us(details: ErrorDetails, token: int | None, text: str) -> int | None:
    """The expiry key as µs; None of one that is not read here."""
    zone = time_zone(details.zone)
    if token == Token.WHOLE or (token == Token.TEXT and details.unit is not None and text.lstrip("-").isdecimal()):
        return int(text) * UNIT_US[details.unit or "s"]
    return timestamp_of(text, zone) if token == Token.TEXT and zone is not None else None


def lacks(declared: Sequence[tuple[str, bool]], met: Collection[str], near: Iterable[str]) -> str:
    """The columns that are not among the names that were met, in words; empty without any.

    `declared` are names and whether they are needed; `near` the names of which the nearest one is reported.
    """
    missing = misnamed(declared, met, {*near} - {name for name, _ in declared})
    texts = [f"no `{name}`" + (f", but `{near}`" if near else "") for name, near in missing]
    return "; ".join(texts[:_MOST_NAMES]) + (
        f"; and {len(texts) - _MOST_NAMES} more" if len(texts) > _MOST_NAMES else ""
    )


def topic_columns(start: Start) -> Results:
    """Each topic's last records have the fields of the schema, and values that it takes.

    Topics without records have none to compare. Brokers that do not answer are a matter of `kafka`.
    """
    source = start.config.source
    if not isinstance(source, KafkaSource) or source.value.format in ("text", "avro") or not is_client_installed():
        return
    from deduper.kafka.commands import last_values

    try:
        values = last_values(source, seconds=_ANSWER_S)
    except DeduperError:
        return
    needed = {*start.config.key, *(() if start.config.expiry_column is None else (start.config.expiry_column.name,))}
    declared = [(column.name, column.name in needed) for column in source.value.parsed_columns]
    for topic, of_topic in sorted(values.items()):
        records = [names for names in map(_names_of, of_topic) if names] if source.value.format == "json" else []
        met = Counter(name for names in records for name in names)
        lacking = lacks(declared, met, (name for name, count in met.items() if 2 * count >= len(records)))
        if records and lacking:
            yield warning(CHECK, TOPIC_PLACE, f"the last records of {topic} have {lacking}", BY_NAME)
        else:
            yield from would_be_errors(start.config, TOPIC_PLACE, f"last records of {topic}", of_topic)


def _names_of(value: bytes) -> frozenset[str]:
    try:
        record = json.loads(value)
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(record) if isinstance(record, dict) else frozenset()


_PLACE, _PATTERN = "source.schema", "source.name_pattern"
_FIRST_BYTES = 1 << 20
_LONGEST_HEADER = 1 << 17
"""In characters; no header is longer. The csv module has its own limit, which other code of the process may raise."""
_MOST_FILES = 20
_ROTATION, _FILES_PLACE = "rotation", "source.path"
_MOST_ROTATED: Final = 1000
_NUMBERED: Final = re.compile(r"(.+)\.(0|[1-9]\d{0,2})(?:\.(?:gz|bz2|zst|deflate))?", re.DOTALL)
_LEFT_OUT = "write names that stay (`dateext` in logrotate), and let `source.path` leave out the file that grows"


def columns(start: Start) -> Results:
    """One file of the source has the names of the schema, and values that it takes."""
    source = start.config.source
    if not isinstance(source, FilesSource):
        return
    try:
        if source.name_pattern is not None:
            yield from _file_names(source, source.name_pattern)
        if source.file_format == "csv" and source.header:
            yield from _headers(source)
            return
        file = any_file(source)
    except OSError:
        return  # the window that reads the file says what is wrong with it
    if file is None:
        return
    declared = _declared(source, file)
    try:
        names = _names(source, file) or ()
    except (OSError, ValueError, RecursionError, csv.Error, pa.ArrowException):
        names = ()
    found: list[Diagnostic | Failure] = []
    if not names:
        pass
    elif source.file_format == "csv":
        found = list(_csv(file, declared, names))
    else:
        found = list(_by_name(start.config, source, file, declared, names))
    yield from found or _values(start.config, source, file, declared)


def _values(config: Config, source: FilesSource, file: str, declared: Sequence[str]) -> Results:
    """The types of a Parquet file's columns, or the first lines, under names that are those of the schema."""
    if source.file_format == "parquet":
        columns = [one for one in source.parsed_columns if one.name in declared and one.type.is_scalar]
        with suppress(OSError, ValueError, pa.ArrowException, UnreadableFile), opened_parquet(file) as opened:
            try:
                opened.columns([DeclaredColumn.of(column) for column in columns])
            except UnreadableFile as fault:
                what = f"{file} would leave as an error: {fault}"
                yield warning(CHECK, _PLACE, what, "correct the type in the schema")
        return
    with suppress(OSError, ValueError, pa.ArrowException):
        with pa.input_stream(file, compression="detect") as stream:
            data = stream.read(_FIRST_BYTES)
        lines = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
        # The last one has no end: it is empty, or perhaps not whole.
        of_file = lines[int(source.header) : -1][:MOST]
        yield from would_be_errors(config, _PLACE, f"first records of {file}", of_file, file)


def _declared(source: FilesSource, file: str) -> list[str]:
    """The columns that the file itself is to have."""
    in_path = path_rule(source).texts(file, source.parsed_columns)
    return [column.name for column in source.parsed_columns if column.name not in in_path]


def _names(source: FilesSource, file: str) -> list[str] | None:
    """The names of a Parquet file's columns, of its first object, or the fields of its first line; None without any."""
    if source.file_format == "parquet":
        return list(parquet.read_schema(file).names)
    with pa.input_stream(file, compression="detect") as stream:
        line = stream.read(_FIRST_BYTES).partition(b"\n")[0].decode("utf-8-sig").rstrip("\r")
    if source.file_format == "csv" and len(line) > _LONGEST_HEADER:
        return None
    if source.file_format == "json":
        record = json.loads(line)
        return list(record) if isinstance(record, dict) else None
    if source.file_format in LOGS:
        return [name for name, _ in pairs_of(line, source.file_format)]
    return [field.strip() for field in next(csv.reader([line], delimiter=source.delimiter), [])]


def _headers(source: FilesSource) -> Results:
    """Fields are columns by their order. When all files have another header, nothing is read."""
    odd = None
    for file in islice(listed_files(source), _MOST_FILES):
        try:
            fault = fault_of_header(file, _declared(source, file), source.delimiter)
        except (FileGone, UnreadableFile):
            continue
        if fault is None:
            if odd is not None:
                yield warning(CHECK, _PLACE, odd, "the file leaves as `file_header`; correct it")
            return
        odd = odd or f"{file}: {fault}"
    if odd is not None:
        remedy = "declare the columns in the order of the files, by their names"
        yield Failure(_PLACE, UsageError(f"{_PLACE}: {odd}; {remedy}, or correct the files"))


def _file_names(source: FilesSource, pattern: str) -> Results:
    """The first files have names that the pattern matches."""
    names = list(islice(listed_files(source), _MOST_FILES))
    odd = [file for file in names if NoValue.OTHER_NAME in name_texts(pattern, file).values()]
    if odd and len(odd) == len(names):
        what = f"the name of no file matches, such as {odd[0].rpartition('/')[2]}"
        yield Failure(_PATTERN, UsageError(f"{_PATTERN}: {what}; write a pattern for the whole name, with its ending"))
    elif odd:
        what = f"the name of {odd[0]} does not match, so its records would leave by the error port"
        yield warning(CHECK, _PATTERN, what, "change the pattern, or name the files in `source.path` by a wildcard")


def _csv(file: str, declared: Sequence[str], names: Sequence[str]) -> Results:
    """A first line of names, where the first line is a record."""
    met, wanted = {name.lower() for name in names}, {name.lower() for name in declared}
    if 2 * len(met & wanted) > len(wanted):
        what = f"the first line of {file} names the columns, and would be judged as a record"
        yield warning(CHECK, "source.header", what, "set `source.header: true`")


def _by_name(config: Config, source: FilesSource, file: str, declared: Sequence[str], names: Sequence[str]) -> Results:
    """Records of JSON, logs and Parquet have columns by their names: one that they lack is null."""
    needed = {*config.key, *(() if config.expiry_column is None else (config.expiry_column.name,))}
    if source.file_format == "parquet":  # whose names count in any case
        in_any_case = {name.lower() for name in names}
        declared = [name for name in declared if name.lower() not in in_any_case]
    lacking = lacks([(name, name in needed) for name in declared], names, names)
    if lacking:
        what = f"the first record of {file} has {lacking}"
        yield warning(CHECK, _PLACE, what, BY_NAME)


def rotated(start: Start) -> Results:
    """The first files of the source have no names that a rotation changes: `access.log` beside `access.log.1`."""
    source = start.config.source
    if not isinstance(source, FilesSource):
        return
    try:
        names = list(islice(listed_files(source), _MOST_ROTATED))
    except OSError:
        return  # the check of the folder says what is wrong with it
    found = rotated_name(names)
    if found is not None:
        what = (
            f"{found} has a number that a rotation changes: under its next name its records come again, as duplicates "
            "or expired, and the file that gets this name is not read"
        )
        yield warning(_ROTATION, _FILES_PLACE, what, _LEFT_OUT)


def rotated_name(paths: list[str]) -> str | None:
    """A path with the number of a rotation: one of several numbers, or beside the file that grows; None without any."""
    numbers: dict[str, set[str]] = defaultdict(set)
    first: dict[str, str] = {}
    for path in sorted(paths):
        match = _NUMBERED.fullmatch(path)
        base, number = (path, "") if match is None else (match[1], match[2])
        numbers[base].add(number)
        if match is not None:
            first.setdefault(base, path)
    return next((first[base] for base in first if len(numbers[base]) > 1), None)
