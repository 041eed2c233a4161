# SPDX-License-Identifier: Apache-2.0
"""The base of audit tests: a broker in memory with one topic of messages and one of reports, and the tiers."""

import contextlib

import fixtures
from oslotest import base

from monasca_common.audit import reports
from monasca_common.audit.reader_audit import ReaderAudit
from monasca_common.audit.reconciliation import AuditTotals
from monasca_common.audit.reporter import AuditReporter
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import GivenStarts, Processor, open_producer
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.operations.audit.log_counter import LogCounter

TOPIC, REPORTS = "t", "monasca-audit"
BUCKET_MS = 60_000
START_MS = 1_700_000_040_000  # a bucket begins
LATER_MS = START_MS + 100 * BUCKET_MS


def reconciliations(reports, now_ms, settings):
    """Reconcile these reports at one time."""
    totals = AuditTotals(settings)
    for report in reports:
        totals.add(report)
    return totals.reconciliations(now_ms)


class AuditCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.open_broker()
        self.useFixture(fixtures.MonkeyPatch("monasca_common.operations.audit.log_counter.POLL_SECONDS", 0.0))
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.patch(AuditSettings, "report_seconds", 3600.0)
        self.settings = AuditSettings(enabled=True, bucket_seconds=60, grace_seconds=60.0, folder=self.folder)

    def open_broker(self):
        """Return a new broker with empty topics."""
        self.clock = VirtualClock(START_MS)
        self.kafka = self.useFixture(MemoryKafka(clock=self.clock))
        self.kafka.broker.create_topic(TOPIC, 2)
        self.kafka.broker.create_topic(REPORTS, 1)

    def reporter(self, tier, application="app", **changes):
        """Return a reporter whose thread never reports; a test calls `report`."""
        settings = self.kafka.producer_settings(**changes)
        return AuditReporter(self.settings, settings, tier, application, clock=self.clock)

    @contextlib.contextmanager
    def audited_producer(self, **settings):
        producing = self.kafka.producer_settings(**settings)
        with self.reporter("producer") as reporter, open_producer(reporter.audited(producing)) as producer:
            yield producer, reporter

    def count(self, group="counter", tier="broker", since_ms=None, again_from=None, **changes):
        """Count and report the log.

        ``again_from``: offsets at which to resume, as after a restart. ``changes``: settings of the producer.
        """
        listener = None if again_from is None else GivenStarts(again_from)
        with self.kafka.consumer(TOPIC, group, topic_check_seconds=0.0, listener=listener) as consumer:
            counter = LogCounter(
                self.settings, consumer, self.kafka.producer(**changes), tier, since_ms=since_ms, clock=self.clock
            )
            ends = {tp: self.kafka.broker.watermarks(tp)[1] for tp in self.partitions()}
            while any((consumer.position(tp) or 0) < end for tp, end in ends.items()):
                counter.poll()
            counter.report()

    def partitions(self):
        return [TopicPartition(TOPIC, number) for number in range(2)]

    def read(self, handler=lambda part: None, group="readers", **audit):
        """Handle the log with an audited processor."""
        with self.reporter("database", group) as reporter, self.kafka.consumer(TOPIC, group) as consumer:
            processor = Processor(consumer, handler, hooks=[ReaderAudit(reporter, **audit)])
            self.kafka.drain(processor)
            reporter.report()

    def reports(self):
        return [reports.decode(message.value) for message in self.kafka.broker.records(REPORTS)]

    def reconciliations(self):
        """Return {(number of the bucket, tier): reconciliation}."""
        found = reconciliations(self.reports(), LATER_MS, self.settings)
        return {((each.bucket_ms - START_MS) // BUCKET_MS, each.tier): each for each in found}

    def figures(self):
        return {
            key: (each.expected, each.messages, each.lost, each.late) for key, each in self.reconciliations().items()
        }
