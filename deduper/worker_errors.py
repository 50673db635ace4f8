"""What a Python worker has raised, from the text in which it arrives.

Through Spark an exception of a task comes to the driver as a `PythonException`, or as the `Py4JJavaError` of the job
that failed for it; in the text of both stands the worker's traceback. Damage that a task meets must end the job with
another exit code than a failure that a restart heals, and a full disk with the place where it is full.
"""

from __future__ import annotations

import re

from bucket_store import errors as store_errors
from bucket_store.errors import StoreError
from deduper import errors as own_errors
from deduper.errors import DeduperError, IntegrityError

_RAISED = re.compile(r"^(?:bucket_store|deduper)\.errors\.(\w+): (.*)$", re.MULTILINE)
_INTEGRITY = ("CorruptionError", "UnknownFormatError")


def raised_in_worker(error: Exception) -> Exception:
    """The error of ours that a worker raised, with its message; `error` itself when it is none of ours."""
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return error
    raised = _RAISED.findall(str(error))
    if not raised:
        return error
    # The last one: an error may have come of another.
    name, message = raised[-1]
    kind = getattr(store_errors, name, None) or getattr(own_errors, name, None)
    if name in _INTEGRITY:
        found: Exception = IntegrityError(f"{message}; see `deduper verify` and `deduper repair`")
    elif isinstance(kind, type) and issubclass(kind, StoreError | DeduperError):
        found = kind(message)
    else:
        return error
    found.__cause__ = error
    return found
