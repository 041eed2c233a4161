# SPDX-License-Identifier: Apache-2.0
"""A service and its unit tests, which use the real producer, consumer and processor with an in-memory Kafka.

Run it as a program, or with any unittest runner.
"""

import threading
import unittest
from collections.abc import Callable, Iterator
from typing import Any

from oslo_config import cfg
from oslo_config import fixture as config_fixture

from monasca_common import kafka
from monasca_common.kafka.testing import LoseAnswer, MemoryKafka

# The service

Reading = dict[str, Any]  # the message's bytes parsed as JSON
TenantOf = Callable[[str], str]


class HeatWatch:
    """Consumes readings, looks up the residents of rooms in a directory, and publishes an alarm for each room that is
    too hot."""

    def __init__(self, conf: cfg.ConfigOpts, tenant_of: TenantOf) -> None:
        self._tenant_of = tenant_of
        self._json = kafka.load_serializer("json")
        self.consumer = kafka.load_consumer(conf, "kafka_readings")
        self.producer = kafka.load_producer(conf)
        self.processor = kafka.Processor(
            self.consumer, self.handle, per_message=True, serializer=self._json, producer=self.producer
        )

    def handle(self, message: kafka.Message[Reading]) -> list[tuple[str, bytes]]:
        if message.value["celsius"] < 30:
            return []
        try:
            tenant = self._tenant_of(message.value["room"])
        except ConnectionError:
            raise kafka.RetryLater(after=0.01) from None
        return [("alarms", self._json.dumps({"tenant": tenant, **message.value}))]

    def close(self) -> None:
        self.processor.stop()
        self.consumer.close()
        self.producer.close()


# Its tests


class HeatWatchTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.kafka = self.enterContext(MemoryKafka())
        self.kafka.broker.create_topic("readings")
        self.conf = cfg.ConfigOpts()
        self.conf([], default_config_files=[])
        settings = self.enterContext(config_fixture.Config(self.conf))
        settings.load_raw_values("kafka", driver="memory", bootstrap_servers=self.kafka.bootstrap_servers)
        settings.load_raw_values("kafka_readings", topic="readings", group_id="heat-watch")
        settings.load_raw_values("kafka_alarms", topic="alarms", group_id="test")

    def start(self, tenant_of: TenantOf = lambda room: "ada") -> None:
        service = HeatWatch(self.conf, tenant_of)
        thread = threading.Thread(target=service.processor.run)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(service.close)

    def read(self, *values: bytes) -> None:
        with kafka.load_producer(self.conf) as producer:
            producer.publish("readings", values).raise_for_undelivered()

    def alarms(self, count: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        with kafka.load_consumer(self.conf, "kafka_alarms") as consumer:
            while len(found) < count:
                found += [message.value for message in consumer.poll(timeout=5)]
        return found

    def test_a_hot_room_is_an_alarm_and_a_cool_one_is_none(self) -> None:
        self.start()

        self.read(b'{"room": "hall", "celsius": 21}', b'{"room": "attic", "celsius": 35}')

        self.assertEqual([b'{"tenant":"ada","room":"attic","celsius":35}'], self.alarms(1))

    def test_a_directory_that_is_away_delays_the_alarm_and_loses_nothing(self) -> None:
        answers: Iterator[Exception | str] = iter([ConnectionError(), ConnectionError(), "ada"])

        def tenant_of(room: str) -> str:
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        self.start(tenant_of)

        self.read(b'{"room": "attic", "celsius": 35}')

        self.assertEqual(1, len(self.alarms(1)))

    def test_a_lost_answer_does_not_make_a_second_alarm(self) -> None:
        self.kafka.broker.inject("produce", LoseAnswer(seconds=0.02), topic="alarms")
        self.start()

        self.read(b'{"room": "attic", "celsius": 35}', b'{"room": "roof", "celsius": 40}')

        self.assertEqual(2, len(self.alarms(2)))
        self.assertEqual(2, len(self.kafka.broker.records("alarms")))


if __name__ == "__main__":
    unittest.main()
