# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.kafka import plugins, portions
from monasca_common.kafka.errors import Poison, RetriableError
from monasca_common.kafka.message import PartitionBatch, Record, TopicPartition
from monasca_common.kafka.outgoing import PLAIN_OVERHEAD_BYTES
from monasca_common.kafka.processor.hooks import Hooks
from monasca_common.kafka.processor.offset_tracker import OffsetTracker
from monasca_common.kafka.processor.publishing import Abandoned, TransactionalPublisher
from monasca_common.kafka.processor.queues import Lanes
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.tests.unit.kafka.processor.processor_case import ProcessorCase


def split(sizes, *, messages=1000, size=1_000_000):
    settings = ProducerSettings(ConnectionSettings("nowhere:9092"), budget_messages=messages, budget_bytes=size)
    return [list(portion) for portion in portions([Record(bytes(size)) for size in sizes], settings)]


class PortionsTest(base.BaseTestCase):
    def test_few_records_form_one_bulk(self):
        self.assertEqual([3], [len(portion) for portion in split([1, 2, 3])])

    def test_no_records_create_no_bulk(self):
        self.assertEqual([], split([]))

    def test_a_bulk_has_a_quarter_of_the_budgets_messages_at_most(self):
        self.assertEqual([2, 2, 1], [len(portion) for portion in split([1] * 5, messages=8)])

    def test_a_bulk_has_a_quarter_of_the_budgets_bytes_at_most(self):
        budget = 4 * (2 * PLAIN_OVERHEAD_BYTES + 30)
        self.assertEqual([2, 1, 1], [len(portion) for portion in split([10, 20, 40, 10], size=budget)])

    @given(st.lists(st.integers(0, 500)), st.integers(1, 40), st.integers(1, 4000))
    def test_the_bulks_contain_all_records_once_and_in_order(self, sizes, messages, size):
        pieces = split(sizes, messages=messages, size=size)
        self.assertEqual(sizes, [len(record.value) for piece in pieces for record in piece])
        self.assertNotIn([], pieces)


class MoreThanTheBudgetTest(ProcessorCase):
    def test_outputs_larger_than_the_budget_are_sent_one_after_the_other(self):
        producer = plugins.memory_producer(self.kafka.producer_settings(budget_messages=10))
        self.addCleanup(self.unhurried, lambda: producer.close(0))
        self.fill(b"input")
        self.start(lambda part: [("out", b"%d" % number) for number in range(25)], producer=producer)
        self.until(lambda: self.committed() == 1)
        self.assertEqual([b"%d" % number for number in range(25)], self.values("out"))

    def test_dead_letters_are_acknowledged_before_their_input_is_committed(self):
        producer = plugins.memory_producer(self.kafka.producer_settings(budget_messages=10))
        self.addCleanup(self.unhurried, lambda: producer.close(0))
        self.fill(*[b"%d" % number for number in range(25)])
        self.start(refuse, producer=producer)
        self.until(lambda: self.committed() == 25)
        self.assertEqual(25, len(self.values("in.dlq")))


def refuse(part):
    raise Poison("not this")


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
