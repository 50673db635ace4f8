"""The declared columns of a source, and the records that a batch of their values makes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import Column
from deduper.core.digest_kernels import array_digest, short_unscaled
from deduper.core.fingerprints import array_fingerprint
from deduper.core.verdict import INT64_MAX, INT64_MIN, Admission
from deduper.payload import WHOLE_VALUE, Leaf
from deduper.tasks import layout
from deduper.tasks.layout import RecordLayout
from deduper.tasks.readers.path_columns import PathRule, PathValue, constant, is_malformed, path_value
from deduper.text.written import text_of_day

ExpiryKind = Literal["none", "time", "whole", "float", "decimal", "category"]
Admissions = NDArray[np.int8]
Texts = Callable[[Admissions, pa.Array], pa.Array]
"""The column RAW, by the admissions of the records and their EXPIRY or CATEGORY."""

_NOT_IN_PATH: Mapping[int, PathValue] = {}
_NOTHING_SENT: Mapping[str, pa.Array] = {}


@dataclass(frozen=True, slots=True)
class Noted:
    """Notes of a part's reader: the number of its records, counted independently of them, and likely mistakes.

    `rounded` are the numbers of key columns for which a text has more digits than the column. `schema_ids` are the ids
    of schemas in the headers of values, if any id is accepted. `cut_off`: the part is a file that ends early, and its
    last record is the error about that, in these words.
    """

    rows: int
    rounded: frozenset[int] = frozenset()
    schema_ids: frozenset[int] = frozenset()
    cut_off: str | None = None


NOTHING = Noted(0)


@dataclass(frozen=True, slots=True)
class Declared:
    """The columns of a source and what judging takes from them; pickled into the job.

    `key` and `expiry` are numbers of columns. `unit_us` are the µs of one step of a whole number that is a time.
    Paths may give columns by `path_rule`. `zone` is that of times without one. `is_secure`: see `core.digests`.
    `payload` are the parts of records that a fingerprint is made of, if the layout has one; None: their value as bytes.
    `keeps_text`: any record may become an error when it is judged.
    """

    columns: tuple[DeclaredColumn, ...]
    key: tuple[int, ...]
    expiry: int | None
    expiry_kind: ExpiryKind
    unit_us: int
    null_is_error: bool
    layout: RecordLayout
    salt: bytes
    path_rule: PathRule
    zone: str = "UTC"
    is_secure: bool = False
    payload: tuple[Leaf, ...] | None = ()
    keeps_text: bool = False

    def path_values(self, path: str) -> dict[int, PathValue]:
        """The values that a file's path gives to columns, by the numbers of the columns."""
        texts = self.path_rule.texts(path, [Column(column.name, column.kind) for column in self.columns])
        return {
            number: path_value(texts[column.name], column.kind, self.zone)
            for number, column in enumerate(self.columns)
            if column.name in texts
        }

    def stored(self, in_path: Collection[int]) -> list[int]:
        """The columns to read from a file, by number: all that `records` needs but those that its path gives."""
        return [number for number in self._needed() if number not in in_path]

    def records(
        self,
        columns: Mapping[int, pa.Array],
        order: NDArray[np.int64],
        *,
        in_path: Mapping[int, PathValue] = _NOT_IN_PATH,
        admission: Admissions | None = None,
        texts: Texts | None = None,
        sent: Mapping[str, pa.Array] = _NOTHING_SENT,
        value: pa.Array | None = None,
        has_changed: bool = False,
    ) -> pa.RecordBatch:
        """Records as reading tasks take them, see `tasks.layout`, of the values of the `stored` columns.

        `order` is the source order of each. `admission` is the state of each so far: an error stays one. Without
        `texts` no record has one. `sent` are the columns SENT, where ports are topics. `value`: the records' values as
        bytes, where they come from a topic. `has_changed`: all are errors, since their file is not the one that was
        listed.
        """
        rows = len(order)
        columns = {
            number: constant(in_path[number], self.columns[number].arrow, rows)
            if number in in_path
            else columns[number]
            for number in self._needed()
        }
        key = [columns[number] for number in self.key]
        kinds = [self.columns[number].kind for number in self.key]
        hi, lo = array_digest(key, kinds, self.salt, secure=self.is_secure)
        admissions = np.full(rows, int(Admission.ADMITTED), np.int8)
        expiry = self._expiry(columns, admissions, rows)
        lacks = admissions != int(Admission.ADMITTED)
        if lacks.any() and not self.layout.has_category:
            # It may become an error for its key: the null says that it has no expiry key either.
            expiry = pc.if_else(pa.array(lacks), pa.scalar(None, expiry.type), expiry)
        of_key = key_admissions(key, null_is_error=self.null_is_error)
        # Takes precedence over the expiry key's admission: a record without a key is an error for its key.
        admissions = np.where(of_key == int(Admission.ADMITTED), admissions, of_key)
        if is_malformed(in_path):
            admissions[:] = int(Admission.MALFORMED)
        if admission is not None:
            admissions = np.where(admission == int(Admission.ADMITTED), admissions, admission)
        if has_changed:
            admissions = np.full(rows, int(Admission.FILE_CHANGED), np.int8)
        given = {
            layout.HI: pa.array(hi.view(np.int64)),
            layout.LO: pa.array(lo.view(np.int64)),
            layout.ORDER: pa.array(order),
            layout.ADMISSION: pa.array(admissions),
            layout.CATEGORY if self.layout.has_category else layout.EXPIRY: expiry,
            layout.RAW: pa.nulls(rows, pa.string()) if texts is None else texts(admissions, expiry),
        }
        if self.layout.has_fingerprint:
            given[layout.FINGERPRINT] = self._fingerprint(columns, value, rows)
        parsed = {layout.parsed(number): column for number, column in columns.items()}
        return self.layout.records({**given, **parsed, **sent})

    def error_tuple(self, order: int, admission: Admission, text: str) -> pa.RecordBatch:
        """One record of nulls, which stands for a file. `text` has no bytes beyond UTF-8."""
        columns = {number: pa.nulls(1, self.columns[number].arrow) for number in self._needed()}
        return self.records(
            columns,
            np.array([order]),
            admission=np.array([admission], np.int8),
            texts=lambda *_: pa.array([text], pa.string()),
        )

    def _needed(self) -> list[int]:
        if self.layout.has_columns:
            return list(range(len(self.columns)))
        compared = {leaf.path[0] for leaf in self.payload or ()}
        payload = (number for number, column in enumerate(self.columns) if column.name in compared)
        return sorted({*self.key, *(() if self.expiry is None else (self.expiry,)), *payload})

    def _fingerprint(self, columns: Mapping[int, pa.Array], value: pa.Array | None, rows: int) -> pa.Array:
        if self.payload is None:
            value = pa.nulls(rows, pa.binary()) if value is None else value
            found = array_fingerprint([WHOLE_VALUE], {WHOLE_VALUE.name: value}, self.salt, rows)
        else:
            named = {self.columns[number].name: column for number, column in columns.items()}
            found = array_fingerprint(self.payload, named, self.salt, rows)
        return pa.array(found)

    def _expiry(self, columns: Mapping[int, pa.Array], admission: NDArray[Any], rows: int) -> pa.Array:
        """The expiry keys or categories; sets `admission` where the value is absent or cannot be an expiry key."""
        if self.expiry is None:
            return pa.array(np.zeros(rows, np.int64))
        column = columns[self.expiry]
        if column.null_count:
            admission[column.is_null().to_numpy(zero_copy_only=False)] = int(Admission.NULL_EXPIRY)
        if self.expiry_kind == "category":
            return _category_texts(column)
        if self.expiry_kind == "time":
            return column.view(pa.int64())
        if self.expiry_kind == "float":
            values = column.fill_null(0).to_numpy(zero_copy_only=False)
            admission[~np.isfinite(values)] = int(Admission.BAD_EXPIRY)
            return pa.array(values)
        if self.expiry_kind == "decimal":
            return pa.array(np.where(column.is_valid().to_numpy(zero_copy_only=False), short_unscaled(column), 0))
        values = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        if self.unit_us == 1:
            return pa.array(values)
        least = -(-INT64_MIN // self.unit_us)
        fits = (values >= least) & (values <= INT64_MAX // self.unit_us)
        admission[~fits] = int(Admission.BAD_EXPIRY)
        return pa.array(np.where(fits, values, 0) * self.unit_us)


def key_admissions(key: Sequence[pa.Array], *, null_is_error: bool) -> Admissions:
    """The admissions of records by their key, which is in these columns: ADMITTED where it may be judged."""
    admissions = np.full(len(key[0]), int(Admission.ADMITTED), np.int8)
    if null_is_error:
        for column in key:
            if column.null_count:
                admissions[column.is_null().to_numpy(zero_copy_only=False)] = int(Admission.NULL_KEY)
    return admissions


def _category_texts(column: pa.Array) -> pa.Array:
    """The values as texts, as Spark's cast writes them."""
    if not pa.types.is_date(column.type):
        return column.cast(pa.string())
    coded = column.dictionary_encode()
    texts = pa.array([text_of_day(days) for days in coded.dictionary.view(pa.int32()).to_pylist()], pa.string())
    return texts.take(coded.indices)
