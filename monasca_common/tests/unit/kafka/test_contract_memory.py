# SPDX-License-Identifier: Apache-2.0
"""The contract over the memory transport, and how a contract handles missing capabilities."""

import contextlib
import threading
import types
import unittest

import testtools
from oslotest import base

from monasca_common.kafka import plugins
from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.memory import LoseAnswer
from monasca_common.kafka.transport.memory.log import KAFKA_MAX_MESSAGE_BYTES
from monasca_common.tests import contracts
from monasca_common.tests.contracts import PARTITIONS, Capability, needs
from monasca_common.tests.contracts.asynchronous import ConsumerAdapter, ProducerAdapter
from monasca_common.tests.threads import LoopThread


class MemoryMember:
    """A member on a separate thread; a kill is an error in its poll."""

    def __init__(self, broker, consumer):
        self._broker = broker
        self._group = consumer.settings.group_id
        self._consumer = consumer
        self._owns = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._owns.wait(50)

    def _run(self):
        with contextlib.suppress(TransportError):
            while True:
                self._consumer.poll(timeout=0.02)
                if self._consumer.assignment():
                    self._owns.set()

    def kill(self):
        self._broker.kill_member(self._group, self._broker.members(self._group)[0])
        self._thread.join(50)


class MemoryCluster(contracts.Cluster):
    capabilities = frozenset(Capability) - {Capability.TRANSACTIONS}
    patience_seconds = 5.0

    def __init__(self, kafka, defer):
        super().__init__(defer)
        self.broker = kafka.broker
        self.connection = kafka.connection()

    def open_producer(self, settings):
        return plugins.memory_producer(settings)

    def open_consumer(self, settings, listener, partitions):
        return plugins.memory_consumer(settings, listener=listener, partitions=partitions)

    def new_topic(self, *, max_message_bytes=None):
        topic = self.name()
        self.broker.create_topic(topic, PARTITIONS, max_message_bytes=max_message_bytes or KAFKA_MAX_MESSAGE_BYTES)
        return topic

    def new_member(self, topic, group):
        return MemoryMember(self.broker, self.consumer(topic, group))

    def outlive_poll_interval(self, consumer):
        group = consumer.settings.group_id
        self.broker.expire_member(group, self.broker.members(group)[0])

    def recreate_topic(self, topic):
        self.broker.delete_topic(topic)
        self.broker.create_topic(topic, PARTITIONS)

    def delete_records(self, partition, before):
        self.broker.delete_records(*partition, before=before)

    def add_partition(self, topic):
        self.broker.add_partitions(topic, 1)

    def lose_produce_answers(self, count):
        self.broker.inject("produce", LoseAnswer(0.05), count=count)

    @contextlib.contextmanager
    def outage(self):
        self.broker.disconnect()
        try:
            yield
        finally:
            self.broker.reconnect()


class MemoryCase(base.BaseTestCase):
    cluster: contracts.Cluster

    def setUp(self):
        self.cluster = MemoryCluster(self.useFixture(MemoryKafka()), self.addCleanup)
        super().setUp()


class MemoryProducerTest(contracts.ProducerContract, MemoryCase):
    pass


class MemoryConsumerTest(contracts.ConsumerContract, MemoryCase):
    pass


class MemoryPositionTest(contracts.PositionContract, MemoryCase):
    pass


class MemoryGroupTest(contracts.GroupContract, MemoryCase):
    pass


class MemoryTransactionTest(contracts.TransactionContract, MemoryCase):
    pass


class AsyncMemoryCluster(MemoryCluster):
    """The asyncio classes over the memory transport."""

    def __init__(self, kafka, defer):
        super().__init__(kafka, defer)
        self._loop = LoopThread()
        defer(self._loop.stop)

    def open_producer(self, settings):
        return ProducerAdapter(self._loop, super().open_producer(settings))

    def open_consumer(self, settings, listener, partitions):
        return ConsumerAdapter(self._loop, super().open_consumer(settings, listener, partitions))


class AsyncMemoryCase(base.BaseTestCase):
    cluster: contracts.Cluster

    def setUp(self):
        self.cluster = AsyncMemoryCluster(self.useFixture(MemoryKafka()), self.addCleanup)
        super().setUp()


class AsyncMemoryProducerTest(contracts.ProducerContract, AsyncMemoryCase):
    pass


class AsyncMemoryConsumerTest(contracts.ConsumerContract, AsyncMemoryCase):
    pass


class AsyncMemoryPositionTest(contracts.PositionContract, AsyncMemoryCase):
    pass


class AsyncMemoryGroupTest(contracts.GroupContract, AsyncMemoryCase):
    pass


def outcome_of(test, capabilities):
    """Return the result of a contract on a cluster with these capabilities."""
    body = test

    class Contract(testtools.TestCase):
        cluster = types.SimpleNamespace(capabilities=capabilities, patience_seconds=1.0)

        @needs(Capability.TRANSACTIONS)
        def test(self):
            body(self)

    result = unittest.TestResult()
    Contract("test").run(result)
    return result


def passing(case):
    pass


def failing(case):
    case.fail("not here")


def raising(case):
    raise NotImplementedError


class NeedsTest(testtools.TestCase):
    def test_a_cluster_with_the_feature_passes_or_fails_as_usual(self):
        self.assertTrue(outcome_of(passing, {Capability.TRANSACTIONS}).wasSuccessful())
        self.assertEqual(1, len(outcome_of(failing, {Capability.TRANSACTIONS}).failures))

    def test_a_failure_without_the_feature_is_expected(self):
        for test in (failing, raising):
            result = outcome_of(test, set())
            self.assertEqual((1, True), (len(result.expectedFailures), result.wasSuccessful()))

    def test_a_pass_without_the_feature_is_a_failure(self):
        result = outcome_of(passing, set())
        self.assertEqual((1, False), (len(result.failures), result.wasSuccessful()))
