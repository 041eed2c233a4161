# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.transport.report_columns import ReportColumns


class ReportColumnsTest(base.BaseTestCase):
    def test_no_report_is_lost_between_two_threads(self):
        columns = ReportColumns()
        columns.bucket_ms = 1000
        taken = []

        class Message:
            """Another thread takes the reports whenever confluent-kafka's methods release the GIL."""

            def __len__(self):
                return 1

            def key(self):
                return None

            def topic(self):
                taken.append(columns.take())
                return "t"

            def timestamp(self):
                return 1, 5500

            def offset(self):
                return 7

            def partition(self):
                taken.append(columns.take())
                return 0

        columns.report(3, None, Message())
        taken.append(columns.take())
        self.assertEqual([3], [sequence for each in taken for sequence in each.sequences])
        self.assertEqual([{("t", 5000): 1}], [each.counts for each in taken if each.counts])
