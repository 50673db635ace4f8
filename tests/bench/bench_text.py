"""What a line of JSON, of CSV or of a log costs to become Arrow columns: `text.block` beside pyarrow, on one core.

    nice -n 19 python -m tests.bench.bench_text [--blocks 25]

prints CPU nanoseconds a line, median and least over so many blocks of 4 MiB, the contenders in turns. `lines` splits,
`parse` gives columns; pyarrow's reader does both, with the schema given. Rows named `1 % exact` have so many lines
with an escaped name, or a blank behind a quote, which the exact parser takes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Callable, Iterator
from statistics import median

import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import parse_columns
from deduper.log_formats import LOGS
from deduper.text import block
from deduper.text.format import TextFormat

SEED = 7
BLOCK_BYTES = 4 << 20
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"


def main() -> None:
    """Runs and prints every workload."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=25)
    blocks = parser.parse_args().blocks
    for form in ("json", "csv"):
        block.warm(form)
    print(
        f"seed {SEED}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, pyarrow {pa.__version__}"
    )
    print("CPU ns a line: median (least)")
    for name, columns, line in (*_WORKLOADS, *_CSV_WORKLOADS, *_LOG_WORKLOADS):
        rng = random.Random(SEED)
        lines = []
        size = 0
        while size < BLOCK_BYTES:
            lines.append(line(rng))
            size += len(lines[-1]) + 1
        _run(name, columns, b"\n".join(lines) + b"\n", len(lines), blocks)


def _text(rng: random.Random, size: int) -> bytes:
    return bytes(rng.choices(_LETTERS, k=size))


def _event(rng: random.Random) -> bytes:
    user, second, micros = rng.randrange(10**9), rng.randrange(86_400), rng.randrange(10**6)
    clock = b"%02d:%02d:%02d.%06d" % (second // 3600, second // 60 % 60, second % 60, micros)
    key = b"user%012d-%03d" % (user, rng.randrange(1000))
    return b'{"k":"%s","ts":"2026-01-01T%sZ","payload":"%s"}' % (key, clock, _text(rng, 91))


def _event_with_bad_ones(rng: random.Random) -> bytes:
    line = _event(rng)
    return line.replace(b'"k"', rb'"\u006b"') if rng.random() < 0.01 else line


def _accented(rng: random.Random) -> bytes:
    return _event(rng).replace(b"a", "é".encode()).replace(b"A", "€".encode())


def _escaped(rng: random.Random) -> bytes:
    head, payload = _event(rng).split(b'"payload":"')
    return head + b'"payload":"' + payload.replace(b"a", rb"\n").replace(b"/", rb"\/")


def _numbers(rng: random.Random) -> bytes:
    whole = rng.getrandbits(40)
    return b'{"id":%d,"price":%d.%02d,"ratio":0.%05d,"count":%d,"ok":%s}' % (
        whole,
        rng.randrange(10_000),
        rng.randrange(100),
        rng.randrange(100_000),
        rng.randrange(100),
        rng.choice((b"true", b"false", b"null")),
    )


def _doubles(rng: random.Random) -> bytes:
    return b'{"at":%d,"x":%r,"y":%r,"z":%r}' % (rng.getrandbits(50), rng.random(), rng.gauss(0, 9), rng.uniform(-9, 9))


def _nested(rng: random.Random) -> bytes:
    inside = b'{"user": {"id": %d, "tags": ["%s", "%s"]}, "ok": true}' % (
        rng.getrandbits(40),
        _text(rng, 20),
        _text(rng, 12),
    )
    return b'{"id":"%s","body":%s}' % (_text(rng, 16), inside)


def _csv(line: Callable[[random.Random], bytes]) -> Callable[[random.Random], bytes]:
    """The values of a line of JSON as fields of CSV."""

    def made(rng: random.Random) -> bytes:
        values = json.loads(line(rng), parse_int=str, parse_float=str).values()
        return ",".join(
            "" if one is None else str(one).lower() if isinstance(one, bool) else one for one in values
        ).encode()

    return made


def _csv_event_quoted(rng: random.Random) -> bytes:
    return b",".join(b'"%s"' % field.replace(b"/", b'""') for field in _csv_event(rng).split(b","))


def _csv_event_with_odd_ones(rng: random.Random) -> bytes:
    line = _csv_event(rng)
    return b'"' + line.replace(b",", b'" ,', 1) if rng.random() < 0.01 else line


_csv_event = _csv(_event)
_EVENT = "k string, ts timestamp, payload string"
_NOT_FOR_PYARROW = ("nested values as a text",)
_WORKLOADS: tuple[tuple[str, str, Callable[[random.Random], bytes]], ...] = (
    ("events", _EVENT, _event),
    ("events, key and time alone", "k string, ts timestamp", _event),
    ("events, 1 % exact", _EVENT, _event_with_bad_ones),
    ("events, accented", _EVENT, _accented),
    ("events, escaped", _EVENT, _escaped),
    ("doubles", "at bigint, x double, y double, z double", _doubles),
    ("nested values as a text", "id string, body string", _nested),
    ("numbers", "id bigint, price decimal(10,2), ratio double, count int, ok boolean", _numbers),
)
_CSV_WORKLOADS: tuple[tuple[str, str, Callable[[random.Random], bytes]], ...] = (
    ("CSV: events", _EVENT, _csv_event),
    ("CSV: events in quotes", _EVENT, _csv_event_quoted),
    ("CSV: events, 1 % exact", _EVENT, _csv_event_with_odd_ones),
    ("CSV: events, accented", _EVENT, _csv(_accented)),
    ("CSV: doubles", "at bigint, x double, y double, z double", _csv(_doubles)),
    ("CSV: numbers", "id bigint, price decimal(10,2), ratio double, count int, ok boolean", _csv(_numbers)),
)


def _access(rng: random.Random) -> bytes:
    second, host = rng.randrange(86_400), ".".join(str(rng.randrange(256)) for _ in range(4))
    at = f"06/Jan/2024:{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} +0000"
    target = f"/articles/{rng.randrange(10**6)}?page={rng.randrange(10)}"
    agent = "Mozilla/5.0 (X11; Linux x86_64; rv:136.0) Gecko/20100101 Firefox/136.0"
    size, referer = rng.randrange(10**5), '"https://example.org/articles"'
    return f'{host} - - [{at}] "GET {target} HTTP/1.1" 200 {size} {referer} "{agent}"'.encode()


def _pairs(rng: random.Random) -> bytes:
    second, user, text = rng.randrange(86_400), rng.randrange(10**9), _text(rng, 40).decode()
    at = f"2024-01-06T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.123Z"
    return f'ts={at} level=info user=u{user} id={rng.randrange(10**12)} page="/a b/{text}" status=200'.encode()


_LOG_WORKLOADS: tuple[tuple[str, str, Callable[[random.Random], bytes]], ...] = (
    ("combined_log: requests", "time timestamp, host string, request string, status int, bytes bigint", _access),
    ("combined_log: all", "time timestamp, host string, target string, agent string, referer string", _access),
    ("logfmt: events", "user string, id bigint, ts timestamp, page string, status int", _pairs),
)


def _run(name: str, ddl: str, data: bytes, rows: int, blocks: int) -> None:
    columns = tuple(map(DeclaredColumn.of, parse_columns(ddl)))
    form = name.partition(":")[0].lower() if ":" in name else "json"
    is_csv = form == "csv"
    text = TextFormat.of(form, columns, "UTC")
    starts, ends, _ = block.lines(data)
    wanted = range(len(columns))
    schema = pa.schema([(column.name, column.arrow) for column in columns])
    reading = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parsing = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    contenders: dict[str, Callable[[], object]] = {
        "lines": lambda: block.lines(data),
        "parse": lambda: block.parse(data, starts, ends, text, wanted),
        "parse, no column": lambda: block.parse(data, starts, ends, text, ()),
        "pyarrow": lambda: arrow_json.read_json(pa.BufferReader(data), reading, parsing),
    }
    if is_csv:
        options = arrow_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=schema.names)
        types = arrow_csv.ConvertOptions(column_types=schema)
        contenders["pyarrow"] = lambda: arrow_csv.read_csv(pa.BufferReader(data), options, convert_options=types)
    if name in _NOT_FOR_PYARROW or form in LOGS:
        del contenders["pyarrow"]
    print(f"{name}: {len(data) / rows:.0f} bytes a line")
    for contender, times in _times(contenders, blocks):
        at = [one / rows * 1e9 for one in times]
        print(f"    {contender:18}{median(at):8.0f} ({min(at):.0f})", flush=True)


def _times(contenders: dict[str, Callable[[], object]], runs: int) -> Iterator[tuple[str, list[float]]]:
    """CPU seconds of every run."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run in range(runs + 1):
        for name, contender in contenders.items():
            begun = time.process_time()
            contender()
            if run:  # the first one warms up
                times[name].append(time.process_time() - begun)
    yield from times.items()


if __name__ == "__main__":
    main()
