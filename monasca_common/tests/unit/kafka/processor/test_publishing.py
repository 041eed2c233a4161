# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.kafka import plugins, portions
from monasca_common.kafka.errors import Poison
from monasca_common.kafka.message import Record
from monasca_common.kafka.outgoing import PLAIN_OVERHEAD_BYTES
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
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
