# SPDX-License-Identifier: Apache-2.0
"""The service's unit tests. Run them with ``python -m unittest``."""

import unittest

from orders import Orders

from monasca_common import kafka
from monasca_common.kafka.testing import LoseAnswer, MemoryKafka


def reserve_nothing(order_id: bytes, item: str, count: int) -> None: ...


class OrdersTest(unittest.TestCase):
    def setUp(self) -> None:
        self.kafka = MemoryKafka()
        self.kafka.setUp()
        self.addCleanup(self.kafka.cleanUp)
        for topic in ("orders", "orders.dlq", "invoices"):
            self.kafka.broker.create_topic(topic)
        self.producer = self.kafka.producer()

    def handle(self, *orders: bytes) -> None:
        self.producer.publish("orders", orders).raise_for_undelivered()
        self.run_service(Orders(reserve_nothing))

    def run_service(self, service: Orders) -> None:
        with self.kafka.consumer("orders", "shop") as consumer:
            self.kafka.drain(service.processor(consumer, self.producer))

    def test_an_order_has_an_invoice(self) -> None:
        self.handle(b'{"item": "lamp", "count": 2}')
        self.assertEqual([b'{"item":"lamp","count":2}'], [each.value for each in self.kafka.broker.records("invoices")])

    def test_a_lost_acknowledgement_creates_no_second_invoice(self) -> None:
        self.kafka.broker.inject("produce", LoseAnswer(seconds=0.02), topic="invoices")
        self.handle(b'{"item": "lamp", "count": 2}')
        self.assertEqual(1, len(self.kafka.broker.records("invoices")))

    def test_an_order_handled_again_after_a_crash_keeps_its_id(self) -> None:
        order_ids = []

        def reserve_then_crash_once(order_id: bytes, item: str, count: int) -> None:
            order_ids.append(order_id)
            if len(order_ids) == 1:
                [member] = self.kafka.broker.members("shop")
                self.kafka.broker.kill_member("shop", member)

        service = Orders(reserve_then_crash_once)
        self.producer.publish("orders", [b'{"item": "lamp", "count": 2}']).raise_for_undelivered()
        with self.assertRaises(kafka.MessagingError):
            self.run_service(service)
        self.run_service(service)
        self.assertEqual(2, len(order_ids))
        self.assertEqual(1, len(set(order_ids)))
        self.assertEqual(1, len({each.message_id for each in self.kafka.broker.records("invoices")}))

    def test_an_order_of_nothing_is_a_dead_letter(self) -> None:
        self.handle(b'{"item": "lamp", "count": 0}')
        self.assertEqual(1, len(self.kafka.broker.records("orders.dlq")))


if __name__ == "__main__":
    unittest.main()
