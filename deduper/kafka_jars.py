"""Where Spark gets its Kafka connector from, which PySpark does not bring.

In this order: what the user's own `spark:` section says (`spark.jars`, `spark.jars.packages`); the jars in the
directory that DEDUPER_SPARK_JARS names, for machines without a way out; else Spark fetches it by its package mechanism,
in the version of the PySpark at hand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyspark

from deduper.errors import UsageError

VARIABLE = "DEDUPER_SPARK_JARS"
_CONNECTOR = "spark-sql-kafka-0-10"
_COORDINATES = f"org.apache.spark:{_CONNECTOR}_2.13:{{version}}"


def connector_settings(own: Mapping[str, object]) -> dict[str, str]:
    """The Spark settings that bring the connector, when the user's `own` do not.

    Raises:
        UsageError: the directory that was named has no connector.
    """
    if "spark.jars" in own or "spark.jars.packages" in own:
        return {}
    directory = os.environ.get(VARIABLE)
    if directory:
        jars = sorted(Path(directory).glob("*.jar"))
        if not any(_CONNECTOR in jar.name for jar in jars):
            raise UsageError(
                f"{VARIABLE} is {directory}, and no {_CONNECTOR} jar lies there; put it there, or unset it"
            )
        return {"spark.jars": ",".join(map(str, jars))}
    return {"spark.jars.packages": _COORDINATES.format(version=pyspark.__version__)}
