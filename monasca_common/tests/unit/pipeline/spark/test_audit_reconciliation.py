# SPDX-License-Identifier: Apache-2.0
"""Tasks reconcile topic by topic as one process reconciles all reports."""

import random

import pyarrow as pa
from oslotest import base

from monasca_common.audit import reports
from monasca_common.audit.reconciliation import AuditRules, AuditTotals, AuditVerdict
from monasca_common.pipeline.spark import audit_reconciliation
from monasca_common.pipeline.spark.audit_reconciliation import ReportsByTopic, TotalsByTopic, reconciliations_of
from monasca_common.tests.unit.audit.random_reports import BUCKET_SECONDS, random_reports

START_MS = 1_700_000_040_000  # a bucket begins
NOW_MS = START_MS + 10 * BUCKET_SECONDS * 1000
RULES = AuditRules(BUCKET_SECONDS, 0.0)


def by_tasks(values, tasks=3):
    """As Spark does it: each task splits some of the values, and each reconciles some of the topics."""
    to_parts, to_rows = ReportsByTopic(RULES), TotalsByTopic(RULES, NOW_MS)
    parts = []
    for task in range(tasks):
        some = [[each] for each in values[task::tasks]]  # batches of one
        parts += rows_of(to_parts(pa.record_batch([pa.array(each, pa.binary())], ["value"]) for each in some))
    found = []
    for task in range(tasks):
        own = sorted((part for part in parts if hash(part[0]) % tasks == task), key=lambda part: part[0])
        columns = [pa.array(column) for column in zip(*own, strict=True)] or [pa.array([]), pa.array([])]
        batch = pa.record_batch(columns, ["topic", "report"])
        found += rows_of(to_rows(batch.slice(at, 7) for at in range(0, len(own), 7)))
    return reconciliations_of(found)


def rows_of(batches):
    return [row for batch in batches for row in zip(*(each.to_pylist() for each in batch.columns), strict=True)]


class ReconciledLogTest(base.BaseTestCase):
    def test_random_reports_are_reconciled_as_by_one_process(self):
        verdicts, left_out = set(), [0, 0]
        for seed in range(60):
            all_reports = random_reports(random.Random(seed), START_MS)
            totals = AuditTotals(RULES)
            for report in all_reports:
                totals.add(report)

            found = by_tasks([reports.encode(each) for each in all_reports] + [b"no report", None])

            self.assertEqual(totals.reconciliations(NOW_MS), list(found.reconciliations), f"seed {seed}")
            self.assertEqual((totals.foreign, totals.early), (found.foreign, found.early), f"seed {seed}")
            verdicts |= {each.verdict for each in found.reconciliations}
            left_out = [left_out[0] + found.foreign, left_out[1] + found.early]
            kinds = {
                name
                for name in ("lost", "late", "duplicates", "surplus")
                for each in found.reconciliations
                if getattr(each, name)
            }
            self.assertEqual({"lost", "late", "duplicates", "surplus"}, kinds)
        self.assertEqual({AuditVerdict.OK, AuditVerdict.INCOMPLETE}, verdicts - {AuditVerdict.UNCOUNTED})
        self.assertGreater(min(left_out), 0)

    def test_reports_that_come_twice_count_once_also_where_other_tasks_have_split_them(self):
        [report] = random_reports(random.Random(1), START_MS)[:1]
        once, twice = (by_tasks([reports.encode(report)] * times) for times in (1, 6))
        self.assertEqual(once, twice)

    def test_nothing_to_reconcile_starts_no_spark(self):
        self.assertEqual(
            audit_reconciliation.ReconciledLog(), audit_reconciliation.reconcile_log(None, None, [], RULES, NOW_MS)
        )
