"""How Java starts for tests: soon, as most of its processes here live for seconds.

Its second compiler and its parallel collector give back in hours what they take from a start: both are left out, and so
is the verification of classes, a sixth of a driver's start.
"""

from __future__ import annotations

import os

BRIEF = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)


def start_sessions_soon() -> None:
    """Give these options to the driver of every Spark that this process or a child of it starts."""
    os.environ["SPARK_LAUNCHER_OPTS"] = os.environ["SPARK_SUBMIT_OPTS"] = " ".join(BRIEF)
