# SPDX-License-Identifier: Apache-2.0
"""A command after changes to the package: ``python -m … '[["package.module:change", argument]]' api --config-file F``.

A change is a function that sets constants, removes a guarantee (a mutant), or arms fail points in workers.
"""

import importlib
import json
import os
import pkgutil
import signal
import sys
import threading
import time
from unittest import mock

from monasca_common.cli.main import main
from monasca_common.kafka import failpoints

_BREATH_SECONDS = 0.05


def command_after(*changes):
    """Return the beginning of the command line. ``changes``: functions of modules, each with its arguments."""
    calls = [(f"{change.__module__}:{change.__name__}", *arguments) for change, *arguments in changes]
    return [sys.executable, "-m", __name__, json.dumps(calls)]


def patch(owner, name, value):
    """Patch until the end of the process."""
    mock.patch.object(owner, name, value).start()


def set_constants(constants):
    """Set ``{"package.module.NAME": value}``. Raises `AttributeError` for a name that its module does not have."""
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        patch(importlib.import_module(module), constant, value)


def arm_workers(most_deaths, *fail_points):
    """Arm these texts in turn, one after each death, until this number of workers have died."""
    # An import at the top would import prometheus_client before the API sets its variables.
    from monasca_common.runtime.workers import Worker

    made = Worker.__init__

    def making(worker, worker_id, plan, slot):
        # A dead worker counts for each of its members.
        deaths = sum(plan.board.read(number).members[0].restarts for number in range(len(plan.names())))
        if deaths < most_deaths:
            failpoints.arm_from(fail_points[deaths % len(fail_points)])
        made(worker, worker_id, plan, slot)

    patch(Worker, "__init__", making)


def replace_at_once():
    """Replace workers that die repeatedly without cotyledon's pause of five seconds."""
    import cotyledon

    patch(cotyledon.ServiceManager, "_slowdown_respawn_if_needed", lambda manager: time.sleep(_BREATH_SECONDS))


def end_with_the_test():
    """End the process group at the end of the standard input, however the test ends."""

    def wait():
        while os.read(0, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    for name, *arguments in json.loads(sys.argv[1]):
        pkgutil.resolve_name(name)(*arguments)
    sys.exit(main(sys.argv[2:]))
