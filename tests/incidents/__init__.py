"""A night on call, played through: for each incident in a running job its alert, and the line that names the cause.

    python -m tests.incidents [--only WORD ...] [--scale 30] [--out FILE.md]

A broker, the job as users start it under a supervisor, and a Prometheus with deploy's rules and alerts, whose durations
are divided (`scaled_rules`). No part of CI: it takes most of an hour, and alerts depend on time.
"""
