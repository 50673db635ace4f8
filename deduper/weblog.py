"""A web log to try things on: reproducible, and with its right answers known.

The log is what a real collector hands over after a few days: JSON lines in hourly files, three quarters of the lines
new, one quarter sent again (retries seconds later, re-deliveries hours later), some late, some later than a day, a few
broken, and one from the year 2099. The same arguments give the same bytes.

The right answers are exact, not estimates, for the job of `deduper quickstart`: dedup key (user, id), 24 h by `ts`,
`lookup: own_bucket`, `clock: arrival`, `max_ahead_of_now: 1h`. Each file's clock starts at the latest point of the
*batches* before it, so in general the answers depend on how many files make a batch. Here they don't: every file
begins with a line newer than all lines before it, which brings each file's clock to the same place as one clock over
all files.

Layout of the directory:

1. `access-NNNN.jsonl`, N = 0000, 0001, …: the lines in order of arrival. The modification time of a file is the arrival
   of its last line, so that the order by (modification time, path) is the order of arrival.
2. `_weblog.json`: the summary. It comes last and names every file with its size: a directory with a file missing or of
   another length is half written and is made again. Readers of the log skip names that begin with `_`.

The files are made in `.<directory>.partial` beside it and moved in one by one, the summary last; the partial directory
goes at the very end. So a directory without a summary is a half-written log while the partial one lies beside it, and
otherwise it is somebody's own and is left alone.

Only uniform random numbers and linear interpolation are used: logarithms and the like may differ in their last bit
from one processor to another.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

DEFAULT_RECORDS: Final = 1_050_000
DEFAULT_DAYS: Final = 4
DEFAULT_SEED: Final = 7
DEFAULT_START: Final = datetime(2025, 3, 3, tzinfo=UTC)
PERIOD_MS: Final = 86_400_000
"""The expiry period the expected counts are computed for: 24 h."""
MANIFEST: Final = "_weblog.json"
SCHEMA: Final = "user string, id long, ts timestamp, page string, status int, bytes long, agent string"

_FORMAT: Final = 1
_POISONED_MS: Final = 4_070_908_800_000  # 2099-01-01T00:00:00Z
_FILE_NAME: Final = re.compile(r"access-\d{4,}\.jsonl")

_S: Final = 1_000
_MIN: Final = 60 * _S
_H: Final = 60 * _MIN

# Tables of (share of the cases, value): between two points the value is interpolated.
_ON_TIME: Final = ((0.0, 5), (0.9, 400), (1.0, 2 * _S))
_LATE: Final = ((0.0, 1 * _MIN), (0.6, 20 * _MIN), (0.9, 3 * _H), (1.0, 20 * _H))
_TOO_LATE: Final = ((0.0, 24 * _H + 10 * _MIN), (1.0, 72 * _H))
_RETRY: Final = ((0.0, 1 * _S), (0.7, 30 * _S), (1.0, 10 * _MIN))
_REDELIVERY: Final = ((0.0, 10 * _MIN), (0.5, 2 * _H), (1.0, 20 * _H))
_STALE: Final = ((0.0, 24 * _H + 10 * _MIN), (1.0, 48 * _H))
_BYTES: Final = ((0.0, 180), (0.6, 6_000), (0.95, 90_000), (1.0, 4_000_000))
_TRAFFIC: Final = (
    2,
    1,
    1,
    1,
    1,
    2,
    4,
    7,
    10,
    12,
    12,
    12,
    13,
    12,
    12,
    12,
    12,
    13,
    14,
    15,
    14,
    11,
    7,
    4,
)  # by hour of day

_REPEATED: Final = 0.25
_STALE_REPEATS: Final = 0.012  # of the repeats
_REDELIVERED: Final = 0.27  # of the repeats
_LATE_SHARE: Final = 0.02  # of the first copies
_TOO_LATE_SHARE: Final = 0.004
_MALFORMED_SHARE: Final = 0.0005
_ONE_NULL_KEY_IN: Final = 50_000

_STATUS: Final = ((0.90, 200), (0.94, 304), (0.96, 302), (0.99, 404), (0.997, 500), (1.0, 503))
_AGENTS: Final = (
    "Mozilla/5.0 (X11; Linux x86_64) Firefox/136.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) Chrome/134.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) Safari/605.1.15",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_3 like Mac OS X) Mobile/15E148",
    "Mozilla/5.0 (Android 15; Mobile) Chrome/134.0",
    "curl/8.12.1",
    "shop-app/7.3 (zażółć; café)",
)
_PAGES: Final = ("/", "/search", "/cart", "/checkout", "/login", *(f"/item/{n}" for n in range(1, 996)))

_NOT_TEXT: Final = 1  # of the five ways a line is spoilt
_GOOD, _MALFORMED, _NULL_KEY, _POISONED = range(4)

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class WeblogError(Exception):
    """The directory holds something else. The caller: choose another directory, or remove this one by hand."""


@dataclass(frozen=True, slots=True)
class WeblogFile:
    """One file: its name inside the directory, and its size."""

    name: str
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WeblogSummary:
    """What was put in, and what must come out.

    records = first_copies + repeats + malformed + null_keys + poisoned = unique + duplicate + expired + error.
    """

    records: int
    days: int
    seed: int
    start: str
    """ISO 8601, UTC."""
    first_copies: int
    """Good lines whose key was not in the log before; some of them late."""
    repeats: int
    """Good lines that were sent before, with the same key and the same time."""
    late: int
    """First copies that arrive a minute or more after their time, but within 24 h."""
    too_late: int
    """First copies that arrive more than 24 h after their time."""
    stale_repeats: int
    """Repeats that arrive more than 24 h after their time."""
    malformed: int
    """Lines that are no record: cut off, not text, a word where a number belongs, or empty."""
    invalid_utf8: int
    """Those of the malformed lines that are not text."""
    null_keys: int
    poisoned: int
    unique: int
    duplicate: int
    expired: int
    error: int
    latest: str
    """The greatest timestamp that is not poisoned, ISO 8601."""
    sample_user: str
    """With `sample_id`: a key that was sent several times near the end of the log, so that it is still remembered."""
    sample_id: int
    files: tuple[WeblogFile, ...]

    @property
    def size_bytes(self) -> int:
        """All files together, without the summary itself."""
        return sum(file.size_bytes for file in self.files)

    def counts(self) -> dict[str, int]:
        """The rows each port must get."""
        return {name: getattr(self, name) for name in ("unique", "duplicate", "expired", "error")}

    def error_reasons(self) -> dict[str, int]:
        """The reasons the rows of the error port must have."""
        return {
            "malformed": self.malformed - self.invalid_utf8,
            "invalid_utf8": self.invalid_utf8,
            "null_key": self.null_keys,
            "ahead_of_now": self.poisoned,
        }


def write_weblog(
    directory: Path,
    *,
    records: int = DEFAULT_RECORDS,
    days: int = DEFAULT_DAYS,
    seed: int = DEFAULT_SEED,
    start: datetime = DEFAULT_START,
) -> WeblogSummary:
    """The log in `directory`: made now, or found there whole from an earlier call with the same arguments.

    Files that a user has added under other names stay.

    Raises:
        ValueError: fewer than 100 records, less than one day, or a start without a time zone.
        WeblogError: the directory holds a log of other arguments, or files that are no such log.
    """
    if records < 100 or days < 1 or start.tzinfo is None:
        raise ValueError(
            f"a log needs at least 100 records, one day and a start with a time zone: {records=}, {days=}, {start=}"
        )
    found = read_weblog(directory)
    start_ms = int(start.timestamp() * 1000)
    if found is not None:
        wanted = {"records": records, "days": days, "seed": seed, "start": _iso(start_ms)}
        other = {name: getattr(found, name) for name, value in wanted.items() if getattr(found, name) != value}
        if other:
            raise WeblogError(
                f"{directory} holds another log ({', '.join(f'{name} {value}' for name, value in other.items())}): "
                "choose another directory, or remove this one"
            )
        if is_whole(directory, found):
            return found
    partial = directory.with_name(f".{directory.name}.partial")
    there = sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []
    if there and not (directory / MANIFEST).exists() and not partial.exists():
        raise WeblogError(f"{directory} holds files of others ({there[0]}): choose another directory")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    summary = _write(partial, records, days, seed, start_ms)
    directory.mkdir(exist_ok=True)
    for name in there:
        if _FILE_NAME.fullmatch(name):
            (directory / name).unlink()
    for name in (*(file.name for file in summary.files), MANIFEST):
        (partial / name).replace(directory / name)
    partial.rmdir()
    return summary


def read_weblog(directory: Path) -> WeblogSummary | None:
    """The summary that lies in a directory; None when there is none, or none that can be read."""
    try:
        fields: dict[str, Any] = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        if fields.pop("format") != _FORMAT:
            return None
        return WeblogSummary(**{**fields, "files": tuple(WeblogFile(**file) for file in fields["files"])})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def is_whole(directory: Path, summary: WeblogSummary) -> bool:
    """Whether every file of the summary lies there in its full length."""
    sizes = {entry.name: entry.stat().st_size for entry in directory.iterdir()}
    return all(sizes.get(file.name) == file.size_bytes for file in summary.files)


# -- what is in the log ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Log:
    """All lines in order of arrival, as columns. `source` is the first copy a line repeats, or is."""

    arrival_ms: Ints
    ts_ms: Ints
    source: Ints
    kind: npt.NDArray[np.int8]
    user: Ints
    number: Ints
    is_repeat: Flags


def _draw(rng: np.random.Generator, count: int, table: tuple[tuple[float, int], ...]) -> Ints:
    shares, values = zip(*table, strict=True)
    drawn: Ints = np.floor(np.interp(rng.random(count), shares, values)).astype(np.int64)
    return drawn


def _arrivals(rng: np.random.Generator, count: int, days: int, start_ms: int) -> Ints:
    """Ascending arrival times over the days, more by day than by night."""
    load = np.concatenate([[0], np.cumsum(np.tile(_TRAFFIC, days))]).astype(np.float64)
    at = np.interp(np.sort(rng.random(count)) * load[-1], load, np.arange(load.size, dtype=np.float64) * _H)
    arrivals: Ints = np.floor(at).astype(np.int64) + start_ms
    return arrivals


def _make(rng: np.random.Generator, records: int, days: int, start_ms: int) -> _Log:
    repeats = round(records * _REPEATED)
    firsts = records - repeats
    arrival = _arrivals(rng, firsts, days, start_ms)

    shuffled = rng.permutation(firsts)
    malformed = max(4, round(records * _MALFORMED_SHARE))
    null_keys = max(2, round(records / _ONE_NULL_KEY_IN))
    late, too_late = round(firsts * _LATE_SHARE), round(firsts * _TOO_LATE_SHARE)
    edges = np.cumsum([malformed, null_keys, 1, late, too_late])
    broken, nulls, poisoned, lates, too_lates, _ = np.split(shuffled, edges)
    kind = np.zeros(firsts, dtype=np.int8)
    kind[broken], kind[nulls], kind[poisoned] = _MALFORMED, _NULL_KEY, _POISONED
    delay = _draw(rng, firsts, _ON_TIME)
    delay[lates] = _draw(rng, late, _LATE)
    delay[too_lates] = _draw(rng, too_late, _TOO_LATE)
    ts = arrival - delay
    ts[poisoned] = _POISONED_MS

    # A user's records are numbered 1, 2, 3, …: neither column alone is a key.
    users = max(10, firsts // 12)
    user = np.floor(rng.random(firsts) ** 2 * users).astype(np.int64)
    by_user = np.argsort(user, kind="stable")
    counts = np.bincount(user, minlength=users)
    number = np.empty(firsts, dtype=np.int64)
    number[by_user] = np.arange(firsts) - np.repeat(np.cumsum(counts) - counts, counts) + 1

    stale, redelivered = round(repeats * _STALE_REPEATS), round(repeats * _REDELIVERED)
    wait = np.concatenate(
        [
            _draw(rng, stale, _STALE),
            _draw(rng, redelivered, _REDELIVERY),
            _draw(rng, repeats - stale - redelivered, _RETRY),
        ]
    )
    # A repeat must still arrive inside the days; in a log too short for its wait it becomes a quick retry.
    good = np.flatnonzero(kind == _GOOD)
    end_ms = start_ms + days * 24 * _H
    candidates = np.searchsorted(arrival[good], end_ms - wait)
    short = candidates == 0
    wait[short] = _S
    candidates[short] = max(1, int(np.searchsorted(arrival[good], end_ms - _S)))
    parent = good[np.floor(rng.random(repeats) * candidates).astype(np.int64)]

    source = np.concatenate([np.arange(firsts), parent])
    at = np.concatenate([arrival, arrival[parent] + wait])
    order = np.argsort(at, kind="stable")
    source = source[order]
    return _Log(at[order], ts[source], source, kind[source], user[source], number[source], order >= firsts)


def _latest_before(log: _Log) -> tuple[Ints, Flags]:
    """The latest point before each line, and whether there is one yet: one clock over the whole log.

    Expired lines may take part in the maximum: they lie a day below it.
    """
    lowest = np.iinfo(np.int64).min
    clock = np.maximum.accumulate(np.where(log.kind == _GOOD, log.ts_ms, lowest))
    before = np.concatenate([np.array([lowest]), clock[:-1]])
    return before, before != lowest


def _file_starts(log: _Log, rng: np.random.Generator, days: int, start_ms: int) -> Ints:
    """First line of each file: hours, give or take some minutes, moved on to a line newer than all before it."""
    files = min(days * 24, max(1, log.source.size // 100))
    before, is_set = _latest_before(log)
    newer = np.flatnonzero((log.kind == _GOOD) & is_set & (log.ts_ms > before))
    edges = np.arange(1, files) * (days * 24 * _H // files) + start_ms
    edges = edges + np.floor((rng.random(files - 1) - 0.5) * 8 * _MIN).astype(np.int64)
    wanted = np.searchsorted(newer, np.searchsorted(log.arrival_ms, edges))
    starts = newer[wanted[wanted < newer.size]]
    return np.unique(np.concatenate([np.zeros(1, dtype=np.int64), starts]))


# -- how it is written -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Payload:
    """The columns beside key and time, one row for each first copy: a repeat carries the same."""

    page: Ints
    status: Ints
    size: Ints
    agent: Ints


def _payload(rng: np.random.Generator, firsts: int) -> _Payload:
    shares, values = zip(*_STATUS, strict=True)
    return _Payload(
        page=np.floor(rng.random(firsts) ** 3 * len(_PAGES)).astype(np.int64),
        status=np.asarray(values, dtype=np.int64)[np.searchsorted(shares, rng.random(firsts), side="right")],
        size=_draw(rng, firsts, _BYTES),
        agent=np.floor(rng.random(firsts) * len(_AGENTS)).astype(np.int64),
    )


def _texts(values: Ints) -> pa.Array:
    return pa.array(values).cast(pa.string())


def _stamps(ts_ms: Ints) -> pa.Array:
    return pc.replace_substring(pa.array(ts_ms).cast(pa.timestamp("ms")).cast(pa.string()), " ", "T")


def _lines(log: _Log, payload: _Payload, rows: slice) -> pa.Array:
    """The lines of some rows as JSON with a line feed each, all of them good."""
    source = log.source[rows]
    return pc.binary_join_element_wise(
        '{"user":"u',
        pc.utf8_lpad(_texts(log.user[rows]), 6, "0"),
        '","id":',
        _texts(log.number[rows]),
        ',"ts":"',
        _stamps(log.ts_ms[rows]),
        'Z","page":"',
        pa.array(_PAGES).take(pa.array(payload.page[source])),
        '","status":',
        _texts(payload.status[source]),
        ',"bytes":',
        _texts(payload.size[source]),
        ',"agent":"',
        pa.array(_AGENTS).take(pa.array(payload.agent[source])),
        '"}\n',
        "",
    )


def _spoil(line: bytes, kind: int, source: int, rng: np.random.Generator) -> bytes:
    """A good line made malformed in one of five ways, or its key made null in one of three."""
    if kind == _NULL_KEY:
        way = source % 3
        if way == 0:
            return re.sub(rb'"user":"\w+"', b'"user":null', line)
        return re.sub(rb'"id":\d+,', b"" if way == 1 else b'"id":null,', line)
    way = source % 5
    if way == 0:
        cut = line[: 1 + int(rng.integers(len(line) - 3))]
        return cut.decode(errors="ignore").encode() + b"\n"
    if way == _NOT_TEXT:  # 0xFF never occurs in UTF-8; no line feeds inside
        return b"\xff" + bytes(rng.integers(128, 256, size=int(rng.integers(1, 80)), dtype=np.uint8)) + b"\n"
    if way == 2:
        return re.sub(rb'"id":\d+', b'"id":"n/a"', line)
    if way == 3:
        return re.sub(rb'"bytes":\d+', b'"bytes":{"sent":true}', line)
    return b"\n"


def _write(directory: Path, records: int, days: int, seed: int, start_ms: int) -> WeblogSummary:
    rng = np.random.default_rng(seed)
    log = _make(rng, records, days, start_ms)
    starts = _file_starts(log, rng, days, start_ms)
    payload = _payload(rng, int(log.source.max()) + 1)
    files = []
    for index, (first, end) in enumerate(zip(starts, [*starts[1:], records], strict=True)):
        lines = _lines(log, payload, slice(first, end)).cast(pa.binary())
        kinds = log.kind[first:end]
        spoilt = (kinds == _MALFORMED) | (kinds == _NULL_KEY)
        bad = [
            _spoil(lines[row].as_py(), int(kinds[row]), int(log.source[first + row]), rng)
            for row in np.flatnonzero(spoilt)
        ]
        lines = pc.replace_with_mask(lines, pa.array(spoilt), pa.array(bad, pa.binary()))
        _, ends, data = lines.buffers()
        size = int(np.frombuffer(ends, dtype=np.int32)[len(lines)])
        path = directory / f"access-{index:04d}.jsonl"
        path.write_bytes(memoryview(data)[:size])
        closed_ns = int(log.arrival_ms[end - 1]) * 1_000_000
        os.utime(path, ns=(closed_ns, closed_ns))
        files.append(WeblogFile(path.name, int(end - first), size))
    summary = _summary(log, days, seed, start_ms, tuple(files))
    manifest: Mapping[str, Any] = {"format": _FORMAT, **asdict(summary)}
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return summary


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _summary(log: _Log, days: int, seed: int, start_ms: int, files: tuple[WeblogFile, ...]) -> WeblogSummary:
    good = log.kind == _GOOD
    before, is_set = _latest_before(log)
    expired = good & is_set & (before - np.where(is_set, log.ts_ms, before) >= PERIOD_MS)
    admitted = np.flatnonzero(good & ~expired)
    copies = np.bincount(log.source[admitted])
    unique = int(np.count_nonzero(copies))

    latest_ms = int(log.ts_ms[good].max())
    recent = admitted[log.ts_ms[admitted] > latest_ms - 6 * _H]
    sample = recent[np.argmax(copies[log.source[recent]])]

    delay = log.arrival_ms - log.ts_ms
    kinds = np.bincount(log.kind, minlength=4)
    first = good & ~log.is_repeat
    return WeblogSummary(
        records=log.source.size,
        days=days,
        seed=seed,
        start=_iso(start_ms),
        first_copies=int(np.count_nonzero(first)),
        repeats=int(np.count_nonzero(log.is_repeat)),
        late=int(np.count_nonzero(first & (delay >= _MIN) & (delay <= PERIOD_MS))),
        too_late=int(np.count_nonzero(first & (delay > PERIOD_MS))),
        stale_repeats=int(np.count_nonzero(log.is_repeat & (delay > PERIOD_MS))),
        malformed=int(kinds[_MALFORMED]),
        invalid_utf8=int(np.count_nonzero((log.kind == _MALFORMED) & (log.source % 5 == _NOT_TEXT))),
        null_keys=int(kinds[_NULL_KEY]),
        poisoned=int(kinds[_POISONED]),
        unique=unique,
        duplicate=admitted.size - unique,
        expired=int(np.count_nonzero(expired)),
        error=int(log.source.size - np.count_nonzero(good)),
        latest=_iso(latest_ms),
        sample_user=f"u{int(log.user[sample]):06d}",
        sample_id=int(log.number[sample]),
        files=files,
    )
