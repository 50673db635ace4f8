"""The rows that all contenders get: a function of the workload and a batch's number, the same on every machine.

A string key, an event time that is a function of the key (a repeated key has the time of its first copy), a payload of
letters. Three kinds of batches, numbered through:

    load       only new keys, until the state has its number of keys; not measured
    restart    the first of a turn, which restarts a query: as the others, and not measured
    measured   a part repeats keys from anywhere in the live state, the rest is new

The loaded keys spread over `state_hours` of event time, so that a bucket span of an hour gives that many buckets; each
measured batch adds `batch_minutes`.
"""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv, parquet

SourceFormat = Literal["parquet", "json", "json.gz", "csv", "kafka"]
Payload = Literal["repeating", "random"]
FORMATS: tuple[str, ...] = get_args(SourceFormat)
PAYLOADS: tuple[str, ...] = get_args(Payload)
SCHEMA = "k string, ts timestamp, payload string"
PERIOD_HOURS = 24
START_US = 1_767_225_600_000_000
_HOUR_US = 3_600_000_000
_FIRST_FILE_TIME = 1_700_000_000
_TEXTS = 4096
_LOAD_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a workload: its number, kind, rows, the first of its new keys and their number."""

    number: int
    kind: str
    rows: int
    first_key: int
    new_keys: int


@dataclass(frozen=True, slots=True)
class Workload:
    """The shape of the rows and of their files or records; `duplicates` is a share of the measured rows.

    A `repeating` payload is one of 4,096 texts, so that Parquet writes it once; a `random` one never comes again.
    `bad_lines` is the share of malformed lines; Parquet has none. Records of `kafka` are lines of JSON with their keys.
    """

    batch_rows: int = 1_000_000
    state_keys: int = 5_000_000
    duplicates: float = 0.2
    payload_bytes: int = 100
    state_hours: float = 20.0
    batch_minutes: float = 10.0
    batches_a_turn: int = 3
    files_a_batch: int = 4
    seed: int = 1
    format: SourceFormat = "parquet"
    payload: Payload = "repeating"
    bad_lines: float = 0.0

    @property
    def load_rows(self) -> int:
        """Rows of a load batch."""
        return max(self.files_a_batch, min(_LOAD_ROWS, self.state_keys))

    @property
    def load_batches(self) -> int:
        """The number of batches that fill the state."""
        return -(-self.state_keys // self.load_rows)

    @property
    def loaded_keys(self) -> int:
        """Keys of the state before the first turn: `state_keys`, rounded up to whole batches."""
        return self.load_batches * self.load_rows

    def batch(self, number: int) -> Batch:
        """The batch of this number."""
        if number < self.load_batches:
            return Batch(number, "load", self.load_rows, number * self.load_rows, self.load_rows)
        place = (number - self.load_batches) % self.batches_a_turn
        new_keys = self._new(self.batch_rows)
        first = self.loaded_keys + (number - self.load_batches) * new_keys
        return Batch(number, "measured" if place else "restart", self.batch_rows, first, new_keys)

    def turn(self, round_number: int) -> range:
        """The numbers of a round's batches, its restart first."""
        first = self.load_batches + round_number * self.batches_a_turn
        return range(first, first + self.batches_a_turn)

    def times_us(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """The event time of keys, ascending with them."""
        state_us = self.state_hours * _HOUR_US
        later = keys - self.loaded_keys
        before = START_US + (keys * (state_us / max(1, self.loaded_keys))).astype(np.int64)
        step_us = self.batch_minutes * 60_000_000 / max(1, self._new(self.batch_rows))
        after = START_US + int(state_us) + (later * step_us).astype(np.int64)
        return np.where(later < 0, before, after)

    def rows(self, number: int) -> pa.Table:
        """The rows of a batch."""
        batch = self.batch(number)
        random = np.random.default_rng([self.seed, number])
        keys = np.arange(batch.first_key, batch.first_key + batch.new_keys)
        repeated = batch.rows - batch.new_keys
        if repeated:
            keys = np.concatenate([keys, random.integers(self._least_live(batch), batch.first_key, repeated)])
            random.shuffle(keys)
        return pa.table(
            {
                "k": key_texts(keys),
                "ts": pa.array(self.times_us(keys), pa.timestamp("us", "UTC")),
                "payload": self._payloads(random, batch.rows),
            }
        )

    def write(self, directory: Path, number: int) -> list[Path]:
        """The files of a batch, in source order by their times; written once, and reused afterwards."""
        paths = [directory / f"{number:05d}-{part}.{self.format}" for part in range(self.files_a_batch)]
        if all(path.exists() for path in paths):
            return paths
        rows = self.rows(number)
        cuts = [len(rows) * part // self.files_a_batch for part in range(self.files_a_batch + 1)]
        for part, path in enumerate(paths):
            hidden = path.with_name(f".{path.name}")
            self._write(rows.slice(cuts[part], cuts[part + 1] - cuts[part]), number, part, hidden)
            moment = _FIRST_FILE_TIME + number * self.files_a_batch + part
            os.utime(hidden, (moment, moment))
            hidden.replace(path)
        return paths

    def records(self, number: int) -> tuple[list[bytes], list[bytes]]:
        """Keys and values of a batch's records."""
        rows = self.rows(number)
        lines = _json_lines(_with_texts(rows), self._bad(number, 0, len(rows)))
        values = [value for chunk in lines.chunks for value in chunk.cast(pa.binary()).to_pylist()]
        return rows["k"].cast(pa.binary()).to_pylist(), values

    def _write(self, rows: pa.Table, number: int, part: int, path: Path) -> None:
        if self.format == "parquet":
            parquet.write_table(rows, path)
            return
        bad = self._bad(number, part, len(rows))
        texts = _with_texts(rows)
        if self.format == "csv":
            no_time = pc.if_else(bad, pa.scalar("no time"), texts["ts"])
            options = csv.WriteOptions(include_header=False, quoting_style="needed")
            csv.write_csv(texts.set_column(1, "ts", no_time), path, options)
            return
        data = b"".join(_bytes_of(chunk) for chunk in _json_lines(texts, bad, "\n").chunks)
        path.write_bytes(gzip.compress(data, compresslevel=6) if self.format == "json.gz" else data)

    def _bad(self, number: int, part: int, rows: int) -> pa.Array:
        """Whether each line is malformed."""
        random = np.random.default_rng([self.seed, number, 1 + part])
        return pa.array(random.random(rows) < self.bad_lines)

    def _new(self, rows: int) -> int:
        # The first batches of an empty state have nothing to repeat.
        return rows - int(rows * self.duplicates) if self.loaded_keys else rows

    def _least_live(self, batch: Batch) -> int:
        """The least key that is still remembered at this batch, with an hour left to the bucket's end."""
        ends = self.times_us(np.array([batch.first_key + batch.new_keys]))[0]
        oldest = ends - (PERIOD_HOURS - 1) * _HOUR_US
        keys = np.linspace(0, batch.first_key - 1, 4097).astype(np.int64)
        at = int(np.searchsorted(self.times_us(keys), oldest))
        return int(keys[min(at, len(keys) - 1)])

    def _payloads(self, random: np.random.Generator, rows: int) -> pa.Array:
        if self.payload == "random":
            return self._texts(random, rows)
        texts = self._texts(np.random.default_rng([self.seed, 1 << 32]), _TEXTS)
        return texts.take(pa.array(random.integers(0, _TEXTS, rows)))

    def _texts(self, random: np.random.Generator, count: int) -> pa.Array:
        letters = random.integers(97, 123, count * self.payload_bytes, np.uint8)
        offsets = np.arange(count + 1, dtype=np.int32) * self.payload_bytes
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))


def _with_texts(rows: pa.Table) -> pa.Table:
    """The rows, with their times as texts."""
    return rows.set_column(1, "ts", pc.strftime(rows["ts"], "%Y-%m-%dT%H:%M:%SZ"))


def _json_lines(texts: pa.Table, bad: pa.Array, end: str = "") -> pa.ChunkedArray:
    """A line a row; a bad one ends in its payload."""
    close = pc.if_else(bad, pa.scalar(end), pa.scalar('"}' + end))
    return pc.binary_join_element_wise(
        '{"k":"', texts["k"], '","ts":"', texts["ts"], '","payload":"', texts["payload"], close, ""
    )


def _bytes_of(texts: pa.Array) -> memoryview:
    """All texts of a column in a row."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(data)[int(bounds[0]) : int(bounds[-1])]


def key_texts(keys: NDArray[np.int64]) -> Any:
    """The dedup keys of key numbers; `seeding` has the same expression for Spark."""
    numbers = pc.utf8_lpad(pc.cast(pa.array(keys), pa.string()), 12, "0")
    tails = pc.cast(pa.array(keys * 7919 % 1_000_003), pa.string())
    return pc.binary_join_element_wise("user", numbers, tails, "-")
