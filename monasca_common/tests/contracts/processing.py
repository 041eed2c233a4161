# SPDX-License-Identifier: Apache-2.0
"""The guarantee of `Processor` on every broker: each message is handled, and then committed."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from monasca_common.kafka.errors import HandlerError, Poison, RetryLater
from monasca_common.kafka.message import Message, PartitionBatch, Record, TopicPartition
from monasca_common.kafka.processor.dead_letters import ORIGIN_MESSAGE_ID, ORIGIN_OFFSET, DeadLetters
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.processor.retry import RetryPolicy
from monasca_common.tests.contracts.scenario import Scenario

_AT_ONCE = RetryPolicy(attempts=2, backoff_seconds=0.01)


class ProcessorContract(Scenario):
    def setUp(self) -> None:
        super().setUp()
        self.handled: list[Message] = []
        self.changed = threading.Condition()

    def collect(self, batch: Iterable[Message]) -> None:
        """Handle messages by collecting them."""
        with self.changed:
            self.handled.extend(batch)
            self.changed.notify_all()

    @contextmanager
    def running(self, handler: Any, **choices: Any) -> Iterator[list[BaseException]]:
        """Run a processor on its own thread and stop it at the end; yield the errors that `run` raised."""
        consumer = self.cluster.consumer(self.topic, self.group)
        processor = Processor(consumer, handler, retry=_AT_ONCE, **choices)
        raised: list[BaseException] = []

        def run() -> None:
            try:
                processor.run()
            except BaseException as error:
                raised.append(error)
            finally:
                consumer.close()
                with self.changed:
                    self.changed.notify_all()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield raised
        finally:
            processor.stop()
            thread.join(self.cluster.patience_seconds)

    def await_handled(self, count: int) -> None:
        with self.changed:
            done = self.changed.wait_for(lambda: len(self.handled) >= count, self.cluster.patience_seconds)
        self.assertTrue(done, f"{len(self.handled)} of {count} messages were handled")

    def committed(self) -> dict[TopicPartition, int]:
        """Return the offsets at which the next member of the group starts."""
        with self.cluster.consumer(self.topic, self.group) as consumer:
            self.settle(consumer, until=self.own(consumer, 4))
            return consumer.seek_to_committed()

    def everything(self, count: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(self.partitions(self.topic), count)

    def test_everything_is_handled_in_order_and_committed(self) -> None:
        self.fill(self.topic, 25)
        with self.running(self.collect):
            self.await_handled(100)
        for partition in range(4):
            offsets = [message.offset for message in self.handled if message.partition == partition]
            self.assertEqual(list(range(25)), offsets)
        self.assertEqual(self.everything(25), self.committed())

    def test_outputs_are_in_the_log_before_their_inputs_are_committed(self) -> None:
        sink = self.cluster.new_topic()
        self.fill(self.topic, 5)

        def handler(batch: PartitionBatch) -> list[tuple[str, Record]]:
            self.collect(batch)
            return [(sink, Record(b"out " + (message.value or b""))) for message in batch]

        with self.running(handler, producer=self.cluster.producer()):
            self.await_handled(20)
        self.assertEqual(self.everything(5), self.committed())
        self.assertEqual(
            sorted([b"out %d" % number for number in range(5)] * 4), sorted(m.value or b"" for m in self.log(sink))
        )

    def test_poison_is_dead_lettered_with_its_origin_and_other_messages_are_handled(self) -> None:
        dead = self.cluster.new_topic()
        self.fill(self.topic, 3)

        def handler(message: Message) -> None:
            if (message.partition, message.offset) == (2, 1):
                raise Poison("not of this world")
            self.collect([message])

        letters = DeadLetters(topic=dead)
        with self.running(handler, producer=self.cluster.producer(), dead_letters=letters, per_message=True):
            self.await_handled(11)
        self.assertEqual(self.everything(3), self.committed())
        [letter] = self.log(dead)
        headers = dict(letter.headers)
        self.assertEqual((b"1", b"1"), (letter.value, headers[ORIGIN_OFFSET]))
        self.assertEqual(f"{self.group}/{self.topic}/2/1".encode(), letter.message_id)
        self.assertNotIn(headers[ORIGIN_MESSAGE_ID], {message.message_id for message in self.handled})

    def test_an_unavailable_dependency_costs_only_time(self) -> None:
        dead = self.cluster.new_topic()
        self.fill(self.topic, 2)
        refusals = iter(range(5))

        def handler(batch: PartitionBatch) -> None:
            if next(refusals, None) is not None:
                raise RetryLater(after=0.01)
            self.collect(batch)

        letters = DeadLetters(topic=dead)
        with self.running(handler, producer=self.cluster.producer(), dead_letters=letters):
            self.await_handled(8)
        self.assertEqual(8, len({message.message_id for message in self.handled}))
        self.assertEqual([], self.log(dead))

    def test_a_failure_without_dead_letters_ends_the_loop_and_is_not_committed(self) -> None:
        self.publish(self.topic, [Record(b"%d" % number, partition=0) for number in range(3)])

        def handler(message: Message) -> None:
            if message.offset == 1:
                raise ValueError("no luck")

        with self.running(handler, per_message=True) as raised, self.changed:
            self.changed.wait_for(lambda: bool(raised), self.cluster.patience_seconds)
        [error] = raised
        self.assertIsInstance(error, HandlerError)
        self.assertIsInstance(error.__cause__, ValueError)
        self.assertEqual(1, self.committed()[TopicPartition(self.topic, 0)])

    def test_two_processors_of_a_group_share_all_messages(self) -> None:
        shared = threading.Event()

        def handler(batch: PartitionBatch) -> None:
            self.collect(batch)
            shared.set()

        published = 0
        with self.running(self.collect):
            with self.running(handler):
                for _ in self.attempts(lambda: "the second processor received no messages"):
                    if shared.is_set():
                        break
                    self.fill(self.topic, 1)
                    published += 4
                    self.await_every(published)
            # The first processor has handled all messages, so the group is stable.
            self.fill(self.topic, 10)
            self.await_every(published + 40)
        self.assertEqual(self.everything(published // 4 + 10), self.committed())

    def await_every(self, count: int) -> None:
        """Wait for ``count`` different messages; after a commit refused during a rebalance, some are repeated."""
        with self.changed:
            self.changed.wait_for(lambda: self.different() >= count, self.cluster.patience_seconds)
            self.assertEqual(count, self.different())

    def different(self) -> int:
        return len({message.message_id for message in self.handled})
