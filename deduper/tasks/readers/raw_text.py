"""The column RAW of records that are text: the text of those that are, or may become, errors."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.core.clock import ClockRules, guard_bound
from deduper.core.verdict import Admission
from deduper.tasks.readers.declared import Admissions

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Bools = NDArray[np.bool_]


def guarded_above(clock: ClockRules | None, *, keeps_text: bool) -> float | None:
    """The expiry key above which a guard of the clock may make an error of a record; None: of any.

    `keeps_text`: see `Declared`.
    """
    if keeps_text:
        return None
    return math.inf if clock is None else guard_bound(clock)


def raw_texts(
    data: Bytes,
    starts: Places,
    ends: Places,
    is_text: Bools,
    absent: Bools | None,
    bound: float | None,
    admissions: Admissions,
    expiry: pa.Array,
) -> pa.Array:
    """The text data[starts[i]:ends[i]] of each record that is an error, or may become one: see `guarded_above`.

    Bytes that are no UTF-8 are there as Base64 in lines of 76 characters, as Spark writes it. An absent record is null.
    """
    needed = admissions != int(Admission.ADMITTED)
    if bound is None:
        needed[:] = True
    elif bound != math.inf:
        needed |= expiry.fill_null(0).to_numpy(zero_copy_only=False) > bound
    if absent is not None:
        needed &= ~absent
    return texts_of(data, starts, ends, is_text, needed)


def texts_of(data: Bytes, starts: Places, ends: Places, is_text: Bools, needed: Bools) -> pa.Array:
    """The text data[starts[i]:ends[i]] of each record that is needed, in Base64 if it is none; null for the others."""
    if not needed.any():
        return pa.nulls(len(starts), pa.string())
    texts: NDArray[Any] = np.full(len(starts), None, np.object_)
    for number in np.flatnonzero(needed).tolist():
        record = data[starts[number] : ends[number]].tobytes()
        if not is_text[number]:
            record = base64.encodebytes(record).rstrip().replace(b"\n", b"\r\n")
        texts[number] = record.decode()
    return pa.array(texts, pa.string())
