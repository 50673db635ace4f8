"""Files of lines of text, read as blocks of bytes; `deduper.text` says what a line means.

One physical line, which ends with `\\n`, is one record. A compressed file is one by its name, as it is for Hadoop.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.core.clock import POSITION_BITS, ClockRules
from deduper.core.verdict import Admission
from deduper.errors import IntegrityError, UsageError
from deduper.tasks.readers.declared import Declared, Noted
from deduper.tasks.readers.file_parts import (
    CutOffFile,
    FilePart,
    MisheadedFile,
    UnreadableFile,
    WindowFile,
    decoding,
)
from deduper.tasks.readers.path_columns import PathValue, constant, groups_of, is_malformed, name_values
from deduper.tasks.readers.raw_text import guarded_above, raw_texts, texts_of
from deduper.text import block
from deduper.text.block import Parsed
from deduper.text.format import TextFormat
from deduper.text.written import csv_header
from deduper.text.wrong import header_fault

_BLOCK_BYTES = 4 << 20
_BATCH_ROWS = 65_536
_LONGEST_LINE = 512 << 20
_HEADER_BYTES, _LONGEST_HEADER = 64 << 10, 16 << 20
_LINE_END: Final = ord("\n")
_BOM: Final = np.frombuffer("\ufeff".encode(), np.uint8)
_WIDE_MARKS: Final = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
"""The byte order marks of UTF-16 and UTF-32, whose first letter has a zero in most languages."""
_CODECS: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_ZLIB: Final = ".deflate"
_CUT_IN_SILENCE: Final = (".lz4", ".snappy")
"""Endings that Hadoop takes for compressed, in formats that are not read here."""
_PACKED_BYTES = 64 << 10
_CUT_OFF: Final = "Truncated compressed stream"
"""What Arrow says of a file that ends within a member."""
_STEPS_TO_A_CUT: Final = (4096, 1)
_PACKED_SAMPLE = 1 << 20
_DECODED = 8
"""About so many bytes of text are in a byte of a compressed file."""

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TextReading:
    """How records are read; pickled into the job.

    `form` is the name of their format in the settings. `delimiter` stands between the fields of CSV. With `header`, the
    first line of a file is no record, but has a place.
    """

    declared: Declared
    form: str = "json"
    delimiter: str = ","
    header: bool = False

    def part(self, ordinal: int, file: WindowFile) -> FilePart:
        """A file of a window.

        Raises:
            UnreadableFile: its name says a compression that is not read.
        """
        require_lines(file.path, file.size_bytes)
        factor = _DECODED if _is_compressed(file.path) else 1
        return FilePart.of(file, ordinal, factor * file.size_bytes, self.declared.path_values(file.path))

    def records(self, part: FilePart, clock: ClockRules | None = None) -> Generator[pa.RecordBatch, None, Noted]:
        """The records of a file, see `tasks.layout`. Returns what is noted of them, their number by its line ends.

        Raises:
            FileChanged, FileGone: it is not the file any more that was listed.
            MisheadedFile: its first line is not the header of the columns.
            UnreadableFile: it cannot be read to its end. One that is cut off gives the lines before, then an error.
        """
        part.check()
        try:
            return (yield from self._records(part, clock))
        except UnreadableFile:
            part.check()  # a file that is being written is another one in the end
            raise

    def sound_file(self) -> bytes:
        """A file with one record of no values, behind a header of the first column that no file's name gives."""
        given = groups_of(self.declared.path_rule.name_pattern or "")
        names = [column.name for column in self.declared.columns if column.name not in given]
        header = csv_header(names[:1]) if self.header else b""
        return header + (b"{}\n" if self.form == "json" else b"\n")

    def _records(self, part: FilePart, clock: ClockRules | None) -> Generator[pa.RecordBatch, None, Noted]:
        begin = first = part.ordinal << POSITION_BITS
        text, places = self._format(part.in_path)
        bound = guarded_above(clock, keeps_text=self.declared.keeps_text)
        file = Lines(part.path)
        headers = 0
        rounded: set[int] = set()
        cuts: list[CutOffFile] = []
        for lines in _until_cut(file, cuts):
            if self.header and not headers:
                self._require_header(lines, part.in_path)
                headers = 1
                first += 1
                lines = lines.behind_first()
                if not lines.count:
                    continue
            parsed = block.parse(lines.data, lines.starts, lines.ends, text, list(places.values()))
            rounded |= {number for number in self.declared.key if places.get(number) in parsed.rounded}
            admission = np.full(lines.count, int(Admission.ADMITTED), np.int8)
            admission[parsed.malformed] = int(Admission.MALFORMED)
            admission[parsed.invalid_utf8] = int(Admission.INVALID_UTF8)
            columns = {number: parsed.columns[place] for number, place in places.items()}
            texts = partial(raw_texts, lines.data, lines.starts, lines.ends, ~parsed.invalid_utf8, None, bound)
            order = np.arange(first, first + lines.count, dtype=np.int64)
            yield self.declared.records(
                columns,
                order,
                in_path=part.in_path,
                admission=admission,
                texts=texts,
                has_changed=part.has_changed,
            )
            first += lines.count
        part.check()
        if first - begin != file.counted:
            raise UnreadableFile(f"{first - begin} records were read of {file.counted} lines")
        rows = file.counted - headers
        if not cuts:
            return Noted(rows, frozenset(rounded))
        if not rows:
            raise cuts[0]
        fault = f"{cuts[0]}: it was cut off behind line {file.counted:,}, and the lines up to there were judged"
        yield self.declared.error_tuple(first, Admission.FILE_UNREADABLE, part.said(fault))
        return Noted(rows + 1, frozenset(rounded), cut_off=fault)

    def _require_header(self, lines: SomeLines, in_path: Collection[int]) -> None:
        """Raises MisheadedFile."""
        columns = [column.name for number, column in enumerate(self.declared.columns) if number not in in_path]
        line = lines.data[lines.starts[0] : lines.ends[0]].tobytes()
        fault = header_fault(line, columns, self.delimiter)
        if fault is not None:
            raise MisheadedFile(fault)

    def _format(self, in_path: Collection[int]) -> tuple[TextFormat, dict[int, int]]:
        """What a line holds, and where in it the columns are that are needed, by their numbers.

        A column that its path gives has no field in CSV; elsewhere a field of its name is ignored.
        """
        whole = TextFormat.of(self.form, self.declared.columns, self.declared.zone, self.delimiter)
        text, numbers = _of_lines(whole, in_path)
        return text, {number: numbers.index(number) for number in self.declared.stored(in_path)}


def _until_cut(file: Lines, cuts: list[CutOffFile]) -> Iterator[SomeLines]:
    """The lines of a file; if it is cut off, `cuts` gets the fault."""
    try:
        yield from file
    except CutOffFile as fault:
        cuts.append(fault)


def _of_lines(text: TextFormat, in_path: Collection[int]) -> tuple[TextFormat, list[int]]:
    """What the lines of a file hold beside the columns in its path, and the numbers of their columns."""
    # A line of no columns would be none; any one will do, as it does for Spark.
    numbers = [number for number in range(len(text.columns)) if number not in in_path] or [0]
    return replace(text, columns=tuple(text.columns[number] for number in numbers)), numbers


def fault_of_header(path: str, columns: Sequence[str], delimiter: str) -> str | None:
    """What is wrong with the header of a CSV file of these columns; None of a file without any text.

    Raises:
        FileGone, UnreadableFile: it cannot be read so far.
    """
    line = _first_line(path)
    return None if line is None else header_fault(line, columns, delimiter)


def _first_line(path: str) -> bytes | None:
    """The first line of a file, without its end and marks before it; None of a file without any text."""
    with decoding(path):
        opened = pa.OSFile(os.fsencode(path))
    with opened, decoding(path):
        stream = _unpacked(path, opened)
        line = bytearray()
        while (more := stream.read(_HEADER_BYTES)) and len(line) < _LONGEST_HEADER:
            line += more
            if b"\n" in more:
                break
    text, end, _ = bytes(line).partition(b"\n")
    text = text[_behind_marks(np.frombuffer(text, np.uint8)) :]
    return text if text or end else None


def packed_ending(path: str) -> str | None:
    """The ending that makes the name of a file that of a compressed one, in small letters; None without one."""
    endings = (*_CODECS, _ZLIB, *_CUT_IN_SILENCE)
    return next((ending for ending in endings if path.lower().endswith(ending)), None)


def require_lines(path: str, size_bytes: int) -> None:
    """Raises UnreadableFile if `Lines` cannot read a file of this name and size."""
    ending = packed_ending(path)
    if ending in _CUT_IN_SILENCE:
        raise UnreadableFile(f"where a {ending} file was cut off cannot be seen: write it as .gz, .zst or .bz2")
    if ending is not None and not size_bytes:
        raise UnreadableFile("empty, which is no compressed file")


@dataclass(frozen=True, slots=True)
class SomeLines:
    """Lines of a file: data[starts[i]:ends[i]]."""

    data: Bytes
    starts: Places
    ends: Places

    @property
    def count(self) -> int:
        return len(self.starts)

    def behind_first(self) -> SomeLines:
        """The same without the first one."""
        return SomeLines(self.data, self.starts[1:], self.ends[1:])


class Lines:
    """The lines of a file, for one pass; how many there are, `counted` by their ends, when all are taken.

    A byte order mark belongs to the file and not to its first line; so do more of them. `data` has the bytes of a file
    that is not on this machine; its name says the compression.
    """

    def __init__(self, path: str, data: bytes | None = None) -> None:
        self._path = path
        self._data = data
        self.counted = 0

    def __iter__(self) -> Iterator[SomeLines]:
        """Raises CutOffFile behind the last whole line of a compressed file that ends early."""
        for data, starts, ends in self._blocks():
            for at in range(0, len(starts), _BATCH_ROWS):
                yield SomeLines(data, starts[at : at + _BATCH_ROWS], ends[at : at + _BATCH_ROWS])

    def _blocks(self) -> Iterator[tuple[Bytes, Places, Places]]:
        """Blocks of whole lines; a line that is cut by the end of a block is in the next one."""
        cut: CutOffFile | None = None
        decoded = 0
        with self._opened() as opened:
            stream = _unpacked(self._path, opened)
            rest: Bytes = np.zeros(0, np.uint8)
            is_at_begin, is_at_end = True, False
            while not is_at_end:
                # A line longer than a block is looked at once more for each doubling of it.
                data = np.empty(rest.size + max(_BLOCK_BYTES, rest.size), np.uint8)
                data[: rest.size] = rest
                try:
                    with decoding(self._path):
                        read = _fill(stream, data[rest.size :])
                except UnreadableFile as fault:
                    if _CUT_OFF not in str(fault):
                        raise  # damaged: what was unpacked before may be wrong
                    cut, read = CutOffFile(str(fault)), self._before_the_cut(data[rest.size :], decoded)
                decoded += read
                is_at_end = cut is not None or rest.size + read < data.size
                data = data[: rest.size + read]
                self.counted += int(np.count_nonzero(data[rest.size :] == _LINE_END))
                starts, ends, last = block.lines(data)
                if is_at_begin and ends.size:
                    starts[0] = _behind_marks(data)
                elif is_at_begin and is_at_end:
                    last = _behind_marks(data)
                is_at_begin = is_at_begin and not ends.size
                rest = data[last:]
                if is_at_end and rest.size and cut is None:
                    starts, ends = np.append(starts, last), np.append(ends, data.size)
                    self.counted += 1
                if rest.size > _LONGEST_LINE:
                    raise UnreadableFile(f"a line of more than {_LONGEST_LINE} bytes")
                yield data, starts, ends
        if cut is not None:
            raise cut

    def _opened(self) -> pa.NativeFile:
        with decoding(self._path):
            # Arrow takes no name that is not UTF-8 otherwise.
            return pa.OSFile(os.fsencode(self._path)) if self._data is None else pa.BufferReader(self._data)

    def _before_the_cut(self, data: Bytes, skipped: int) -> int:
        """How many bytes stand between the first `skipped` ones and the cut; they are written to `data`.

        A read over the cut does not say how many bytes it has got, so they are read once more, in the end one by one.
        """
        read = 0
        for step in _STEPS_TO_A_CUT:
            with self._opened() as opened, suppress(UnreadableFile), decoding(self._path):
                stream = _unpacked(self._path, opened)
                left = skipped + read
                while left and (skips := len(stream.read(min(left, _BLOCK_BYTES)))):
                    left -= skips
                if left:
                    return read  # another file lies there now, which `FilePart.check` says
                while read < data.size and (more := stream.readinto(data[read : read + step])):
                    read += more
        return read


def some_lines(path: str, text: TextFormat, *, header: bool, data: bytes | None = None) -> Iterator[SomeLines]:
    """The lines of a file, some at a time; `header`: the first is none.

    `data`: as `Lines`.

    Raises:
        UsageError: the first line is not the header of these columns.
        IntegrityError: lines are missing.
    """
    lines, rows, headers = Lines(path, data), 0, 0
    for some in lines:
        if header and not headers:
            headers = 1
            require_header(path, some.data[some.starts[0] : some.ends[0]].tobytes(), text)
            some = some.behind_first()
        rows += some.count
        yield some
    if rows + headers != lines.counted:
        raise IntegrityError(f"{path}: {rows + headers} lines were read of {lines.counted}")


@dataclass(frozen=True, slots=True)
class NamedLines:
    """The columns of a file of lines, some of which its name may give."""

    text: TextFormat
    in_name: Mapping[int, PathValue]
    of_lines: TextFormat
    numbers: Sequence[int]

    @classmethod
    def of(cls, path: str, text: TextFormat, name_pattern: str | None) -> NamedLines:
        """Those of this file."""
        in_name = name_values(name_pattern, path, text)
        return cls(text, in_name, *_of_lines(text, in_name))

    def parse(self, some: SomeLines, wanted: Sequence[int]) -> tuple[dict[int, pa.Array], NDArray[np.bool_], Parsed]:
        """These columns, by their numbers; where a line is no record; and what the lines themselves gave."""
        stored = [number for number in wanted if number not in self.in_name]
        places = {number: self.numbers.index(number) for number in stored}
        parsed = block.parse(some.data, some.starts, some.ends, self.of_lines, list(places.values()))
        columns = {
            number: parsed.columns[places[number]]
            if number in places
            else constant(self.in_name[number], self.text.columns[number].arrow, some.count)
            for number in wanted
        }
        wrong = parsed.malformed | parsed.invalid_utf8
        return columns, wrong | is_malformed(self.in_name), parsed


def rows_of_lines(
    path: str, text: TextFormat, *, header: bool, data: bytes | None = None, name_pattern: str | None = None
) -> Iterator[tuple[pa.RecordBatch, list[str]]]:
    """The rows of a file, some at a time, and the lines that are no record of all columns, as `texts_of` has them.

    Raises:
        UsageError, IntegrityError: as `some_lines`.
    """
    names = [column.name for column in text.columns]
    named = NamedLines.of(path, text, name_pattern)
    for some in some_lines(path, named.of_lines, header=header, data=data):
        columns, wrong, parsed = named.parse(some, range(len(names)))
        rows = pa.RecordBatch.from_arrays([columns[number] for number in range(len(names))], names)
        if not wrong.any():
            yield rows, []
            continue
        texts = texts_of(some.data, some.starts, some.ends, ~parsed.invalid_utf8, wrong)
        yield rows.filter(pa.array(~wrong)), texts.drop_null().to_pylist()


def require_header(path: str, line: bytes, text: TextFormat) -> None:
    """Raises UsageError unless a line is the header of these columns."""
    fault = header_fault(line, [column.name for column in text.columns], text.delimiter or ",")
    if fault is not None:
        raise UsageError(
            f"{path}: {fault}; declare the columns in the order of the files, by their names, or correct the file"
        )


class _Inflated:
    """The content of one zlib stream, or of several in a row, as Hadoop writes them. Each must have its end."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self._inflater = zlib.decompressobj()
        self._packed, self._is_begun = b"", False

    def read(self, size: int) -> bytes:
        """Up to so many bytes; none at the end. Raises ValueError or zlib.error over a damaged stream."""
        while True:
            if self._inflater.eof:
                self._packed, self._is_begun = self._inflater.unused_data, False
                self._inflater = zlib.decompressobj()
            packed = self._packed or self._file.read(_PACKED_BYTES)
            if not packed and not self._is_begun:
                return b""
            self._is_begun = True
            data = self._inflater.decompress(packed, size)
            self._packed = self._inflater.unconsumed_tail
            if data:
                return data
            if not packed and not self._inflater.eof:
                raise ValueError("Truncated compressed stream")

    def readinto(self, buffer: Bytes) -> int:
        """See `read`."""
        data = self.read(buffer.size)
        buffer[: len(data)] = np.frombuffer(data, np.uint8)
        return len(data)


_Stream: TypeAlias = pa.NativeFile | _Inflated
"""The bytes of a file, decompressed: `read` and `readinto` give none only at the end."""


def _unpacked(path: str, file: pa.NativeFile) -> _Stream:
    ending = packed_ending(path)
    if ending == _ZLIB:
        return _Inflated(file)
    codec = _CODECS.get(ending or "")
    stream: _Stream = file if codec is None else pa.CompressedInputStream(file, codec)
    return stream


def packed_share(path: str) -> float:
    """About how many bytes of text a byte of the file is, by its beginning: 1 if it is not compressed."""
    if not _is_compressed(path):
        return 1.0
    with open(os.fsencode(path), "rb") as file:  # noqa: PTH123  a name may be no UTF-8
        packed = file.read(_PACKED_SAMPLE)
    stream = _unpacked(path, pa.BufferReader(packed))
    text = 0
    try:
        while more := len(stream.read(_PACKED_BYTES)):
            text += more
    except (OSError, ValueError, zlib.error):
        pass  # it was cut off
    return text / len(packed) if text else float(_DECODED)


def _is_compressed(path: str) -> bool:
    return packed_ending(path) in (*_CODECS, _ZLIB)


def _behind_marks(data: Bytes) -> int:
    """The place behind the byte order marks at the beginning.

    Raises UnreadableFile: the file is UTF-16 or UTF-32. Its lines would be texts with a zero beside each letter.
    """
    begin = data[:4].tobytes()
    if begin.startswith(_WIDE_MARKS) and 0 in begin:
        raise UnreadableFile("its text is UTF-16 or UTF-32, by its first bytes: write it as UTF-8")
    place = 0
    while np.array_equal(data[place : place + _BOM.size], _BOM):
        place += _BOM.size
    return place


def _fill(stream: _Stream, data: Bytes) -> int:
    """The number of bytes read; less than the size of `data` only at the end."""
    read = 0
    while read < data.size and (more := stream.readinto(data[read:])):
        read += more
    return read
