# SPDX-License-Identifier: Apache-2.0
"""Changes to ``monasca-common audit serve | count`` for `changed_command`, most of which remove a guarantee."""

from functools import partial

from monasca_common.operations.audit import counter_service
from monasca_common.operations.audit.log_counter import CounterStarts, LogCounter
from monasca_common.operations.audit.report_log import ReportLog
from monasca_common.tests.functional.changed_command import patch

_NEVER_MS = 2**42


def commits_before_it_reports():
    report = LogCounter.report

    def commit_first(self):
        self._consumer.commit(dict(self._positions))
        report(self)

    patch(LogCounter, "report", commit_first)


def forgets_the_ids():
    """Continue at the offset of the group, without the earlier ids."""
    firsts = CounterStarts.assigned

    def committed(self, partitions):
        return {**firsts(self, partitions), **self._admin.group_offsets(self._group)}

    patch(CounterStarts, "assigned", committed)


def begins_at_the_end():
    """Ignore reports from before the start."""
    since = ReportLog.since
    patch(ReportLog, "since", lambda log, _since_ms, seconds: since(log, _NEVER_MS, seconds))


def is_the_same_member():
    """Let the successor of a killed counter join without waiting for its session to end. This is not a mutant."""
    settings = partial(counter_service.ConsumerSettings, group_instance_id="one")
    patch(counter_service, "ConsumerSettings", settings)
