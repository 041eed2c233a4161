# SPDX-License-Identifier: Apache-2.0
"""The reports of a window are read once, and all of them again after an error and after a quarter of the window."""

import threading
from dataclasses import replace
from unittest import mock

import fixtures

from monasca_common.audit import reports
from monasca_common.audit.reports import AuditCount, AuditReport, bucket_of
from monasca_common.kafka import Record
from monasca_common.kafka.errors import RetriableError
from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.audit.report_log import ReportLog
from monasca_common.operations.audit.service import AuditService
from monasca_common.tests.unit.audit.audit_case import BUCKET_MS, REPORTS, START_MS, TOPIC, AuditCase

_LOG = TopicPartition(REPORTS, 0)
SECONDS = 10.0


class ReportLogTest(AuditCase):
    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("monasca_common.operations.audit.report_log.POLL_SECONDS", 0.0))
        self.settings = replace(self.settings, window_seconds=4000)
        self.since_ms = []  # the times from which all reports were read
        self.admin = mock.Mock(
            partition_counts=lambda: {REPORTS: self.partition_count(REPORTS)},
            partition_count=self.partition_count,
            end_offsets=lambda partitions: {each: self.kafka.broker.watermarks(each)[1] for each in partitions},
            offsets_for_times=self.offsets_for_times,
        )
        self.log = ReportLog(self.admin, self.kafka.connection(), self.settings)

    def partition_count(self, topic):
        return len(self.kafka.broker.topic(topic).partitions)

    def offsets_for_times(self, times):
        self.since_ms.append(times[_LOG])
        return dict.fromkeys(times, 0)

    def report(self, messages, partition=0):
        count = AuditCount(TOPIC, START_MS, messages)
        report = AuditReport(f"id-{messages}", "api", "a", START_MS, 60, (count,))
        records = [Record(value, partition=partition) for value in (b"not a report", reports.encode(report))]
        self.kafka.producer().publish(REPORTS, records).raise_for_undelivered()

    def messages(self, now_ms):
        """Return the number of reported messages in the window."""
        found = self.log.window(now_ms, SECONDS).reconciliations(now_ms)
        return sum(each.messages for each in found if each.tier == "api")

    def test_only_new_reports_are_read_until_a_quarter_of_the_window_has_passed(self):
        self.report(10)
        self.assertEqual(10, self.messages(START_MS))
        self.report(5)
        self.assertEqual(15, self.messages(START_MS + 999_999))
        first_ms = bucket_of(START_MS - 4_000_000, 60) - 1_000_000
        self.assertEqual([first_ms], self.since_ms)

        self.assertEqual(15, self.messages(START_MS + 1_000_000))
        self.assertEqual(2, len(self.since_ms))

    def test_all_reports_are_read_again_after_the_clock_is_set_back(self):
        self.report(10)
        for now_ms, reads in ((START_MS, 1), (START_MS - 999_999, 1), (START_MS - 1_000_000, 2), (START_MS - 1, 2)):
            self.assertEqual(10, self.messages(now_ms))
            self.assertEqual(reads, len(self.since_ms))

    def test_reports_in_new_partitions_are_read(self):
        self.report(10)
        self.assertEqual(10, self.messages(START_MS))
        self.kafka.broker.add_partitions(REPORTS, 1)
        self.report(5, partition=1)
        self.assertEqual(15, self.messages(START_MS))

    def test_the_reports_of_the_bucket_before_the_window_are_read(self):
        self.messages(START_MS)
        self.assertLessEqual(self.since_ms[0], self.settings.window_start(START_MS) - BUCKET_MS)

    def test_a_window_that_starts_before_1970_has_all_reports(self):
        self.assertEqual(0, self.settings.window_start(START_MS, 99_999_999_999))

    def test_all_reports_are_read_again_after_an_error(self):
        self.report(10)
        self.assertEqual(10, self.messages(START_MS))
        self.report(5)
        with mock.patch.object(reports, "decode", side_effect=RetriableError("unavailable")):
            self.assertRaises(RetriableError, self.messages, START_MS)
        self.assertEqual(15, self.messages(START_MS))
        self.assertEqual(2, len(self.since_ms))

    def test_a_stop_of_the_service_ends_a_read(self):
        service, read = AuditService(self.settings, self.log), threading.Event()

        def take_ends(_consumer):
            read.set()
            return {}

        with mock.patch("monasca_common.kafka.consumer.consumer.KafkaConsumer.take_ends", take_ends):
            thread = threading.Thread(target=service.run, daemon=True)
            thread.start()
            self.assertTrue(read.wait(SECONDS))
            service.stop()
            thread.join(SECONDS)

        self.assertFalse(thread.is_alive())
        self.assertFalse(service.health.ready()[0])  # the incomplete reports are not reconciled

    def test_a_log_that_is_not_read_in_time_is_an_error(self):
        with mock.patch("monasca_common.kafka.consumer.consumer.KafkaConsumer.take_ends", return_value={}):
            error = self.assertRaises(RetriableError, self.log.since, 0, -1.0)
        self.assertIn("so missing messages are unknown: try again, or choose a shorter period", str(error))
