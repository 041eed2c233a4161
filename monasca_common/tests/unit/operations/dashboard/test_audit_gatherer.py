# SPDX-License-Identifier: Apache-2.0
"""The dashboard's reconciliations, from a log of reports in a list."""

from unittest import mock

import fixtures
from oslotest import base

from monasca_common.audit.reconciliation import AuditTotals, AuditVerdict
from monasca_common.audit.reports import AuditCount, AuditReport
from monasca_common.audit.settings import AuditSettings
from monasca_common.operations.dashboard.audit_panel import AuditGatherer

BUCKET_MS = 60_000
START_MS = 1_700_000_040_000  # a bucket begins


class ListedReports:
    """Reads the reports of a list instead of those of a topic."""

    def __init__(self, reports, settings):
        self._reports = reports
        self._settings = settings

    def since(self, _log, since_ms, _seconds):
        self._totals = AuditTotals(self._settings)
        for each in self._reports:
            if each.sent_ms >= since_ms:
                self._totals.add(each)
        return self._totals

    def new(self, _log, _seconds):
        return self._totals


def counted(log, bucket_ms):
    count = AuditCount("t", bucket_ms, offsets={0: ((0, 10),)}, log=log)
    return AuditReport(f"{log}-{bucket_ms}", "broker", "counter", bucket_ms, 60, (count,))


class AuditGathererTest(base.BaseTestCase):
    def test_a_recreated_topic_is_counted_again_once_its_first_log_has_left_the_window(self):
        second_ms = START_MS + 5 * BUCKET_MS
        reports = [counted("first", START_MS), counted("second", second_ms)]
        settings = AuditSettings(enabled=True, bucket_seconds=60, grace_seconds=60.0, window_seconds=600)
        listed, name = ListedReports(reports, settings), "monasca_common.operations.audit.report_log.ReportLog"
        self.useFixture(fixtures.MonkeyPatch(f"{name}.since", lambda *arguments: listed.since(*arguments)))
        self.useFixture(fixtures.MonkeyPatch(f"{name}._read", lambda *arguments: listed.new(*arguments)))
        gather = AuditGatherer(mock.Mock(), mock.Mock(), settings, timeout_seconds=1.0)

        verdicts = [[tier.verdict for tier in gather(START_MS + minutes * BUCKET_MS).tiers] for minutes in (6, 12, 15)]
        recreated, ok = [AuditVerdict.RECREATED], [AuditVerdict.OK]
        self.assertEqual([recreated, recreated, ok], verdicts)
