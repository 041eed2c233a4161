# SPDX-License-Identifier: Apache-2.0
"""A processor over the memory broker, with a clock that the test advances."""

import threading
import time

from oslotest import base

from monasca_common.kafka import plugins
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.processor.dead_letters import DeadLetters
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.processor.retry import RetryPolicy
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.memory import VirtualClock

GROUP = "test-group"
IN = TopicPartition("in", 0)

# The first failure is final, so that a test reaches the steps after it.
ONCE = RetryPolicy(attempts=1)
_PATIENCE_SECONDS = 50  # seconds of real time, for a machine under load

# Virtual time waits for polling threads that lag by more than this, so that they are not late on a busy machine.
_BEHIND_SECONDS = 3.0


class Running:
    """A processor on a separate thread: ``report`` or ``error`` once it has ended."""

    def __init__(self, processor, consumer):
        self.processor = processor
        self.consumer = consumer
        self.report = None
        self.error = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            self.report = self.processor.run()
        except BaseException as error:
            self.error = error

    @property
    def ended(self):
        return not self.thread.is_alive()

    @property
    def behind(self):
        return not self.ended and (self.consumer.health().seconds_since_poll or 0.0) > _BEHIND_SECONDS


class ProcessorCase(base.BaseTestCase):
    partitions = 1
    turn_seconds = 0.05  # seconds of real time to wait for the threads at each step, because in some tests they hang

    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.runs = []
        self.kafka = self.useFixture(MemoryKafka(clock=self.clock))
        self.broker = self.kafka.broker
        for topic in ("in", "in.dlq", "out"):
            self.broker.create_topic(topic, self.partitions)
        self.producer = plugins.memory_producer(self.kafka.producer_settings())
        self.addCleanup(self.unhurried, lambda: self.producer.close(0))

    def consumer(self, **changes):
        consumer = plugins.memory_consumer(self.kafka.consumer_settings("in", GROUP, **changes))
        self.addCleanup(self.unhurried, lambda: consumer.close(0))
        return consumer

    def fill(self, *values, partition=0, key=None):
        records = [each if isinstance(each, Record) else Record(each, key=key, partition=partition) for each in values]
        done = []
        sender = threading.Thread(target=lambda: done.append(self.producer.publish("in", records)), daemon=True)
        sender.start()
        self.until(lambda: done, step=0.01)
        self.assertTrue(done[0].ok, done[0])

    def start(self, handler, *, consumer=None, dead_letters=True, **choices):
        """Run a processor with dead letters and a producer; ``choices`` are the processor's arguments."""
        settings = choices.pop("settings", {})
        choices = {"producer": self.producer, **choices}
        policy = DeadLetters() if dead_letters is True else dead_letters
        consumer = consumer or self.consumer(**settings)
        running = Running(Processor(consumer, handler, dead_letters=policy, **choices), consumer)
        self.runs.append(running)
        self.addCleanup(lambda: running.ended or self.stop(running, 0))
        return running

    def until(self, condition, *, step=0.05):
        """Let virtual time pass until ``condition`` holds; threads get a moment of real time at each step."""
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            self._let_them_poll()
            self.clock.advance(step)
            threading.Event().wait(0.0005)
            if time.monotonic() > give_up:
                self.fail(f"not within {_PATIENCE_SECONDS} s")

    def _let_them_poll(self):
        give_up = time.monotonic() + self.turn_seconds
        while any(running.behind for running in self.runs) and time.monotonic() < give_up:
            threading.Event().wait(0.0005)

    def pass_time(self, seconds, *, step=0.5):
        """Let virtual time pass, while the threads run."""
        end = self.clock.monotonic() + seconds
        self.until(lambda: self.clock.monotonic() >= end, step=step)

    def unhurried(self, action):
        """Run a call that waits for virtual time."""
        thread = threading.Thread(target=action, daemon=True)
        thread.start()
        self.until(lambda: not thread.is_alive())

    def stop(self, running, deadline=None):
        reports = []
        self.unhurried(lambda: reports.append(running.processor.stop(deadline)))
        self.until(lambda: running.ended)
        return reports[0]

    def failure(self, running):
        """Return the error that ends a run."""
        self.until(lambda: running.ended)
        return running.error

    def values(self, topic):
        return [message.value for message in self.broker.records(topic)]

    def committed(self, partition=IN):
        return self.broker.committed(GROUP).get(partition, 0)
