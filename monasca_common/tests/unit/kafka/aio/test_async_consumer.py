# SPDX-License-Identifier: Apache-2.0
import asyncio
import contextlib
import threading
from functools import partial

from monasca_common.kafka.errors import ClosedError, ForkedError, MisuseError, OffsetOutOfRange, TopicRecreated
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.tests.unit.kafka.aio.aio_case import PARTITIONS, AioCase
from monasca_common.tests.unit.kafka.test_fork_guard import exit_code_of_child

IN = TopicPartition("in", 0)


class AsyncConsumerTest(AioCase):
    def setUp(self):
        super().setUp()
        self.writer = self.kafka.producer()

    def fill(self, *values, partition=0):
        self.writer.publish("in", [Record(value, partition=partition) for value in values]).raise_for_undelivered()

    async def cancelled_poll(self, consumer, *values):
        """Cancel a poll, and let it end with these messages."""
        task = asyncio.ensure_future(consumer.poll(timeout=50))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await asyncio.to_thread(self.fill, *values)
        await asyncio.wait({asyncio.wrap_future(consumer._polled)})

    async def read(self, consumer, count):
        values = []
        async for batch in consumer:
            self.assertEqual((), batch.errors)
            values += [message.value for message in batch]
            if len(values) >= count:
                break
        return values

    async def test_batches_are_read_and_committed(self):
        self.fill(b"1", b"2")
        async with self.consumer() as consumer:
            count = 0
            async for batch in consumer:
                self.assertTrue(all(result.committed for result in (await consumer.commit(batch)).values()))
                count += len(batch)
                if count == 2:
                    break
            self.assertEqual(PARTITIONS, len(consumer.consumer.assignment()))
        self.assertEqual(2, self.committed())

    async def test_a_cancelled_poll_loses_no_message(self):
        async with self.consumer() as consumer:
            while not consumer.consumer.assignment():
                await consumer.poll(timeout=0.05)
            await self.cancelled_poll(consumer, b"1", b"2")
            self.assertEqual([b"1", b"2"], await self.read(consumer, 2))

    def test_a_poll_that_its_event_loop_did_not_await_loses_no_message(self):
        consumer, polling = self.consumer(), []

        async def leave():
            while not consumer.consumer.assignment():
                await consumer.poll(timeout=0.05)
            polling.append(asyncio.ensure_future(consumer.poll(timeout=50)))
            await asyncio.sleep(0)

        self.run_loop(leave())
        self.fill(b"1")

        async def read():
            values = await self.read(consumer, 1)
            await consumer.close()
            return values

        self.assertEqual([b"1"], self.run_loop(read()))

    async def test_a_seek_drops_the_messages_of_a_cancelled_poll_in_its_partition(self):
        async with self.consumer() as consumer:
            self.fill(b"first")
            await self.read(consumer, 1)
            await self.cancelled_poll(consumer, b"second")
            await consumer.seek(IN, 0)
            self.assertEqual([b"first", b"second"], await self.read(consumer, 2))

    async def test_a_seek_keeps_the_messages_of_a_cancelled_poll_in_other_partitions(self):
        async with self.consumer() as consumer:
            self.fill(b"first")
            await self.read(consumer, 1)
            await self.cancelled_poll(consumer, b"second")
            await consumer.seek_to_beginning([TopicPartition("in", 1)])
            self.assertEqual([b"second"], await self.read(consumer, 1))
            await consumer.seek_to_beginning()
            self.assertEqual([b"first", b"second"], await self.read(consumer, 2))

    async def test_paused_partitions_return_no_messages(self):
        self.fill(b"1")
        self.fill(b"2", partition=1)
        async with self.consumer() as consumer:
            while not consumer.consumer.assignment():
                await consumer.poll(timeout=0.05)
            await consumer.seek_to_beginning()
            await consumer.pause([IN])
            self.assertEqual([b"2"], await self.read(consumer, 1))
            self.assertEqual((), (await consumer.poll(timeout=0.05)).partitions)
            await consumer.resume([IN])
            self.assertEqual([b"1"], await self.read(consumer, 1))

    async def test_an_error_that_does_not_stop_the_consumer_is_in_the_batch(self):
        self.fill(b"1", b"2")
        async with self.consumer() as consumer:
            await self.read(consumer, 2)
            await consumer.seek(IN, 99)
            async for batch in consumer:
                self.assertEqual([OffsetOutOfRange], [type(error) for error in batch.errors])
                break

    async def test_an_error_that_ends_the_consumer_is_raised_by_every_poll(self):
        async with self.consumer(topic_check_seconds=0.01) as consumer:
            await consumer.poll(timeout=0.05)
            self.broker.delete_topic("in")
            self.broker.create_topic("in", PARTITIONS)
            for _ in range(2):
                with self.assertRaises(TopicRecreated):
                    while True:
                        await consumer.poll(timeout=0.05)

    async def test_a_closed_consumer_is_misuse_and_a_second_close_has_no_effect(self):
        consumer = self.consumer()
        await consumer.poll(timeout=0.01)
        await consumer.close()
        await consumer.close()
        with self.assertRaises(ClosedError):
            await consumer.poll(timeout=0)

    def test_a_consumer_is_refused_in_a_child_process_and_its_close_returns(self):
        consumer = self.consumer()
        self.run_loop(consumer.poll(timeout=0))
        self.run_loop(consumer.commit({IN: 0}))
        calls = (
            consumer.poll,
            partial(consumer.commit, {IN: 1}),
            partial(consumer.seek, IN, 0),
            partial(consumer.pause, [IN]),
            partial(consumer.resume, [IN]),
            consumer.__aenter__,
        )

        async def use():
            for call in calls:
                with contextlib.suppress(ForkedError):
                    await asyncio.wait_for(call(), 5)
                    return 3
            await asyncio.wait_for(consumer.close(), 5)
            return 0

        self.assertEqual(0, exit_code_of_child(lambda: asyncio.run(use())))
        self.run_loop(consumer.close())

    async def test_a_cancelled_async_with_closes_the_consumer(self):
        consumer, released = self.consumer(), threading.Event()
        self.addCleanup(released.set)
        consumer._polling.submit(released.wait, 50)
        entering = asyncio.ensure_future(consumer.__aenter__())
        await asyncio.sleep(0)
        entering.cancel()
        await asyncio.sleep(0)
        released.set()
        await asyncio.wait({entering})
        self.assertTrue(entering.cancelled())
        with self.assertRaises(ClosedError):
            await consumer.poll(timeout=0)

    async def test_a_poll_for_no_messages_is_misuse(self):
        async with self.consumer() as consumer:
            with self.assertRaises(MisuseError):
                await consumer.poll(0)
