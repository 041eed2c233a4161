# SPDX-License-Identifier: Apache-2.0
"""The dashboard's reconciliations, from a log of reports in a list."""

from unittest import mock

import fixtures
from oslotest import base

from monasca_common.audit.reconciliation import AuditVerdict
from monasca_common.audit.reports import AuditCount, AuditReport
from monasca_common.audit.settings import AuditSettings
from monasca_common.operations.dashboard.audit_panel import AuditGatherer

BUCKET_MS = 60_000
START_MS = 1_700_000_040_000  # a bucket begins


class ReportList:
    """Contains the reports since a time, and repeats them."""

    def __init__(self, reports, since_ms):
        self._reports = [each for each in reports if each.sent_ms >= since_ms]

    def read(self, _seconds):
        return iter(self._reports)


def counted(log, bucket_ms):
    count = AuditCount("t", bucket_ms, offsets={0: ((0, 10),)}, log=log)
    return AuditReport(f"{log}-{bucket_ms}", "broker", "counter", bucket_ms, 60, (count,))


class AuditGathererTest(base.BaseTestCase):
    def test_a_recreated_topic_is_counted_again_once_its_first_log_has_left_the_window(self):
        second_ms = START_MS + 5 * BUCKET_MS
        reports = [counted("first", START_MS), counted("second", second_ms)]
        name = "monasca_common.operations.dashboard.audit_panel.open_report_log"
        opened = mock.Mock(side_effect=lambda *arguments: ReportList(reports, arguments[-1]))
        self.useFixture(fixtures.MonkeyPatch(name, opened))
        settings = AuditSettings(enabled=True, bucket_seconds=60, grace_seconds=60.0, window_seconds=600)
        gather = AuditGatherer(mock.Mock(), mock.Mock(), settings, timeout_seconds=1.0)

        verdicts = [[tier.verdict for tier in gather(START_MS + minutes * BUCKET_MS).tiers] for minutes in (6, 12, 15)]
        recreated, ok = [AuditVerdict.RECREATED], [AuditVerdict.OK]
        self.assertEqual([recreated, recreated, ok], verdicts)
