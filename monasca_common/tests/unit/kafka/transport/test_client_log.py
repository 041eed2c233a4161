# SPDX-License-Identifier: Apache-2.0
import logging

import fixtures
from oslotest import base

from monasca_common.kafka.log_limit import REPEAT_SECONDS
from monasca_common.kafka.transport.client_log import ClientLog
from monasca_common.kafka.transport.memory import VirtualClock


class ClientLogTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.output = self.useFixture(fixtures.FakeLogger("client", format="%(message)s"))
        self.log = ClientLog(logging.getLogger("client"), self.clock)

    @property
    def lines(self):
        return self.output.output.splitlines()

    def complain(self, milliseconds=0):
        self.log.log(logging.ERROR, "%s [%s]: refused after %dms", "FAIL", "b:9092", milliseconds)

    def test_a_message_is_logged_once_regardless_of_its_duration(self):
        for milliseconds in range(20):
            self.complain(milliseconds)
        self.assertEqual(["FAIL [b:9092]: refused after 0ms"], self.lines)

    def test_other_messages_of_the_client_are_logged_separately(self):
        self.complain()
        self.log.log(logging.ERROR, "FAIL [b:9093]: 100 % refused")
        self.assertEqual(["FAIL [b:9092]: refused after 0ms", "FAIL [b:9093]: 100 % refused"], self.lines)

    def test_a_lasting_message_is_repeated_with_its_number(self):
        for _ in range(3):
            self.complain()
        self.clock.advance(REPEAT_SECONDS)
        self.complain()
        self.assertEqual("FAIL [b:9092]: refused after 0ms (and 2 times since this was last logged)", self.lines[1])

    def test_lines_that_are_not_repeated_are_forgotten(self):
        for number in range(100):
            self.log.log(logging.ERROR, "FAIL [b:%d]", number)
        self.clock.advance(600)
        self.complain()
        self.assertEqual(1, len(self.log._limit._logged))
