"""A web log with known answers, for `deduper quickstart`: JSON lines in hourly files.

Three quarters of the lines are new and one quarter is sent again, within minutes or after hours; some are late, some
later than a day, a few broken, and one is from the year 2099. The log draws integers only, from NumPy's PCG64 with a
seed, so the same arguments give the same bytes on every machine; another version of NumPy may draw differently.

The answers are exact for the job of `deduper quickstart`: dedup key (user, id), 24 h by `ts`, `lookup: own_bucket`,
`clock: arrival`, `max_ahead_of_now: 1h`. Each file's clock starts at the latest point of the *batches* before it, so in
general the answers depend on how many files make a batch. Here they don't: every file begins with a line newer than all
lines before it, which brings each file's clock to the same place as one clock over all files.

Layout of the directory:

1. `access-NNNN.jsonl`, N = 0000, 0001, …: the lines in order of arrival. The modification time of a file is the arrival
   of its last line, so that the order by (modification time, path) is the order of arrival.
2. `_weblog.json`: the summary, which names every file with its size. It is empty until all files are there: a directory
   with an empty summary, or with a file missing or of another length, is made again. Readers of the log skip names that
   begin with `_`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

DEFAULT_RECORDS: Final = 1_050_000
DEFAULT_DAYS: Final = 4
DEFAULT_SEED: Final = 7
MANIFEST: Final = "_weblog.json"
SCHEMA: Final = "user string, id long, ts timestamp, page string, status int, bytes long, agent string"

_FORMAT: Final = 1
_START_MS: Final = 1_740_960_000_000  # 2025-03-03T00:00:00Z
_S: Final = 1_000
_MIN: Final = 60 * _S
_H: Final = 60 * _MIN
_PERIOD_MS: Final = 24 * _H
_POISONED_MS: Final = 4_070_908_800_000  # 2099-01-01T00:00:00Z
_GOOD, _MALFORMED, _NULL_KEY, _POISONED = range(4)
_FILE_NAME: Final = re.compile(r"access-\d{4,}\.jsonl")
_NOT_TEXT: Final = 1  # of the five ways of a malformed line

_STATUS: Final = (200,) * 90 + (304,) * 4 + (404,) * 3 + (302,) * 2 + (500,)
_AGENTS: Final = (
    "Mozilla/5.0 (X11; Linux x86_64) Firefox/136.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) Chrome/134.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_3 like Mac OS X) Mobile/15E148",
    "curl/8.12.1",
    "shop-app/7.3 (zażółć; café)",
)

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class WeblogError(Exception):
    """The directory has other contents. The caller: choose another directory, or remove this one by hand."""


@dataclass(frozen=True, slots=True)
class WeblogSummary:
    """The log: its arguments, the rows of each port and of each reason of the error port, its files with their bytes.

    `sample` is the key, user and id, of a record that was sent several times near the end of the log: it is still
    remembered after it.
    """

    records: int
    days: int
    seed: int
    counts: dict[str, int]
    error_reasons: dict[str, int]
    sample: tuple[str, int]
    files: dict[str, int]


def write_weblog(
    directory: Path, *, records: int = DEFAULT_RECORDS, days: int = DEFAULT_DAYS, seed: int = DEFAULT_SEED
) -> WeblogSummary:
    """The log in `directory`: made now, or found there whole from an earlier call with the same arguments.

    Files that a user has added under other names stay.

    Raises:
        ValueError: fewer than 100 records, or less than one day.
        WeblogError: the directory holds a log of other arguments, or files that are no such log.
    """
    if records < 100 or days < 1:
        raise ValueError(f"a log needs at least 100 records and one day: {records=}, {days=}")
    found = read_weblog(directory)
    if found is not None:
        wanted = {"records": records, "days": days, "seed": seed}
        other = [f"{name} {getattr(found, name)}" for name, value in wanted.items() if getattr(found, name) != value]
        if other:
            raise WeblogError(
                f"{directory} holds another log ({', '.join(other)}): choose another directory, or remove this one"
            )
        sizes = {entry.name: entry.stat().st_size for entry in directory.iterdir()}
        if found.files.items() <= sizes.items():
            return found
    directory.mkdir(parents=True, exist_ok=True)
    names = sorted(entry.name for entry in directory.iterdir())
    if names and MANIFEST not in names:
        raise WeblogError(f"{directory} holds files of others ({names[0]}): choose another directory")
    (directory / MANIFEST).write_bytes(b"")
    for name in filter(_FILE_NAME.fullmatch, names):
        (directory / name).unlink()
    summary = _write(directory, records, days, seed)
    (directory / MANIFEST).write_text(json.dumps({"format": _FORMAT, **asdict(summary)}, indent=1) + "\n", "utf-8")
    return summary


def read_weblog(directory: Path) -> WeblogSummary | None:
    """The summary in a directory; None if it is missing or unreadable."""
    try:
        fields: dict[str, Any] = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        if fields.pop("format") != _FORMAT:
            return None
        return WeblogSummary(**{**fields, "sample": tuple(fields["sample"])})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class _Log:
    """All lines in order of arrival, as columns. `source` is the number of the first copy that a line is or repeats."""

    arrival_ms: Ints
    ts_ms: Ints
    source: Ints
    kind: Ints
    user: Ints
    number: Ints
    is_repeat: Flags

    @property
    def is_good(self) -> Flags:
        """Lines that are records with a key, and not from 2099."""
        good: Flags = self.kind == _GOOD
        return good

    def latest_before(self) -> Ints:
        """The latest point before each line, by one clock over the whole log; it starts below every timestamp.

        Expired lines may take part in the maximum: they are a day below it.
        """
        clock = np.maximum.accumulate(np.where(self.is_good, self.ts_ms, np.iinfo(np.int64).min))
        lowest = self.ts_ms.min() - 1
        return np.concatenate([[lowest], np.maximum(clock[:-1], lowest)])


def _lines(rng: np.random.Generator, records: int, days: int, start_ms: int) -> _Log:
    repeats = round(records / 4)
    firsts = records - repeats
    end_ms = start_ms + days * 24 * _H
    arrival = np.sort(rng.integers(start_ms, end_ms - _S, firsts))
    ts = arrival - rng.integers(5, 2 * _S, firsts)
    kind = np.full(firsts, _GOOD)

    broken, nulls = max(4, records // 2000), max(2, records // 50_000)
    late, too_late = firsts // 50, firsts // 250
    edges = np.cumsum([broken, nulls, 1, late, too_late])
    malformed, null_keys, poisoned, lates, too_lates, _ = np.split(rng.permutation(firsts), edges)
    kind[malformed], kind[null_keys], kind[poisoned] = _MALFORMED, _NULL_KEY, _POISONED
    ts[lates] = arrival[lates] - rng.integers(_MIN, 20 * _H, late)
    ts[too_lates] = arrival[too_lates] - rng.integers(24 * _H + 10 * _MIN, 72 * _H, too_late)
    ts[poisoned] = _POISONED_MS

    stale, delivered = repeats // 80, repeats // 4
    wait = np.concatenate(
        [
            rng.integers(24 * _H + 10 * _MIN, 48 * _H, stale),
            rng.integers(10 * _MIN, 20 * _H, delivered),
            rng.integers(_S, 10 * _MIN, repeats - stale - delivered),
        ]
    )
    good = np.flatnonzero(kind == _GOOD)
    parent = good[rng.integers(0, good.size, repeats)]
    # A repeat that would arrive after the last day is a retry within a second.
    wait = np.where(arrival[parent] + wait < end_ms, wait, rng.integers(1, _S, repeats))
    # A user's records are numbered 1, 2, 3, …: neither column alone is a key.
    users = max(10, firsts // 12)
    user, number = rng.permutation(users)[np.arange(firsts) % users], np.arange(firsts) // users + 1

    source = np.concatenate([np.arange(firsts), parent])
    at = np.concatenate([arrival, arrival[parent] + wait])
    order = np.argsort(at, kind="stable")
    source = source[order]
    return _Log(at[order], ts[source], source, kind[source], user[source], number[source], order >= firsts)


def _file_starts(log: _Log, days: int, start_ms: int) -> list[int]:
    """First line of each file: about one an hour, moved on to a line newer than all before it."""
    files = min(days * 24, max(1, log.source.size // 100))
    newer = np.flatnonzero(log.is_good & (log.ts_ms > log.latest_before()))
    edges = np.searchsorted(log.arrival_ms, np.arange(1, files) * (days * 24 * _H // files) + start_ms)
    wanted = np.searchsorted(newer, edges)
    return sorted({0, *newer[wanted[wanted < newer.size]].tolist()})


def _texts(log: _Log, payload: tuple[Ints, ...], rows: slice) -> Iterator[bytes]:
    """Some lines as JSON, a few of them broken. A repeat has all values of its first copy."""
    moments = np.datetime_as_string(log.ts_ms[rows].astype("datetime64[ms]"))
    source = log.source[rows]
    columns = (source, log.kind[rows], log.user[rows], log.number[rows], moments, *(drawn[source] for drawn in payload))
    for first, kind, of_user, of_number, ts, page, sent, status, agent in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        user, number, size = f'"u{of_user:06d}"', str(of_number), str(sent)
        if kind == _NULL_KEY:
            user, number = ("null", number) if first % 2 else (user, "null")
        elif kind == _MALFORMED and first % 5 in (2, 3):
            number, size = ('"n/a"', size) if first % 5 == 2 else (number, '{"sent":true}')
        line = (
            f'{{"user":{user},"id":{number},"ts":"{ts}Z","page":"/item/{page}",'
            f'"status":{_STATUS[status]},"bytes":{size},"agent":"{_AGENTS[agent]}"}}\n'
        ).encode()
        if kind == _MALFORMED and first % 5 == 0:
            line = line[: 10 + first % 40] + b"\n"  # cut off
        elif kind == _MALFORMED and first % 5 == _NOT_TEXT:
            line = b"\xff" + line  # never in UTF-8
        elif kind == _MALFORMED and first % 5 == 4:
            line = b"\n"
        yield line


def _write(directory: Path, records: int, days: int, seed: int) -> WeblogSummary:
    rng = np.random.Generator(np.random.PCG64(seed))
    log = _lines(rng, records, days, _START_MS)
    ends = ((0, 1000), (180, 90_000), (0, len(_STATUS)), (0, len(_AGENTS)))  # page, bytes, status, agent
    firsts = int(np.count_nonzero(~log.is_repeat))
    payload = tuple(rng.integers(*between, firsts) for between in ends)
    starts = _file_starts(log, days, _START_MS)
    files = {}
    for index, (first, end) in enumerate(zip(starts, [*starts[1:], records], strict=True)):
        path = directory / f"access-{index:04d}.jsonl"
        files[path.name] = path.write_bytes(b"".join(_texts(log, payload, slice(first, end))))
        closed_ns = int(log.arrival_ms[end - 1]) * 1_000_000
        os.utime(path, ns=(closed_ns, closed_ns))
    return _summary(log, days, seed, files)


def _summary(log: _Log, days: int, seed: int, files: dict[str, int]) -> WeblogSummary:
    good = log.is_good
    expired = good & (log.latest_before() - log.ts_ms >= _PERIOD_MS)
    admitted = np.flatnonzero(good & ~expired)
    copies = np.bincount(log.source[admitted])
    unique = int(np.count_nonzero(copies))
    recent = admitted[log.ts_ms[admitted] > log.ts_ms[good].max() - 6 * _H]
    sample = recent[np.argmax(copies[log.source[recent]])]
    malformed, null_keys, poisoned = np.bincount(log.kind, minlength=4)[[_MALFORMED, _NULL_KEY, _POISONED]].tolist()
    not_text = int(np.count_nonzero((log.kind == _MALFORMED) & (log.source % 5 == _NOT_TEXT)))
    return WeblogSummary(
        records=log.source.size,
        days=days,
        seed=seed,
        counts={
            "unique": unique,
            "duplicate": admitted.size - unique,
            "expired": int(np.count_nonzero(expired)),
            "error": malformed + null_keys + poisoned,
        },
        error_reasons={
            "malformed": malformed - not_text,
            "invalid_utf8": not_text,
            "null_key": null_keys,
            "ahead_of_now": poisoned,
        },
        sample=(f"u{int(log.user[sample]):06d}", int(log.number[sample])),
        files=files,
    )
