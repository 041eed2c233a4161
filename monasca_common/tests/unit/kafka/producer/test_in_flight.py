# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.errors import DeliveryTimeout, TransportError
from monasca_common.kafka.producer.in_flight import PlainBulk
from monasca_common.kafka.producer.ledger import Ledger
from monasca_common.kafka.producer.outcome import Outcome
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.kafka.transport.memory.record import MemoryMessage

REJECTED = TransportError("no", code=19, name="NOT_ENOUGH_REPLICAS")


class BulkTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.ledger = Ledger(self.clock, lambda error: error, budget_messages=4, budget_bytes=1000)
        self.bulk = PlainBulk(self.ledger, "t", [b"a", b"bb", b"ccc"], None, [b"1", b"2", b"3"], 10)
        self.assertTrue(self.ledger.enter(self.bulk))
        self.callbacks = list(self.bulk.callbacks())

    def acknowledge(self, index, offset=100):
        message = MemoryMessage("t", 0, b"", None, None, 0)
        message._offset = None if offset is None else offset + index
        self.callbacks[index](None, message)

    def room(self):
        return self.ledger.budget.room_messages - len(self.ledger.outstanding), self.ledger.budget.used_bytes

    def test_it_takes_room_until_all_of_it_is_delivered(self):
        self.assertEqual((1, 36), self.room())
        self.acknowledge(2)
        self.acknowledge(0)
        self.assertEqual((1, 36), self.room())
        self.assertEqual(1, self.ledger.outstanding_messages)
        self.acknowledge(1)
        self.assertEqual((4, 0), self.room())
        self.assertTrue(self.bulk.latch.open)
        self.assertTrue(self.bulk.is_delivered)

    def test_each_message_of_a_delivered_one_has_its_own_offset(self):
        for index in (2, 0, 1):
            self.acknowledge(index)
        delivered = DeliveryReport(self.bulk).delivered
        self.assertEqual([(b"1", 100), (b"2", 101), (b"3", 102)], [(d.message_id, d.offset) for d in delivered])

    def test_one_that_the_broker_had_already_is_delivered_without_an_offset(self):
        for index in range(3):
            self.acknowledge(index, offset=None)
        delivered = DeliveryReport(self.bulk).delivered
        self.assertEqual([(0, None)] * 3, [(d.partition, d.offset) for d in delivered])

    def test_a_rejection_breaks_it_up_and_the_others_go_on(self):
        self.acknowledge(0)
        self.callbacks[1](REJECTED, None)
        self.assertEqual((3, 13), self.room())
        self.assertFalse(self.bulk.latch.open)
        self.acknowledge(2)
        self.assertEqual((4, 0), self.room())
        self.assertTrue(self.bulk.latch.open)
        self.assertFalse(self.bulk.is_delivered)
        report = DeliveryReport(self.ledger.break_up(self.bulk))
        self.assertEqual(([0, 2], [1]), ([d.index for d in report.delivered], [d.index for d in report.failed]))

    def test_a_late_answer_does_not_change_an_outcome_that_was_told(self):
        self.acknowledge(0)
        self.ledger.settle_all(Outcome.UNKNOWN, DeliveryTimeout("given up"))
        self.acknowledge(1)
        report = DeliveryReport(self.ledger.break_up(self.bulk))
        self.assertEqual(([0], [1, 2]), ([d.index for d in report.delivered], [d.index for d in report.unknown]))
        self.assertEqual((4, 0), self.room())

    def test_its_age_counts_behind_younger_messages(self):
        self.clock.advance(5)
        self.ledger.tick()
        younger = PlainBulk(self.ledger, "t", [b"d"], None, [b"4"], 10)
        self.assertTrue(self.ledger.enter(younger))
        for bulk in (younger, self.bulk):
            self.ledger.break_up(bulk)
            self.assertEqual(5, self.ledger.oldest_age())
        self.callbacks[0](REJECTED, None)
        self.assertEqual(5, self.ledger.oldest_age())
        for callback in self.callbacks[1:]:
            callback(REJECTED, None)
        self.assertEqual(0, self.ledger.oldest_age())

    def test_its_age_counts(self):
        self.clock.advance(3)
        self.assertEqual(3, self.ledger.oldest_age())
        self.ledger.break_up(self.bulk)
        self.assertEqual(3, self.ledger.oldest_age())
