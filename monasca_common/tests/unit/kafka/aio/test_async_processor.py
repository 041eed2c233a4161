# SPDX-License-Identifier: Apache-2.0
import asyncio
import contextlib
import threading
import weakref
from collections import Counter, defaultdict

from fixtures import MonkeyPatch

from monasca_common.kafka.aio import AsyncProcessor
from monasca_common.kafka.consumer.rebalance import RebalanceListener
from monasca_common.kafka.errors import (
    ConfigurationError,
    HandlerError,
    MisuseError,
    Poison,
    RetryLater,
    WrongType,
)
from monasca_common.kafka.message import Record
from monasca_common.kafka.processor.dead_letters import DeadLetters
from monasca_common.kafka.processor.hooks import Hook
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.processor.retry import RetryPolicy
from monasca_common.kafka.serialization.json import JsonSerializer
from monasca_common.tests.unit.kafka.aio.aio_case import GROUP, PARTITIONS, AioCase

ONCE = RetryPolicy(attempts=1)


class Polls(Hook):
    """Sets an event of the loop after a number of polls."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self.left = -1

    def await_polls(self, count):
        self.left = count
        return self.reached.wait()

    def after_poll(self, batch):
        self.left -= 1
        if self.left == 0:
            self.loop.call_soon_threadsafe(self.reached.set)


class AsyncProcessorCase(AioCase):
    def setUp(self):
        super().setUp()
        self.writer = self.kafka.producer()

    def fill(self, count, key=None):
        records = [
            Record(b"%d" % number, key and b"%d" % (number % key), partition=number % PARTITIONS)
            for number in range(count)
        ]
        self.writer.publish("in", records).raise_for_undelivered()

    def processor(self, handler, *, concurrency=100, settings=None, **choices):
        choices = {"producer": self.writer, "dead_letters": DeadLetters(), "retry": ONCE, "threads": 2, **choices}
        return AsyncProcessor(
            Processor(self.kafka.consumer("in", GROUP, **settings or {}), handler, **choices), concurrency=concurrency
        )

    async def run_until(self, processor, ended):
        """Run until the event, and return the final report."""
        running = asyncio.ensure_future(processor.run())
        waiting = asyncio.ensure_future(ended.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await processor.stop()
        return await running


class Handler:
    """Counts messages, and sets ``ended`` after ``count`` of them."""

    def __init__(self, count):
        self.values = []
        self.count = count
        self.running = Counter()
        self.most = 0
        self.ended = asyncio.Event()

    async def __call__(self, part):
        place = part.topic_partition if hasattr(part, "topic_partition") else part.key
        self.running[place] += 1
        assert self.running[place] == 1, "two calls of one lane"
        self.most = max(self.most, sum(self.running.values()))
        await self.work(part)
        self.running[place] -= 1
        values = part.values if hasattr(part, "values") else [part.value]
        self.values += values
        if len(self.values) >= self.count:
            self.ended.set()

    async def work(self, part):
        await asyncio.sleep(0)


class CallsTest(AsyncProcessorCase):
    async def test_partitions_are_handled_concurrently_and_each_in_order(self):
        self.fill(40)
        together = asyncio.Event()

        class Together(Handler):
            async def work(self, part):
                if len(+self.running) == PARTITIONS:
                    together.set()
                await together.wait()

        handler = Together(40)
        report = await self.run_until(self.processor(handler), handler.ended)
        self.assertEqual((True, PARTITIONS), (report.clean, handler.most))
        for partition in range(PARTITIONS):
            numbers = [int(value) for value in handler.values if int(value) % PARTITIONS == partition]
            self.assertEqual(list(range(partition, 40, PARTITIONS)), numbers)
        self.assertEqual(40, self.committed())

    async def test_a_processor_that_waits_keeps_no_messages(self):
        self.fill(1)
        handled, freed = [], asyncio.Event()
        loop = asyncio.get_running_loop()

        async def handler(part):
            handled.append(weakref.finalize(part._columns, loop.call_soon_threadsafe, freed.set))

        await self.run_until(self.processor(handler), freed)
        self.assertEqual(1, len(handled))

    async def test_concurrency_is_bounded(self):
        self.fill(200, key=50)
        handler = Handler(200)
        processor = self.processor(handler, concurrency=3, order="key", per_message=True)
        await self.run_until(processor, handler.ended)
        self.assertEqual(3, handler.most)
        self.assertEqual(200, self.committed())

    async def test_messages_of_a_key_are_in_order(self):
        self.fill(400, key=20)
        handler = Handler(400)
        await self.run_until(self.processor(handler, order="key", per_message=True), handler.ended)
        found = defaultdict(list)
        for value in handler.values:
            found[int(value) % 20].append(int(value))
        self.assertEqual({key: list(range(key, 400, 20)) for key in range(20)}, dict(found))

    async def test_concurrent_calls_share_threads(self):
        self.fill(80, key=80)
        together, before = asyncio.Event(), threading.active_count()

        class Together(Handler):
            async def work(self, part):
                if sum(self.running.values()) == 80:
                    self.threads = threading.active_count()
                    together.set()
                await together.wait()

        handler = Together(80)
        await self.run_until(self.processor(handler, order="key", per_message=True), handler.ended)
        self.assertLessEqual(handler.threads - before, 8)

    async def test_polling_continues_while_a_handler_runs(self):
        self.fill(1)
        polls = Polls()

        class Slow(Handler):
            async def work(self, part):
                await polls.await_polls(5)

        handler = Slow(1)
        await self.run_until(self.processor(handler, hooks=[polls]), handler.ended)
        self.assertEqual(1, self.committed())


class OutcomesTest(AsyncProcessorCase):
    async def test_outputs_are_acknowledged_and_keep_the_ids_of_a_threaded_processor(self):
        self.fill(20)
        ended = asyncio.Event()
        seen = []

        async def handler(message):
            seen.append(message.value)
            if len(seen) == 20:
                ended.set()
            return [("out", Record(message.value))]

        self.assertTrue((await self.run_until(self.processor(handler, per_message=True), ended)).clean)
        ids = {message.message_id for message in self.broker.records("out")}
        self.assertEqual((20, 20), (len(ids), len(self.values("out"))))
        self.assertIn(b"test-group/in/0/0/0", ids)
        self.assertEqual(20, self.committed())

    async def test_each_exception_has_its_action(self):
        self.fill(12)
        ended = asyncio.Event()
        waited, good = Counter(), set()

        async def handler(part):
            for index, value in enumerate(part.values):
                if value == b"5":
                    raise Poison("five", [index])
                if value == b"7":
                    raise ValueError("seven")
                if value == b"9" and not waited[value]:
                    waited[value] += 1
                    raise RetryLater(after=0.001)
            good.update(part.values)
            if len(good) == 10:
                ended.set()

        await self.run_until(self.processor(handler), ended)
        self.assertEqual(1, waited[b"9"])
        self.assertEqual([b"5", b"7"], sorted(self.values("in.dlq")))
        self.assertEqual(12, self.committed())

    async def test_a_value_that_cannot_be_decoded_becomes_a_dead_letter(self):
        self.writer.publish("in", [b"not json", b"[1]"]).raise_for_undelivered()
        ended = asyncio.Event()
        seen = []

        async def handler(message):
            seen.append(message.value)
            ended.set()

        await self.run_until(self.processor(handler, serializer=JsonSerializer(), per_message=True), ended)
        self.assertEqual([[1]], seen)

    async def test_without_dead_letters_the_error_of_the_handler_ends_the_run(self):
        self.fill(1)

        async def handler(part):
            raise ValueError("broken")

        with self.assertRaises(HandlerError) as raised:
            await self.processor(handler, dead_letters=None).run()
        self.assertIsInstance(raised.exception.__cause__, ValueError)
        self.assertEqual(0, self.committed())

    async def test_a_cancelled_call_ends_the_run_and_commits_nothing(self):
        self.fill(1)

        async def handler(part):
            raise asyncio.CancelledError

        with self.assertRaises(HandlerError):
            await self.processor(handler).run()
        self.assertEqual(0, self.committed())

    async def test_an_error_while_a_cancelled_call_is_reported_ends_the_run(self):
        self.useFixture(MonkeyPatch("monasca_common.kafka.processor.queues.Task.__str__", lambda task: {}["offsets"]))
        self.fill(1)

        async def handler(part):
            raise asyncio.CancelledError

        with self.assertRaises(KeyError):
            await asyncio.wait_for(self.processor(handler).run(), 5)

    async def test_a_return_value_that_is_not_an_output_ends_the_run(self):
        self.fill(1)

        async def handler(part):
            return 42

        with self.assertRaises(MisuseError):
            await self.processor(handler).run()


class RebalanceTest(AsyncProcessorCase):
    async def test_a_revocation_waits_for_calls_in_flight_so_that_each_message_is_handled_once(self):
        self.fill(40)
        called, finish = asyncio.Event(), asyncio.Event()

        class First(Handler):
            async def work(self, part):
                called.set()
                await finish.wait()

        class Second(Handler):
            pass

        first, second = First(40), Second(40)
        processors = [self.processor(first), self.processor(second)]
        running = [asyncio.ensure_future(processors[0].run())]
        await called.wait()
        running.append(asyncio.ensure_future(processors[1].run()))
        while len(self.broker.members(GROUP)) < 2:
            await asyncio.sleep(0)
        finish.set()
        while len(first.values) + len(second.values) < 40:
            await asyncio.sleep(0)
        for processor in processors:
            await processor.stop()
        await asyncio.gather(*running)
        self.assertEqual(sorted(b"%d" % number for number in range(40)), sorted(first.values + second.values))
        self.assertEqual(40, self.committed())


class EndTest(AsyncProcessorCase):
    async def test_a_cancelled_run_waits_for_calls_and_commits(self):
        self.fill(1)
        called, finish = asyncio.Event(), asyncio.Event()

        async def handler(part):
            called.set()
            await finish.wait()

        processor = self.processor(handler)
        running = asyncio.ensure_future(processor.run())
        await called.wait()
        running.cancel()
        await asyncio.sleep(0)
        finish.set()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        self.assertTrue(running.cancelled())
        self.assertEqual(1, self.committed())

    async def test_a_call_that_outlives_the_deadline_is_cancelled_and_not_committed(self):
        self.fill(1)
        called, ended = asyncio.Event(), asyncio.Event()

        async def handler(part):
            called.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        processor = self.processor(handler)
        running = asyncio.ensure_future(processor.run())
        await called.wait()
        report = await processor.stop(0.05)
        self.assertEqual((False, 1), (report.clean, sum(report.in_flight.values())))
        self.assertIs(report, await running)
        await ended.wait()
        self.assertEqual(0, self.committed())

    async def test_stop_within_a_handler_does_not_wait(self):
        self.fill(1)
        reports = []

        async def handler(part):
            reports.append(await processor.stop())

        processor = self.processor(handler)
        self.assertTrue((await processor.run()).clean)
        self.assertFalse(reports[0].clean)
        self.assertEqual(1, self.committed())

    async def test_a_stop_and_a_cancelled_run_return_although_the_rebalance_listener_does_not(self):
        self.useFixture(MonkeyPatch("monasca_common.kafka.processor.shutdown._GRACE_SECONDS", 0.01))
        called, released = threading.Event(), threading.Event()
        self.addCleanup(released.set)

        class Hanging(RebalanceListener):
            def assigned(self, partitions):
                called.set()
                released.wait(50)

        processor = self.processor(Handler(1))
        processor._processor.consumer.listener = Hanging()
        running = asyncio.ensure_future(processor.run())
        while not called.is_set():
            await asyncio.sleep(0.001)
        self.assertTrue((await processor.stop(0)).clean)
        running.cancel()
        await asyncio.wait({running})
        self.assertEqual((True, False), (running.cancelled(), processor._ended.done()))
        released.set()
        await asyncio.wait({processor._ended})

    async def test_misuse_is_refused(self):
        async def handler(part):
            pass

        with self.assertRaises(ConfigurationError):
            self.processor(handler, concurrency=0)
        with self.assertRaises(WrongType):
            self.processor(print)
        processor = self.processor(handler)
        await processor.stop()
        running = asyncio.ensure_future(processor.run())
        await asyncio.sleep(0)
        with self.assertRaises(MisuseError):
            await processor.run()
        await processor.stop()
        await running
