"""The kernels of a job: those that its settings need, handed to workers by their environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduper.config.load import load_config
from deduper.sources.open import job_kernels, session_settings
from deduper.tasks.warm import ENVIRONMENT, JobKernels

_JOB = """\
source: {format: files, path: in/, file_format: FORMAT, schema: "k string, ts timestamp, n double"}
key: k
expiry: {by: EXPIRY}
store: {url: "rocksdb:state"}
sinks:
  unique: {format: parquet, path: u}
  duplicate: {format: none}
  expired: {format: none}
  error: {format: ERRORS, path: e}
"""


def of(folder: Path, form: str, expiry: str, errors: str = "parquet", **settings: str) -> JobKernels:
    file = folder / "job.yaml"
    text = _JOB.replace("FORMAT", form).replace("EXPIRY", expiry).replace("ERRORS", errors)
    file.write_text(text, encoding="utf-8")
    overrides = [f"{name.replace('__', '.')}={value}" for name, value in settings.items()]
    return job_kernels(load_config(file, environment={}, overrides=overrides))


@pytest.mark.parametrize(
    ("form", "expiry", "errors", "settings", "kernels"),
    [
        (
            "parquet",
            "event_time, field: ts, period: 1h, span: 1h",
            "parquet",
            {},
            JobKernels(False, False, False, True, True, (), False),
        ),
        ("json", "never", "json", {"digest": "secure"}, JobKernels(False, False, True, False, False, ("json",), True)),
        (
            "csv",
            "ordered, field: n, period: 2, span: 1, lookup: all_live",
            "parquet",
            {"source__delimiter": ";"},
            JobKernels(True, True, False, False, True, ("csv",), False),
        ),
    ],
)
def test_a_job_names_the_kernels_that_it_calls(
    tmp_path: Path, form: str, expiry: str, errors: str, settings: dict[str, str], kernels: JobKernels
) -> None:
    """By key, expiry and forms of records; workers find them in their environment."""
    assert of(tmp_path, form, expiry, errors, **settings) == kernels
    assert JobKernels.of_environment(kernels.in_environment()) == kernels


def test_workers_get_them_by_the_session(tmp_path: Path) -> None:
    """A worker of another program has none, and then compiles what it calls."""
    of(tmp_path, "json", "never")
    settings = session_settings(load_config(tmp_path / "job.yaml", environment={}))
    handed = settings[f"spark.executorEnv.{ENVIRONMENT}"]
    assert JobKernels.of_environment({ENVIRONMENT: str(handed)}) == of(tmp_path, "json", "never")
    assert JobKernels.of_environment({}) is None
