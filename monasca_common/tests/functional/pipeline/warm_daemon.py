# SPDX-License-Identifier: Apache-2.0
"""What Spark forks its Python workers from in tests (``spark.python.daemon.module``): it has imported what each of
them would import by itself, for a second or more."""

import gc
import sys

# Java has these first: modules in them are compiled at each start, and each task reads their directories again.
for _archive in [path for path in sys.path if path.endswith((".zip", ".jar"))]:
    sys.path.remove(_archive)
    sys.path_importer_cache.pop(_archive, None)

import pandas  # noqa: E402, F401
import pyarrow.parquet  # noqa: E402, F401
from pyspark import daemon  # noqa: E402
from pyspark.sql.pandas import serializers  # noqa: E402, F401

from monasca_common.pipeline.aggregate import batch as aggregate  # noqa: E402, F401
from monasca_common.pipeline.archive import batch as archive  # noqa: E402, F401
from monasca_common.pipeline.replay import sending  # noqa: E402, F401

gc.freeze()  # each task ends with a collection

if __name__ == "__main__":
    daemon.manager()
