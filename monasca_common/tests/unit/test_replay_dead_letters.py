# SPDX-License-Identifier: Apache-2.0
"""The example that replays dead letters; the called functions have their own tests."""

import contextlib
import io
from unittest import mock

from oslotest import base

from monasca_common.kafka import Record, TopicPartition, dead_letters
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.tests.example_case import load_example

LETTERS = "readings.dlq"


class ReplayDeadLettersTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.program = load_example("replay_dead_letters")
        self.kafka = self.useFixture(MemoryKafka())
        for topic in ("readings", "others", LETTERS):
            self.kafka.broker.create_topic(topic, 1)
        self.producer = self.kafka.producer()
        for origin in ("readings", "others"):
            header = (dead_letters.ORIGIN_TOPIC, origin.encode())
            self.producer.publish(LETTERS, [Record(b"x", headers=(header,))]).raise_for_undelivered()

    def run_program(self):
        """Run the program, and return the exit status and the output."""
        consumer = self.kafka.consumer(LETTERS, "replay")
        program, out, err = self.program, io.StringIO(), io.StringIO()
        with (
            mock.patch.object(program.kafka, "load_producer", lambda conf: self.producer),
            mock.patch.object(program.kafka, "load_consumer", lambda conf, group: consumer),
            mock.patch.object(program.sys, "argv", ["replay_dead_letters.py"]),
            contextlib.redirect_stderr(err),
            contextlib.redirect_stdout(out),
        ):
            return program.main(), out.getvalue(), err.getvalue()

    def test_the_program_reports_the_outcome_of_each_dead_letter(self):
        status, out, _ = self.run_program()
        self.assertEqual(0, status)
        self.assertIn("replayed to readings: readings.dlq/0/0", out)
        self.assertEqual("2 replayed, 0 not replayable, 0 refused", out.splitlines()[-1])

    def test_dead_letters_of_a_missing_topic_are_kept_and_reported(self):
        self.kafka.broker.delete_topic("readings")
        status, out, _ = self.run_program()
        self.assertEqual((1, "1 replayed, 0 not replayable, 1 refused"), (status, out.splitlines()[-1]))
        self.assertIn("refused, there is no topic readings: readings.dlq/0/0", out)

    def test_ctrl_c_ends_the_program_without_a_traceback_and_keeps_its_progress(self):
        publish = self.producer.publish
        sent = []

        def interrupted(*arguments):
            if sent:
                raise KeyboardInterrupt
            sent.append(arguments)
            return publish(*arguments)

        self.producer.publish = interrupted

        status, _, err = self.run_program()

        self.assertEqual((1, "replay_dead_letters: stopped\n"), (status, err))
        self.assertEqual({TopicPartition(LETTERS, 0): 1}, self.kafka.broker.committed("replay"))
