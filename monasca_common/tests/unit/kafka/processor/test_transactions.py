# SPDX-License-Identifier: Apache-2.0
"""A transactional processor whose transaction cannot begin, or whose consumer cannot return to its committed
offsets."""

from oslotest import base

from monasca_common.kafka.errors import RetriableError
from monasca_common.kafka.message import PartitionBatch, Record, TopicPartition
from monasca_common.kafka.processor.hooks import Hooks
from monasca_common.kafka.processor.offset_tracker import OffsetTracker
from monasca_common.kafka.processor.publishing import Abandoned, TransactionalPublisher
from monasca_common.kafka.processor.queues import Lanes
from monasca_common.kafka.transport.memory import VirtualClock

AWAY = RetriableError("no response", name="_TIMED_OUT")
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
        self.answers = []  # the errors of attempts to seek back

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
        self.lanes = Lanes(clock, batch_size=10, fill_seconds=0.0)
        self.publisher = TransactionalPublisher(
            ProducerWithoutBrokers(), self.consumer, self.lanes, OffsetTracker(100), Hooks(())
        )
        self.lanes.add(PartitionBatch(A, 1, [Raw()]))
        self.lane, self.task = self.lanes.next()

    def test_a_transaction_that_cannot_begin_is_abandoned_and_its_messages_are_read_again(self):
        self.assertRaises(Abandoned, self.publisher.deliver, self.lane, self.task, {"out": [Record(b"output")]})
        self.assertTrue(self.publisher.aborted)

    def test_no_messages_are_handed_out_while_the_offset_to_read_again_is_unknown(self):
        self.assertRaises(Abandoned, self.publisher.deliver, self.lane, self.task, {})
        self.consumer.answers = [AWAY]
        self.publisher.rewind()
        self.assertTrue(self.publisher.aborted)
        self.publisher.rewind()
        self.assertFalse(self.publisher.aborted)

    def test_a_seek_back_does_not_wait_for_a_transaction(self):
        self.assertRaises(Abandoned, self.publisher.deliver, self.lane, self.task, {})
        with self.publisher._one_at_a_time:  # like a handler thread whose call hangs
            self.publisher.rewind()
        self.assertTrue(self.publisher.aborted)
        self.publisher.rewind()
        self.assertFalse(self.publisher.aborted)
