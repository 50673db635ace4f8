"""The kernels against the exact parsers, over lines of any formats: where it says plain, all values are equal.

    nice python -m tests.deduper.text.differential json|csv|log [--lines 50000000] [--first-seed 0] [--jobs 2]

goes through blocks of 20,000 lines, a format each, and prints every difference with the seed of its block.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.text import block as blocks
from deduper.text import csv_exact, json_exact, kernels, log_exact
from deduper.text.format import Malformed, TextFormat
from tests.deduper.text import csv_lines, json_lines, log_lines

BLOCK_LINES = 20_000
MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Found:
    """What a block had: its lines by what the kernel says of them, and the differences as texts."""

    lines: int
    plain: int
    not_utf8: int
    differences: list[str]


def exact(line: bytes, text: TextFormat) -> list[Any] | None:
    """The exact values of a line; None when it is malformed."""
    try:
        if text.log is not None:
            return log_exact.record(line, text)
        return (json_exact if text.delimiter is None else csv_exact).record(line, text)
    except Malformed:
        return None


def values_of(column: pa.Array) -> list[Any]:
    """A column's values as the exact parser gives them."""
    column.validate()
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.view(pa.int32())
    values: list[Any] = column.to_pylist()
    return values


def is_same(one: Any, other: Any) -> bool:
    """Equal and of one type; the two zeros of floats differ."""
    return type(one) is type(other) and one == other and (type(one) is not float or repr(one) == repr(other))


def rows_of(parsed: blocks.Parsed, text: TextFormat) -> list[tuple[Any, ...]]:
    """Every row of all columns."""
    return list(zip(*(values_of(parsed.columns[number]) for number in range(len(text.columns))), strict=True))


def differences(data: Any, starts: NDArray[np.int64], ends: NDArray[np.int64], text: TextFormat) -> Found:
    """Each line through both."""
    whole = blocks._bytes_of(data)
    status = blocks._cells_of(whole, starts, ends, text)[1]
    plain = np.flatnonzero(status == kernels.PLAIN)
    found: list[str] = []
    parsed = blocks.parse(data, starts[plain], ends[plain], text, range(len(text.columns)))
    if parsed.slow_lines or parsed.malformed.any() or parsed.invalid_utf8.any():
        found.append("the kernel says one thing of a line among others, and another among plain ones")
    raw = whole.tobytes()
    places = zip(starts.tolist(), ends.tolist(), strict=True)
    lines = [raw[start:end] for start, end in places]
    for number, row in zip(plain.tolist(), rows_of(parsed, text), strict=True):
        wanted = exact(lines[number], text)
        if wanted is None:
            found.append(f"malformed is plain: {lines[number]!r} {text}")
        elif tuple(wanted) != row or not all(map(is_same, wanted, row)):
            found.append(f"{wanted} is {row}: {lines[number]!r} {text}")
    for line, one in zip(lines, (status == kernels.NOT_UTF8).tolist(), strict=True):
        if one != _is_broken(line):
            found.append(f"UTF-8 or not: {line!r}")
    return Found(len(lines), plain.size, int((status == kernels.NOT_UTF8).sum()), found)


def _is_broken(line: bytes) -> bool:
    if line.isascii():
        return False
    try:
        line.decode()
    except UnicodeDecodeError:
        return True
    return False


def block_differences(seed: int, lines: int = BLOCK_LINES, *, kind: str = "json") -> tuple[int, Found]:
    """A block's differences, with its seed."""
    made: Any = {"json": json_lines, "csv": csv_lines, "log": log_lines}[kind]
    text = made.random_format(random.Random(seed))
    data = made.block_of(text, lines, seed)
    starts, ends, rest = blocks.lines(data)
    assert rest == data.size
    return seed, differences(data, starts, ends, text)


def main() -> int:
    """Runs blocks until there were so many lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("json", "csv", "log"))
    parser.add_argument("--lines", type=int, default=50_000_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    count = -(-arguments.lines // BLOCK_LINES)
    lines = plain = broken = differing = 0
    begun = said = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        seeds = range(arguments.first_seed, arguments.first_seed + count)
        for done, (seed, found) in enumerate(pool.imap(partial(block_differences, kind=arguments.kind), seeds), 1):
            lines += found.lines
            plain += found.plain
            broken += found.not_utf8
            differing += len(found.differences)
            for difference in found.differences[:MOST_SHOWN]:
                print(f"seed {seed}: {difference:.2000}", flush=True)
            if time.monotonic() > said + 30 or done == count:
                said = time.monotonic()
                shares = f"{plain / lines:.0%} plain, {broken / lines:.0%} not UTF-8"
                rest = f"{said - begun:.0f} s; next seed {seed + 1}"
                print(f"{lines:,} lines, {shares}, {differing} differences; {rest}", flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
