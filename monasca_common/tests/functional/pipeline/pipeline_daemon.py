# SPDX-License-Identifier: Apache-2.0
"""The daemon from which Spark forks its Python workers in crash tests (``spark.python.daemon.module``).

Replacements of killed processes would inherit a variable that arms fail points. Therefore a task that has staged its
rows takes a file, if any, from the folder that ``MONASCA_DEATHS`` names, and kills the process with which the file name
begins: its ``worker``, or the ``executor`` of the worker.
"""

import os
import signal
from pathlib import Path

from monasca_common.kafka import failpoints
from monasca_common.tests.functional.pipeline import warm_daemon  # noqa: F401 - what all workers import

POINT = "pipeline.staged_task"
DEATHS = "MONASCA_DEATHS"
_EXECUTOR = os.getppid()


def spring(name):
    if name != POINT:
        return
    for file in sorted(Path(os.environ.get(DEATHS, "/nowhere")).glob("*")):
        try:
            file.unlink()
        except FileNotFoundError:  # another process has taken it
            continue
        os.kill(_EXECUTOR if file.name.startswith("executor") else os.getpid(), signal.SIGKILL)
        return


if __name__ == "__main__":  # not in a test process, which imports the names above
    from monasca_common.pipeline import worker_daemon  # must be imported after `fail_points`

    failpoints.arm(POINT, "raise")  # without an armed fail point, `_spring` is not called
    failpoints._spring = spring
    worker_daemon.main()
