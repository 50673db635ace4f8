"""Answers on terminals of any width: no word is broken, no line is too long, and nothing is lost without need."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from deduper.admin.status import StoreStatus
from deduper.cli.terminal import Messages, WindowLines, pairs, print_parts, table, top, watch, wrapped
from deduper.cli.views import contents, soundness, status
from deduper.config.sections import PORTS
from deduper.units import counted
from deduper.window.progress import BatchProgress, RemainingInput
from tests.deduper.admin.test_json_answers import REPORTS
from tests.deduper.store_samples import BEGIN_US, HOUR_US, SeenKey, Window, make_store, write_config

ROOT = Path(__file__).parent.parent.parent.parent
WINDOW = {"window": 4, "begun": "2024-12-31T00:00:00.5Z", "rows": 1_000_000, "unique": 999_999, "latest_point": "x y"}
SHOWN = REPORTS | {
    "status": replace(
        cast(StoreStatus, REPORTS["status"]),
        settings={"key": ["a"], "expiry.by": "never", "expiry.lookup": "own_bucket"},
        last_windows=({**dict.fromkeys(PORTS, 0), **WINDOW},) * 3,
    )
}
VIEWS: dict[str, Callable[[Any], Iterable[RenderableType]]] = {
    "status": lambda report: status.render(report, timings=True),
    "gc": soundness.render_gc,
    "check": soundness.render_check,
    "explain": contents.render_explanation,
    "bucket": contents.render_bucket,
    "verify": soundness.render_verify,
}


def printed(parts: Iterable[RenderableType], width: int) -> list[str]:
    """The lines of an answer on a terminal of this width, without colours."""
    console = Console(width=width, file=io.StringIO(), highlight=False)
    print_parts(console, parts)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def words(lines: Iterable[str]) -> set[str]:
    """The words of some lines; rules are none."""
    return {word for text in lines for word in text.split() if set(word) != {"─"}}


def check_lines(lines: Iterable[str], width: int) -> None:
    """A line is too long for one word alone, perhaps behind its name."""
    for text in lines:
        assert cell_len(text) <= width or len(text.split("  ")[-1].split()) == 1, text
        assert text == text.rstrip()


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", VIEWS)
def test_no_answer_breaks_a_word(name: str, width: int) -> None:
    """Every view of every report."""
    parts = list(VIEWS[name](SHOWN[name]))
    wide, narrow = printed(parts, 300), printed(parts, width)
    assert words(narrow) <= words(wide)
    check_lines(narrow, width)


def test_a_table_gives_up_wrapped_columns_then_optional_ones_then_itself() -> None:
    """In this order, as the room becomes less."""
    rows = [(1, "two words", "/a/long/path/with/no/end"), (20_000, "word", "/b")]
    shown = [table(("n", "text", "path"), rows, title="t", optional=("path",))]
    assert printed(shown, 80) == [
        "",
        "t",
        "     n  text       path",
        "──────  ─────────  ────────────────────────",
        "     1  two words  /a/long/path/with/no/end",
        "20,000  word       /b",
    ]
    assert printed(shown, 39)[-3:] == [
        "     1  two    /a/long/path/with/no/end",
        "        words",
        "20,000  word   /b",
    ]
    assert printed(shown, 20)[-2:] == ["     1  two words", "20,000  word"]
    assert printed(shown, 9)[2:] == [
        "n     1",
        "text  two",
        "      words",
        "path  /a/long/path/with/no/end",
        "",
        "n     20,000",
        "text  word",
        "path  /b",
    ]


def test_a_text_wraps_between_words_and_keeps_its_indent_and_style() -> None:
    """A word that is too long stands alone."""
    text = Text.assemble("  one two ", ("three", "red"), " a-very-long-word-indeed x")
    lines = wrapped(text, 12)
    assert [part.plain for part in lines] == ["  one two", "  three", "  a-very-long-word-indeed", "  x"]
    assert lines[1].spans[0].style == "red"
    assert [part.plain for part in wrapped(Text("a\n\nb"), 9)] == ["a", "", "b"]
    assert printed([pairs([("name", "a b"), ("none", None), ("n", "")])], 7) == ["name  a", "      b", "n"]


@pytest.mark.parametrize(
    ("width", "head", "row"),
    [
        (
            80,
            "window     unique  duplicate  expired   error     rows/s",
            "     7    900,000     90,000    9,000   1,000    500,000  1,200,000 left, 12 min",
        ),
        (
            120,
            "window       rows     unique  duplicate  expired   error     rows/s",
            "     7  1,000,000    900,000     90,000    9,000   1,000    500,000  1,200,000 offsets left, 12 min"
            "  latest 2024-12-31T00:00:00Z",
        ),
    ],
)
def test_windows_are_columns_on_a_terminal(width: int, head: str, row: str) -> None:
    """Under a head, which is there again after a screen; 80 columns are enough for a million rows a window."""
    console = Console(width=width, file=io.StringIO(), force_terminal=True, no_color=True, highlight=False)
    lines = WindowLines(console)
    window = BatchProgress(7, 7, 1_000_000, 900_000, 90_000, 9_000, 1_000, 2.0, 500_000, "2024-12-31T00:00:00Z")
    for _ in range(21):
        lines(replace(window, left=RemainingInput(1_200_000, "offset", 720.0)))
    assert isinstance(console.file, io.StringIO)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).splitlines()
    assert shown[:2] == [head, row]
    assert shown[21] == head
    assert width > 80 or max(map(cell_len, shown)) <= 80


@pytest.mark.parametrize(("count", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1000, "1,000 files")])
def test_one_is_no_plural(count: int, text: str) -> None:
    """Everywhere, by one function."""
    assert counted(count, "file") == text
    assert counted(count, "entry", "entries").endswith("entry" if count == 1 else "entries")


def in_terminal(*arguments: str, width: int) -> tuple[int, list[str]]:
    """(exit code, lines) of a command on a terminal of its own, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "deduper", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        env=environment | {"TERM": "xterm-256color"},
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        text += part
    os.close(ours)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.decode())
    return process.wait(), plain.replace("\r\n", "\n").splitlines()


@pytest.mark.night(but=["80-command0", "120-command2"])
@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "command"),
    [(80, ("status", "{}", "--timings")), (80, ("show", "{}")), (120, ("status", "{}")), (80, ("--help",))],
)
def test_commands_follow_a_real_terminal(width: int, command: tuple[str, ...], tmp_path: Path) -> None:
    """Its width, not that of a pipe; a path longer than a line is left to the terminal."""
    place = tmp_path / ("long-" * 12)
    place.mkdir()
    file = write_config(place)
    counts, reasons = {"duplicate": 5, "error": 1}, {"malformed": 1}
    make_store(file, [Window([SeenKey(("a", 1), BEGIN_US // HOUR_US, BEGIN_US, 3)], BEGIN_US, counts, reasons)] * 2)
    code, lines = in_terminal(*(word.format(file) for word in command), width=width)
    assert code == 0, lines
    check_lines([text.rstrip() for text in lines], width)
    assert max(map(cell_len, lines)) > width * 0.6


@pytest.mark.night
@pytest.mark.slow
def test_messages_follow_a_real_terminal(tmp_path: Path) -> None:
    """Errors and problems of a config are broken between words; in a pipe they are one line."""
    file = write_config(tmp_path)
    messages = {
        ("status", str(file)): "error: {}/state: there is no store yet; the first start of `deduper run` makes it",
        ("run", str(file), "--set", "store.shard=8"): "unknown setting; did you mean `shards`?",
        ("run", str(file), "--set", "expiry.span=x"): "--set expiry.span: expiry.span: `x` is not a duration; write a",
    }
    for command, message in messages.items():
        code, lines = in_terminal(*command, width=60)
        assert code == 2, lines
        check_lines([text.rstrip() for text in lines], 60)
        assert message.format(tmp_path) in " ".join(lines)
    piped = subprocess.run(
        [sys.executable, "-m", "deduper", "status", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert len(piped.stderr.splitlines()) == 1


def test_log_lines_on_a_terminal_keep_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """And their colours; in a pipe a line is as it was."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "30")
    line = "\x1b[33mwarning\x1b[0m window 7: many of the rows are errors"
    record = logging.LogRecord("deduper", logging.WARNING, "", 0, line, None, None)
    Messages().emit(record)
    assert stream.getvalue() == "warning window 7: many of the rows are errors\n"
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    stream.seek(stream.truncate(0))
    Messages().emit(record)
    assert stream.getvalue().startswith("\x1b[33mwarning\x1b[0m")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert plain.splitlines() == ["warning window 7: many of the", "rows are errors"]


def test_a_watched_status_keeps_its_verdict_on_a_small_screen() -> None:
    """The rest is cut off below."""
    console = Console(width=80, height=6, file=io.StringIO(), force_terminal=True)
    lines = top(console, status.render(SHOWN["status"]))
    assert len(lines) == 5
    assert "behind" in lines[0]
    assert len(top(Console(width=80, height=500, file=io.StringIO()), status.render(SHOWN["status"]))) > 20


def test_a_watched_status_is_a_line_each_time_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """Until Ctrl-C, which is a clean end; in JSON too."""
    looks = iter([REPORTS["status"]] * 2)
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            raise KeyboardInterrupt

    watch(lambda: next(looks), status.render, status.line, every_s=5, as_json=False, sleep=sleep)
    shown = capsys.readouterr().out.splitlines()
    assert naps == [5, 5]
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  ", text) for text in shown)
    assert [text.partition("  ")[2] for text in shown] == ["behind: 9 offsets wait; 5 windows, 10 rows"] * 2
