# SPDX-License-Identifier: Apache-2.0
"""The contract over librdkafka and a real Kafka, with both group protocols."""

import contextlib
import time
from typing import ClassVar

from confluent_kafka.admin import AdminClient, NewPartitions
from oslotest import base

from monasca_common.devbroker.jars import kafka_version
from monasca_common.kafka import plugins
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.tests import contracts
from monasca_common.tests.contracts import PARTITIONS, Capability, needs
from monasca_common.tests.contracts.scenario import Scenario
from monasca_common.tests.functional.kafka.member_process import MemberProcess
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic


class KafkaContractCluster(contracts.Cluster):
    capabilities = frozenset(Capability) - (
        {Capability.CONSUMER_PROTOCOL} if kafka_version().startswith("3.") else frozenset()
    )
    max_poll_interval_seconds = 5.0  # a process on a busy machine can be silent for longer than two seconds
    patience_seconds = 120.0

    def __init__(self, kafka, defer, open_producer, open_consumer, **consumer_changes):
        super().__init__(defer, **consumer_changes)
        self.kafka = kafka
        self._open_producer = open_producer
        self._open_consumer = open_consumer
        self.connection = ConnectionSettings(kafka.bootstrap_servers)

    def open_producer(self, settings):
        return self._open_producer(settings)

    def open_consumer(self, settings, listener, partitions):
        return self._open_consumer(settings, listener=listener, partitions=partitions)

    def new_topic(self, *, max_message_bytes=None):
        topic = self.name()
        config = {} if max_message_bytes is None else {"max.message.bytes": str(max_message_bytes)}
        self.kafka.create_topic(topic, PARTITIONS, config=config)
        return topic

    def new_member(self, topic, group):
        member = MemberProcess(self.connection.bootstrap_servers, topic, group, self.consumer_changes)
        self._defer(member.kill)
        return member

    def outlive_poll_interval(self, consumer):
        time.sleep(self.max_poll_interval_seconds + 1)

    def recreate_topic(self, topic):
        self.kafka.admin.delete_topic(topic)
        self.kafka.create_topic(topic, PARTITIONS)

    def delete_records(self, partition, before):
        self.kafka.admin.delete_records({partition: before})

    def add_partition(self, topic):
        admin = AdminClient(self.kafka.direct_options())
        for created in admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)]).values():
            created.result(60)

    def lose_produce_answers(self, count):
        self.kafka.proxy.add(Fault.cut_answer(ApiKey.PRODUCE, times=count))

    @contextlib.contextmanager
    def outage(self):
        self.kafka.node(1).freeze()
        try:
            yield
        finally:
            self.kafka.node(1).thaw()


class KafkaCase(base.BaseTestCase):
    """Runs consumers, and producers without transactions, with the native driver."""

    cluster: contracts.Cluster
    consumer_changes: ClassVar[dict[str, object]] = {"session_timeout_seconds": 5.0}
    open_producer = staticmethod(plugins.native_producer)
    open_consumer = staticmethod(plugins.native_consumer)

    def setUp(self):
        shared = self.useFixture(SharedKafkaCluster(proxied=True))
        self.cluster = KafkaContractCluster(
            shared.cluster, self.addCleanup, self.open_producer, self.open_consumer, **self.consumer_changes
        )
        super().setUp()


class KafkaProducerTest(contracts.ProducerContract, KafkaCase):
    pass


class KafkaTransactionTest(contracts.TransactionContract, KafkaCase):
    open_producer = staticmethod(plugins.kafka_producer)


class ClassicConsumerTest(contracts.ConsumerContract, KafkaCase):
    pass


class ClassicPositionTest(contracts.PositionContract, KafkaCase):
    def await_topic_id(self, consumer):
        self.settle(consumer, until=lambda: self.topic in consumer._watch._ids)


@periodic("the memory transport passes the same contract; test_consumer_kafka has the real groups")
class CooperativeGroupTest(contracts.GroupContract, KafkaCase):
    pass


@periodic("the twin of Kip848ProcessorTest on the other protocol")
class CooperativeProcessorTest(contracts.ProcessorContract, KafkaCase):
    pass


@periodic("the memory transport passes the same contract; test_consumer_kafka has the real groups")
class EagerGroupTest(contracts.GroupContract, KafkaCase):
    consumer_changes: ClassVar = {"session_timeout_seconds": 5.0, "assignment_strategy": "range"}


class ConfluentCase(KafkaCase):
    open_producer = staticmethod(plugins.confluent_producer)
    open_consumer = staticmethod(plugins.confluent_consumer)


@periodic("the twin of KafkaProducerTest on the other driver")
class ConfluentProducerTest(contracts.ProducerContract, ConfluentCase):
    pass


@periodic("the twin of ClassicConsumerTest on the other driver")
class ConfluentConsumerTest(contracts.ConsumerContract, ConfluentCase):
    pass


@periodic("the twin of ClassicPositionTest on the other driver")
class ConfluentPositionTest(contracts.PositionContract, ConfluentCase):
    pass


@periodic("the twin of EagerGroupTest on the other driver")
class ConfluentGroupTest(contracts.GroupContract, ConfluentCase):
    consumer_changes: ClassVar = {"session_timeout_seconds": 5.0, "assignment_strategy": "range"}


class ConsumerProtocolTest(Scenario, KafkaCase):
    consumer_changes: ClassVar = {"group_protocol": "consumer"}

    @needs(Capability.CONSUMER_PROTOCOL)
    def test_a_consumer_of_this_protocol_reads(self):
        topic = self.cluster.new_topic()
        self.fill(topic, 1)
        consumer = self.cluster.consumer(topic, self.cluster.name("group"))
        self.assertEqual(PARTITIONS, len(self.read(consumer, PARTITIONS)))


class Kip848Case(KafkaCase):
    """Skipped if `ConsumerProtocolTest` finds that Kafka lacks the protocol."""

    consumer_changes: ClassVar = {"group_protocol": "consumer"}

    def setUp(self):
        super().setUp()
        if Capability.CONSUMER_PROTOCOL not in self.cluster.capabilities:
            self.skipTest(f"Kafka {kafka_version()} is not one that {Capability.CONSUMER_PROTOCOL.value}")


@periodic("second protocol; the normal run contains Kip848ProcessorTest")
class Kip848ConsumerTest(contracts.ConsumerContract, Kip848Case):
    pass


@periodic("second protocol; the normal run contains Kip848ProcessorTest")
class Kip848PositionTest(contracts.PositionContract, Kip848Case):
    pass


@periodic("second protocol; the normal run contains Kip848ProcessorTest")
class Kip848GroupTest(contracts.GroupContract, Kip848Case):
    pass


class Kip848ProcessorTest(contracts.ProcessorContract, Kip848Case):
    pass
