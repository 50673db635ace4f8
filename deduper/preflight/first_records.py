"""Checks of some records of a source, before a job judges any: names and values beside the declared columns.

Values are examined by the code that explains the rows of the error port. A result names columns and the classes of a
value's characters, and no value.
"""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from deduper.config.expiry import EventTimeExpiry
from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.core.verdict import REASONS, Admission
from deduper.diagnostics import warning
from deduper.errors import DeduperError
from deduper.kafka.errors import is_client_installed
from deduper.preflight.results import Results, Start
from deduper.sources.error_details import error_details
from deduper.tasks.errors.causes import ErrorRow, likely_causes, misnamed
from deduper.tasks.errors.detail import ErrorDetails, LineDetails
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
    from deduper.kafka.last_records import last_values

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
