# SPDX-License-Identifier: Apache-2.0
"""A service that reserves the items of orders, and publishes an invoice for each order."""

from collections.abc import Callable
from typing import Any

from monasca_common import kafka

Order = dict[str, Any]


class Orders:
    def __init__(self, reserve: Callable[[bytes, str, int], None]) -> None:
        """``reserve(order_id, item, count)`` takes items from the stock, once per order id.

        It raises `ConnectionError` while the stock is unavailable.
        """
        self._reserve = reserve
        self._json = kafka.load_serializer("json")

    def processor(self, consumer: kafka.KafkaConsumer, producer: kafka.KafkaProducer) -> kafka.Processor:
        return kafka.Processor(
            consumer,
            self.handle,
            per_message=True,
            serializer=self._json,
            producer=producer,
            dead_letters=kafka.DeadLetters(max_consecutive=100),
        )

    def handle(self, message: kafka.Message[Order]) -> list[tuple[str, bytes]]:
        order = message.value
        if order["count"] < 1:
            raise kafka.Poison(f"the count is {order['count']}, but must be at least 1")
        try:
            self._reserve(message.message_id, order["item"], order["count"])
        except ConnectionError:
            raise kafka.RetryLater() from None
        return [("invoices", self._json.dumps(order))]
