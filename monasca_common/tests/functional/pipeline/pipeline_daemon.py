# SPDX-License-Identifier: Apache-2.0
"""What Spark forks its Python workers from in crash tests (``spark.python.daemon.module``): they die so often.

The variable that arms fail points would be inherited by whatever replaces the dead. So a task that has staged its
rows takes a file from the folder that ``MONASCA_DEATHS`` names, if there is one left, and what the file's name begins
with dies: this ``worker``, or the ``executor`` that it works for.
"""

import os
import signal
from pathlib import Path

from monasca_common.kafka import failpoints
from monasca_common.tests.functional.pipeline import warm_daemon  # noqa: F401 - what all workers import

POINT = "pipeline.staged_task"
DEATHS = "MONASCA_DEATHS"
_EXECUTOR = os.getppid()


def take_one():
    for file in sorted(Path(os.environ.get(DEATHS, "/nowhere")).glob("*")):
        try:
            file.unlink()
        except FileNotFoundError:  # somebody else's
            continue
        return file.name
    return None


def spring(name):
    taken = take_one() if name == POINT else None
    if taken is not None:
        os.kill(_EXECUTOR if taken.startswith("executor") else os.getpid(), signal.SIGKILL)


if __name__ == "__main__":  # and not in a test's process, which reads the names above
    from monasca_common.pipeline import worker_daemon  # after the other, which says where from

    failpoints.arm(POINT, "raise")  # or nobody would look at all
    failpoints._spring = spring
    worker_daemon.main()
