"""A benchmark of minutes with bounds on its ratios: `python -m tests.bench.bounds --out DIR`.

The bounds are about half of the targets of `python -m tests.bench`: what falls below them is broken, not noise. The
workloads are lines of JSON and, as it is worst for the service, Parquet, both with payloads that never repeat.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

SCALE = ("--preset", "quick", "--rounds", "2", "--rows", "200000", "--payload", "random")
CONTENDERS = ("deduper", "passthrough", "watermark-rocksdb-tuned")
BOUNDS = {"json": {"passthrough": 1.0, "watermark": 2.5}, "parquet": {"passthrough": 0.45, "watermark": 3.0}}
"""The least ratio of rows/s by the source's format and the other contender's kind."""


def main(arguments: list[str]) -> int:
    """Exit code 1 if a ratio is below its bound."""
    parser = argparse.ArgumentParser("python -m tests.bench.bounds", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args(arguments).out
    is_broken = False
    for format_, bounds in BOUNDS.items():
        chosen = [word for name in CONTENDERS for word in ("--contender", name)]
        words = [*SCALE, "--format", format_, *chosen, "--out", str(out / format_)]
        subprocess.run([sys.executable, "-m", "tests.bench", *words], check=True)
        document = json.loads((out / format_ / "bench.json").read_text(encoding="utf-8"))
        rates = {lane["contender"]: lane["rows_per_second"]["median"] for lane in document["lanes"]}
        for kind, bound in bounds.items():
            (other,) = (name for name in rates if name.startswith(kind))
            ratio = rates["deduper"] / rates[other]
            is_broken |= ratio < bound
            print(f"{format_}: {ratio:.2f} of {other}, bound {bound}{': BROKEN' if ratio < bound else ''}", flush=True)
    return int(is_broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
