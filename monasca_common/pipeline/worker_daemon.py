# SPDX-License-Identifier: Apache-2.0
"""The process from which Spark forks its Python workers (``spark.python.daemon.module``), so that a task costs little.

A worker that starts without the daemon imports its modules for a second or more. Before each task Spark has it
invalidate the caches of imports, and Python then reads the directory of every archive on its path again. After each
task it collects garbage, which takes the longer the more is imported.
"""

import contextlib
import gc
import sys
import zipimport

import pyarrow.parquet  # noqa: F401
from pyspark import daemon
from pyspark.sql.pandas import serializers  # noqa: F401

from monasca_common.pipeline.aggregate import batch as aggregate  # noqa: F401
from monasca_common.pipeline.archive import batch as archive  # noqa: F401
from monasca_common.pipeline.evaluate import batch as evaluate  # noqa: F401
from monasca_common.pipeline.replay import senders  # noqa: F401

with contextlib.suppress(ImportError):  # SQLite needs no client
    from monasca_common.storage.sql import bounded  # noqa: F401

# Records and their partials are not part of reference cycles. With Python's own thresholds the collector scans them
# again and again, which takes a third of the time of a task that evaluates.
_GC_THRESHOLDS = (100_000, 20, 100)


class _ShippedArchive(zipimport.zipimporter):
    """An archive that Spark has distributed does not change."""

    def invalidate_caches(self) -> None:
        """Keep its directory."""


def main() -> None:
    """Serve Spark until it ends."""
    prepare()
    daemon.manager()  # type: ignore[no-untyped-call]


def prepare() -> None:
    """Change how this process, and what it forks, imports and collects garbage."""
    sys.path_hooks[:] = [_ShippedArchive if hook is zipimport.zipimporter else hook for hook in sys.path_hooks]
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


if __name__ == "__main__":
    main()
