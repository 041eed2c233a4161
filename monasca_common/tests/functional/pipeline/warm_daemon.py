# SPDX-License-Identifier: Apache-2.0
"""What Spark forks its Python workers from in tests (``spark.python.daemon.module``): it has imported what each of
them would import by itself, for a second or more."""

import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
from pyspark import daemon
from pyspark.sql.pandas import serializers  # noqa: F401

from monasca_common.pipeline.aggregate import batch as aggregate  # noqa: F401
from monasca_common.pipeline.archive import batch as archive  # noqa: F401
from monasca_common.pipeline.replay import sending  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
