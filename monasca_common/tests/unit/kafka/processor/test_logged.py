# SPDX-License-Identifier: Apache-2.0
"""Log lines of a processor about lasting events: the first event of each kind, and then their number."""

import logging

import fixtures

from monasca_common.kafka.errors import Poison, RetryLater
from monasca_common.kafka.log_limit import REPEAT_SECONDS
from monasca_common.kafka.transport.memory import Fail
from monasca_common.tests.unit.kafka.processor.processor_case import ONCE, ProcessorCase


class LoggedTest(ProcessorCase):
    def setUp(self):
        super().setUp()
        self.log = self.useFixture(
            fixtures.FakeLogger("monasca_common.kafka.processor", level=logging.WARNING, format="%(message)s")
        )

    def lines(self, part):
        return [line for line in self.log.output.splitlines() if part in line]

    def test_a_dead_letter_is_logged_with_its_offset_and_reason(self):
        def handler(part):
            raise Poison("no timestamp in it")

        self.fill(b"x" * 100)
        self.start(handler)
        self.until(lambda: self.committed() == 1)
        self.assertEqual(["dead letter of in/0 offset 0: Poison: no timestamp in it"], self.lines("dead letter"))

    def test_the_first_of_many_dead_letters_is_logged_and_later_their_number(self):
        def handler(message):
            raise Poison("no good")

        self.fill(*[b"x"] * 50)
        self.start(handler, per_message=True)
        self.until(lambda: self.committed() == 50, step=0.002)  # all within one interval of the limit
        self.assertEqual(1, len(self.lines("dead letter")))
        self.pass_time(REPEAT_SECONDS + 1)
        self.fill(b"x")
        self.until(lambda: self.committed() == 51)
        self.assertEqual(
            "dead letter of in/0 offset 50: Poison: no good (and 49 times since this was last logged)",
            self.lines("dead letter")[-1],
        )

    def test_a_reason_omits_words_of_the_payload(self):
        def handler(part):
            raise Poison("host is confidential, and not a number")

        self.fill(b'{"host": "confidential"}')
        self.start(handler)
        self.until(lambda: self.committed() == 1)
        self.assertEqual(["dead letter of in/0 offset 0: Poison: … is …, and not a number"], self.lines("dead letter"))

    def test_only_the_class_of_an_exception_of_a_handler_is_logged(self):
        def handler(part):
            raise ValueError("invalid literal: 'abc'")

        self.fill(b"x")
        self.start(handler, retry=ONCE)
        self.until(lambda: self.committed() == 1)
        self.assertEqual(["dead letter of in/0 offset 0: ValueError"], self.lines("dead letter"))

    def test_a_repeated_temporary_error_is_logged_once_and_counted(self):
        self.broker.inject("fetch", Fail("LEADER_NOT_AVAILABLE"), count=None)
        running = self.start(lambda part: None)
        self.until(lambda: running.processor.ignored_errors["RetriableError"] > 5)
        self.assertEqual(1, len(self.lines("temporary error while reading")))
        self.pass_time(REPEAT_SECONDS + 1)
        self.until(lambda: len(self.lines("times since this was last logged")) == 1)

    def test_a_serializer_that_waits_for_its_registry_is_logged_once_and_counted(self):
        class NeedsRegistry:
            def loads(self, value):
                raise RetryLater(0.1) from ConnectionError("registry")

        self.fill(b"x")
        running = self.start(lambda part: None, serializer=NeedsRegistry())
        self.until(lambda: running.processor.ignored_errors["RetryLater"] > 5)
        [line] = self.lines("wait for their next attempt")
        self.assertEqual(
            "messages of in wait for their next attempt (ConnectionError): a dependency is unavailable; next attempt "
            "in 0.1 s",
            line,
        )

    def test_errors_of_another_kind_are_logged_separately(self):
        self.broker.inject("fetch", Fail("LEADER_NOT_AVAILABLE"), count=3)
        self.broker.inject("fetch", Fail("NOT_LEADER_FOR_PARTITION"), nth=4, count=3)
        self.start(lambda part: None)
        self.until(lambda: len(self.lines("temporary error while reading")) == 2)
