# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.memory import MemoryProducer, VirtualClock
from monasca_common.tests.threads import run_together
from monasca_common.tests.waiting import Waiting

AWAY = {"timeout": 0}  # an expired deadline: the report has the outcomes known immediately


class ProducerCase(Waiting, base.BaseTestCase):
    """Tests with a producer over a memory broker whose time does not change; topic ``t`` has one partition."""

    clock_type: type[VirtualClock] = VirtualClock
    turn_seconds = 0.001

    def setUp(self):
        super().setUp()
        self.clock = self.clock_type()
        self.kafka = self.useFixture(MemoryKafka(clock=self.clock))
        self.broker = self.kafka.broker
        self.broker.create_topic("t", 1)

    def producer(self, **settings):
        settings = self.kafka.producer_settings(**settings)
        producer = KafkaProducer(
            settings, lambda batch_bytes, on_error: MemoryProducer(settings, batch_bytes=batch_bytes, on_error=on_error)
        )
        self.addCleanup(producer.close, 0)
        return producer

    def warm_producer(self, **settings):
        """Return a producer that already knows the limit of ``t``: a larger message is not sent."""
        producer = self.producer(**settings)
        producer.publish("t", [b"x" * 2_000_000], timeout=3600)
        return producer

    def values(self, topic="t"):
        return [message.value for message in self.broker.records(topic)]

    def ids(self, topic="t"):
        return [message.message_id for message in self.broker.records(topic)]

    def wait_until_settled(self, producer):
        self.wait_until(lambda: not producer.health().outstanding_messages)

    def at_once(self, call):
        """Return the result of a waiting call on another thread."""
        return run_together(lambda _: call(), [None])[0]
