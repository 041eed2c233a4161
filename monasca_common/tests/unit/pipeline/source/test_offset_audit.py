# SPDX-License-Identifier: Apache-2.0
"""Jobs in the audit: the messages of stored offsets, and no others, are reported as handled, whenever a driver
is killed."""

import contextlib
import dataclasses

import fixtures
import testtools

from monasca_common.kafka import failpoints
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.kafka.message import Record
from monasca_common.pipeline.errors import Fenced
from monasca_common.pipeline.source.offset_audit import OffsetAudit
from monasca_common.pipeline.source.offset_store import OffsetRange, OffsetStore, Source
from monasca_common.tests.unit.audit.audit_case import BUCKET_MS, TOPIC, AuditCase
from monasca_common.tests.unit.storage.sqlite_case import copy_schema

SOURCE = Source("spark-archive", TOPIC, None)
IN_BUCKET = 20  # messages, in two partitions


class WithoutPositions(OffsetAudit):
    """A mutant: offsets that the previous driver did not report are never reported."""

    def starts_at(self, topic, next_offsets):
        pass


class OffsetAuditTest(AuditCase):
    def setUp(self):
        super().setUp()
        path = f"{self.useFixture(fixtures.TempDir()).path}/pipeline.sqlite"
        copy_schema(path)
        self.url = f"sqlite:///{path}"
        self.buckets = 0
        OffsetStore(self.url).begin(SOURCE, {0: 0, 1: 0})

    def send(self):
        """Send the messages of a bucket, half of them to each partition."""
        with self.audited_producer() as (producer, reporter):
            records = [Record(b"%d" % number, partition=number % 2) for number in range(IN_BUCKET)]
            producer.publish(TOPIC, records).raise_for_undelivered()
            reporter.report()
        self.clock.advance(BUCKET_MS / 1000)
        self.buckets += 1

    @contextlib.contextmanager
    def job(self, audit=OffsetAudit):
        """Run a driver with its own audit folder. Its reports are sent when it ends."""
        folder = self.useFixture(fixtures.TempDir()).path
        self.settings = dataclasses.replace(self.settings, folder=folder)
        with self.reporter("spark", SOURCE.group) as reporter:
            yield OffsetStore(self.url, audit=audit(reporter))
            reporter.report()

    def batch(self, offset_store):
        """Handle all messages of the log after the stored offsets."""
        ends = {tp.partition: self.kafka.broker.watermarks(tp)[1] for tp in self.partitions()}
        starts = offset_store.next_offsets(SOURCE)
        with offset_store.advance(SOURCE, [OffsetRange(each, starts[each], end) for each, end in ends.items()]):
            failpoints.fail_point("test.in_transaction")

    def killed_before_its_report(self, audit=OffsetAudit):
        with (
            self.job(audit) as offset_store,
            failpoints.armed("pipeline.before_audit", "raise"),
            testtools.ExpectedException(FailPointReached),
        ):
            self.batch(offset_store)

    def handled(self):
        """Return (expected, messages, lost, late) of the tier by bucket."""
        return [self.figures().get((number, "spark")) for number in range(self.buckets)]

    def test_a_batch_is_reported_once_and_idle_turns_report_nothing(self):
        with self.job() as offset_store:
            for _ in range(2):
                self.send()
                self.batch(offset_store)
            before = len(self.reports())
            self.batch(offset_store)
        self.count(since_ms=0)

        self.assertEqual([(IN_BUCKET, IN_BUCKET, 0, 0)] * 2, self.handled())
        ranges = [handled for each in self.reports()[before:] for handled in each.handled if handled.position is None]
        self.assertEqual([(0, 0, 10), (0, 10, 20), (1, 0, 10), (1, 10, 20)], sorted(map(_place, ranges)))

    def test_a_rolled_back_range_is_not_reported(self):
        self.send()
        with (
            self.job() as offset_store,
            failpoints.armed("test.in_transaction", "raise"),
            testtools.ExpectedException(FailPointReached),
        ):
            self.batch(offset_store)
        self.count(since_ms=0)
        self.assertEqual([(IN_BUCKET, 0, 0, IN_BUCKET)], self.handled())

    def test_the_next_driver_reports_offsets_that_a_dead_driver_did_not_report(self):
        with self.job() as offset_store:
            self.send()
            self.batch(offset_store)
        self.send()
        self.killed_before_its_report()
        with self.job() as offset_store:  # which can be empty
            offset_store.next_offsets(SOURCE)
        self.count(since_ms=0)
        self.assertEqual([(IN_BUCKET, IN_BUCKET, 0, 0)] * 2, self.handled())

    def test_mutant_that_does_not_report_its_start_is_detected(self):
        with self.job(WithoutPositions) as offset_store:
            self.send()
            self.batch(offset_store)
        self.send()
        self.killed_before_its_report(WithoutPositions)
        self.send()
        with self.job(WithoutPositions) as offset_store:
            self.batch(offset_store)
        self.count(since_ms=0)
        complete = (IN_BUCKET, IN_BUCKET, 0, 0)
        self.assertEqual([complete, (IN_BUCKET, 0, IN_BUCKET, 0), complete], self.handled())

    def test_a_driver_with_an_unknown_transaction_outcome_reports_the_stored_offsets(self):
        self.send()
        with self.job() as offset_store:
            self.batch(offset_store)
            self.send()
            with failpoints.armed("pipeline.before_audit", "raise"), testtools.ExpectedException(FailPointReached):
                self.batch(offset_store)
            self.send()
            self.batch(offset_store)
        self.count(since_ms=0)
        self.assertEqual([(IN_BUCKET, IN_BUCKET, 0, 0)] * 3, self.handled())

    def test_the_fenced_driver_of_a_batch_reports_nothing(self):
        self.send()
        with self.job() as first, self.job() as second:
            starts = second.next_offsets(SOURCE)
            self.batch(first)
            with (
                testtools.ExpectedException(Fenced),
                second.advance(SOURCE, [OffsetRange(each, start, 99) for each, start in starts.items()]),
            ):
                pass
        self.count(since_ms=0)
        self.assertEqual([(IN_BUCKET, IN_BUCKET, 0, 0)], self.handled())
        self.assertNotIn(99, [each.next for report in self.reports() for each in report.handled])


def _place(handled):
    return handled.partition, handled.first, handled.next
