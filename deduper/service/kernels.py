"""Compiled code: a job's before its first window, or all of it, ahead of any job.

`python -m deduper.service.kernels` compiles all kernels that jobs call into the cache of the user who runs it: some
forty seconds of CPU. An image, or a host of a cluster, then has them before its first job.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import product

from bucket_store.compiled import ready
from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.log_formats import LOGFMT, WEB_LOGS
from deduper.sinks.open import load_sending
from deduper.sources.open import job_kernels
from deduper.tasks.warm import JobKernels


def load_kernels(config: Config) -> None:
    """Load the kernels of a job; those that are in no cache are compiled."""
    job_kernels(config).load()
    if isinstance(config.source, KafkaSource):
        _load_reading()
        if config.source.value.format == "avro":
            _load_avro()
    if config.topic_ports:
        load_sending()


def load_all() -> None:
    """Load the kernels of all jobs."""
    forms = ("json", "csv", LOGFMT, WEB_LOGS[0])
    for float_domain, all_live, secure in product((False, True), repeat=3):
        JobKernels(float_domain, all_live, secure, True, True, forms, True, True, True).load()
    _load_avro()
    if find_spec("confluent_kafka") is not None:  # it is optional
        _load_reading()
        load_sending()


def _load_avro() -> None:
    from deduper.avro import kernels

    ready(kernels.decode, kernels.gather)


def _load_reading() -> None:
    from deduper.sources.kafka.partition_queue import KERNELS

    ready(*KERNELS)


if __name__ == "__main__":
    load_all()
