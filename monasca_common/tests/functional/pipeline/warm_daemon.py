# SPDX-License-Identifier: Apache-2.0
"""The daemon from which Spark forks its Python workers in tests (``spark.python.daemon.module``). It is the
package's daemon, with a faster start."""

import sys

# Java puts these archives first on the path, and modules in them are compiled at each start.
for _archive in [path for path in sys.path if path.endswith((".zip", ".jar"))]:
    sys.path.remove(_archive)
    sys.path_importer_cache.pop(_archive, None)

import pandas  # noqa: E402, F401

from monasca_common.pipeline import worker_daemon  # noqa: E402

if __name__ == "__main__":
    worker_daemon.main()
