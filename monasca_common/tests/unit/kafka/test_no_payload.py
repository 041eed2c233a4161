# SPDX-License-Identifier: Apache-2.0
"""Log lines identify messages by their position, never by their content."""

import logging

import fixtures

from monasca_common.kafka.errors import Poison
from monasca_common.kafka.processor.retry import RetryPolicy
from monasca_common.kafka.serialization.json import JsonSerializer
from monasca_common.kafka.transport.memory import Fail
from monasca_common.tests.unit.kafka.processor.processor_case import ProcessorCase

SECRET = "confidential"


class NoPayloadTest(ProcessorCase):
    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("monasca_common", level=logging.INFO))

    def test_no_part_of_a_message_is_logged(self):
        def handler(message):
            if "poison" in message.value:
                raise Poison(f"no such {message.value}")
            if "bug" in message.value:
                raise ValueError(message.value)
            if "stored" not in message.value:
                raise AssertionError("no such case")
            return [("out", message.value["stored"].encode())]

        self.fill(
            b'{"stored": "confidential"}',
            b'{"poison": "confidential"}',
            b'{"bug": "confidential"}',
            b"confidential, and no JSON",
            key=b"confidential key",
        )
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), topic="out", count=2)
        self.start(handler, per_message=True, serializer=JsonSerializer(), retry=RetryPolicy(attempts=2))
        self.until(lambda: self.committed() == 4)
        self.assertEqual(1, len(self.values("out")))
        self.assertEqual(3, len(self.values("in.dlq")))
        for expected in ("handler failed on in/0", "no acknowledgement yet"):
            self.assertIn(expected, self.log.output)
        self.assertNotIn(SECRET, self.log.output)
