# SPDX-License-Identifier: Apache-2.0
"""A signal handler raises an exception, or sends, at every place of a call where Python runs signal handlers."""

import contextlib
import dis
import os
import sys
import threading
from collections import Counter

import fixtures
from oslotest import base

from monasca_common.kafka import outgoing, transaction
from monasca_common.kafka import producer as producer_package
from monasca_common.kafka.errors import QueueFull, TransportError
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.testing import Fail, MemoryKafka
from monasca_common.kafka.transport import producer_clients, report_columns
from monasca_common.kafka.transport.memory import MemoryProducer

_PACKAGE = os.path.dirname(producer_package.__file__)
_TRACED = {module.__file__ for module in (outgoing, producer_clients, report_columns, transaction)}
_CALLS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW") if name in dis.opmap}
_JUMP_BACK = dis.opmap["JUMP_BACKWARD"]
_SECONDS = 30
PLAIN = (b"a", b"b", b"c")
RECORDS = (Record(b"a"), Record(b"b", message_id=b"own"))
OTHER = b"of another call"
FEWEST_PLACES = 5  # the number of places in the shortest of these calls


class TimeLimit(Exception):
    """Raised by a handler of SIGALRM; `KeyboardInterrupt` of Ctrl-C is not an `Exception`."""


def give_up():
    raise TimeLimit


class Interrupt:
    """Calls ``handler`` at the n-th place of the producer's code where Python would run a signal handler.

    These places are the beginning of a function, the end of a call of C code, and the end of a loop iteration.
    """

    def __init__(self, nth, handler=give_up):
        self.left = nth
        self._handler = handler
        self.place = ""
        self._has_returned = False

    def run(self, call, *arguments):
        """Return the result of ``call`` in a tuple; it is empty if the call was interrupted."""
        sys._getframe().f_trace_opcodes = True  # Python 3.12 traces opcodes if a frame asks for it before settrace
        sys.settrace(self._trace)
        try:
            return (call(*arguments),)
        except TimeLimit:
            return ()
        finally:
            sys.settrace(None)

    def _trace(self, frame, _event, _argument):
        path = frame.f_code.co_filename
        if os.path.dirname(path) != _PACKAGE and path not in _TRACED:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        code = frame.f_code.co_code
        last = [-1]

        def trace(frame, event, _argument):
            if event == "return":
                self._has_returned = True
            elif event == "exception":
                last[0] = 0  # Python runs no signal handler after a call that raised
            elif event == "opcode":
                opcode = code[frame.f_lasti]
                returned_from_c = last[0] in _CALLS and not self._has_returned
                if last[0] == -1 or returned_from_c or opcode == _JUMP_BACK:
                    self._strike(frame)
                self._has_returned = False
                last[0] = opcode
            return trace

        self._has_returned = False
        return trace

    def _strike(self, frame):
        self.left -= 1
        if self.left == 0:
            self.place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_qualname}"
            self._handler()


class InterruptedCallTest(base.BaseTestCase):
    """A call is interrupted at each place in turn, by one producer after the other."""

    budget = 100_000

    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.broker = self.kafka.broker
        self.broker.create_topic("t", 1)
        self.second = self.open()

    def open(self):
        settings = self.kafka.producer_settings(linger_ms=0, budget_messages=self.budget)
        producer = KafkaProducer(
            settings,
            lambda batch_bytes, on_error: MemoryProducer(settings, batch_bytes=batch_bytes, on_error=on_error),
        )
        self.addCleanup(producer.close, 0)
        producer.publish("t", [b"first"], timeout=_SECONDS).raise_for_undelivered()
        return producer

    def refuse_one(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), nth=2)

    def at_every_place(self, call, check, *, before=lambda: None, prepare=lambda producer: None):
        """Interrupt ``call(producer, prepare(producer))`` at each place, and ``check`` the state each time. ``before``
        changes the broker. ``check`` receives the producer, the result of ``prepare`` and the result of the call;
        `written` returns the records added to the log since ``prepare``.
        """
        nth, returned = 0, ()
        while not returned:
            nth += 1
            producer = self.open()
            self.broker.delete_records("t", 0, self.broker.watermarks(TopicPartition("t", 0))[1])
            prepared = prepare(producer)
            before()
            interrupt = Interrupt(nth)
            returned = interrupt.run(call, producer, prepared)
            try:
                check(producer, prepared, *returned)
                producer.close(0)
                self.assert_empty(producer)
            except Exception as error:
                error.add_note(f"interrupted at place {nth}: {interrupt.place}")
                raise
        self.assertGreater(nth, FEWEST_PLACES)

    def assert_empty(self, producer):
        health, table = producer.health(), producer._table
        ids = sum(map(len, table._by_id.values()))
        left = (health.outstanding_messages, health.outstanding_bytes, table.messages, table.bytes, ids)
        self.assertEqual((0, 0, 0, 0, 0), left)
        self.assertNotIn(threading.get_ident(), table.callers)

    def written(self):
        return Counter(message.value for message in self.broker.records("t"))

    def assert_reported(self, report):
        """Each message is counted as delivered or reported once, and a retry by another producer delivers it."""
        reported = Counter(values_of(report))
        self.assertLessEqual(set(reported.values()), {1})
        self.assertEqual(report.delivered_count, len(self.written().keys() - reported.keys()))
        self.broker.clear_faults()
        self.broker.reconnect()
        self.assertTrue(self.second.retry(report, timeout=_SECONDS).ok)
        self.assertLessEqual(reported.keys(), self.written().keys())

    def closed(self, producer, _prepared, returned=None):
        report = producer.close(0)
        if returned is None:
            self.assert_reported(report)

    def flushed(self, producer, _prepared, returned=None):
        report = producer.flush(_SECONDS)
        if returned is None:
            self.assert_reported(report)
        self.assert_empty(producer)


class InterruptedPublishTest(InterruptedCallTest):
    def publish(self, records):
        return lambda producer, _: producer.publish("t", records, timeout=0.2)

    # Rule 9
    def test_an_interrupt_loses_no_outcome_of_bytes_that_a_broker_accepts(self):
        self.at_every_place(self.publish(PLAIN), self.flushed)

    def test_an_interrupt_loses_no_outcome_of_bytes_that_a_broker_refuses(self):
        self.at_every_place(self.publish(PLAIN), self.closed, before=self.refuse_one)

    def test_an_interrupt_loses_no_outcome_of_bytes_while_no_broker_responds(self):
        self.at_every_place(self.publish_and_return(PLAIN), self.closed, before=self.broker.disconnect)

    def test_an_interrupt_loses_no_outcome_of_records_that_a_broker_accepts(self):
        self.at_every_place(self.publish(RECORDS), self.closed)

    def test_an_interrupt_loses_no_outcome_of_records_that_a_broker_refuses(self):
        self.at_every_place(self.publish(RECORDS), self.flushed, before=self.refuse_one)

    def test_an_interrupt_loses_no_outcome_of_records_while_no_broker_responds(self):
        self.at_every_place(self.publish_and_return(RECORDS), self.closed, before=self.broker.disconnect)

    def publish_and_return(self, records):
        return lambda producer, _: producer.publish("t", records, timeout=0)


class InterruptedSendTest(InterruptedCallTest):
    def send(self, record):
        return lambda producer, _: producer.send("t", record)

    # Rule 9
    def test_an_interrupt_loses_no_outcome_of_bytes_that_a_broker_accepts(self):
        self.at_every_place(self.send(b"a"), self.flushed_all)

    def test_an_interrupt_loses_no_outcome_of_bytes_while_no_broker_responds(self):
        self.at_every_place(self.send(b"a"), self.closed_all, before=self.broker.disconnect)

    def test_an_interrupt_loses_no_outcome_of_a_record_that_a_broker_accepts(self):
        self.at_every_place(self.send(RECORDS[1]), self.flushed_all)

    def test_an_interrupt_loses_no_outcome_of_a_record_while_no_broker_responds(self):
        self.at_every_place(self.send(RECORDS[1]), self.closed_all, before=self.broker.disconnect)

    def test_an_interrupt_loses_no_outcome_of_bytes_that_the_client_refuses(self):
        def refuse(producer):
            producer._clients.main._client._fatal = TransportError("no more")

        self.at_every_place(self.send(b"a"), self.closed_all, prepare=refuse)

    def test_an_interrupted_send_does_not_change_the_report_of_an_earlier_one(self):
        self.at_every_place(self.send(b"a"), self.closed_all, prepare=lambda producer: producer.send("t", OTHER))

    def flushed_all(self, producer, _prepared, _returned=None):
        self.flushed(producer, None)

    def closed_all(self, producer, _prepared, _returned=None):
        self.closed(producer, None)


class InterruptedRetryTest(InterruptedCallTest):
    def refused(self, producer):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), count=len(RECORDS))
        report = producer.publish("t", RECORDS, timeout=_SECONDS)
        self.broker.clear_faults()
        self.assertEqual(len(RECORDS), len(report.failed))
        return report

    def retry(self, producer, report):
        return producer.retry(report, timeout=0.2)

    # Rule 4
    def test_after_an_interrupted_retry_both_reports_can_be_retried(self):
        self.at_every_place(self.retry, self.closed_and_retried, prepare=self.refused)

    def test_after_an_interrupted_retry_without_brokers_both_reports_can_be_retried(self):
        def retry(producer, report):
            return producer.retry(report, timeout=0)

        self.at_every_place(retry, self.closed_and_retried, prepare=self.refused, before=self.broker.disconnect)

    def closed_and_retried(self, producer, earlier, _returned=None):
        report = producer.close(0)
        self.broker.reconnect()
        self.assertLessEqual(set(Counter(values_of(report)).values()), {1})
        for each in (earlier, report, earlier):
            self.assertTrue(self.second.retry(each, timeout=_SECONDS).ok)
        self.assertEqual({b"a", b"b"}, set(self.written()))


class InterruptedFlushTest(InterruptedCallTest):
    def sent(self, producer):
        self.refuse_one()
        for value in PLAIN:
            producer.send("t", value)

    def test_the_next_flush_reports_messages_that_an_interrupted_flush_did_not(self):
        self.at_every_place(
            lambda producer, _: producer.flush(_SECONDS),
            lambda producer, _, report=None: self.assert_flushed(report or producer.flush(_SECONDS)),
            prepare=self.sent,
        )

    def test_the_close_reports_messages_that_an_interrupted_flush_did_not(self):
        def sent(producer):
            self.broker.disconnect()
            self.sent(producer)

        def closed(producer, _prepared, returned=None):
            report = producer.close(0)
            self.assert_reported(returned or report)

        self.at_every_place(lambda producer, _: producer.flush(0), closed, prepare=sent)

    def assert_flushed(self, report):
        self.assertEqual((2, [b"b"]), (report.delivered_count, values_of(report)))


class InterruptedCloseTest(InterruptedCallTest):
    def test_the_next_close_reports_messages_that_an_interrupted_close_abandoned(self):
        self.useFixture(fixtures.MonkeyPatch("monasca_common.kafka.producer.producer._GRACE_SECONDS", 0))

        def sent(producer):
            producer._clients.main.purge = lambda: None  # a client that returns no messages
            self.broker.disconnect()
            for value in PLAIN:
                producer.send("t", Record(value, message_id=value))

        def closed(producer, _prepared, returned=None):
            report = returned or producer.close(0)
            self.assertEqual(sorted(PLAIN), sorted(values_of(report)))
            self.broker.reconnect()

        self.at_every_place(lambda producer, _: producer.close(0), closed, prepare=sent)


class SendingHandlerTest(InterruptedCallTest):
    """The handler sends, for example to report that its process will stop."""

    most = 0  # messages that used room at the same time

    def at_every_place(self, call):
        nth, interrupt = 0, Interrupt(0)
        while interrupt.left <= 0:
            nth += 1
            producer = self.open()
            self.broker.delete_records("t", 0, self.broker.watermarks(TopicPartition("t", 0))[1])
            interrupt = Interrupt(nth, lambda producer=producer: self.send(producer))
            interrupt.run(call, producer)
            try:
                self.assertTrue(producer.flush(_SECONDS).ok)
                if interrupt.left <= 0 and self.budget > len(PLAIN) + 2:
                    self.assertEqual({b"plain": 1, b"record": 1}, self.sent_by_handler())
                self.assertLessEqual(self.most, self.budget)
                producer.close(0)
                self.assert_empty(producer)
            except Exception as error:
                error.add_note(f"interrupted at place {nth}: {interrupt.place}")
                raise
        self.assertGreater(nth, FEWEST_PLACES)

    def send(self, producer):
        with contextlib.suppress(QueueFull):
            producer.send("t", b"plain")
            producer.send("t", Record(b"record"))
        self.most = max(self.most, producer._table.messages)

    def sent_by_handler(self):
        return {value: count for value, count in self.written().items() if value in (b"plain", b"record")}

    # Rule 9
    def test_a_publish_is_correct_if_a_signal_handler_sends(self):
        self.at_every_place(lambda producer: producer.publish("t", PLAIN, timeout=_SECONDS))
        self.at_every_place(lambda producer: producer.publish("t", RECORDS, timeout=_SECONDS))

    def test_sends_and_a_flush_are_correct_if_a_signal_handler_sends(self):
        def call(producer):
            for topic in ("t", "u", "t"):
                producer.send(topic, b"a")
            producer.send("t", RECORDS[1])
            producer.flush(_SECONDS)

        self.at_every_place(call)


class SendingWithoutRoomTest(SendingHandlerTest):
    """Reservations of sends are repeatedly ended to free room."""

    budget = 4


def values_of(report):
    """Return the values of the report's undelivered messages."""
    return [attempt.record.value for index, attempt in report.latest().items() if index in report._undelivered]
