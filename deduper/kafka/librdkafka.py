"""librdkafka's C functions for kernels: records pass between Arrow's buffers and a client, never as Python objects.

Clients are those of confluent-kafka: it takes the options, makes the calls, serves the callbacks and maps the errors.
Only the work on each record bypasses it, on the client's own `rd_kafka_t`:

- *Sending.* `rd_kafka_produceva` calls nothing back. A record without an opaque gets a delivery report that
  confluent-kafka drops before it takes the interpreter's lock. That report is wanted: it frees the record in the thread
  that made it, which costs less than to free it in a thread of the client.
- *Fetching.* The queue of one partition, forwarded nowhere, holds that partition's records and errors, and no event
  with a callback. All others (lost connections, lines of log) are in the queue of the consumer, which `poll` serves.
  Served by a kernel, confluent-kafka's callbacks would end the process: they look for the call that they belong to.

Clients of our own by ctypes would cost the same, and would need options, callbacks, transactions and errors once more.

The functions are found through confluent-kafka's extension, which is linked to them: the same library in its wheel, in
conda's package, and built against a system's. An object of confluent-kafka begins with its `rd_kafka_t`, whose opaque
is the object: `handle_of` compares the two. Structures are those of rdkafka.h, the same in all of version 2:

    rd_kafka_message_t   err int32 @0   rkt @8   partition int32 @16   payload @24   len @32   key @40   key_len @48
                         offset int64 @56   _private @64
    rd_kafka_vu_t        vtype int32 @0   value @8 (up to 64 bytes); 72 bytes

Little-endian, pointers of 8 bytes. A function takes and gives int64 where rdkafka.h has a pointer or a size.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

from confluent_kafka import KafkaError, cimpl
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from deduper.kafka.errors import INSTALL_CLIENT, ClientUnfitError

_POINTER: Final = ctypes.c_void_p
_INT: Final = ctypes.c_int
_TEXT: Final = ctypes.c_char_p
_MAJOR: Final = 2

try:
    _LIBRARY = ctypes.CDLL(cimpl.__file__)
    _VERSION: int = _LIBRARY.rd_kafka_version()
except (OSError, AttributeError) as exc:
    raise ClientUnfitError(f"confluent-kafka does not give access to its librdkafka ({exc}); {INSTALL_CLIENT}") from exc
if _VERSION >> 24 != _MAJOR or sys.byteorder != "little" or ctypes.sizeof(_POINTER) != 8:
    raise ClientUnfitError(
        f"librdkafka {_VERSION:#x} on this machine: version 2 on 64 bits is needed; {INSTALL_CLIENT}"
    )


def _function(name: str, result: Any, *arguments: Any) -> Any:
    found = _LIBRARY[name]
    found.restype, found.argtypes = result, arguments
    return found


_opaque = _function("rd_kafka_opaque", _POINTER, _POINTER)
_topic_new = _function("rd_kafka_topic_new", _POINTER, _POINTER, _TEXT, _POINTER)
_last_error = _function("rd_kafka_last_error", _INT)
_queue_get_partition = _function("rd_kafka_queue_get_partition", _POINTER, _POINTER, _TEXT, ctypes.c_int32)
_queue_forward = _function("rd_kafka_queue_forward", None, _POINTER, _POINTER)
_error_code = _function("rd_kafka_error_code", _INT, _POINTER)
_error_destroy = _function("rd_kafka_error_destroy", None, _POINTER)
_message_errstr = _function("rd_kafka_message_errstr", _TEXT, _POINTER)
_message_destroy = _function("rd_kafka_message_destroy", None, _POINTER)
topic_destroy = _function("rd_kafka_topic_destroy", None, _POINTER)
queue_destroy = _function("rd_kafka_queue_destroy", None, _POINTER)


def _in_kernels(name: str, result: Any, *arguments: Any) -> Any:
    """The function, for kernels: their cached code names it, so its address is given before they are loaded."""
    binding.add_symbol(name, ctypes.cast(_LIBRARY[name], _POINTER).value)
    return types.ExternalFunction(name, result(*arguments))


_I64, _I32, _NOTHING = types.int64, types.int32, types.void
produceva = _in_kernels("rd_kafka_produceva", _I64, _I64, _I64, _I64)
headers_new = _in_kernels("rd_kafka_headers_new", _I64, _I64)
header_add = _in_kernels("rd_kafka_header_add", _I32, _I64, _I64, _I64, _I64, _I64)
headers_destroy = _in_kernels("rd_kafka_headers_destroy", _NOTHING, _I64)
consume_batch_queue = _in_kernels("rd_kafka_consume_batch_queue", _I64, _I64, _I32, _I64, _I64)
message_timestamp = _in_kernels("rd_kafka_message_timestamp", _I64, _I64, _I64)
message_headers = _in_kernels("rd_kafka_message_headers", _I32, _I64, _I64)
header_get_all = _in_kernels("rd_kafka_header_get_all", _I32, _I64, _I64, _I64, _I64, _I64)
message_destroy = _in_kernels("rd_kafka_message_destroy", _NOTHING, _I64)
length_of_text = _in_kernels("strlen", _I64, _I64)


def handle_of(client: Any) -> int:
    """The `rd_kafka_t` of a Producer or Consumer; it lives as long as the object.

    Raises:
        ClientUnfitError: the object begins with something else.
    """
    found = _POINTER.from_address(id(client) + object.__basicsize__).value
    if not found or _opaque(found) != id(client):
        raise ClientUnfitError(f"objects of this confluent-kafka are laid out in another way; {INSTALL_CLIENT}")
    return found


def topic_of(handle: int, topic: str) -> int:
    """The `rd_kafka_topic_t` of a producer's topic, with its options, for `topic_destroy`; 0 for an error."""
    return _topic_new(handle, topic.encode(), None) or 0


def last_error() -> KafkaError:
    """Why `topic_of` gave 0 in this thread."""
    return KafkaError(_last_error())


def partition_queue(handle: int, topic: str, partition: int) -> int:
    """The queue of a consumer's partition, for `queue_destroy`.

    To be called before the partition is assigned: from then on its records come to this queue alone.
    """
    queue: int = _queue_get_partition(handle, topic.encode(), partition)
    _queue_forward(queue, None)
    return queue


def taken_error(error: int) -> KafkaError:
    """An error that a kernel has met, an `rd_kafka_error_t`, which is freed."""
    code = _error_code(error)
    _error_destroy(error)
    return KafkaError(code)


def taken_event(message: int) -> tuple[KafkaError, int]:
    """The error of a message that is no record, and its offset; the message is freed."""
    text = (_message_errstr(message) or b"").decode(errors="replace")
    error = KafkaError(ctypes.c_int32.from_address(message).value, text)
    offset = ctypes.c_int64.from_address(message + 56).value
    _message_destroy(message)
    return error, offset


def _whole_at_code(_typing_context: Any, address: Any) -> Any:
    """The int64 at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()))

    return types.int64(address), generate


def _half_at_code(_typing_context: Any, address: Any) -> Any:
    """The int32 at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer()))

    return types.int32(address), generate


def _copy_code(_typing_context: Any, target: Any, origin: Any, size_bytes: Any) -> Any:
    """Copies bytes; neither address counts when there are none."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        to, source = (builder.inttoptr(place, pointer) for place in args[:2])
        cgutils.raw_memcpy(builder, to, source, args[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(target, origin, size_bytes), generate


whole_at: Any = intrinsic(_whole_at_code)
half_at: Any = intrinsic(_half_at_code)
copy: Any = intrinsic(_copy_code)
