"""Coverage-guided fuzzing of one decoder, or of all in turn: `python -m tests.fuzz TARGET... [-max_total_time=60]`.

Options with one dash go to libFuzzer. What it finds worth keeping lies in `.fuzz/<target>/`, an input that breaks a
promise in `.fuzz/crash-<target>-<hash>`; put that into `tests/fuzz/corpus/<target>/`, where it is tried by every run of
the tests. `--keep` puts those that broke a promise there, and the smallest that reached something new.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
WORK = Path(__file__).parent.parent.parent / ".fuzz"
MOST_BYTES = 2048
MOST_OF_A_TARGET = 14_000


def main(arguments: list[str]) -> int:
    """Runs one target in this process, several each in its own."""
    options = [argument for argument in arguments if argument.startswith("-") and argument != "--keep"]
    names = [argument for argument in arguments if not argument.startswith("-")]
    if len(names) == 1 and "--keep" not in arguments:
        _fuzz(names[0], options)
        return 0  # libFuzzer ends the process itself
    status = 0
    for name in names or _all_names():
        print(f"== {name}", flush=True)
        if "--keep" in arguments:
            _keep(name)
        else:
            status |= subprocess.run([sys.executable, "-m", "tests.fuzz", name, *options], check=False).returncode
    return status


def _all_names() -> list[str]:
    from tests.fuzz.targets import TARGETS

    return list(TARGETS)


def _fuzz(name: str, options: list[str]) -> None:
    import atheris

    # The kernels are compiled by numba, which must see plain bytecode.
    kernels = ["bucket_store.tables.kernels", "bucket_store.tables.matching"]
    kernels += ["deduper.core.kernels", "deduper.text.kernels"]
    with atheris.instrument_imports(include=["bucket_store", "deduper"], exclude=kernels):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    seeds = WORK / f"{name}.seeds"
    found = WORK / name
    for directory in (seeds, found, CORPUS / name):
        directory.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (seeds / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    defaults = ["-timeout=10", "-rss_limit_mb=2048", f"-max_len={MOST_BYTES}", f"-artifact_prefix={WORK}/crash-{name}-"]
    atheris.Setup([sys.argv[0], *defaults, *options, str(found), str(seeds), str(CORPUS / name)], target.run)
    atheris.Fuzz()


def _keep(name: str) -> None:
    """The smallest inputs that reached something new, as many as there is room for, beside those already kept."""
    kept = CORPUS / name
    kept.mkdir(parents=True, exist_ok=True)
    known = {path.read_bytes() for path in kept.iterdir()}
    room = MOST_OF_A_TARGET - sum(map(len, known))
    broken = [path.read_bytes() for path in WORK.glob(f"crash-{name}-*")]
    found = [path.read_bytes() for path in (WORK / name).glob("*")]
    for data in broken + sorted(found, key=len):
        if data not in known and len(data) <= min(room, MOST_BYTES):
            (kept / hashlib.sha1(data).hexdigest()[:16]).write_bytes(data)
            known.add(data)
            room -= len(data)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
