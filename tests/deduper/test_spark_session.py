"""The JVM's options are the job's own and those of the configuration."""

from __future__ import annotations

from deduper.spark_session import java_options


def test_ours_are_kept_and_those_asked_for_come_last() -> None:
    """Of two values for one property the JVM takes the last."""
    options = java_options("-Xss4m -Dlog4j2.configurationFile=/mine.properties").split()
    assert options[-2:] == ["-Xss4m", "-Dlog4j2.configurationFile=/mine.properties"]
    assert options[:-2] == java_options("").split()
    assert options[0].endswith("log4j2.properties")


def test_another_collector_takes_the_place_of_ours() -> None:
    """With two the JVM does not start."""
    assert "-XX:+UseParallelGC" in java_options("-Xss4m -XX:-UseStringDeduplication -XX:+UseNUMA").split()
    assert "-XX:+UseParallelGC" not in java_options("-XX:+UseG1GC -Xss4m").split()
    assert "-XX:+UseParallelGC" not in java_options("-Xss4m -XX:+UseSerialGC").split()
