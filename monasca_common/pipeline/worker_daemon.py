# SPDX-License-Identifier: Apache-2.0
"""The daemon from which Spark forks its Python workers (``spark.python.daemon.module``), so that tasks start quickly.
Without the daemon, a worker needs a second or more to import its modules. Before each task, Spark invalidates the
import caches, and Python then rereads the directory of every archive on its path. After each task, the worker collects
garbage, which takes longer the more modules are imported.
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

# Records and their partials are not part of reference cycles. With Python's default thresholds, the collector scans
# them repeatedly, which takes a third of the time of an evaluation task.
_GC_THRESHOLDS = (100_000, 20, 100)


class _ShippedArchive(zipimport.zipimporter):
    """Caches the directory of an archive that Spark has distributed, because the archive does not change."""

    def invalidate_caches(self) -> None:
        """Keep the cached directory."""


def main() -> None:
    """Serve Spark until it ends."""
    prepare()
    daemon.manager()  # type: ignore[no-untyped-call]


def prepare() -> None:
    """Configure imports and garbage collection of this process and its forks."""
    sys.path_hooks[:] = [_ShippedArchive if hook is zipimport.zipimporter else hook for hook in sys.path_hooks]
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


if __name__ == "__main__":
    main()
