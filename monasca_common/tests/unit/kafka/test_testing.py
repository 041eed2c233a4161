# SPDX-License-Identifier: Apache-2.0
"""The extra ``testing``, the fixture `MemoryKafka`, and `drain`: complete tests of handlers, as users write them."""

import configparser
import functools
import subprocess
import sys
from pathlib import Path

from oslotest import base

from monasca_common.kafka.errors import Poison, RetryLater, WrongType
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.processor.dead_letters import DeadLetters
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.testing import MemoryKafka, VirtualClock
from monasca_common.kafka.transport.memory import broker_for, reset_brokers

IN = TopicPartition("in", 0)
OTHER = TopicPartition("in", 1)


class DrainCase(base.BaseTestCase):
    clock = None

    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka(clock=self.clock))
        self.kafka.broker.create_topic("in", 2)
        self.kafka.broker.create_topic("in.dlq", 1)

    def fill(self, *values, partition=0):
        records = [Record(value, partition=partition) for value in values]
        self.kafka.producer().publish("in", records).raise_for_undelivered()

    def drain(self, handler, *, timeout=20, **choices):
        return self.kafka.drain(Processor(self.kafka.consumer("in"), handler, **choices), timeout)

    def with_dead_letters(self):
        return {"producer": self.kafka.producer(), "dead_letters": DeadLetters()}


class DrainTest(DrainCase):
    def test_a_drain_runs_until_everything_is_committed(self):
        self.fill(b"1", b"2")
        self.fill(b"3", partition=1)
        seen = []
        drained = self.drain(lambda part: seen.extend(part.values))
        self.assertEqual([b"1", b"2", b"3"], sorted(seen))
        self.assertEqual({IN: 2, OTHER: 1}, dict(drained.committed))
        self.assertEqual(((), {}), (drained.dead_letters, dict(drained.put_off)))

    def test_empty_topics_have_no_work(self):
        self.assertEqual((), self.drain(lambda part: None).dead_letters)

    def test_the_handlers_own_exception_is_raised(self):
        self.fill(b"1")

        def handler(part):
            raise ZeroDivisionError("of the handler")

        error = self.assertRaises(ZeroDivisionError, self.drain, handler)
        self.assertEqual("of the handler", str(error))

    def test_a_drain_reports_dead_letters_and_does_not_wait_for_them(self):
        self.fill(b"good", b"bad", b"good")

        def handler(message):
            if message.value == b"bad":
                raise Poison("bad")

        drained = self.drain(handler, per_message=True, **self.with_dead_letters())
        ((message, error),) = drained.dead_letters
        self.assertEqual((1, "bad"), (message.offset, str(error)))
        self.assertEqual(3, drained.committed[IN])

    def test_an_endless_retry_later_is_reported_and_other_messages_are_handled(self):
        self.fill(b"1")
        self.fill(b"2", partition=1)

        def handler(part):
            if part.topic_partition == IN:
                raise RetryLater

        drained = self.drain(handler, threads=2, timeout=3600)
        self.assertEqual([IN], list(drained.put_off))
        self.assertEqual(1, drained.committed[OTHER])
        self.assertEqual(0, drained.committed.get(IN, 0))

    def test_a_drain_waits_for_a_retry_later_that_ends_without_its_delays(self):
        self.fill(b"1")
        calls = []

        def handler(part):
            calls.append(part)
            if len(calls) < 4:
                raise RetryLater(after=3600)

        self.assertEqual(1, self.drain(handler).committed[IN])
        self.assertEqual(4, len(calls))

    def test_offsets_that_are_not_done_in_time_are_named(self):
        self.fill(b"1")
        self.fill(b"2", partition=1)

        def handler(part):
            if part.topic_partition == IN:
                raise RetryLater
            processor.stop(0)

        processor = Processor(self.kafka.consumer("in"), handler)
        error = self.assertRaises(TimeoutError, self.kafka.drain, processor, 0.3)
        self.assertIn("in/", str(error))

    def test_another_member_that_owns_all_partitions_is_a_clear_error(self):
        self.fill(b"1")
        other = self.kafka.consumer("in")
        other.poll(timeout=0)
        seen = []
        error = self.assertRaises(TimeoutError, self.drain, seen.append, timeout=0.3)
        self.assertIn("close the other consumers of group test-group", str(error))
        self.assertEqual([], seen)


class DrainWithVirtualTimeTest(DrainTest):
    """The same tests on a clock that only the test advances."""

    def setUp(self):
        self.clock = VirtualClock()
        super().setUp()

    def fill(self, *values, partition=0):
        """Advance the time past the producer's linger."""
        log = self.kafka.broker
        producer = self.kafka.producer(linger_ms=0)
        for value in values:
            producer.send("in", Record(value, partition=partition))
        while not log.records("in", partition)[-1:] or log.records("in", partition)[-1].value != values[-1]:
            self.clock.advance(0.05)


class AsyncHandlerTest(DrainCase):
    def test_run_refuses_an_async_handler_and_names_the_remedy(self):
        async def function(part):
            pass

        class Callable:
            async def __call__(self, part):
                pass

            async def method(self, part):
                pass

        for handler in (function, Callable(), Callable().method, functools.partial(function)):
            refused = self.assertRaises(WrongType, Processor(self.kafka.consumer("in"), handler).run)
            self.assertIn("AsyncProcessor(processor).run()", str(refused))

    def test_all_kinds_of_plain_callables_are_accepted(self):
        class Callable:
            def __call__(self, part):
                pass

            def method(self, part):
                pass

        for handler in (lambda part: None, Callable(), Callable().method, functools.partial(print), print, [].append):
            Processor(self.kafka.consumer("in"), handler)


SETUP = Path(__file__).parents[4] / "setup.cfg"
PROGRAM = """
import sys
for name in ("testtools", "oslotest", "hypothesis", "subunit", "stestr"):
    sys.modules[name] = None
from monasca_common.kafka.testing import MemoryKafka
with MemoryKafka() as kafka, kafka.producer() as producer:
    producer.publish("readings", [b"21"]).raise_for_undelivered()
    print([record.value for record in kafka.broker.records("readings")])
"""
WITHOUT_FIXTURES = """
import sys
sys.modules["fixtures"] = None
import monasca_common.kafka.testing
"""


class TestingExtraTest(base.BaseTestCase):
    def test_tests_of_services_need_only_fixtures(self):
        setup = configparser.ConfigParser()
        setup.read(SETUP)
        (only,) = setup["extras"]["testing"].split("\n")[1:]
        self.assertTrue(only.startswith("fixtures>="))

        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)

        self.assertEqual("[b'21']\n", done.stdout, done.stderr)

    def test_the_error_without_fixtures_names_the_extra(self):
        done = subprocess.run([sys.executable, "-c", WITHOUT_FIXTURES], capture_output=True, text=True, check=False)

        last = done.stderr.splitlines()[-1]
        self.assertEqual("ImportError: fixtures is not installed: install monasca-common[testing]", last)


class BrokersTest(base.BaseTestCase):
    def test_there_is_one_broker_for_each_address_until_they_are_reset(self):
        self.addCleanup(reset_brokers)
        first = broker_for("one:9092")
        self.assertIs(first, broker_for("one:9092"))
        self.assertIsNot(first, broker_for("two:9092"))
        reset_brokers()
        self.assertIsNot(first, broker_for("one:9092"))

    def test_the_fixture_provides_a_new_broker_at_its_address(self):
        stale = broker_for("memory:9092")
        kafka = self.useFixture(MemoryKafka())
        self.assertIsNot(stale, kafka.broker)
        self.assertIs(kafka.broker, broker_for(kafka.producer_settings().connection.bootstrap_servers))

    def test_the_consumer_of_the_fixture_reads_messages_of_its_producer(self):
        kafka = self.useFixture(MemoryKafka())
        kafka.producer().publish("t", [b"v"]).raise_for_undelivered()
        self.assertEqual([b"v"], [message.value for message in kafka.consumer("t").poll(timeout=5)])
