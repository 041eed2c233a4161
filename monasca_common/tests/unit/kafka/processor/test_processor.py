# SPDX-License-Identifier: Apache-2.0
import gc
import threading
import weakref
from collections import Counter
from unittest import mock

from monasca_common.kafka import plugins
from monasca_common.kafka.consumer.rebalance import RebalanceListener
from monasca_common.kafka.errors import (
    AuthorizationError,
    ConfigurationError,
    HandlerError,
    MisuseError,
    OffsetOutOfRange,
    Poison,
    RetryLater,
    TransportError,
)
from monasca_common.kafka.message import Batch, Record, TopicPartition
from monasca_common.kafka.processor.dead_letters import VALUE_CUT_FROM
from monasca_common.kafka.processor.handler_call import Output
from monasca_common.kafka.processor.hooks import Hook
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.processor.retry import RetryPolicy
from monasca_common.kafka.serialization.json import JsonSerializer
from monasca_common.kafka.transport.memory import Delay, Fail
from monasca_common.tests.unit.kafka.processor.processor_case import GROUP, IN, ONCE, ProcessorCase
from monasca_common.tests.unit.kafka.serialization.test_base import ContextSerializer


class Gate:
    """A handler that lets a test see its calls and decides when they return."""

    def __init__(self):
        self.calls = []
        self.open = threading.Event()

    def __call__(self, part):
        self.calls.append(list(part.values))
        self.open.wait(50)


class HandlingTest(ProcessorCase):
    def test_handled_messages_are_committed(self):
        self.fill(b"1", b"2", b"3")
        seen = []
        self.start(lambda part: seen.extend(part.values))
        self.until(lambda: self.committed() == 3)
        self.assertEqual([b"1", b"2", b"3"], seen)

    def test_a_handler_that_drops_everything_still_commits(self):
        self.fill(*[b"x"] * 10)
        self.start(lambda part: [])
        self.until(lambda: self.committed() == 10)
        self.assertEqual([], self.values("out"))

    def test_a_handler_may_take_messages_one_by_one(self):
        self.fill(b"1", b"2")
        offsets = []
        self.start(lambda message: offsets.append(message.offset), per_message=True)
        self.until(lambda: self.committed() == 2)
        self.assertEqual([0, 1], offsets)

    def test_a_failing_message_does_not_repeat_other_messages(self):
        self.fill(b"1", b"bad", b"3")
        calls: Counter[bytes] = Counter()

        def handler(message):
            calls[message.value] += 1
            if message.value == b"bad":
                raise ValueError("bad")

        self.start(handler, per_message=True, retry=RetryPolicy(attempts=3))
        self.until(lambda: self.committed() == 3)
        self.assertEqual({b"1": 1, b"bad": 3, b"3": 1}, dict(calls))

    def test_a_serializer_decodes_messages_for_the_handler(self):
        self.fill(b'{"a": 1}', b'{"a": 2}')
        seen = []
        self.start(lambda part: seen.extend(part.values), serializer=JsonSerializer())
        self.until(lambda: self.committed() == 2)
        self.assertEqual([{"a": 1}, {"a": 2}], seen)

    def test_undecodable_messages_become_dead_letters_and_others_are_handled(self):
        self.fill(b'{"a": 1}', b"{", b'{"a": 2}')
        seen = []
        self.start(lambda part: seen.extend(part.values), serializer=JsonSerializer())
        self.until(lambda: self.committed() == 3)
        self.assertEqual([{"a": 1}, {"a": 2}], seen)
        self.assertEqual([b"{"], self.values("in.dlq"))

    def test_a_value_for_which_a_serializer_raises_any_error_is_undecodable(self):
        class Integers(JsonSerializer):
            def loads(self, value):
                return int(value)

        self.fill(b"1", b"secret", b"3")
        seen = []
        self.start(lambda part: seen.extend(part.values), serializer=Integers())
        self.until(lambda: self.committed() == 3)
        self.assertEqual([1, 3], seen)
        [letter] = self.broker.records("in.dlq")
        text = dict(letter.headers)["dead-letter-error-text"].decode()
        self.assertIn("ValueError", text)
        self.assertNotIn("secret", text)

    def test_an_error_of_the_messaging_layer_in_a_serializer_ends_the_run(self):
        class Misused(JsonSerializer):
            def loads(self, value):
                raise MisuseError("needs a topic")

        self.fill(b"1")
        self.assertIsInstance(self.failure(self.start(print, serializer=Misused())), MisuseError)
        self.assertEqual([], self.values("in.dlq"))

    def test_a_serializer_with_a_context_receives_the_topic_and_the_headers(self):
        serializer = ContextSerializer()
        self.fill(b"1")
        self.start(lambda part: None, serializer=serializer)
        self.until(lambda: self.committed() == 1)
        [context] = serializer.contexts
        self.assertEqual(("in", "value"), (context.topic, context.field))
        self.assertIn("message-id", dict(context.headers))

    def test_values_are_decoded_later_while_their_serializer_is_unavailable(self):
        serializer = ContextSerializer()
        self.fill(b"1", b"later", b"3")
        seen = []
        self.start(lambda part: seen.extend(part.values), serializer=serializer, retry=ONCE)
        self.until(lambda: len(serializer.contexts) > 2)
        self.assertEqual(([], 0), (seen, self.committed()))
        serializer.is_available = True
        self.until(lambda: self.committed() == 3)
        self.assertEqual([b"1", b"later", b"3"], seen)
        self.assertEqual([], self.values("in.dlq"))

    def test_an_interrupt_in_a_handler_ends_the_run(self):
        self.fill(b"1")

        def handler(part):
            raise KeyboardInterrupt

        self.assertIsInstance(self.failure(self.start(handler)), KeyboardInterrupt)
        self.assertEqual(0, self.committed())

    def test_an_interrupt_of_the_polling_thread_commits_finished_messages_and_is_raised(self):
        self.fill(b"1")
        done = threading.Event()

        class CtrlC(Hook):
            def after_poll(self, batch):
                if done.is_set():
                    raise KeyboardInterrupt

        def handler(part):
            done.set()

        running = self.start(handler, hooks=[CtrlC()])
        self.assertIsInstance(self.failure(running), KeyboardInterrupt)
        self.assertEqual(1, self.committed())


class KeyOrderTest(ProcessorCase):
    def test_messages_of_one_key_that_arrive_in_time_are_handled_together(self):
        calls = []
        self.start(lambda part: calls.append(list(part.values)), order="key", max_wait_seconds=20)
        self.fill(b"1", b"2", key=b"a")
        self.fill(b"3", key=b"b")
        self.fill(b"4", key=b"a")
        self.until(lambda: self.committed() == 4)
        self.assertEqual([[b"1", b"2", b"4"], [b"3"]], sorted(calls))


class HandlerThreadsTest(ProcessorCase):
    def threads(self, running):
        return sum(thread.is_alive() for thread in running.processor._handlers)

    def test_messages_that_arrive_one_after_another_share_a_thread(self):
        seen = []
        running = self.start(lambda message: seen.append(message.offset), per_message=True, order="key", threads=50)
        self.until(lambda: running.consumer.assignment())
        self.assertEqual(0, self.threads(running))
        for number in range(5):
            self.fill(b"1", key=b"%d" % number)
            self.until(lambda number=number: self.committed() == number + 1)
        self.assertEqual((5, 1), (len(seen), self.threads(running)))

    def test_messages_that_wait_start_threads_up_to_the_limit(self):
        gate = Gate()
        running = self.start(gate, order="key", threads=3)
        for number in range(5):
            self.fill(b"%d" % number, key=b"%d" % number)
            calls = min(number + 1, 3)
            self.until(lambda calls=calls: len(gate.calls) == calls)
            self.assertEqual(calls, self.threads(running))
        gate.open.set()
        self.until(lambda: self.committed() == 5)
        self.assertEqual(3, self.threads(running))

    def test_without_more_threads_of_the_system_the_started_ones_handle_all_messages(self):
        gate = Gate()
        running = self.start(gate, order="key", threads=3)
        refused = mock.Mock(side_effect=RuntimeError("can't start new thread"))
        for thread in running.processor._handlers[1:]:
            self.patch(thread, "start", refused)
        for number in range(3):
            self.fill(b"1", key=b"%d" % number)
        self.until(lambda: refused.called)
        gate.open.set()
        self.until(lambda: self.committed() == 3)
        self.assertEqual(1, self.threads(running))
        self.assertIn("RuntimeError", running.processor.ignored_errors)


class OutputTest(ProcessorCase):
    def test_outputs_are_acknowledged_before_their_input_is_committed(self):
        self.fill(b"1")
        self.broker.inject("produce", Delay(5.0), topic="out")
        running = self.start(lambda part: [("out", value) for value in part.values])
        self.pass_time(4, step=0.05)
        self.assertEqual(0, self.committed())
        self.until(lambda: self.committed() == 1)
        self.assertIsNone(running.error)

    # Rule 19
    def test_the_handler_runs_once_while_the_producer_has_no_room(self):
        self.fill(b"1", b"2")
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), count=20, topic="out")
        calls: Counter[bytes] = Counter()

        def handler(part):
            calls.update(part.values)
            return [("out", value) for value in part.values]

        self.start(handler)
        self.until(lambda: self.committed() == 2)
        self.assertEqual({b"1": 1, b"2": 1}, dict(calls))
        self.assertEqual({b"1", b"2"}, set(self.values("out")))

    def test_output_ids_depend_only_on_the_input(self):
        self.fill(b"1", b"2")
        handler = [lambda message: [("out", message.value), ("out", Record(b"again"))]]
        self.start(handler[0], per_message=True)
        self.until(lambda: self.committed() == 2)
        ids = [message.message_id for message in self.broker.records("out")]
        self.assertEqual([b"test-group/in/0/%d/%d" % (offset, n) for offset in (0, 1) for n in (0, 1)], ids)

    def test_an_output_that_is_too_large_makes_its_message_a_dead_letter(self):
        self.broker.create_topic("small", 1, max_message_bytes=1000)
        self.fill(b"1", b"2", b"3")
        huge = b"x" * 2000
        self.start(lambda part: [Output("small", huge if value == b"2" else value) for value in part.values])
        self.until(lambda: self.committed() == 3)
        self.assertEqual([b"2"], self.values("in.dlq"))
        self.assertEqual({b"1", b"3"}, set(self.values("small")))

    def small_producer(self):
        producer = plugins.memory_producer(self.kafka.producer_settings(budget_bytes=10_000))
        self.addCleanup(self.unhurried, lambda: producer.close(0))
        return producer

    def test_an_output_larger_than_the_producers_budget_makes_its_message_a_dead_letter(self):
        self.fill(b"1", b"2", b"3")
        huge = b"x" * 10_000
        self.start(
            lambda part: [Output("out", huge if value == b"2" else value) for value in part.values],
            producer=self.small_producer(),
        )
        self.until(lambda: self.committed() == 3)
        self.assertEqual([b"2"], self.values("in.dlq"))
        self.assertEqual({b"1", b"3"}, set(self.values("out")))
        (letter,) = self.broker.records("in.dlq")
        self.assertIn(b"over the producer's budget of 10000 bytes", dict(letter.headers)["dead-letter-error-text"])

    def test_a_dead_letter_larger_than_the_producers_budget_is_cut_to_it(self):
        def handler(part):
            raise Poison("no")

        self.fill(b"x" * 10_000)
        self.start(handler, producer=self.small_producer())
        self.until(lambda: self.committed() == 1)
        (letter,) = self.broker.records("in.dlq")
        self.assertEqual(b"10000", dict(letter.headers)[VALUE_CUT_FROM])
        self.assertLess(5000, len(letter.value))

    def test_a_return_value_that_is_not_an_output_ends_the_run_without_dead_letters(self):
        self.fill(b"1")
        self.assertIsInstance(self.failure(self.start(lambda part: True)), MisuseError)
        self.assertEqual(0, self.committed())
        self.assertEqual([], self.values("in.dlq"))

    def test_a_handler_may_be_a_generator_and_its_exception_is_a_failure_like_any_other(self):
        self.fill(b"1", b"bad")

        def handler(message):
            yield "out", message.value
            if message.value == b"bad":
                raise ValueError("bad")

        self.start(handler, per_message=True, retry=ONCE)
        self.until(lambda: self.committed() == 2)
        self.assertEqual([b"1"], self.values("out"))
        self.assertEqual([b"bad"], self.values("in.dlq"))

    def test_outputs_without_a_producer_end_the_run(self):
        self.fill(b"1")
        running = self.start(lambda part: [("out", b"x")], producer=None, dead_letters=None)
        self.assertIsInstance(self.failure(running), MisuseError)
        self.assertEqual(0, self.committed())


class RetryTest(ProcessorCase):
    # Rule 17
    def test_a_handlers_own_time_out_is_a_failure_like_any_other(self):
        self.fill(b"1")
        calls = []

        def handler(part):
            calls.append(part.offsets)
            if len(calls) < 3:
                raise TimeoutError("the handler's database")

        self.start(handler, retry=RetryPolicy(attempts=3))
        self.until(lambda: self.committed() == 1)
        self.assertEqual([[0]] * 3, calls)
        self.assertEqual([], self.values("in.dlq"))

    def test_data_of_failed_attempts_is_released_without_a_collection(self):
        self.fill(b"1")
        self.addCleanup(gc.enable)
        gc.disable()
        data = []

        def handler(_part):
            rows = set()
            data.append(weakref.ref(rows))
            raise RetryLater(0.1)

        running = self.start(handler)
        self.until(lambda: len(data) == 20)
        self.stop(running)
        self.assertEqual([None] * 20, [each() for each in data])

    def test_a_handler_thread_that_waits_keeps_no_messages(self):
        self.fill(b"1")
        handled = []
        self.start(lambda part: handled.append(weakref.ref(part._columns)))
        self.until(lambda: self.committed() == 1)
        self.until(lambda: handled[0]() is None)

    def test_a_batch_that_keeps_failing_is_bisected_and_only_the_bad_message_dead_lettered(self):
        self.fill(*[b"%d" % number for number in range(50)])
        done: Counter[bytes] = Counter()

        def handler(part):
            if b"31" in part.values:
                raise ValueError("no 31")
            done.update(part.values)

        self.start(handler, retry=ONCE)
        self.until(lambda: self.committed() == 50)
        self.assertEqual([b"31"], self.values("in.dlq"))
        self.assertEqual({b"%d" % number: 1 for number in range(50) if number != 31}, dict(done))

    def test_a_delay_that_is_not_a_number_of_seconds_is_an_error_of_the_handler(self):
        delays = ["5", -1, float("nan"), float("inf")]
        self.fill(*[b"%d" % number for number in range(len(delays))])

        def handler(part):
            raise RetryLater(delays[int(part.values[0])])

        self.start(handler, retry=ONCE)
        self.until(lambda: self.committed() == len(delays))
        self.assertEqual([b"0", b"1", b"2", b"3"], self.values("in.dlq"))

    # Rule 17
    def test_retry_later_repeats_the_same_messages_and_dead_letters_none(self):
        self.fill(b"1", b"2")
        calls = []

        def handler(part):
            calls.append(list(part.values))
            if len(calls) < 50:
                raise RetryLater(after=1)

        self.start(handler, retry=ONCE)
        self.until(lambda: self.committed() == 2, step=0.2)
        self.assertEqual([[b"1", b"2"]] * 50, calls)
        self.assertEqual([], self.values("in.dlq"))

    # Rule 17
    def test_a_dependency_unavailable_for_longer_than_max_poll_interval_costs_no_membership(self):
        self.fill(b"1")
        back = threading.Event()
        taken = []

        def handler(part):
            if not back.is_set():
                raise RetryLater
            taken.extend(part.values)

        listener = Witness()
        consumer = self.consumer(max_poll_interval_seconds=30)
        consumer.listener = listener
        self.start(handler, consumer=consumer)
        self.pass_time(600, step=2)
        back.set()
        self.until(lambda: self.committed() == 1)
        self.assertEqual(["assigned"], listener.events)
        self.assertEqual([b"1"], taken)
        self.assertEqual([], self.values("in.dlq"))

    def test_a_handler_slower_than_max_poll_interval_stays_in_the_group(self):
        self.turn_seconds = 10.0  # the polling thread does not hang
        self.fill(b"1")
        gate, listener = Gate(), Witness()
        consumer = self.consumer(max_poll_interval_seconds=30)
        consumer.listener = listener
        self.start(gate, consumer=consumer)
        self.pass_time(120, step=1)
        gate.open.set()
        self.until(lambda: self.committed() == 1)
        self.assertEqual(["assigned"], listener.events)
        self.assertEqual([[b"1"]], gate.calls)

    def test_a_partition_that_waits_for_its_dependency_does_not_delay_the_others(self):
        self.broker.add_partitions("in", 1)
        self.fill(b"stuck", partition=0)
        self.fill(b"fine", partition=1)

        def handler(part):
            if part.topic_partition.partition == 0:
                raise RetryLater

        self.start(handler)
        self.until(lambda: self.committed(TopicPartition("in", 1)) == 1)
        self.assertEqual(0, self.committed())

    def test_without_dead_letters_an_exhausted_message_ends_the_run_with_the_cause(self):
        self.fill(b"1", b"bad", b"3")
        cause = ValueError("bad")

        def handler(part):
            if b"bad" in part.values:
                raise cause

        error = self.failure(self.start(handler, dead_letters=None, retry=ONCE))
        self.assertIsInstance(error, HandlerError)
        self.assertIs(cause, error.__cause__)
        self.assertEqual(1, self.committed())

    def test_poison_without_dead_letters_also_ends_the_run(self):
        self.fill(b"bad")

        def handler(part):
            raise Poison("bad")

        error = self.failure(self.start(handler, dead_letters=None))
        self.assertIsInstance(error, HandlerError)
        self.assertIsInstance(error.__cause__, Poison)
        self.assertEqual(0, self.committed())


class OrderTest(ProcessorCase):
    partitions = 3

    def test_each_partition_is_handled_in_order_by_several_threads(self):
        for partition in range(3):
            self.fill(*[b"%d" % number for number in range(100)], partition=partition)
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        self.start(
            lambda part: seen[part.topic_partition.partition].extend(part.offsets),
            threads=3,
            settings={"batch_size": 7},
        )
        self.until(lambda: all(self.committed(TopicPartition("in", number)) == 100 for number in range(3)))
        self.assertEqual({number: list(range(100)) for number in range(3)}, seen)

    def test_each_key_is_handled_in_order_and_a_failing_key_does_not_delay_the_others(self):
        for number in range(40):
            self.fill(b"%d" % number, key=b"k%d" % (number % 4))
        seen, failed = [], set()
        lock = threading.Lock()

        def handler(message):
            if message.key == b"k1" and message.value not in failed:
                failed.add(message.value)
                raise ValueError("the first time")
            with lock:
                seen.append((message.key, int(message.value)))

        self.start(handler, threads=4, order="key", per_message=True, retry=RetryPolicy(attempts=2))
        self.until(lambda: self.committed() == 40)
        for number in range(4):
            of_key = [value for key, value in seen if key == b"k%d" % number]
            self.assertEqual(list(range(number, 40, 4)), of_key)

    # Rule 13
    def test_only_the_gap_free_prefix_is_committed_before_an_end(self):
        self.fill(b"1", b"2", b"bad", b"4", key=b"k1")
        self.fill(b"5", b"6", key=b"k2")
        handled: set[bytes] = set()

        def handler(message):
            while message.value == b"bad" and not {b"5", b"6"} <= handled:
                threading.Event().wait(0.001)
            if message.value == b"bad":
                raise ValueError("bad")
            handled.add(message.value)

        choices = {"threads": 4, "order": "key", "per_message": True, "dead_letters": None, "retry": ONCE}
        self.failure(self.start(handler, **choices))
        self.assertEqual({b"1", b"2", b"5", b"6"}, handled)
        self.assertEqual(2, self.committed())


class Witness(RebalanceListener):
    def __init__(self):
        self.events = []

    def assigned(self, partitions):
        self.events.append("assigned")

    def revoked(self, partitions, deadline):
        self.events.append("revoked")

    def lost(self, partitions):
        self.events.append("lost")


class RebalanceTest(ProcessorCase):
    def drive(self, consumer):
        """Run another member of the group, which polls on a separate thread."""
        over = threading.Event()
        self.addCleanup(over.set)

        def poll():
            while not over.is_set():
                consumer.poll(1, 0.1)

        threading.Thread(target=poll, daemon=True).start()

    def take_partitions_away(self):
        """Let a second member join until the first has only one of the two partitions."""
        self.drive(plugins.memory_consumer(self.kafka.consumer_settings("in", GROUP)))

    def owned(self, consumer):
        return len(consumer.assignment())

    def test_a_revoke_finishes_messages_in_flight_and_commits_them(self):
        self.broker.add_partitions("in", 1)
        self.fill(b"1", partition=0)
        self.fill(b"1", partition=1)
        gate = Gate()
        consumer = self.consumer(stop_timeout_seconds=20)
        self.start(gate, consumer=consumer, threads=2)
        self.until(lambda: len(gate.calls) == 2)
        self.take_partitions_away()
        self.pass_time(5)
        self.assertEqual(2, self.owned(consumer))
        gate.open.set()
        self.until(lambda: self.owned(consumer) == 1, step=0)  # the time does not change, so the deadline does not pass
        [taken] = {TopicPartition("in", 0), TopicPartition("in", 1)} - consumer.assignment()
        self.assertEqual(1, self.broker.committed(GROUP)[taken])

    # Rule 14
    def test_a_slow_revoke_does_not_outlive_max_poll_interval(self):
        self.broker.add_partitions("in", 1)
        self.fill(b"1", partition=0)
        self.fill(b"1", partition=1)
        gate, listener = Gate(), Witness()
        consumer = self.consumer(stop_timeout_seconds=1000, max_poll_interval_seconds=20)
        consumer.listener = listener
        self.start(gate, consumer=consumer, threads=2)
        self.until(lambda: len(gate.calls) == 2)
        before = self.clock.monotonic()
        self.take_partitions_away()
        self.until(lambda: self.owned(consumer) == 1)
        self.assertLess(self.clock.monotonic() - before, 20)
        self.assertNotIn("lost", listener.events)
        gate.open.set()

    # Rule 14
    def test_messages_handled_after_their_partition_was_lost_are_not_committed(self):
        self.fill(b"1")
        gate, listener = Gate(), Witness()
        consumer = self.consumer()
        consumer.listener = listener
        self.start(gate, consumer=consumer)
        self.until(lambda: gate.calls)
        self.broker.expire_member(GROUP, self.broker.members(GROUP)[0])
        self.until(lambda: "lost" in listener.events)
        self.broker.inject("fetch", Fail("LEADER_NOT_AVAILABLE"), count=None, topic="in")
        gate.open.set()
        self.pass_time(5)
        self.assertEqual(0, self.committed())
        self.broker.clear_faults()
        self.until(lambda: self.committed() == 1)
        self.assertEqual([[b"1"], [b"1"]], gate.calls)

    def test_the_callers_listener_is_called_after_the_commit_of_a_revoke(self):
        self.fill(b"1")
        at_revoke: list[int] = []
        committed = self.committed

        class Listener(RebalanceListener):
            def revoked(self, partitions, deadline):
                at_revoke.append(committed())

        self.broker.add_partitions("in", 1)
        consumer = self.consumer()
        consumer.listener = Listener()
        seen = []
        self.start(lambda part: seen.extend(part.values), consumer=consumer)
        self.until(lambda: seen)
        self.take_partitions_away()
        self.until(lambda: at_revoke)
        self.assertEqual([1], at_revoke)


class ErrorTest(ProcessorCase):
    def test_an_offset_out_of_range_ends_the_run_with_an_error(self):
        self.fill(*[b"x"] * 20)
        consumer = self.consumer()
        self.unhurried(lambda: consumer.poll(1, 0.1))
        consumer.commit({IN: 3})
        self.unhurried(lambda: consumer.close(1))
        self.broker.delete_records("in", 0, 15)
        error = self.failure(self.start(lambda part: None))
        self.assertIsInstance(error, OffsetOutOfRange)
        self.assertEqual(3, self.committed())

    def test_a_missing_permission_to_read_ends_the_run_and_does_not_spin(self):
        self.fill(b"1")
        self.broker.inject("fetch", Fail("TOPIC_AUTHORIZATION_FAILED"), count=None, topic="in")
        self.assertIsInstance(self.failure(self.start(lambda part: None)), AuthorizationError)

    def test_temporary_errors_are_counted_and_do_not_end_the_run(self):
        self.fill(b"1")
        self.broker.inject("fetch", Fail("LEADER_NOT_AVAILABLE"), topic="in")
        running = self.start(lambda part: None)
        self.until(lambda: self.committed() == 1)
        self.assertIsNone(running.error)

    def test_a_commit_that_fails_is_repeated(self):
        self.fill(b"1")
        self.broker.inject("commit", Fail("COORDINATOR_NOT_AVAILABLE"), nth=2, count=3)
        self.start(lambda part: None)
        self.until(lambda: self.committed() == 1)

    def test_a_missing_dead_letter_topic_is_reported_at_start(self):
        self.broker.delete_topic("in.dlq")
        error = self.failure(self.start(lambda part: None))
        self.assertIsInstance(error, ConfigurationError)
        self.assertIn("in.dlq", str(error))

    def test_invalid_combinations_of_arguments_are_refused(self):
        consumer = self.consumer()
        for choices in ({"order": "none"}, {"threads": 0}, {"transactional": True}):
            self.assertRaises(ConfigurationError, Processor, consumer, print, **choices)
        self.assertRaises(ConfigurationError, Processor, consumer, print, producer=self.producer, transactional=True)

    def test_a_processor_runs_once(self):
        running = self.start(lambda part: None)
        self.stop(running)
        self.assertRaises(MisuseError, running.processor.run)


class ReuseTest(ProcessorCase):
    """A second processor with the consumer of the first continues after the messages that are done."""

    def later(self, part):
        raise RetryLater(60)

    def test_it_reads_the_messages_that_the_first_one_left(self):
        self.fill(*[b"%d" % number for number in range(10)])
        consumer = self.consumer(batch_size=4)
        first = self.start(lambda part: self.later(part) if 4 in part.offsets else None, consumer=consumer)
        self.until(lambda: self.committed() == 4 and first.processor._tracker.unfinished() == {IN: 6})
        self.assertEqual({IN: 6}, self.stop(first).left)
        seen = []
        self.start(lambda part: seen.extend(part.offsets), consumer=consumer)
        self.until(lambda: self.committed() == 10)
        self.assertEqual(list(range(4, 10)), seen)

    def test_it_reads_messages_that_arrived_together_with_the_error_that_ended_the_first_one(self):
        self.fill(b"1")
        consumer = self.consumer()
        poll = consumer.poll

        def failing(*arguments):
            batch = poll(*arguments)
            return Batch(batch.partitions, (AuthorizationError("no access"),)) if batch.partitions else batch

        with mock.patch.object(consumer, "poll", failing):
            first = self.start(lambda part: None, consumer=consumer)
            self.assertIsInstance(self.failure(first), AuthorizationError)
        self.assertEqual(0, consumer.position(IN))
        self.start(lambda part: None, consumer=consumer)
        self.until(lambda: self.committed() == 1)

    def test_it_reads_partitions_that_the_first_one_had_paused(self):
        self.fill(*[b"x"] * 10)
        consumer = self.consumer(max_uncommitted_messages=5)
        first = self.start(self.later, consumer=consumer)
        self.until(lambda: first.processor._backpressure.paused)
        self.stop(first)
        self.start(lambda part: None, consumer=consumer)
        self.until(lambda: self.committed() == 10)

    def test_the_first_one_ends_with_its_report_even_if_the_consumer_cannot_seek(self):
        self.fill(b"1")
        consumer = self.consumer()
        first = self.start(self.later, consumer=consumer)
        self.until(lambda: first.processor._tracker.unfinished())
        with mock.patch.object(consumer, "seek", side_effect=TransportError("in a wrong state", name="_STATE")):
            self.assertEqual({IN: 1}, self.stop(first).left)

    def test_lost_partitions_are_not_moved(self):
        self.fill(b"1")
        consumer = self.consumer()
        first = self.start(self.later, consumer=consumer)
        self.until(lambda: first.processor._tracker.unfinished())
        consumer._assignment.remove([IN])
        with mock.patch.object(consumer, "seek") as seek:
            self.stop(first)
        self.assertEqual([], seek.mock_calls)


class StopTest(ProcessorCase):
    # Rule 21
    def test_stop_waits_for_outputs_in_flight_and_commits_their_input(self):
        self.fill(b"1")
        self.broker.inject("produce", Delay(3.0), topic="out")
        handled = threading.Event()

        def handler(part):
            handled.set()
            return [("out", value) for value in part.values]

        running = self.start(handler)
        self.until(handled.is_set)
        report = self.stop(running, 10)
        self.assertEqual({IN: 1}, report.committed)
        self.assertTrue(report.clean)
        self.assertEqual([b"1"], self.values("out"))
        self.assertEqual(1, self.committed())

    def test_stop_reports_messages_in_calls_at_the_deadline(self):
        self.fill(b"1", b"2")
        gate = Gate()
        running = self.start(gate)
        self.until(lambda: gate.calls)
        before = self.clock.monotonic()
        report = self.stop(running, 5)
        self.assertLess(self.clock.monotonic() - before, 30)  # seconds of real time that the handler takes
        self.assertEqual({IN: 2}, report.in_flight)
        self.assertEqual({IN: 2}, report.left)
        self.assertFalse(report.clean)
        gate.open.set()
        self.assertEqual(0, self.committed())

    def test_buffered_messages_are_not_handled_after_a_stop_and_are_reported(self):
        self.fill(*[b"x"] * 10)
        gate = Gate()
        running = self.start(gate, settings={"batch_size": 2})
        self.until(lambda: gate.calls and running.processor._tracker.unfinished() == {IN: 10})
        reports = []
        stopper = threading.Thread(target=lambda: reports.append(running.processor.stop(10)), daemon=True)
        stopper.start()
        self.until(lambda: running.processor._shutdown.requested, step=0)
        gate.open.set()
        self.until(lambda: reports)
        self.assertEqual({IN: 8}, reports[0].left)
        self.assertEqual({IN: 2}, reports[0].committed)
        self.assertEqual([[b"x", b"x"]], gate.calls)

    def test_a_handler_may_stop_its_own_processor(self):
        self.fill(b"1")
        processors: list[Processor] = []

        def handler(part):
            while not processors:
                threading.Event().wait(0.001)
            processors[0].stop()

        running = self.start(handler)
        processors.append(running.processor)
        self.until(lambda: running.ended)
        self.assertIsNone(running.error)
        self.assertEqual({IN: 1}, running.report.committed)

    def test_stopping_a_processor_that_never_ran_returns_immediately(self):
        processor = Processor(self.consumer(), print)
        self.assertEqual({}, processor.stop().left)
