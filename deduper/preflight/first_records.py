"""Some records of a source, examined by the code that explains the rows of the error port, before a job judges any.

What is found names columns, and the classes of a value's characters, and no value.
"""

from __future__ import annotations

import base64
import time
from collections import Counter
from collections.abc import Sequence

from deduper.config.expiry import EventTimeExpiry
from deduper.config.model import Config
from deduper.core.verdict import REASONS, Admission
from deduper.diagnostics import warning
from deduper.preflight.results import Results
from deduper.sources.error_details import error_details
from deduper.tasks.errors.causes import ErrorRow, likely_causes
from deduper.tasks.errors.detail import ErrorDetails, LineDetails
from deduper.text.values import Token, timestamp_of
from deduper.time_zones import time_zone
from deduper.units import UNIT_US

MOST = 100
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
