# SPDX-License-Identifier: Apache-2.0
"""Run the command in a separate process, on the Spark session of the test process.

A driver that starts Java takes ten times the CPU time. This driver is a Python process only: SIGKILL ends it between
two statements, as in production, and Spark continues. Tests of the end of Spark itself start the complete command.
"""

import sys
from typing import Any

from py4j.java_gateway import java_import
from pyspark import SparkContext
from pyspark.sql import SparkSession

from monasca_common.cli import main

_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


def environment(session: SparkSession) -> dict[str, str]:
    """Return the environment variables from which `attach` finds the session."""
    parameters: Any = session.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    return {_PORT: str(parameters.port), _SECRET: parameters.auth_token, "PYSPARK_PYTHON": sys.executable}


def attach() -> None:
    """Attach to the Spark of the other process; from then on `open_session` returns its session."""
    SparkContext._ensure_initialized()
    java: Any = SparkContext._jvm
    java_import(java, "org.apache.spark.api.java.JavaSparkContext")
    context = java.org.apache.spark.SparkContext.getOrCreate()
    SparkContext(gateway=SparkContext._gateway, jsc=java.JavaSparkContext(context))
    SparkSession.stop = lambda self: None  # type: ignore[method-assign]


if __name__ == "__main__":
    attach()
    sys.exit(main.main())
