# SPDX-License-Identifier: Apache-2.0
import contextlib
import gc
import weakref
from types import SimpleNamespace
from unittest import mock

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.kafka.errors import RetriableError, TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.kafka.transport import confluent_consumer
from monasca_common.kafka.transport.base import PartitionEvent
from monasca_common.kafka.transport.confluent_consumer import ConfluentConsumer

TOPICS = ("logs", "metrics")


class TestOffsetsForTimes(base.BaseTestCase):
    def refused(self, code):
        """Return the error that is raised if the client returns this error."""
        consumer = ConfluentConsumer(ConsumerSettings(ConnectionSettings("127.0.0.1:1"), ("metrics",), "group"))
        self.addCleanup(consumer.close)
        client = mock.Mock(offsets_for_times=mock.Mock(side_effect=KafkaException(KafkaError(code))))
        with mock.patch.object(consumer, "_client", client):
            return self.assertRaises(TransportError, consumer.offsets_for_times, {TopicPartition("metrics", 4): 0}, 1.0)

    def test_an_error_for_a_partition_unknown_to_the_client_is_retriable(self):
        error = self.refused(KafkaError._UNKNOWN_PARTITION)
        self.assertIsInstance(error, RetriableError)
        self.assertEqual((KafkaError._UNKNOWN_PARTITION, "_UNKNOWN_PARTITION"), (error.code, error.name))

    def test_a_missing_permission_is_not_retriable(self):
        self.assertNotIsInstance(self.refused(KafkaError.TOPIC_AUTHORIZATION_FAILED), RetriableError)

    def test_no_partitions_have_no_offsets(self):
        # Another member has just committed the starts of all partitions.
        consumer = ConfluentConsumer(ConsumerSettings(ConnectionSettings("127.0.0.1:1"), ("metrics",), "group"))
        self.addCleanup(consumer.close)
        self.assertEqual({}, consumer.first_offsets([], 1.0))
        self.assertEqual({}, consumer.offsets_for_times({}, 1.0))


class TestPartitionErrors(base.BaseTestCase):
    def test_data_of_the_caller_of_a_refused_call_is_released_without_a_collection(self):
        consumer = ConfluentConsumer(ConsumerSettings(ConnectionSettings("127.0.0.1:1"), ("metrics",), "group"))
        self.addCleanup(consumer.close)
        refused = SimpleNamespace(topic="metrics", partition=4, offset=-1, error=KafkaError(KafkaError._TIMED_OUT))
        self.addCleanup(gc.enable)
        gc.disable()
        found = []

        def ask():
            rows = set()
            found.append(weakref.ref(rows))
            consumer.committed([TopicPartition("metrics", 4)], 1.0)

        client = SimpleNamespace(committed=lambda *_, **__: [refused])
        with mock.patch.object(consumer, "_client", client), contextlib.suppress(RetriableError):
            ask()
        self.assertEqual([None], [each() for each in found])


class TestEnds(base.BaseTestCase):
    def test_the_end_of_a_log_that_was_not_fetched_is_not_returned(self):
        consumer = ConfluentConsumer(ConsumerSettings(ConnectionSettings("127.0.0.1:1"), ("metrics",), "group"))
        self.addCleanup(consumer.close)
        self.assertEqual({}, consumer.fetched_ends([TopicPartition("metrics", 4)]))

    def test_an_end_that_the_client_does_not_return_is_retriable(self):
        consumer = ConfluentConsumer(ConsumerSettings(ConnectionSettings("127.0.0.1:1"), ("metrics",), "group"))
        self.addCleanup(consumer.close)
        client = mock.Mock(offsets_for_times=mock.Mock(side_effect=lambda partitions, timeout: partitions))
        with mock.patch.object(consumer, "_client", client):
            self.assertRaises(RetriableError, consumer.end_offsets, [TopicPartition("metrics", 4)], 1.0)

    def test_ends_are_requested_again_after_a_leader_moved(self):
        consumer = ConfluentConsumer(ConsumerSettings(ConnectionSettings("127.0.0.1:1"), ("metrics",), "group"))
        self.addCleanup(consumer.close)
        moved = KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH))
        found = [ClientTopicPartition("metrics", 4, 7)]
        client = mock.Mock(offsets_for_times=mock.Mock(side_effect=[moved, found]))
        partition = TopicPartition("metrics", 4)
        with mock.patch.object(consumer, "_client", client):
            self.assertEqual({partition: 7}, consumer.end_offsets([partition], 1.0))


class TestSignals(base.BaseTestCase):
    class Stopped(KeyboardInterrupt):
        pass

    def interrupted(self, cause):
        consumer = ConfluentConsumer(ConsumerSettings(ConnectionSettings("127.0.0.1:1"), ("metrics",), "group"))
        self.addCleanup(consumer.close)
        returned = SystemError("returned a result with an exception set")
        returned.__cause__ = cause
        with mock.patch.object(consumer, "_client", mock.Mock(poll=mock.Mock(side_effect=returned))):
            return self.assertRaises(KeyboardInterrupt, consumer.poll, 1, 0.0)

    def test_a_poll_that_returns_despite_a_signal_raises_the_exception_of_the_handler(self):
        raised = self.Stopped()
        self.assertIs(raised, self.interrupted(raised))

    def test_a_poll_that_lost_the_exception_of_the_handler_raises_an_interrupt(self):
        self.assertIs(KeyboardInterrupt, type(self.interrupted(None)))


def messages(names):
    return [Message(topic, number, value=b"%d" % index) for index, (topic, number) in enumerate(names)]


def fetched_of(raws, topics):
    with mock.patch.object(confluent_consumer, "translate", str):
        return confluent_consumer.grouped(raws, topics)


class TestGrouped(base.BaseTestCase):
    @given(st.lists(st.tuples(st.just("metrics"), st.integers(0, 3)), min_size=1))
    def test_messages_of_one_topic_are_grouped_by_partition_in_order(self, names):
        self._check(("metrics",), names)

    @given(st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 3)), min_size=1))
    def test_several_topics_are_grouped_by_topic_and_partition(self, names):
        self._check(TOPICS, names)

    def _check(self, topics, names):
        raws = messages(names)
        fetched = fetched_of(raws, topics)
        self.assertEqual(set(names), {partition for partition, _ in fetched.parts})
        self.assertEqual(len(set(names)), len(fetched.parts))
        for partition, columns in fetched.parts:
            self.assertIsInstance(partition, TopicPartition)
            expected = [raw.value() for raw in raws if (raw.topic(), raw.partition()) == partition]
            self.assertEqual((len(expected), expected), (len(columns), columns.column("values")))

    def test_an_error_anywhere_is_an_event(self):
        raws = messages([("metrics", 0)] * 3)
        self.assertEqual([], fetched_of(raws, ("metrics",)).events)
        raws[1:1] = [Message("metrics", 0, 5, error=7)]
        fetched = fetched_of(raws, ("metrics",))
        self.assertEqual([PartitionEvent("7", "metrics", 0, 5)], fetched.events)
        self.assertEqual([b"0", b"1", b"2"], fetched.parts[0][1].column("values"))
