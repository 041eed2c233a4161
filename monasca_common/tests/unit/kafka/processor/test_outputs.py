# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.kafka.errors import MisuseError
from monasca_common.kafka.message import PartitionBatch, Record, TopicPartition
from monasca_common.kafka.processor.handler_call import Output, collect, identify


class Raw:
    """The part of a client's message that an output's id needs."""

    def __init__(self, offset):
        self._offset = offset

    def offset(self):
        return self._offset


def batch(*offsets):
    return PartitionBatch(TopicPartition("t", 0), 1, [Raw(offset) for offset in offsets])


def ids(outputs, part):
    return [record.message_id for records in identify(outputs, part, "g").values() for record in records]


def doubled(part):
    """Return a handler's outputs: one for each message, with different contents."""
    return [Output("out", b"%d" % offset) for offset in part.offsets]


class OutputsTest(base.BaseTestCase):
    def test_none_and_an_empty_list_mean_no_outputs(self):
        self.assertEqual([[], []], [collect(None), collect([])])

    def test_a_result_that_is_not_an_output_is_refused(self):
        for returned in (b"bytes", 5, Record(b""), [b"bytes"], [("topic", "text")], [(1, b"")]):
            self.assertRaises(MisuseError, collect, returned)

    def test_a_source_gives_ids_that_do_not_depend_on_the_batch(self):
        whole = ids([Output("out", b"a", 1), Output("out", b"b", 1)], batch(5, 6, 7))
        alone = ids([Output("out", b"a", 0), Output("out", b"b", 0)], batch(6))
        self.assertEqual([b"g/t/0/6/0", b"g/t/0/6/1"], whole)
        self.assertEqual(whole, alone)

    def test_an_id_from_the_handler_is_kept(self):
        self.assertEqual([b"mine"], ids([Output("out", Record(b"a", message_id=b"mine"))], batch(5)))

    def test_an_empty_id_is_replaced_by_an_id_that_a_repetition_keeps(self):
        self.assertEqual([b"g/t/0/5/0"], ids([Output("out", Record(b"a", message_id=b""), 0)], batch(5)))

    def test_a_source_outside_the_batch_is_refused(self):
        self.assertRaises(MisuseError, ids, [Output("out", b"a", 3)], batch(5))

    @given(st.integers(2, 8), st.integers(1, 7))
    def test_the_id_of_an_output_does_not_depend_on_batches(self, count, cut):
        cut = min(cut, count - 1)
        whole, first, second = batch(*range(count)), batch(*range(cut)), batch(*range(cut, count))
        self.assertEqual(ids(doubled(whole), whole), ids(doubled(first), first) + ids(doubled(second), second))

    @given(st.lists(st.sampled_from([b"a", b"b"]), max_size=6), st.integers(1, 6))
    def test_no_two_outputs_of_a_batch_share_an_id(self, values, count):
        made = ids([Output("out", value) for value in values], batch(*range(count)))
        self.assertEqual(len(values), len(set(made)))
