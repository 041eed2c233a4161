# SPDX-License-Identifier: Apache-2.0
"""The notification command for crash tests: ``python -m … '<json>' notification --config-file F``.

``fail_points`` are armed in the first ``deaths`` worker processes, which are counted in the file ``starts``; fail
points separated by ``|`` are used in turn. ``mutant`` removes a guarantee.
"""

import collections
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import cotyledon

from monasca_common.cli import main as cli
from monasca_common.kafka import failpoints
from monasca_common.kafka.processor.offset_tracker import OffsetTracker
from monasca_common.notification import deferred_sender, settings
from monasca_common.notification.deferred_sender import DeferredSender
from monasca_common.notification.handlers import NotificationHandler
from monasca_common.runtime.workers import Worker
from monasca_common.storage.sql import tables

_BREATH_SECONDS = 0.05
_QUICK_LEASE_MS = 3000
_NEVER_MS = 2**53


def commits_before_it_sends():
    handle, committed = NotificationHandler.__call__, OffsetTracker.committed
    unsent = collections.deque()

    def handled(handler, message):
        unsent.append((handler, message))
        return []

    def sends_then(tracker, progress):
        committed(tracker, progress)
        while progress and unsent:
            handle(*unsent.popleft())

    mock.patch.object(NotificationHandler, "__call__", handled).start()
    mock.patch.object(OffsetTracker, "committed", sends_then).start()


def forgets_who_is_in_a_message():
    run = DeferredSender.run

    def unsealed_run(releases):
        # The deferred notifications are sent with the next message.
        table = tables.notification_deferred
        statement = table.update().where(table.c.kind == "held").values(message_id="", due=_NEVER_MS)
        releases._deferred._database.write(lambda connection: connection.execute(statement))
        run(releases)

    mock.patch.object(DeferredSender, "run", unsealed_run).start()


def arms_the_first_workers(fail_points, deaths, starts):
    made = Worker.__init__

    def making(worker, *arguments):
        with Path(starts).open("a") as file:
            if file.tell() < deaths:
                turns = fail_points.split("|")
                failpoints.arm_from(turns[file.tell() % len(turns)])
            file.write("x")
        made(worker, *arguments)

    mock.patch.object(Worker, "__init__", making).start()


def replaced_at_once(_manager):
    time.sleep(_BREATH_SECONDS)


def end_with_the_test():
    """End all processes of the service with the test."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def main(arguments):
    facts = json.loads(arguments[0])
    if facts["mutant"]:
        globals()[facts["mutant"]]()
    arms_the_first_workers(facts["fail_points"], facts["deaths"], facts["starts"])
    mock.patch.object(deferred_sender, "_LEASE_MS", _QUICK_LEASE_MS).start()
    mock.patch.object(settings, "MAX_INTERVAL_SECONDS", facts["max_interval_seconds"]).start()
    mock.patch.object(cotyledon.ServiceManager, "_slowdown_respawn_if_needed", replaced_at_once).start()
    threading.Thread(target=end_with_the_test, daemon=True).start()
    return cli.main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
