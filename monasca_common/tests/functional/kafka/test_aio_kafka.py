# SPDX-License-Identifier: Apache-2.0
"""An asynchronous producer and handler on a real Kafka that loses responses: no message is lost or duplicated."""

import asyncio
from collections import Counter

from monasca_common.kafka import Processor, Record
from monasca_common.kafka.aio import AsyncConsumer, AsyncProcessor, AsyncProducer
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.kafka.producer_case import SECONDS, ProducerCase, doubled
from monasca_common.tests.functional.kafka.test_lost_answers import OPTIONS, RETRIES
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic

PARTITIONS = 4
TASKS, BULKS, BULK_SIZE = 10, 6, 20
COUNT = TASKS * BULKS * BULK_SIZE
CALLER_SECONDS = 0.1
POLL_SECONDS = 5.0


class TestAsyncio(ProducerCase):
    seed = 7

    def setUp(self):
        super().setUp()
        self.input, self.output = self.fixture.topic(PARTITIONS), self.fixture.topic(PARTITIONS)

    def lose_answers(self):
        for fault in (
            Fault.cut_answer(ApiKey.PRODUCE, probability=0.1, seed=self.seed, times=8),
            Fault.drop_answer(ApiKey.PRODUCE, probability=0.05, seed=self.seed, times=2),
            Fault.delay_answer(ApiKey.PRODUCE, seconds=0.4, probability=0.1, seed=self.seed, times=8),
            Fault.cut_answer(ApiKey.OFFSET_COMMIT, probability=0.3, seed=self.seed, times=3),
            Fault.cut_answer(ApiKey.FETCH, probability=0.02, seed=self.seed, times=5),
        ):
            self.fixture.proxy.add(fault)

    async def publish(self, producer, task):
        """Publish bulks, and retry each report until its messages are delivered. Return the reports."""
        reports = []
        for bulk in range(BULKS):
            values = [b"%d/%d/%d" % (task, bulk, number) for number in range(BULK_SIZE)]
            report = await producer.publish(self.input, values, timeout=CALLER_SECONDS)
            for _ in range(RETRIES):
                if report.ok:
                    break
                report = await producer.retry(report, timeout=CALLER_SECONDS)
            reports.append(report)
        return reports

    @each_once()
    def check(self, values, topic):
        """Check that the log has each value once, under one id."""
        log = [record for record in self.log(topic, PARTITIONS) if record.value != b"warm"]
        self.assertEqual((set(), COUNT, 0), (values - {record.value for record in log}, len(log), doubled(log)))

    def test_outputs_of_an_async_handler_are_written_once_while_responses_are_lost(self):
        sync_producer = self.producer(options=OPTIONS)
        consumer = self.consumer(self.input, max_poll_interval_seconds=SECONDS)
        handled = Counter()

        async def test():
            producer, complete = AsyncProducer(sync_producer), asyncio.Event()

            async def handle(message):
                await asyncio.sleep(0.001)
                if message.value == b"warm":
                    return None
                handled[message.value] += 1
                if len(handled) == COUNT:
                    complete.set()
                return [(self.output, Record(message.value))]

            for topic in (self.input, self.output):
                (await producer.publish(topic, [b"warm"], timeout=SECONDS)).raise_for_undelivered()
            self.lose_answers()
            processor = AsyncProcessor(
                Processor(consumer, handle, producer=sync_producer, per_message=True, order="key", threads=4)
            )
            running = asyncio.create_task(processor.run())
            reports = await asyncio.gather(*(self.publish(producer, task) for task in range(TASKS)))
            await asyncio.wait_for(complete.wait(), SECONDS)
            stopped = await processor.stop(SECONDS)
            self.assertIs(stopped, await running)
            self.assertTrue(stopped.clean, stopped)
            self.assertTrue((await producer.flush(0)).ok)
            return [report for task in reports for report in task]

        reports = asyncio.run(test())
        self.assertEqual(COUNT, sum(report.delivered_count for report in reports))
        self.assertEqual({1}, set(handled.values()))
        for topic in (self.input, self.output):
            self.check(set(handled), topic)

    def test_a_cancelled_publish_is_reported_once_and_its_retry_delivers_each_id_once_to_a_reader(self):
        sync_producer = self.producer(options=OPTIONS)

        async def test():
            producer = AsyncProducer(sync_producer)
            (await producer.publish(self.input, [b"warm"], timeout=SECONDS)).raise_for_undelivered()
            self.fixture.proxy.add(Fault.delay_answer(ApiKey.PRODUCE, seconds=0.4, times=1))
            task = asyncio.create_task(producer.publish(self.input, [b"%d" % number for number in range(50)]))
            await asyncio.wait({task}, timeout=0.1)
            task.cancel()
            await asyncio.wait({task})
            report = await producer.flush(0)
            self.assertEqual((50, True), (len(report.unknown), (await producer.flush(0)).ok))
            for _ in range(RETRIES):
                if report.ok:
                    break
                report = await producer.retry(report, timeout=CALLER_SECONDS)
            self.assertEqual(50, report.delivered_count)
            self.assertTrue((await producer.close(SECONDS)).ok)

        asyncio.run(test())
        values = Counter(self.read(self.input, PARTITIONS).values())
        self.assertEqual({b"warm", *(b"%d" % number for number in range(50))}, set(values))
        self.assertEqual({1}, set(values.values()))

    @periodic("takes longer than max.poll.interval; the unit tests check that polling continues")
    def test_an_async_handler_slower_than_max_poll_interval_keeps_its_partitions(self):
        sync_producer = self.producer()
        sync_producer.publish(self.input, [b"1"], timeout=SECONDS).raise_for_undelivered()
        consumer = self.consumer(
            self.input, max_poll_interval_seconds=POLL_SECONDS, session_timeout_seconds=POLL_SECONDS
        )
        calls = []

        async def test():
            async def handle(part):
                calls.append(part.values)
                await asyncio.sleep(POLL_SECONDS + 3)
                complete.set()

            complete = asyncio.Event()
            processor = AsyncProcessor(Processor(consumer, handle))
            running = asyncio.create_task(processor.run())
            await asyncio.wait_for(complete.wait(), SECONDS)
            await processor.stop()
            self.assertEqual([1], list((await running).committed.values()))

        asyncio.run(test())
        self.assertEqual([[b"1"]], calls)

    def test_outputs_and_offsets_of_an_async_handler_are_committed_in_one_transaction(self):
        self.producer().publish(self.input, [b"%d" % number for number in range(100)], timeout=SECONDS)
        producer = self.producer(transactional_id=self.input)
        consumer = self.consumer(self.input, group=self.input, batch_size=10)

        async def test():
            seen, complete = set(), asyncio.Event()

            async def handle(part):
                await asyncio.sleep(0)
                seen.update(part.values)
                if len(seen) == 100:
                    complete.set()
                return [(self.output, value) for value in part.values]

            processor = AsyncProcessor(Processor(consumer, handle, producer=producer, transactional=True, threads=2))
            running = asyncio.create_task(processor.run())
            await asyncio.wait_for(complete.wait(), SECONDS)
            await processor.stop(SECONDS)
            self.assertTrue((await running).clean)

        asyncio.run(test())
        values = Counter(each.value() for each in read_topic(self.cluster, self.output, PARTITIONS, committed=True))
        with each_once():
            self.assertEqual({b"%d" % number: 1 for number in range(100)}, dict(values))
        self.assertEqual(100, sum(self.cluster.admin.group_offsets(self.input).values()))

    def test_batches_of_an_async_consumer_are_committed(self):
        self.producer().publish(self.input, [b"%d" % number for number in range(100)], timeout=SECONDS)
        inner = self.consumer(self.input, group=self.input)

        async def test():
            values = []
            async with AsyncConsumer(inner) as consumer:
                async for batch in consumer:
                    values += [message.value for message in batch]
                    results = await consumer.commit(batch)
                    self.assertTrue(all(result.committed for result in results.values()))
                    if len(values) == 100:
                        return values
            raise AssertionError("the loop ends only with all messages")

        self.assertEqual({b"%d" % number for number in range(100)}, set(asyncio.run(test())))
        offsets = self.cluster.admin.group_offsets(self.input)
        self.assertEqual(100, sum(offsets.values()))
