"""Coverage-guided fuzzing of decoders, one a core: `python -m tests.fuzz [TARGET...] [-max_total_time=60]`.

Options with one dash go to libFuzzer. What it finds worth keeping lies in `.fuzz/<target>/`, an input that breaks a
promise in `.fuzz/crash-<target>-<hash>`; put that into `tests/fuzz/corpus/<target>/`, where it is tried by every run of
the tests. `--keep` puts those that broke a promise there, and the smallest that reached something new.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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
    if "--keep" in arguments:
        for name in names or _all_names():
            _keep(name)
        return 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return max(pool.map(lambda name: _in_a_process(name, options), names or _all_names()))


def _in_a_process(name: str, options: list[str]) -> int:
    """One target; what it prints comes at its end, whole if it failed and the last line otherwise."""
    command = [sys.executable, "-m", "tests.fuzz", name, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    lines = done.stdout.splitlines()
    print(
        "\n".join([f"== {name}: exit code {done.returncode}", *(lines if done.returncode else lines[-1:])]), flush=True
    )
    return done.returncode


def _all_names() -> list[str]:
    from tests.fuzz.targets import TARGETS

    return list(TARGETS)


def _fuzz(name: str, options: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["bucket_store", "deduper"], exclude=_with_kernels()):
        from deduper.table.index import bloom_filter
        from tests.fuzz.targets import TARGETS
    # A decoder beside kernels.
    bloom_filter.decode_filter = atheris.instrument_func(bloom_filter.decode_filter)
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


def _with_kernels() -> list[str]:
    """The modules with kernels, which numba compiles: it must see plain bytecode."""
    root = CORPUS.parents[2]
    paths = (path for room in ("bucket_store", "deduper") for path in (root / room).rglob("*.py"))
    return [
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in paths
        if "from bucket_store.compiled import" in path.read_text(encoding="utf-8")
    ]


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
