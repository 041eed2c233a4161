# SPDX-License-Identifier: Apache-2.0
"""Races of two threads, or of a thread and its signal handler, at critical points of a producer."""

import logging
import math
import threading
from unittest import mock

import fixtures
from confluent_kafka import KafkaError, KafkaException

from monasca_common.kafka.errors import (
    ClosedError,
    DeliveryRefused,
    InCallbackError,
    MisuseError,
    QueueFull,
    TransportError,
    WrongType,
)
from monasca_common.kafka.message import Record
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.transport.base import Outcomes
from monasca_common.kafka.transport.memory import Fail, LoseAnswer, MemoryProducer
from monasca_common.tests.unit.kafka.leaping_clock import LeapingClock
from monasca_common.tests.unit.kafka.producer.producer_case import AWAY, ProducerCase

_SECONDS = 50


class Gate:
    """A step of one thread for which another thread waits, and which it then releases."""

    def __init__(self):
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self):
        self.reached.set()
        self.open.wait(_SECONDS)


class SeamCase(ProducerCase):
    def in_background(self, call):
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        self.addCleanup(thread.join, _SECONDS)
        return thread

    def assert_ends(self, thread):
        thread.join(_SECONDS)
        self.assertFalse(thread.is_alive(), "the thread waits indefinitely")

    def transactional(self, init):
        """Return a producer whose clients call ``init`` to take over the transactional id; the first call is done."""
        settings = self.kafka.producer_settings(transactional_id="mine")
        opened = []

        class Transactional(MemoryProducer):
            def init_transactions(self, timeout):
                init()

            def close(self, timeout):
                opened.remove(self)
                super().close(timeout)

        def open_transport(batch_bytes, on_error):
            opened.append(Transactional(settings, batch_bytes=batch_bytes, on_error=on_error))
            return opened[-1]

        producer = KafkaProducer(settings, open_transport)
        self.addCleanup(producer.close, 0)
        return producer, opened


class ReopenDuringCallTest(SeamCase):
    # Rule 9
    def test_an_arriving_limit_does_not_deadlock_with_a_reopening(self):
        producer = self.producer()
        gate = Gate()
        limits, main = producer._limits, producer._clients.main

        def refuses(*_arguments):
            gate()
            raise main.refusals[0](KafkaError(KafkaError._FATAL, "the client cannot continue"))

        main.produce_record = refuses
        producer.send("t", b"a")
        self.assertTrue(gate.reached.wait(_SECONDS))  # under the lock of the limits
        pause, in_pause = limits.pause, threading.Event()

        def paused(**options):
            in_pause.set()
            pause(**options)

        limits.pause = paused
        reopening = self.in_background(producer.reopen)
        self.assertTrue(in_pause.wait(_SECONDS))
        gate.open.set()
        self.assert_ends(reopening)

    def test_a_close_does_not_wait_until_the_transactional_id_is_taken_over(self):
        gate = Gate()
        producer, opened = self.transactional(gate)
        errors = []

        def reopen():
            try:
                producer.reopen()
            except ClosedError as error:
                errors.append(error)

        reopening = self.in_background(reopen)
        self.assertTrue(gate.reached.wait(_SECONDS))
        self.at_once(lambda: producer.close(0))
        gate.open.set()
        self.assert_ends(reopening)
        self.assertEqual((1, []), (len(errors), opened))


class AttachedTest(SeamCase):
    def test_a_retry_that_attaches_to_a_repeated_publish_stays_unknown(self):
        record = Record(b"a", message_id=b"mine")
        self.broker.inject("produce", LoseAnswer(0, error="REQUEST_TIMED_OUT"))
        before = self.warm_producer().publish("t", [record])
        self.assertEqual(1, len(before.unknown))
        producer, gate = self.producer(), Gate()
        transport = producer._clients.main
        ask = transport.max_message_bytes
        transport.max_message_bytes = lambda *arguments: gate() or ask(*arguments)
        repeated = producer.publish("t", [record], **AWAY)  # the caller waits for the limit of its topic
        again = producer.retry(before, **AWAY)
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), count=None)
        gate.open.set()
        while producer.health().outstanding_messages:
            threading.Event().wait(0.01)
        for report in (again, repeated):
            report = producer.retry(report)
            self.assertEqual((1, 0), (len(report.unknown), len(report.failed)))


class SignalTest(SeamCase):
    """A signal handler runs on the thread that it interrupts."""

    def interrupted(self, owner, name, handler):
        """Let ``handler`` interrupt the next call of ``owner.name``."""
        call = getattr(owner, name)

        def interrupted(*arguments, **options):
            setattr(owner, name, call)
            handler()
            return call(*arguments, **options)

        setattr(owner, name, interrupted)

    # Rule 9
    def test_calls_that_wait_are_refused_and_the_interrupted_one_continues(self):
        producer = self.producer()
        report = producer.publish("t", [b"a"])
        waiting = (
            lambda: producer.publish("t", [b"x"]),
            lambda: producer.retry(report),
            producer.flush,
            producer.close,
            producer.reopen,
        )
        refused = []

        def handler():
            refused.extend(str(self.assertRaises(InCallbackError, call)) for call in waiting)
            producer.send("t", b"from the handler")

        interrupting = (
            (lambda: producer.publish("t", [b"b"]), producer._serving, "wait"),
            (lambda: producer.send("t", Record(b"c")), producer._table, "reserve"),
            (producer.flush, producer, "_flushed"),
        )
        for call, owner, name in interrupting:
            self.interrupted(owner, name, handler)
            call()
        expected = [f"{name} waits" for name in ("publish", "retry", "flush", "close", "reopen")] * 3
        self.assertEqual(expected, [text[: text.index(",")] for text in refused])
        self.assertTrue(producer.close().ok)
        self.assertEqual([b"a", b"b", b"c"] + [b"from the handler"] * 3, sorted(self.values()))

    def test_an_exception_of_a_signal_handler_is_not_a_refusal_by_the_client(self):
        producer = self.warm_producer()
        transport = producer._limits.ready["t"].transport
        produce = transport.produce

        def interrupted(*arguments):
            produce(*arguments)
            raise raised

        for raised in (TransportError("of the handler"), KafkaException("of its client"), BufferError("of its client")):
            transport.produce = interrupted
            self.assertRaises(type(raised), producer.publish, "t", [b"a", b"b"])
            self.assertEqual((), producer.flush().failed)
        self.assertEqual([b"a", b"b"] * 3, self.values())

    def test_a_send_without_room_does_not_wait_in_a_handler(self):
        producer = self.warm_producer(budget_messages=1)
        self.broker.disconnect()
        producer.send("t", b"a")
        refused = []
        self.interrupted(
            producer._serving, "wait", lambda: refused.append(self.assertRaises(QueueFull, producer.send, "t", b"b"))
        )
        self.at_once(lambda: producer.flush(0))
        self.assertEqual(1, len(refused))

    def test_a_call_that_waits_is_refused_during_a_plain_send(self):
        producer = self.warm_producer()
        refused = []
        self.interrupted(
            producer._clients.main._client,
            "produce_record",
            lambda: refused.append(self.assertRaises(InCallbackError, producer.flush)),
        )
        producer.send("t", b"a")
        self.assertEqual((1, 1), (len(refused), producer.flush().delivered_count))

    def test_a_signal_handler_may_publish_with_another_producer(self):
        producer, other = self.producer(), self.producer()
        self.interrupted(producer._serving, "wait", lambda: other.publish("t", [b"b"]).raise_for_undelivered())
        self.assertTrue(producer.publish("t", [b"a"]).ok)
        self.assertEqual([b"a", b"b"], sorted(self.values()))

    def test_an_interrupt_while_a_close_waits_for_a_listener_still_closes_the_clients(self):
        producer = self.warm_producer()
        clients = [len(producer._clients.in_use())]
        stop = producer._serving.stop

        def interrupted(*_arguments):
            producer._serving.stop = stop
            raise KeyboardInterrupt

        producer._serving.stop = interrupted
        self.assertRaises(KeyboardInterrupt, producer.close)
        self.assertEqual([1, 0], [*clients, len(producer._clients.in_use())])


class LogTest(SeamCase):
    """The application's log handlers."""

    def handle(self, name, handle):
        handler = logging.Handler()
        handler.emit = handle
        logger = logging.getLogger(f"monasca_common.kafka.{name}")
        logger.addHandler(handler)
        self.addCleanup(logger.removeHandler, handler)

    def fail_once(self, producer):
        """Make the next call that serves the client fail, which is logged."""
        transport = producer._clients.main
        poll, flush = transport.poll, transport.flush

        def breaks(*_arguments):
            transport.poll, transport.flush = poll, flush
            raise ZeroDivisionError

        transport.poll = transport.flush = breaks
        producer._serving.wake()

    # Rule 9
    def test_a_log_handler_that_raises_ends_no_thread(self):
        producer = self.producer()
        raised = threading.Event()

        def handle(_record):
            raised.set()
            raise ZeroDivisionError

        self.handle("producer.serving", handle)
        self.fail_once(producer)
        self.assertTrue(raised.wait(_SECONDS))
        self.assertTrue(self.at_once(lambda: producer.publish("t", [b"b"], timeout=3600)).ok)

    def test_a_log_handler_that_sends_with_the_same_producer_does_not_wait_for_it(self):
        producer = self.warm_producer(budget_messages=1)
        self.broker.disconnect()
        producer.send("t", b"a")
        refused = []
        over = threading.Event()

        def handle(_record):
            refused.extend(
                type(self.assertRaises(MisuseError, call))
                for call in (producer.flush, lambda: producer.publish("t", [b"x"]))
            )
            refused.append(type(self.assertRaises(QueueFull, producer.send, "t", b"x")))
            over.set()

        self.handle("producer.serving", handle)
        self.fail_once(producer)
        self.assertTrue(over.wait(_SECONDS))
        self.assertEqual([InCallbackError, InCallbackError, QueueFull], refused)

    def test_a_log_handler_that_publishes_while_a_topic_is_logged_is_refused(self):
        producer, seen = self.producer(), []
        over = threading.Event()

        def handle(_record):
            error = self.assertRaises(InCallbackError, producer.publish, "t", [b"x"])
            seen.append((type(error), producer._table.lock._is_owned()))
            over.set()

        self.handle("producer.topic_limits", handle)
        self.broker.inject("metadata", Fail("TOPIC_AUTHORIZATION_FAILED"))
        self.assertTrue(self.at_once(lambda: producer.publish("t", [b"a"], timeout=3600)).ok)
        self.assertTrue(over.wait(_SECONDS))
        self.assertEqual([(InCallbackError, False)], seen)


class LimitsTest(SeamCase):
    """The thread that requests limits gets an unexpected error."""

    def opened(self, fails):
        settings = self.kafka.producer_settings()

        def open_transport(batch_bytes, on_error):
            transport = MemoryProducer(settings, batch_bytes=batch_bytes, on_error=on_error)
            fails(transport, batch_bytes)
            return transport

        producer = KafkaProducer(settings, open_transport)
        self.addCleanup(producer.close, 0)
        return producer

    def test_messages_wait_for_a_client_that_cannot_be_opened_and_delay_no_other_topics(self):
        self.broker.create_topic("small", 1, max_message_bytes=500_000)
        refuses = [True]

        def fails(_transport, batch_bytes):
            if batch_bytes < 1_000_000 and refuses:
                raise TransportError("no more threads")

        producer = self.opened(fails)
        report = self.at_once(lambda: producer.publish("small", [b"a"], timeout=0))
        self.assertEqual(1, len(report.unknown))
        self.assertTrue(self.at_once(lambda: producer.publish("t", [b"a"], timeout=3600)).ok)
        refuses.clear()
        self.assertTrue(self.at_once(lambda: producer.retry(report, timeout=3600)).ok)

    def test_messages_fail_after_a_time_limit_if_their_client_cannot_be_opened(self):
        self.broker.create_topic("small", 1, max_message_bytes=500_000)
        log = self.useFixture(fixtures.FakeLogger("monasca_common.kafka"))

        def fails(_transport, batch_bytes):
            if batch_bytes < 1_000_000:
                raise TransportError("no more threads")

        producer = self.opened(fails)
        report = producer.publish("small", [b"a"], timeout=0)
        self.wait_until(lambda: producer.health().last_error)
        self.assertEqual(("", "no more threads"), (log.output, str(producer.health().last_error)))
        self.clock.advance(10)
        [delivery] = self.at_once(lambda: producer.retry(report, timeout=3600)).failed
        self.assertIsInstance(delivery.error, DeliveryRefused)
        self.assertEqual((False, "no more threads"), (delivery.error.permanent, str(delivery.error.cause)))
        self.wait_until(lambda: log.output)
        self.assertIn("topic 'small' has a small limit, and its client cannot be opened", log.output)
        self.assertEqual(1, len(log.output.splitlines()))

    def test_a_request_that_fails_is_repeated(self):
        def fails(transport, _batch_bytes):
            ask = transport.max_message_bytes

            def breaks_down_once(topics, timeout):
                transport.max_message_bytes = ask
                raise ZeroDivisionError

            transport.max_message_bytes = breaks_down_once

        producer = self.opened(fails)
        self.assertTrue(self.at_once(lambda: producer.publish("t", [b"a"], timeout=3600)).ok)

    def test_messages_wait_while_no_thread_can_be_started(self):
        producer = self.producer()
        begun, start = threading.Event(), threading.Thread.start

        def no_thread(thread):
            if thread.name != "kafka-topic-limits":
                return start(thread)
            begun.set()
            raise RuntimeError("can't start new thread")

        with mock.patch.object(threading.Thread, "start", no_thread):
            report = producer.publish("t", [b"a"], timeout=0)
            self.assertTrue(begun.wait(_SECONDS))
        self.assertEqual(1, len(report.unknown))
        self.assertTrue(self.at_once(lambda: producer.retry(report, timeout=3600)).ok)


class ServingTest(SeamCase):
    def test_a_client_whose_calls_raise_does_not_delay_other_clients(self):
        self.broker.create_topic("small", 1, max_message_bytes=500_000)
        producer = self.warm_producer()

        def raises(_timeout):
            raise ZeroDivisionError

        client = producer._clients.main._client
        client.poll = client.flush = raises
        self.assertTrue(self.at_once(lambda: producer.publish("small", [b"a"], timeout=3600)).ok)

    # Rule 7
    def test_while_the_calls_of_a_client_raise_the_listeners_of_the_others_are_called(self):
        self.broker.create_topic("small", 1, max_message_bytes=500_000)
        producer = self.warm_producer()
        self.assertTrue(producer.publish("small", [b"a"], timeout=3600).ok)
        called = threading.Event()
        with mock.patch.object(producer._clients.main, "poll", side_effect=ZeroDivisionError):
            producer.send("small", b"b", on_delivery=lambda _: called.set())
            self.assertTrue(called.wait(_SECONDS / 10))


class TimeoutTest(SeamCase):
    def test_infinity_is_a_very_long_time(self):
        producer = self.warm_producer()
        self.assertTrue(producer.publish("t", [b"a"], timeout=math.inf).ok)
        self.assertTrue(producer.flush(math.inf).ok)
        self.assertTrue(self.at_once(lambda: producer.close(math.inf)).ok)

    def test_an_invalid_time_out_is_refused_by_name(self):
        producer = self.producer()
        for timeout in ("5", math.nan, [1]):
            for call in (
                lambda timeout=timeout: producer.publish("t", [b"a"], timeout=timeout),
                lambda timeout=timeout: producer.flush(timeout),
                lambda timeout=timeout: producer.close(timeout),
            ):
                self.assertIn("timeout", str(self.assertRaises(WrongType, call)))


class HungFlushTest(SeamCase):
    """A client call that never returns, while the lock that settles messages is held."""

    clock_type = LeapingClock

    def hung(self):
        producer = self.warm_producer()
        gate = Gate()
        self.addCleanup(gate.open.set)
        self.clock.hung = gate.reached.is_set
        self.broker.disconnect()
        transport = producer._clients.main._client

        def hangs(_timeout):
            gate()
            return Outcomes()

        transport.poll = transport.flush = hangs
        producer.send("t", b"a")
        producer._serving.wake()
        self.assertTrue(gate.reached.wait(_SECONDS))
        return producer, gate

    # Rule 9
    def test_close_reports_unacknowledged_messages_as_unknown(self):
        producer, _ = self.hung()
        report = self.at_once(lambda: producer.close(0))
        self.assertEqual((1, 0), (len(report.unknown), len(report.failed)))

    def test_a_late_result_changes_nothing(self):
        producer, gate = self.hung()
        report = self.at_once(lambda: producer.close(0))
        gate.open.set()
        producer._serving._thread.join(_SECONDS)
        self.assertFalse(producer._serving._thread.is_alive())
        self.assertEqual(1, len(report.unknown))
        self.assertEqual(0, producer.health().outstanding_messages)

    def test_publish_and_flush_end(self):
        producer, _ = self.hung()
        report = self.at_once(lambda: producer.publish("t", [b"b"], timeout=0))
        self.assertEqual(1, len(report.unknown))
        self.assertEqual(1, len(self.at_once(lambda: producer.flush(0)).unknown))

    def test_reopen_continues_with_a_client_that_does_not_hang(self):
        producer, _ = self.hung()
        self.at_once(lambda: producer.reopen() or True)
        self.clock.hung = lambda: False
        self.broker.reconnect()
        self.assertTrue(self.at_once(lambda: producer.publish("t", [b"b"], timeout=3600)).ok)
        received = threading.Event()
        producer.send("t", b"c", on_delivery=lambda delivery: received.set())
        self.assertTrue(received.wait(_SECONDS))
