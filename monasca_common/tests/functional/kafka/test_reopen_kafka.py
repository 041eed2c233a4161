# SPDX-License-Identifier: Apache-2.0
"""Producers that continue with another client: after a fatal error, a hanging call, or in a transaction."""

from monasca_common.kafka.errors import FatalError
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.administration import allow, revoke
from monasca_common.tests.functional.kafka.producer_case import SECONDS, doubled
from monasca_common.tests.functional.kafka.test_hangs_kafka import MESSAGES, HangCase
from monasca_common.tests.functional.kafka.test_security import SecurityCase
from monasca_common.tests.periodic import periodic


class TestReopenAfterFatalError(SecurityCase):
    # Rule 9
    def test_reports_can_be_retried_once_the_write_permission_is_granted_again(self):
        self.allow("describe")
        right = self.allow("write")
        before = self.producer(user="monasca")
        before.publish(self.topic, [b"before"], timeout=SECONDS).raise_for_undelivered()
        revoke(self.cluster.admin, right)
        # An open producer continues with other topics; the error is fatal for a producer that is opened now.
        self.wait_until(lambda: not before.publish(self.topic, [b"before"], timeout=SECONDS).ok)
        producer = self.producer(user="monasca")
        reports = []

        def finished():
            reports.append(producer.publish(self.topic, [b"%d" % len(reports)], timeout=1))
            return producer.health().finished

        self.wait_until(finished)
        self.assertFalse(reports[-1].retriable)
        self.assertFalse(producer.retry(reports[-1], timeout=SECONDS).ok)
        allow(self.cluster.admin, right)

        def delivered():  # a permission reaches a broker after a short delay
            if producer.health().finished:
                producer.reopen()
            reports[:] = [producer.retry(report, timeout=SECONDS) for report in reports]
            return all(report.ok for report in reports)

        self.wait_until(delivered)
        self.assertFalse(producer.health().finished)
        log = [record for record in self.log(self.topic) if record.value != b"before"]
        with each_once():
            self.assertEqual((len(reports), 0), (len(log), doubled(log)))


@periodic("waits for calls that hang; the normal run contains TestReopenAfterFatalError")
class TestReopenedTransactions(HangCase):
    def setUp(self):
        super().setUp()
        self.transactions = self.transactional()

    def move(self, reader):
        """Read the remaining messages of the source, and write them in transactions."""
        while self.committed() < MESSAGES:
            batch = reader.poll(timeout=0.2)
            if batch.partitions:
                with self.transactions.transaction() as transaction:
                    for message in batch:
                        transaction.send(self.out, message.value)
                    transaction.commit_offsets(reader, batch)

    # Rule 9
    def test_every_message_is_read_once_after_a_hanging_call(self):
        reader = self.reader()
        self.wait_until(lambda: reader.poll(max_messages=1, timeout=0.1).partitions)
        reader.seek_to_beginning()
        self.cut_off_the_coordinator()
        self.assertRaises(FatalError, self.move, reader)
        self.assertTrue(self.transactions.health().poisoned)
        self.fixture.proxy.clear()
        self.transactions.reopen()
        self.assertFalse(self.transactions.health().poisoned)
        reader.seek_to_committed()
        self.move(reader)
        with each_once():
            self.assertEqual(list(range(MESSAGES)), self.seen())
