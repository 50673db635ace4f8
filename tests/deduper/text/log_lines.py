"""Lines of logs for the parsers, by seed: ordinary lines, odd ones, and mutants of both, as `json_lines` has them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from deduper.log_formats import LOGFMT, LOGS
from deduper.text.format import TextFormat
from tests.deduper.text import csv_lines, json_lines

WEB = "time timestamp, host string, status int, bytes bigint, method string, target string, request string"
MORE = f"{WEB}, ident string, user string, protocol string, referer string, agent string, rest string, other int"
TIMES = ("time string", "time timestamp")

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ODD_TIMES = (
    "31/Feb/2024:00:00:00 +0000", "29/Feb/2024:23:59:59 -1800", "29/Feb/2023:23:59:59 +0000",
    "00/Jan/2024:00:00:00 +0000", "01/jan/2024:00:00:00 +0000", "01/Jan/0000:00:00:00 +0000",
    "01/Jan/9999:24:00:00 +0000", "01/Jan/2024:00:60:00 +0000", "01/Jan/2024:00:00:60 +0000",
    "01/Jan/2024:00:00:00 +1801", "01/Jan/2024:00:00:00 +1760", "01/Jan/2024:00:00:00 0000",
    "1/Jan/2024:00:00:00 +00000", "01/Jan/2024 00:00:00 +0000", "2024-01-06T00:00:00+00:00!",
)  # fmt: skip
_WORDS = ("-", "--", "a", "192.0.2.1", "::1", "a.example:443", '"', "é", "\\", "[", "]")
_USERS = ("-", "alice", "alice smith", "-", "a [b", "", " ", '""', "é", " [")
_REQUESTS = (
    "GET / HTTP/1.1", "POST /a?b=c HTTP/2.0", "GET  / HTTP/1.1", "GET / x HTTP/1.0", "GET /", "-", "", " ", "  ",
    "\\x16\\x03\\x01", 'GET /\\"a\\" HTTP/1.1', "GET / http/1.1", "GET / HTTP", "GET / HTTP/", "- - HTTP/1.0",
    " / HTTP/1.0", "GET HTTP/1.1", "GET /\\\\ HTTP/1.1", "é / HTTP/1.1",
)  # fmt: skip
_TEXTS = ("-", "", "curl/8.12.1", "https://example.org/?a=b", 'a \\"b\\" c', "\\\\", "\\", "é", "a b", "--")
_BEHIND = ("", "", "", "", " ", " -", ' "1.2.3.4"', " 0.012 x", "x", '"', "  ", " -\r")
_NAMES = ("user", "id", "msg", "ts", "level", "a.b", "é", "x-y", "retry", "null")
_VALUES = (
    "1", "-", "null", '"null"', '""', "", '"a b"', '"a=b"', "a=b", "a==", '"\\u00fc"', '"\\ud83d\\ude00"', '"\\ud83d"',
    '"\\n\\t\\/\\b\\f\\r\\"\\\\"', '"\\x41"', "\\n", '"a', 'a"b', '"a"b', '"a\tb"', "é", '"é"', "true", "false", "1.5",
    "2024-01-06T10:00:00Z", '"2024-01-06 10:00:00"', "+7", "007", "1e5", '"1"',
)  # fmt: skip
_BYTES = np.frombuffer(
    b'""""\\\\[]/:=== \t\r0123456789-+HTPGJanFebu.\0\x01\x1f\x7f\x80\xbf\xc0\xc2\xe0\xed\xef\xf0\xf4\xf5\xff', np.uint8
)


def log_format(form: str, ddl: str, zone: str = "UTC") -> TextFormat:
    """The columns of a DDL string in lines of this format."""
    return replace(json_lines.text_format(ddl, zone), log=form)


def random_format(rng: random.Random) -> TextFormat:
    """Any format: fields of a server's line as texts or numbers, or one to ten columns of any kinds."""
    form = rng.choice(LOGS)
    if form == LOGFMT:
        made = json_lines.random_format(rng)
        names = rng.sample(_NAMES, min(len(made.columns), len(_NAMES)))
        columns = [replace(one, name=name) for one, name in zip(made.columns, names, strict=False)]
        scalar = tuple(column for column in columns if column.kind.is_scalar)
        return replace(made, columns=scalar, log=form) if scalar else log_format(form, "user string, id int")
    chosen = rng.sample([*MORE.split(", ")[1:], rng.choice(TIMES)], rng.randint(1, 8))
    return log_format(form, ", ".join(chosen), rng.choice(("UTC", "Europe/Paris")))


def ordinary_line(text: TextFormat, rng: random.Random) -> bytes:
    """A line as programs write it, which is plain."""
    return (_ordinary_pairs(text, rng) if text.log == LOGFMT else _web_line(text, rng, is_odd=False)).encode()


def odd_line(text: TextFormat, rng: random.Random) -> bytes:
    """A line with fields of any kind."""
    line = _odd_pairs(text, rng) if text.log == LOGFMT else _web_line(text, rng, is_odd=True)
    return line.encode("utf-8", "surrogatepass").replace(b"\n", b" ")


def _ordinary_pairs(text: TextFormat, rng: random.Random) -> str:
    pairs = [f"unknown{number}=x" for number in range(rng.randrange(3))]
    for column in text.columns:
        value = csv_lines.ordinary_field(column.kind, rng, replace(text, log=None, delimiter="\0"))
        is_bare = value and all(sign > " " and sign not in '"\\' for sign in value) and value != "null"
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        has_control = any(sign < " " for sign in value)
        needs_text = column.kind.name != "string" and quoted != value
        if not has_control and not needs_text:
            pairs.append(f"{column.name}={value}" if is_bare and rng.random() < 0.7 else f'{column.name}="{quoted}"')
    rng.shuffle(pairs)
    return rng.choice((" ", "  ", "\t")).join(pairs or ["a=b"])


def _odd_pairs(text: TextFormat, rng: random.Random) -> str:
    names = [*(column.name for column in text.columns), *_NAMES]
    pairs = []
    for _ in range(rng.randrange(6)):
        value = csv_lines.bare(json_lines.odd_value(rng)) if rng.random() < 0.2 else rng.choice(_VALUES)
        pairs.append(f"{rng.choice(names)}{rng.choice(('=', '=', '=', '=', '', ' =', '= '))}{value}")
    return rng.choice((" ", " ", "\t", "\r", "")).join(pairs) + rng.choice(("", "", " ", "\r", "="))


def _web_line(text: TextFormat, rng: random.Random, *, is_odd: bool) -> str:
    def some(odd: tuple[str, ...], *ordinary: str) -> str:
        return rng.choice(odd) if is_odd and rng.random() < 0.25 else rng.choice(ordinary)

    time = (
        f"{rng.randint(1, 28):02}/{rng.choice(_MONTHS)}/{rng.randint(1, 9999):04}:{rng.randrange(24):02}:"
        f"{rng.randrange(60):02}:{rng.randrange(60):02} {rng.choice('+-')}{rng.randrange(18):02}{rng.randrange(60):02}"
    )
    parts = [
        some(_WORDS, "192.0.2.1", "a.example", "-"),
        some(_WORDS, "-", "id"),
        some(_USERS, "-", "alice"),
        f"[{some(_ODD_TIMES, time)}]",
        f'"{some(_REQUESTS, "GET / HTTP/1.1", "HEAD /a/b?c=d HTTP/1.0", "-")}"',
        some(_WORDS, "200", "404", "-"),
        some((*_WORDS, str(2**63)), "0", "2326", "-"),
    ]
    if text.log == "combined_log" or rng.random() < 0.2:
        parts += [f'"{some(_TEXTS, "-", "https://example.org/")}"', f'"{some(_TEXTS, "curl/8", "a (b; c) d")}"']
    if is_odd and rng.random() < 0.1:
        del parts[rng.randrange(len(parts))]
    line = " ".join(parts) + (rng.choice(_BEHIND) if is_odd else rng.choice(("", "", " x", "\r")))
    return line if not is_odd or rng.random() < 0.9 else line.replace(" ", "  ", 1)


def block_of(text: TextFormat, lines: int, seed: int) -> NDArray[np.uint8]:
    """Some so many lines: a quarter ordinary, the others odd or mutated, with a line end behind each."""
    rng = random.Random(seed)
    base = [ordinary_line(text, rng) if rng.random() < 0.6 else odd_line(text, rng) for _ in range(max(1, lines // 8))]
    return json_lines.with_mutants(base, np.random.default_rng(seed), _BYTES)


def samples(text: TextFormat, seed: int, count: int) -> Iterator[bytes]:
    """Ordinary lines."""
    rng = random.Random(seed)
    for _ in range(count):
        yield ordinary_line(text, rng)
