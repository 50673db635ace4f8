"""A deduper as SEMANTICS.md describes it: one tuple after the other, big ints and dicts, slow and plain.

`verdicts` judges rows as a `Deduper` would, without Spark and without a store: for tests of your own rules.
`differences` judges all that a job has judged once more, and compares that with its outputs: for tests of a whole job.
Both use the `Oracle`, which shares nothing with the service; so do the service's own tests. Windows go in, as lists of
source partitions, as lists of rows in source order; what comes out has the same shape: (port, reason, first copy) of
every row, the first copy being (window, source partition, position, expiry key), None unless the row is a duplicate,
a conflict or a version.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from os import PathLike, fspath
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from bucket_store.log.marks import PUBLISHED_NAME, read_published
from bucket_store.log.records import CommitRecord
from bucket_store.log.sources_archive import SourcesReader
from bucket_store.log.sources_file import SourcePartition
from deduper.admin.open_store import OpenStore, open_store
from deduper.columns import Column, parse_columns
from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.config.sections import PORTS, ExpiryConfig
from deduper.core.digests import Plain, plain_value
from deduper.core.verdict import REASONS_WITHOUT_VALUES, Admission, TupleVerdict
from deduper.errors import UsageError
from deduper.query.rules import Expiry
from deduper.sinks.published import JudgedRow, judged_rows, published_files
from deduper.units import UNIT_US
from deduper.window.completeness import REPLAY
from deduper.window.policy import FINGERPRINT

Answer = tuple[str, str, tuple[int, int, int, Any] | None]
Record = Mapping[str, Any] | None
"""A record's values by column; None for one that cannot be parsed."""


@dataclass(frozen=True)
class Settings:
    """What the user sets; times are microseconds. `ahead`, `jump`: the guards, None is off."""

    by: str
    period: Any = 0
    span: Any = 0
    lookup: str = "own_bucket"
    clock: str = "arrival"
    ahead: int | None = None
    jump: Any = None
    null_keys: str = "error"
    live_categories: int = 1
    remember_dropped: int = 10_000
    on_conflict: str | None = None
    """None: payloads are not compared."""
    max_versions: int = 8


@dataclass(frozen=True)
class Row:
    """A parsed record: the values of its dedup key, its expiry key or category, and its payload, which `==` compares.

    `payload` is None where no payload is known.
    """

    key: tuple[Any, ...]
    expiry: Any = None
    payload: Any = None


class _Version(NamedTuple):
    """A remembered record: (window, source partition, position, expiry key), and its payload, None if not known."""

    place: tuple[int, int, int, Any]
    payload: Any


class Oracle:
    """Remembers, and judges window after window."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.window = 0
        self.latest: Any = None  # committed
        self.moved_us = 0  # wall clock of the window in which it last moved, or in which the clock came back
        self.seen: dict[Any, list[_Version]] = {}  # (bucket, key) -> its first copy, then further versions
        self.live: list[str] = []  # categories, the one longest here first
        self.dropped: list[str] = []

    def judge(self, partitions: list[list[Row]], now_us: int) -> list[list[Answer]]:
        """Judges and commits one window."""
        s = self.settings
        answers: list[list[Answer]] = []
        point = now_us  # of processing time: goes on from where it stands when the wall clock comes back from far ahead
        if s.by == "processing_time" and self.latest is not None:
            point = self.latest + max(0, now_us - self.moved_us)
        clocks = [self.latest]
        for partition, rows in enumerate(partitions):
            answers.append([])
            clock, moved = self.latest, False
            for position, row in enumerate(rows):
                expiry = point if s.by == "processing_time" else row.expiry
                before = self.latest if s.clock == "batch" else clock
                if s.by == "processing_time":
                    before = point
                quiet = max(0, now_us - self.moved_us) if s.by == "event_time" and not moved else 0
                refused = self._refused(row, expiry, before, now_us, quiet)
                if refused is not None:
                    answers[-1].append((*refused, None))
                    continue
                if s.by in ("event_time", "ordered") and (clock is None or expiry > clock):
                    clock, moved = expiry, s.clock == "arrival"
                memory = self._memory(row, expiry)
                seen = known = self.seen.setdefault(memory, [])
                all_live = s.lookup == "all_live" or s.by == "processing_time"
                if all_live and before is not None:
                    known = [version for version in seen if version.place[3] > before - s.period]
                own = _Version((self.window, partition, position, expiry), row.payload)
                port, reason, first = self._of_copy(own, known) if known else ("unique", "", None)
                if port == "unique":
                    self._remember(own, seen, in_order=all_live)
                answers[-1].append((port, reason, None if first is None else first.place))
            clocks.append(clock)
        if s.by == "processing_time":
            clocks = [point]
        greatest = max((clock for clock in clocks if clock is not None), default=None)
        if greatest != self.latest or now_us < self.moved_us:
            self.latest, self.moved_us = greatest, now_us
        self.window += 1
        return answers

    def _remember(self, own: _Version, seen: list[_Version], *, in_order: bool) -> None:
        """In order: in place of the greatest below it, which goes in place of the greatest below itself, and so on."""
        for number, version in enumerate(seen):
            if in_order and own.place[3] > version.place[3]:
                seen[number], own = own, version
        seen.append(own)
        del seen[self.settings.max_versions :]

    def _of_copy(self, own: _Version, known: list[_Version]) -> tuple[str, str, _Version]:
        """The port, the reason and the first copy of a tuple whose key is remembered."""
        s = self.settings
        counted = known[: s.max_versions] if s.on_conflict == "unique" else known[:1]
        same = next((version for version in counted if version.payload in (own.payload, None)), None)
        first = counted[0] if same is None else same
        in_window = first.place[0] == self.window
        if s.on_conflict is not None and first.payload is None:
            return "duplicate", "unknown", first
        if same is not None or s.on_conflict is None:
            return "duplicate", "same_window" if in_window else "earlier_window", first
        if s.on_conflict == "error":
            return "error", "conflict_refused", first
        if s.on_conflict == "unique":
            full = len(counted) == s.max_versions
            return ("error", "too_many_versions", first) if full else ("unique", "version", first)
        return "duplicate", "conflict_in_window" if in_window else "conflict", first

    def _refused(self, row: Row, expiry: Any, before: Any, now_us: int, quiet: int) -> tuple[str, str] | None:
        """The port and the reason of a tuple whose key is not looked up; a new category takes its place here."""
        s = self.settings
        if s.null_keys == "error" and None in row.key:
            return "error", "null_key"
        if s.by in ("never", "processing_time"):
            return None
        if expiry is None:
            return "error", "null_expiry"
        if s.by == "category":
            if expiry in self.dropped:
                return "expired", "category_dropped"
            if expiry not in self.live:
                self._arrive(expiry)
            return None
        if not math.isfinite(expiry) or (isinstance(expiry, int) and not -(2**63) <= expiry < 2**63):
            return "error", "bad_expiry"
        if s.ahead is not None and expiry > now_us + s.ahead:
            return "error", "ahead_of_now"
        if s.jump is not None and before is not None and expiry > before + s.jump + quiet:
            return "error", "jump_too_far"
        if before is not None and expiry <= before - s.period:
            return "expired", "older_than_period"
        return None

    def _arrive(self, value: str) -> None:
        self.live.append(value)
        if len(self.live) > self.settings.live_categories:
            gone = self.live.pop(0)
            self.dropped.append(gone)
            self.dropped = self.dropped[max(0, len(self.dropped) - self.settings.remember_dropped) :]
            self.seen = {memory: first for memory, first in self.seen.items() if memory[0] != gone}

    def _memory(self, row: Row, expiry: Any) -> tuple[Any, ...]:
        """Where a key is looked for; equal keys give equal places (0.0 == -0.0 as they are; NaN needs help)."""
        s = self.settings
        key = tuple("NaN" if isinstance(value, float) and math.isnan(value) else value for value in row.key)
        if s.by == "category":
            return expiry, key
        if s.by in ("event_time", "ordered") and s.lookup == "own_bucket":
            return (math.floor(expiry / s.span) if isinstance(expiry, float) else expiry // s.span), key
        return "everywhere", key


class Judged(NamedTuple):
    """The verdict on a row: port, reason (of unique rows: `version`, or empty), and (batch, row) of its first copy."""

    port: str
    reason: str
    first: tuple[int, int] | None


def verdicts(
    batches: Iterable[Sequence[Mapping[str, Any]]],
    *,
    key: str | Sequence[str],
    expiry: Expiry,
    null_keys: Literal["error", "allow"] = "error",
    fingerprint: Literal["none", "all"] | Mapping[str, Sequence[str]] = "none",
    on_conflict: Literal["duplicate", "error", "unique"] = "duplicate",
    max_versions: int = 8,
    now: datetime | None = None,
) -> list[list[Judged]]:
    """What a `Deduper` with these settings says of rows, batch by batch; each batch is one partition.

    Args:
        batches: rows as mappings from columns to values; times are `datetime` (UTC if they have no zone).
        key, expiry, null_keys, fingerprint, on_conflict, max_versions: as of a `Deduper`. A mapping in a payload is an
            object.
        now: the wall clock at all batches, for `max_ahead_of_now` and `ProcessingTime`; by default that of the machine.

    >>> from deduper import EventTime
    >>> at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    >>> rows = [{"id": 1, "ts": at}, {"id": 1, "ts": at + timedelta(hours=1)}, {"id": 2, "ts": at - timedelta(days=1)}]
    >>> rule = EventTime("ts", period="24h", lookup="all_live")
    >>> for judged in verdicts([rows], key="id", expiry=rule, now=at)[0]:
    ...     print(judged.port, judged.reason, judged.first)
    unique  None
    duplicate same_window (0, 0)
    expired older_than_period None
    """
    section: Any = TypeAdapter(ExpiryConfig).validate_python(expiry.section())
    names = [key] if isinstance(key, str) else list(key)
    period, span = getattr(section, "period", 0), getattr(section, "span", 0)
    settings = _settings(section, null_keys, period, span, getattr(section, "max_jump", None))
    compares = fingerprint != "none"
    rules = replace(settings, on_conflict=on_conflict if compares else None, max_versions=max_versions)
    oracle = Oracle(rules)
    now_us = _micros(datetime.now(UTC) if now is None else now)
    found = []
    for batch in batches:
        rows = [
            Row(
                tuple(row[name] for name in names),
                _expiry_key(section, row),
                _payload(row, names, fingerprint) if compares else None,
            )
            for row in batch
        ]
        (answers,) = oracle.judge([rows], now_us)
        found.append([Judged(port, why, None if of is None else (of[0], of[2])) for port, why, of in answers])
    return found


def _payload(row: Mapping[str, Any], key: Sequence[str], chosen: str | Mapping[str, Sequence[str]]) -> frozenset[Any]:
    """The parts of a row that are compared, by their paths: objects by their fields, without nulls."""
    parts = {path: value for path, value in _flat(row) if path.split(".")[0] not in key}
    if isinstance(chosen, Mapping):
        ((kind, names),) = chosen.items()
        named = {path for path in parts for name in names if path == name or path.startswith(f"{name}.")}
        parts = {path: value for path, value in parts.items() if (path in named) == (kind == "columns")}
    return frozenset(parts.items())


def _flat(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, part in value.items():
        if isinstance(part, Mapping):
            yield from _flat(part, f"{above}{name}.")
        elif part is not None:
            yield f"{above}{name}", _comparable(part)


def _comparable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return frozenset(_flat(value))
    if isinstance(value, list | tuple):
        return tuple(map(_comparable, value))
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _settings(section: Any, null_keys: str, period: Any, span: Any, jump: Any) -> Settings:
    return Settings(
        by=section.by,
        period=period,
        span=span,
        lookup=getattr(section, "lookup", "own_bucket"),
        clock=getattr(section, "clock", "arrival"),
        ahead=getattr(section, "max_ahead_of_now", None),
        jump=jump,
        null_keys=null_keys,
        live_categories=getattr(section, "live_categories", 1),
        remember_dropped=getattr(section, "remember_dropped", 10_000),
    )


def _expiry_key(section: Any, row: Mapping[str, Any]) -> Any:
    value = row[section.field] if hasattr(section, "field") else None
    if isinstance(value, datetime):
        return _micros(value)
    unit = getattr(section, "unit", None)
    return value if unit is None or value is None else value * UNIT_US[unit]


def _micros(time: datetime) -> int:
    aware = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


class Difference(NamedTuple):
    """Something that the oracle says otherwise: of a record by its source and position, or (-1) of a whole window."""

    window: int
    source: str
    position: int
    expected: str
    found: str

    def __str__(self) -> str:
        place = f"{self.source}, position {self.position}: " if self.position >= 0 else ""
        return f"window {self.window}: {place}expected {self.expected}, found {self.found}"


def differences(
    store: str | PathLike[str], records: Mapping[tuple[str, int], Record] | None = None
) -> list[Difference]:
    """Where a job's published rows are not what the oracle says of its input; [] for a job that did all right.

    Every record of every published window must be in the file of its port and window, once, with the verdict, the
    reason and the first copy that the oracle gives. Reads the log and the output files, and changes nothing. Payloads
    are compared if `fingerprint` is of scalar columns, and was so in all windows.

    Args:
        store: the config of a job, or the URL of the store of a `Deduper`.
        records: all records by (source, position) as `_dedup` has them: the path of a file and the row, from 0; the
            topic and partition as `clicks-0` and the offset. Of a record, the columns of key, expiry key and
            payload as Python values. Without `records` the rows of the outputs are judged again; error rows that have
            not the record's values (of whole files, of what does not parse) are taken as they are. Then all four ports
            must be files, and what was never read is not missed.

    Raises:
        UsageError: the outputs cannot be compared, as those of a replay; the message says why.
        IntegrityError: a file of a port is none of its format.
        ValueError: a value of `records` is none of its column's type.
    """
    opened = open_store(fspath(store))
    if opened.config is None:
        raise UsageError(f"{store}: name the job's config file: a store alone does not say where the outputs are")
    if getattr(opened.config.source, "row_place", ()):
        raise UsageError(f"{store}: columns name the rows (`place`), and do not say in which order they were judged")
    if records is None and len(opened.config.file_ports) < len(PORTS):
        others = ", ".join(port for port in PORTS if port not in opened.config.file_ports)
        raise UsageError(f"{store}: not all ports are files ({others}); give the records that the job has read")
    return list(_Comparison(opened, opened.config, records).run())


@dataclass
class _WindowOutputs:
    """A window as it was judged: its source partitions, and by (source, position) the rows that have left."""

    number: int
    record: CommitRecord | None
    partitions: tuple[SourcePartition, ...]
    left: dict[tuple[str, int], tuple[str, JudgedRow]] = field(default_factory=dict)


class _Comparison:
    def __init__(self, store: OpenStore, config: Config, records: Mapping[tuple[str, int], Record] | None) -> None:
        self.store, self.config = store, config
        expiry_column = config.expiry_column
        self.compares = config.has_fingerprint and FINGERPRINT in store.log.state.extra
        payload = _payload_columns(config) if self.compares else ()
        self.columns = (*config.key_columns, *(() if expiry_column is None else (expiry_column,)), *payload)
        self.before_payload = len(self.columns) - len(payload)
        unit = getattr(config.expiry, "unit", None)
        self.unit = 1 if unit is None else UNIT_US[unit]
        steps = config.period_steps, config.span_steps, config.max_jump_steps
        self.oracle = Oracle(_settings(config.expiry, config.null_keys, *steps))
        self.records = None if records is None else _by_source(records)
        self.judged: set[tuple[str, int]] = set()
        self.places: list[list[list[tuple[str, int]]]] = []  # of each row that the oracle has judged

    def run(self) -> Iterator[Difference]:
        """Window after window."""
        state, mark = self.store.log.state, read_published(self.store.root / PUBLISHED_NAME)
        published = max(state.published_through, -1 if mark is None else mark.window)
        commits = {one.body.window: one.body for one in self.store.log.records() if isinstance(one.body, CommitRecord)}
        files = {
            port: published_files(folder, self.store.log.manifest.store_id) for port, folder in self.store.ports.items()
        }
        sources = SourcesReader(self.store.root, state)
        first = parse_columns(f"e {self.config.expiry_key_scale.ddl}")[0].type
        for number in range(published + 1):
            window = _WindowOutputs(number, commits.get(number), ())
            if window.record is not None and REPLAY in window.record.extra:
                raise UsageError(
                    f"{self.store.root}: window {number} is of a replay, whose records are in another order"
                )
            for port, of_port in files.items():
                for path in (file.path for file in of_port if file.window == number):
                    for row in judged_rows(path, self.columns, first):
                        yield from self._note(window, port, row)
            known = sources.of(number)
            window.partitions = _partitions_of(window) if known is None else known
            yield from self._compare(window)
        for source, positions in (self.records or {}).items():
            for position in sorted({*positions} - {at for name, at in self.judged if name == source}):
                yield Difference(published, source, position, "in this window or an earlier one", "in none")

    def _note(self, window: _WindowOutputs, port: str, row: JudgedRow) -> Iterator[Difference]:
        place = row.source, row.position
        if place in window.left:
            yield Difference(window.number, *place, "once", f"in port {window.left[place][0]} and in port {port}")
        if (row.verdict, row.window) != (port, window.number):
            said = f"verdict {row.verdict} and window {row.window}"
            yield Difference(window.number, *place, f"verdict {port} and window {window.number}", said)
        window.left[place] = port, row

    def _compare(self, window: _WindowOutputs) -> Iterator[Difference]:
        """Let the oracle judge the window, and compare row by row."""
        on_conflict, most = self._on_conflict(window)
        self.oracle.settings = replace(self.oracle.settings, on_conflict=on_conflict, max_versions=most)
        given = [self._records_of(partition, window) for partition in window.partitions]
        self.judged.update(place for part in given for place, _ in part)
        wall_us = 0 if window.record is None else window.record.wall_us
        if window.record is None and self.config.expiry.by in ("event_time", "processing_time"):
            raise UsageError(f"{self.store.url}: the record of window {window.number} is deleted, and its time with it")
        rows = [[(place, row) for place, row in part if row is not None] for part in given]
        self.places.append([[place for place, _ in part] for part in rows])
        answers = self.oracle.judge([[row for _, row in part] for part in rows], wall_us)
        expected = {place: ("error", None, None) for part in given for place, _ in part}
        for part, said in zip(rows, answers, strict=True):
            expected |= {place: answer for (place, _), answer in zip(part, said, strict=True)}  # type: ignore[misc]
        for place, answer in expected.items():
            if answer[0] in self.config.file_ports or place in window.left:
                yield from self._compare_row(window, place, answer, window.left.get(place))
        for place in window.left.keys() - expected.keys():
            yield Difference(window.number, *place, "no such record", f"in port {window.left[place][0]}")
        yield from self._compare_sums(window)

    def _compare_row(
        self, window: _WindowOutputs, place: tuple[str, int], answer: Any, left: tuple[str, JudgedRow] | None
    ) -> Iterator[Difference]:
        port, reason, first = answer
        if left is None:
            yield Difference(window.number, *place, f"in port {port}", "in no port")
            return
        at, row = left
        expected, found = [port], [at]
        if reason is not None:
            expected, found = [*expected, reason], [*found, row.reason]
        if first is not None and self.config.store.first_seen:
            number, partition, position, expiry = first
            source, row_number = self.places[number][partition][position]
            has_key = self.config.expiry.by not in ("never", "category")
            expected.append(str((number, source, row_number, expiry if has_key else None)))
            found.append(str(row.first))
        elif row.first is not None:
            expected, found = [*expected, "no first copy"], [*found, str(row.first)]
        if expected != found:
            yield Difference(window.number, *place, " ".join(filter(None, expected)), " ".join(filter(None, found)))

    def _compare_sums(self, window: _WindowOutputs) -> Iterator[Difference]:
        """Counts of the sources, of the reasons, and the latest point: those of the log."""
        is_whole = len(self.config.file_ports) == len(PORTS)
        counted = Counter(source for source, _ in window.left)
        for partition in window.partitions:
            if counted[partition.name] > partition.rows or (is_whole and counted[partition.name] != partition.rows):
                found = f"{counted[partition.name]} in the ports"
                yield Difference(window.number, partition.name, -1, f"{partition.rows} rows", found)
        if window.record is None:
            return
        reasons = Counter(row.reason for _, row in window.left.values() if row.reason)
        if is_whole and reasons != Counter(window.record.reasons):
            found = f"reasons {dict(reasons)} in the ports"
            yield Difference(window.number, "", -1, f"reasons {window.record.reasons}", found)
        if self.oracle.latest != window.record.latest_point:
            found = f"{window.record.latest_point}"
            yield Difference(window.number, "", -1, f"latest point {self.oracle.latest} in the log", found)

    def _records_of(
        self, partition: SourcePartition, window: _WindowOutputs
    ) -> list[tuple[tuple[str, int], Row | None]]:
        """The records of a source partition in their order, by their places; None for those without a verdict."""
        if self.records is None:
            rows = {at: left for (source, at), left in window.left.items() if source == partition.name}
            return [
                ((partition.name, at), None if self._is_taken(port, row) else self._row(row.values))
                for at, (port, row) in sorted(rows.items())
            ]
        given = self.records.get(partition.name, {})
        is_topic = isinstance(self.config.source, KafkaSource)
        inside = (at for at in sorted(given) if not is_topic or partition.start <= at < partition.end)
        return [((partition.name, at), self._given(given[at])) for at in inside]

    def _is_taken(self, port: str, row: JudgedRow) -> bool:
        """Whether it is an error row without the values that make it one."""
        is_bad = row.reason == Admission.BAD_EXPIRY.reason and row.values[len(self.config.key_columns)] is None
        return port == TupleVerdict.ERROR.port and (is_bad or row.reason in REASONS_WITHOUT_VALUES)

    def _given(self, record: Record) -> Row | None:
        if record is None:
            return None
        return self._row(tuple(_plain(record.get(column.name), column) for column in self.columns))

    def _row(self, values: tuple[Plain | None, ...]) -> Row:
        keys = len(self.config.key_columns)
        expiry: Any = values[keys] if self.before_payload > keys else None
        # NaN is a payload like any other.
        payload = tuple("NaN" if value != value else value for value in values[self.before_payload :])
        compares = self.oracle.settings.on_conflict is not None
        return Row(
            values[:keys],
            expiry if self.unit == 1 or expiry is None else expiry * self.unit,
            payload if compares else None,
        )

    def _on_conflict(self, window: _WindowOutputs) -> tuple[str | None, int]:
        """How the window took conflicts, and `max_versions`; None if it compared no payloads."""
        most = self.config.max_versions
        if not self.compares:
            return None, most
        note = None if window.record is None else window.record.extra.get(FINGERPRINT)
        if window.record is not None and (note is None or note[3] is None):
            return None, most
        if note is not None and note[1] != self.config.payload_identity:
            raise UsageError(f"{self.store.url}: window {window.number} was judged with another `fingerprint`")
        if note is None:
            return self.config.on_conflict, most
        return str(note[3]), int(note[4]) if len(note) > 4 else most


def _payload_columns(config: Config) -> tuple[Column, ...]:
    """The columns of the payload.

    Raises:
        UsageError: it is the value of topics, or has fields of objects, arrays or maps.
    """
    leaves = config.payload
    if leaves is None or any(len(leaf.path) > 1 or not leaf.kind.is_scalar for leaf in leaves):
        raise UsageError("fingerprint: only payloads of scalar columns can be judged once more")
    return tuple(Column(leaf.name, leaf.kind) for leaf in leaves)


def _partitions_of(window: _WindowOutputs) -> tuple[SourcePartition, ...]:
    """The source partitions of a window whose sources are forgotten: those of its rows, in the order of their names."""
    positions: dict[str, list[int]] = {}
    for source, position in window.left:
        positions.setdefault(source, []).append(position)
    names = sorted(
        positions, key=lambda name: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
    )
    return tuple(
        SourcePartition(name, 0, min(positions[name]), max(positions[name]) + 1, len(positions[name]), b"")
        for name in names
    )


def _by_source(records: Mapping[tuple[str, int], Record]) -> dict[str, dict[int, Record]]:
    by_source: dict[str, dict[int, Record]] = {}
    for (source, position), record in records.items():
        by_source.setdefault(source, {})[position] = record
    return by_source


def _plain(value: Any, column: Column) -> Plain | None:
    if isinstance(value, datetime) and column.type.name == "timestamp" and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return None if value is None else plain_value(value, column.type)
