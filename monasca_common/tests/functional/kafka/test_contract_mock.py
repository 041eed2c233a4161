# SPDX-License-Identifier: Apache-2.0
"""The contract over librdkafka and its mock cluster: real sockets, no Java."""

import time

from oslotest import base

from monasca_common.kafka import plugins
from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.kafka.transport.confluent_producer import ConfluentProducer
from monasca_common.kafka.transport.native.producer import NativeProducer
from monasca_common.tests import contracts
from monasca_common.tests.contracts.asynchronous import ConsumerAdapter, ProducerAdapter
from monasca_common.tests.functional.kafka.member_process import MemberProcess
from monasca_common.tests.mock_broker import MockBroker
from monasca_common.tests.periodic import periodic
from monasca_common.tests.threads import LoopThread


class NotDescribed:
    def max_message_bytes(self, topics, timeout):
        # The mock cluster does not respond to this request, and the client would repeat it.
        raise TransportError("a mock cluster does not describe topics", name="_UNSUPPORTED_FEATURE")

    def topic_ids(self, topics, timeout):
        raise TransportError("a mock cluster cannot distinguish a recreated topic", name="_UNSUPPORTED_FEATURE")


class ConfluentMockProducer(NotDescribed, ConfluentProducer):
    pass


class NativeMockProducer(NotDescribed, NativeProducer):
    pass


class MockCluster(contracts.Cluster):
    """A cluster that creates a topic with four partitions on first use, and has no limits, times or ids."""

    capabilities = frozenset()
    patience_seconds = 60.0
    max_poll_interval_seconds = 5.0

    def __init__(self, defer, *, driver="native", **consumer_changes):
        super().__init__(defer, **consumer_changes)
        self._driver = driver
        self._broker = MockBroker()
        self.connection = ConnectionSettings(self._broker.bootstrap_servers)

    def open_producer(self, settings):
        is_native = self._driver == "native" and settings.transactional_id is None
        transport = NativeMockProducer if is_native else ConfluentMockProducer

        def open_transport(batch_bytes, on_error):
            return transport(settings, batch_bytes=batch_bytes, on_error=on_error)

        return KafkaProducer(settings, open_transport)

    def open_consumer(self, settings, listener, partitions):
        opens = {"native": plugins.native_consumer, "confluent": plugins.confluent_consumer}[self._driver]
        return opens(settings, listener=listener, partitions=partitions)

    def new_topic(self, *, max_message_bytes=None):
        topic = self.name()
        self._broker.create_topic(topic)
        return topic

    def new_member(self, topic, group):
        member = MemberProcess(self.connection.bootstrap_servers, topic, group, self.consumer_changes)
        self._defer(member.kill)
        return member

    def outlive_poll_interval(self, consumer):
        time.sleep(self.max_poll_interval_seconds + 1)


class MockCase(base.BaseTestCase):
    cluster: contracts.Cluster
    driver = "native"

    def setUp(self):
        # A session shorter than the mock's rebalance delay of 3 s would end before the group is formed. Within that
        # delay, members must learn of a new member by a heartbeat, commit and rejoin, which takes long on a busy
        # machine.
        often = {"heartbeat.interval.ms": "300"}
        self.cluster = MockCluster(self.addCleanup, driver=self.driver, session_timeout_seconds=4.0, options=often)
        super().setUp()


@periodic("the real broker passes the same contract; the normal run contains MockTransactionTest")
class MockProducerTest(contracts.ProducerContract, MockCase):
    pass


@periodic("the real broker passes the same contract; the normal run contains MockTransactionTest")
class MockConsumerTest(contracts.ConsumerContract, MockCase):
    pass


@periodic("the real broker passes the same contract; the normal run contains MockTransactionTest")
class MockPositionTest(contracts.PositionContract, MockCase):
    pass


@periodic("the real broker passes the same contract; the normal run contains MockTransactionTest")
class MockGroupTest(contracts.GroupContract, MockCase):
    def setUp(self):
        super().setUp()
        # Cooperative members join twice. The mock makes a member rejoin if its first sync arrives after the leader's,
        # and refuses commits in the meantime, which happens at random. So all members use the eager protocol.
        self.cluster.consumer_changes = {**self.cluster.consumer_changes, "assignment_strategy": "range"}


@periodic("the real broker passes the same contract; the normal run contains MockTransactionTest")
class MockProcessorTest(contracts.ProcessorContract, MockCase):
    pass


class MockTransactionTest(contracts.TransactionContract, MockCase):
    pass


@periodic("the twin of MockProducerTest on the other driver")
class ConfluentMockProducerTest(contracts.ProducerContract, MockCase):
    driver = "confluent"


@periodic("the twin of MockConsumerTest on the other driver")
class ConfluentMockConsumerTest(contracts.ConsumerContract, MockCase):
    driver = "confluent"


class AsyncMockCluster(MockCluster):
    """The asyncio classes over librdkafka."""

    def __init__(self, defer, **consumer_changes):
        super().__init__(defer, **consumer_changes)
        self._loop = LoopThread()
        defer(self._loop.stop)

    def open_producer(self, settings):
        return ProducerAdapter(self._loop, super().open_producer(settings))

    def open_consumer(self, settings, listener, partitions):
        return ConsumerAdapter(self._loop, super().open_consumer(settings, listener, partitions))


class AsyncMockCase(base.BaseTestCase):
    cluster: contracts.Cluster

    def setUp(self):
        self.cluster = AsyncMockCluster(self.addCleanup)
        super().setUp()


@periodic("the memory driver passes the same contract in the unit tests")
class AsyncMockProducerTest(contracts.ProducerContract, AsyncMockCase):
    pass


@periodic("the memory driver passes the same contract in the unit tests")
class AsyncMockConsumerTest(contracts.ConsumerContract, AsyncMockCase):
    pass
