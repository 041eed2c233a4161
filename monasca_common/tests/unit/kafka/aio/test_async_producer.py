# SPDX-License-Identifier: Apache-2.0
import asyncio
import contextlib
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

from monasca_common.kafka.errors import (
    ClosedError,
    DeliveryAbandoned,
    DeliveryTimeout,
    MessageTooLarge,
    QueueFull,
    WrongType,
)
from monasca_common.kafka.message import Record
from monasca_common.tests.unit.kafka.aio.aio_case import AioCase

_STALL_SECONDS = 10.0  # the wait of a send that does not return


async def cancelled(task):
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def started(coroutine):
    """Return the task once it waits."""
    task = asyncio.ensure_future(coroutine)
    await asyncio.sleep(0)
    return task


class PublishTest(AioCase):
    async def test_concurrent_publishes_share_threads(self):
        async with self.producer() as producer:
            await producer.publish("in", [b"first"])
            threads = threading.active_count()
            reports = await asyncio.gather(*(producer.publish("in", [b"%d" % n, b"x"]) for n in range(300)))
            self.assertEqual((600, threads), (sum(r.delivered_count for r in reports), threading.active_count()))
        self.assertEqual(601, len(self.values("in")))

    async def test_messages_of_a_cancelled_publish_are_unknown_and_reported_once(self):
        producer = self.producer()
        await producer.publish("in", [b"first"])
        self.broker.disconnect()
        await cancelled(await started(producer.publish("in", [b"1", Record(b"2", b"k")])))
        report = await producer.flush(0)
        self.assertEqual((2, ()), (len(report.unknown), report.failed))
        self.assertEqual([DeliveryAbandoned] * 2, [type(each.error) for each in report.unknown])
        self.assertEqual((True, 0), ((again := await producer.flush(0)).ok, again.delivered_count))
        self.broker.reconnect()
        retried = await producer.retry(report)
        self.assertEqual((2, True), (retried.delivered_count, retried.ok))
        self.assertEqual([each.message_id for each in report.unknown], [each.message_id for each in retried.delivered])
        self.assertTrue((await producer.close()).ok)
        ids = {message.message_id for message in self.broker.records("in")}
        self.assertEqual((3, {b"first", b"1", b"2"}), (len(ids), set(self.values("in"))))

    def test_messages_of_a_publish_that_ctrl_c_interrupts_are_unknown(self):
        producer = self.producer()

        async def test():
            await producer.publish("in", [b"first"])
            self.broker.disconnect()
            asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
            await producer.publish("in", [b"1"])

        self.assertRaises(KeyboardInterrupt, asyncio.run, test())
        report = producer.producer.flush(0)
        self.assertEqual((1, True), (len(report.unknown), producer.producer.flush(0).ok))
        self.broker.reconnect()
        self.assertTrue(producer.producer.retry(report).ok)

    async def test_close_reports_the_messages_of_a_cancelled_publish(self):
        producer = self.producer()
        await producer.publish("in", [b"first"])
        self.broker.disconnect()
        await cancelled(await started(producer.publish("in", [b"1"])))
        report = await producer.close(0)
        self.assertEqual((1, repr(report)), (len(report.unknown), repr(await producer.close())))

    async def test_a_cancelled_retry_is_reported_and_can_be_retried(self):
        producer = self.producer()
        await producer.publish("in", [b"first"])
        self.broker.disconnect()
        report = await producer.publish("in", [b"1"], timeout=0)
        self.assertIsInstance(report.unknown[0].error, DeliveryTimeout)
        await cancelled(await started(producer.retry(report)))
        self.broker.reconnect()
        self.assertTrue((await producer.retry(report)).ok)
        await producer.close()
        self.assertEqual({b"first", b"1"}, set(self.values("in")))

    async def test_a_publish_that_is_cancelled_while_it_waits_for_room_is_not_sent(self):
        producer = self.producer(budget_messages=1)
        await producer.publish("in", [b"first"])
        self.broker.disconnect()
        waiting = await started(producer.publish("in", [b"1"]))
        await cancelled(await started(producer.publish("in", [b"2"])))
        self.broker.reconnect()
        self.assertTrue((await waiting).ok)
        report = await producer.close()
        self.assertEqual(1, len(report.unknown))
        self.assertEqual([b"1", b"first"], sorted(self.values("in")))

    async def test_a_bulk_without_room_at_its_deadline_has_failed(self):
        producer = self.producer(budget_messages=2)
        await producer.publish("in", [b"first"])
        self.broker.disconnect()
        waiting = await started(producer.publish("in", [b"1", b"2"], timeout=50))
        refused = await producer.publish("in", [b"3"], timeout=0.01)
        large = await producer.publish("in", [b"x"] * 3)
        self.broker.reconnect()
        self.assertEqual([QueueFull], [type(each.error) for each in refused.failed])
        self.assertEqual(3, len(large.failed))
        self.assertTrue((await waiting).ok)
        self.assertTrue((await producer.retry(refused)).ok)
        await producer.close()
        self.assertEqual([b"1", b"2", b"3", b"first"], sorted(self.values("in")))

    async def test_close_ends_a_publish_whose_messages_are_in_flight(self):
        producer = self.producer()
        await producer.publish("in", [b"first"])
        self.broker.disconnect()
        waiting = await started(producer.publish("in", [b"1"]))
        await producer.close(0)
        self.assertEqual([DeliveryAbandoned], [type(each.error) for each in (await waiting).unknown])
        with self.assertRaises(ClosedError):
            await producer.publish("in", [b"2"])

    async def test_a_cancelled_close_continues_while_the_threads_of_the_loop_are_busy(self):
        producer, release = self.producer(), threading.Event()
        busy = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(busy)
        blocked = asyncio.get_running_loop().run_in_executor(None, release.wait)
        try:
            close = asyncio.ensure_future(producer.close())
            await asyncio.sleep(0)
            close.cancel()
            await asyncio.wait({close})
        finally:
            release.set()
        await blocked
        self.assertTrue(producer.producer._closed)

    async def test_a_wrong_type_is_raised_before_anything_is_sent(self):
        async with self.producer() as producer:
            for call in (producer.publish("in", ["text"]), producer.send("in", "text"), producer.retry("report")):
                with self.assertRaises(WrongType):
                    await call
        self.assertEqual([], self.values("in"))

    def test_the_producer_is_usable_after_a_loop_ends_during_a_publish(self):
        producer = self.producer()

        async def leave():
            await producer.publish("in", [b"first"])
            self.broker.disconnect()
            asyncio.ensure_future(producer.publish("in", [b"1"]))  # noqa: RUF006
            await asyncio.sleep(0)

        async def test():
            self.broker.reconnect()
            self.assertTrue((await producer.publish("in", [b"2"])).ok)
            report = await producer.close()
            self.assertEqual(1, len(report.unknown))

        self.run_loop(leave())
        self.run_loop(test())


class SendTest(AioCase):
    async def test_consecutive_sends_share_a_report(self):
        async with self.producer() as producer:
            await producer.publish("in", [b"first"])
            self.broker.disconnect()
            sent = [await producer.send("in", b"%d" % number, key=b"k") for number in range(50)]
            self.broker.reconnect()
            reports = await asyncio.gather(*sent)
            self.assertEqual(50, sum({id(report): report.delivered_count for report in reports}.values()))
            self.assertLess(len(set(map(id, sent))), 50)
            self.assertEqual((50, True), ((report := await producer.flush()).delivered_count, report.ok))
        self.assertEqual(51, len(self.values("in")))

    async def test_a_send_does_not_wait_for_the_thread_that_settles_messages(self):
        async with self.producer() as producer:
            await producer.publish("in", [b"first"])
            self.broker.disconnect()
            first = await producer.send("in", b"1")
            locked, release = threading.Event(), threading.Event()

            def settle():
                with producer.producer._table.lock:
                    locked.set()
                    return release.wait(_STALL_SECONDS)

            settling = asyncio.get_running_loop().run_in_executor(None, settle)
            locked.wait()
            self.assertIs(first, await producer.send("in", b"2"))
            release.set()
            self.assertTrue(await settling, "the send waited for the lock")
            self.broker.reconnect()
            self.assertEqual(2, (await first).delivered_count)

    async def test_a_send_returns_the_bulk_that_another_thread_has_opened(self):
        async with self.producer() as producer:
            await producer.publish("in", [b"first"])
            self.broker.disconnect()
            first = await producer.send("in", b"1")
            producer.producer._table.close_sends()
            producer.producer.send("in", b"2")
            shared = await producer.send("in", b"3")
            self.broker.reconnect()
            self.assertEqual((1, 2), ((await first).delivered_count, (await shared).delivered_count))

    async def test_cancelling_a_task_that_awaits_the_report_does_not_cancel_other_tasks(self):
        async with self.producer() as producer:
            await producer.publish("in", [b"first"])
            self.broker.disconnect()
            sent = await producer.send("in", Record(b"1"))

            async def outcome():
                return await sent

            first, second = await started(outcome()), await started(outcome())
            await cancelled(first)
            self.broker.reconnect()
            self.assertTrue((await second).ok)

    async def test_a_flush_waits_for_sends_and_the_next_flush_reports_those_of_a_cancelled_flush(self):
        producer = self.producer()
        await producer.publish("in", [b"first"])
        self.broker.disconnect()
        await producer.send("in", b"1")
        await cancelled(await started(producer.flush()))
        self.assertEqual(1, len((await producer.flush(0)).unknown))
        await producer.send("in", b"2")
        self.broker.reconnect()
        self.assertEqual(1, (await producer.flush()).delivered_count)
        self.assertTrue((await producer.close()).ok)
        self.assertEqual([b"1", b"2", b"first"], sorted(self.values("in")))

    async def test_a_flush_reports_the_outcome_of_a_retry(self):
        producer = self.producer(publish_timeout_seconds=0.01)
        self.broker.create_topic("small", 1, max_message_bytes=1000)
        sent = await producer.send("small", b"x" * 2000)
        report = await sent
        for _ in range(1000):
            if report.failed:
                break
            report = await producer.retry(report)
        self.assertEqual([MessageTooLarge], [type(each.error) for each in report.failed])
        flushed = await producer.flush()
        self.assertEqual([MessageTooLarge], [type(each.error) for each in flushed.failed])
        await producer.close()

    async def test_a_send_waits_for_room_and_raises_queue_full_at_its_time_out(self):
        producer = self.producer(budget_messages=1, publish_timeout_seconds=0.05)
        await producer.publish("in", [b"first"], timeout=50)
        self.broker.disconnect()
        await producer.send("in", b"1")
        for record in (b"2", Record(b"2")):
            with self.assertRaises(QueueFull):
                await producer.send("in", record)
        waiting = await started(producer.send("in", b"3"))
        self.broker.reconnect()
        with contextlib.suppress(QueueFull):
            await (await waiting)
        await producer.flush(50)
        await producer.close()
        self.assertNotIn(b"2", self.values("in"))

    async def test_a_send_to_a_closed_producer_is_misuse(self):
        producer = self.producer()
        await (await producer.send("in", b"1"))
        await producer.close()
        with self.assertRaises(ClosedError):
            await producer.send("in", b"2")
        self.assertEqual([b"1"], self.values("in"))
