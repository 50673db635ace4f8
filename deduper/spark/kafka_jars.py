"""The jars of Spark's Kafka connector and its avro module, which PySpark does not include.

In this order: the settings `spark.jars` or `spark.jars.packages` of the user's own `spark:` section; the jars in the
directory that DEDUPER_SPARK_JARS names, for machines without internet access; else Spark downloads them by its package
mechanism, in the version of the installed PySpark.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyspark

from deduper.errors import UsageError

VARIABLE = "DEDUPER_SPARK_JARS"
_CONNECTOR = "spark-sql-kafka-0-10"
AVRO_MODULE = "spark-avro"


def connector_settings(own: Mapping[str, object], *, avro: bool = False) -> dict[str, str]:
    """The Spark settings that bring the connector, and with `avro` the avro module, when the user's `own` do not.

    Raises:
        UsageError: the directory that was named has not all of it.
    """
    if "spark.jars" in own or "spark.jars.packages" in own:
        return {}
    wanted = [_CONNECTOR, AVRO_MODULE] if avro else [_CONNECTOR]
    directory = os.environ.get(VARIABLE)
    if directory:
        jars = sorted(Path(directory).glob("*.jar"))
        for module in wanted:
            if not any(module in jar.name for jar in jars):
                raise UsageError(
                    f"{VARIABLE} is {directory}, and it has no {module} jar; put it there, or unset the variable"
                )
        return {"spark.jars": ",".join(map(str, jars))}
    packages = [f"org.apache.spark:{module}_2.13:{pyspark.__version__}" for module in wanted]
    return {"spark.jars.packages": ",".join(packages)}
