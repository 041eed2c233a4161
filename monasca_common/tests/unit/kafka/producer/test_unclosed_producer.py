# SPDX-License-Identifier: Apache-2.0
"""A producer that is not closed, in a process that exits."""

import subprocess
import sys
import textwrap

from oslotest import base

SECONDS = 60
PROGRAM = """
import logging, os, sys, time
from monasca_common.kafka.plugins import memory_producer
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.kafka.transport.memory import Delay
from monasca_common.kafka.transport.memory.broker import broker_for

logging.basicConfig(format="%(levelname)s %(message)s")
broker = broker_for("memory")
broker.create_topic("t", 1)

def producer():
    opened = memory_producer(ProducerSettings(ConnectionSettings("memory")))
    opened.publish("t", [b"warm"]).raise_for_undelivered()
    return opened

forgotten = producer()
"""


class UnclosedProducerTest(base.BaseTestCase):
    def ended(self, program):
        """Return the output and log of a process that runs this program; it must exit by itself with status 0."""
        process = subprocess.run(
            [sys.executable, "-W", "always::ResourceWarning", "-c", PROGRAM + textwrap.dedent(program)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        self.assertEqual(0, process.returncode, process.stderr)
        return process.stdout, process.stderr

    def test_messages_in_flight_are_delivered(self):
        _, errors = self.ended(
            """
            broker.inject("produce", Delay(0.3))
            forgotten.send("t", b"late")
            """
        )
        self.assertIn("ResourceWarning: a KafkaProducer was not closed before the exit", errors)
        self.assertNotIn("ERROR", errors)

    # Rule 9
    def test_undelivered_messages_are_counted_after_a_while(self):
        output, errors = self.ended(
            """
            from monasca_common.kafka.producer import producer as module

            module._EXIT_SECONDS = 0.3
            broker.disconnect()
            began = time.monotonic()
            for _ in range(3):
                forgotten.send("t", b"payload")
            forgotten.send("other", b"payload")
            module._close_open_producers()
            print("waited", time.monotonic() - began)
            """
        )
        self.assertIn("ERROR a producer was closed with 4 undelivered messages (3 of them unknown)", errors)
        self.assertNotIn("payload", errors)
        self.assertGreater(float(output.split("waited")[1].split()[0]), 0.3)

    def test_a_closed_producer_is_not_closed_again(self):
        self.assertEqual(("", ""), self.ended("forgotten.close()"))

    def test_an_unused_producer_is_not_kept_alive(self):
        output, errors = self.ended(
            """
            import gc
            from monasca_common.kafka.producer import producer as module

            forgotten.close()
            del forgotten
            deadline = time.monotonic() + 30
            while module._open_producers and time.monotonic() < deadline:  # until its threads have ended
                gc.collect()
                time.sleep(0.01)
            print(len(module._open_producers))
            """
        )
        self.assertEqual(("0\n", ""), (output, errors))

    def test_a_child_of_a_fork_that_exits_closes_nothing(self):
        output, errors = self.ended(
            """
            broker.inject("produce", Delay(0.3))
            forgotten.send("t", b"the parent's")
            pid = os.fork()
            if pid == 0:
                forgotten.close = lambda timeout: print("the child closes", flush=True)
                sys.exit(7)
            print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            """
        )
        self.assertIn("child 7", output)
        self.assertNotIn("the child closes", output)
        self.assertEqual((1, 0), (errors.count("ResourceWarning:"), errors.count("ERROR")), errors)
