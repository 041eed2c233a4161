# SPDX-License-Identifier: Apache-2.0
"""What a processor with transactions does when one cannot be begun, or its consumer cannot be sent back."""

from oslotest import base

from monasca_common.kafka.errors import RetriableError
from monasca_common.kafka.message import PartitionBatch, Record, TopicPartition
from monasca_common.kafka.offsets import OffsetTracker
from monasca_common.kafka.processing.lanes import Lanes
from monasca_common.kafka.processing.outbox import Abandoned
from monasca_common.kafka.processing.transactional_outbox import TransactionalOutbox
from monasca_common.kafka.transport.memory import VirtualClock

AWAY = RetriableError("no answer", name="_TIMED_OUT")
A = TopicPartition("in", 0)


class Raw:
    def offset(self):
        return 0

    def value(self):
        return b"input"


class ImpatientClock(VirtualClock):
    def wait(self, lock, timeout):
        return lock.acquire(blocking=False)


class ProducerWithoutBrokers:
    def transaction(self):
        raise AWAY


class Consumer:
    def __init__(self, clock):
        self.clock = clock
        self.answers = []  # what each attempt to go back raises

    def assignment(self):
        return {A}

    def seek_to_committed(self):
        if self.answers:
            raise self.answers.pop(0)


class TransactionalOutboxTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        clock = ImpatientClock()
        self.consumer = Consumer(clock)
        self.lanes = Lanes(clock, shares=1, batch_size=10, fill_seconds=0.0)
        self.outbox = TransactionalOutbox(ProducerWithoutBrokers(), self.consumer, self.lanes, OffsetTracker(100))
        self.lanes.add(PartitionBatch(A, 1, [Raw()]))
        self.lane, self.task = self.lanes.next()

    def test_a_transaction_that_cannot_be_begun_is_tried_again_with_what_is_read_again(self):
        self.assertRaises(Abandoned, self.outbox.deliver, self.lane, self.task, {"out": [Record(b"output")]})
        self.assertTrue(self.outbox.aborted)

    def test_while_nobody_tells_where_to_read_again_nothing_is_handed_out(self):
        self.assertRaises(Abandoned, self.outbox.deliver, self.lane, self.task, {})
        self.consumer.answers = [AWAY]
        self.outbox.rewind()
        self.assertTrue(self.outbox.aborted)
        self.outbox.rewind()
        self.assertFalse(self.outbox.aborted)
