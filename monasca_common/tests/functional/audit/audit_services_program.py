# SPDX-License-Identifier: Apache-2.0
"""``monasca-common audit serve | count`` for crash tests: ``python -m … MUTANT audit …``.

A mutant removes a guarantee of the service; ``none`` removes no guarantee. ``MONASCA_FAIL_POINTS`` names the point at
which the service is killed.
"""

import sys
from functools import partial
from unittest import mock

from monasca_common.cli import main
from monasca_common.operations.audit import counter_service, service
from monasca_common.operations.audit.log_counter import CounterStarts, LogCounter
from monasca_common.operations.audit.report_log import ReportLog

_NEVER_MS = 2**42
_INTERVAL_SECONDS = 0.1


def none():
    """Change nothing: all guarantees hold."""


def commits_before_it_reports():
    report = LogCounter.report

    def commit_first(self):
        self._consumer.commit(dict(self._positions))
        report(self)

    mock.patch.object(LogCounter, "report", commit_first).start()


def forgets_the_ids():
    """Continue at the offset of the group, without the earlier ids."""
    firsts = CounterStarts.assigned

    def committed(self, partitions):
        return {**firsts(self, partitions), **self._admin.group_offsets(self._group)}

    mock.patch.object(CounterStarts, "assigned", committed).start()


def begins_at_the_end():
    """Ignore reports from before the start."""
    since = ReportLog.since
    mock.patch.object(ReportLog, "since", lambda log, _since_ms, seconds: since(log, _NEVER_MS, seconds)).start()


def is_the_same_member():
    """Let the successor of a killed counter join without waiting for its session to end. This is not a mutant."""
    settings = partial(counter_service.ConsumerSettings, group_instance_id="one")
    mock.patch.object(counter_service, "ConsumerSettings", settings).start()


if __name__ == "__main__":
    mock.patch.object(service, "_INTERVAL_SECONDS", _INTERVAL_SECONDS).start()
    is_the_same_member()
    globals()[sys.argv[1]]()
    sys.exit(main.main(sys.argv[2:]))
