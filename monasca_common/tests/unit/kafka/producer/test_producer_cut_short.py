# SPDX-License-Identifier: Apache-2.0
"""A close, an interrupt or a listener at the wrong moment: it delays no caller, and no message is forgotten."""

import threading
from unittest import mock

from monasca_common.kafka.errors import ClosedError, DeliveryAbandoned
from monasca_common.kafka.message import Record
from monasca_common.tests.unit.kafka.producer.producer_case import AWAY, ProducerCase

FULL = 3


class CutShortCase(ProducerCase):
    def crowded(self):
        """Return a producer without room, whose broker is unavailable."""
        producer = self.warm_producer(budget_messages=FULL)
        self.broker.disconnect()
        producer.publish("t", [Record(b"x")] * FULL, **AWAY)
        return producer

    def interrupted(self, producer, call):
        """Interrupt ``call`` by Ctrl-C while it waits."""
        with mock.patch.object(producer._serving, "wait", interrupt):
            self.assertRaises(KeyboardInterrupt, call)


class CloseTest(CutShortCase):
    def meanwhile_closed(self, producer, call):
        """Return the result of ``call``, which waits for room, after another thread closes the producer."""
        results = []

        def caller():
            try:
                results.append(call())
            except Exception as error:
                results.append(error)

        threads = [threading.Thread(target=caller, daemon=True), threading.Thread(target=producer.close, args=(0,))]
        threads[0].start()
        self.wait_until(lambda: producer._table.waiters)
        threads[1].start()
        while any(thread.is_alive() for thread in threads):
            self.clock.advance(1)
            threads[0].join(0.001)
        return results[0]

    # Rule 9
    def test_a_publish_that_waits_for_room_reports_that_it_was_not_sent(self):
        producer = self.crowded()
        report = self.meanwhile_closed(producer, lambda: producer.publish("t", [b"late"], timeout=3600))
        self.assertIsInstance(report.failed[0].error, DeliveryAbandoned)

    def test_a_send_that_waits_for_room_reports_that_the_producer_is_closed(self):
        producer = self.crowded()
        self.assertIsInstance(self.meanwhile_closed(producer, lambda: producer.send("t", b"late")), ClosedError)

    def test_a_send_that_found_its_topic_before_the_close_is_refused_while_it_waits(self):
        producer = self.warm_producer()
        wait, refused = producer._serving.wait, []

        def late(is_over, deadline):
            refused.append(self.assertRaises(ClosedError, producer.send, "t", b"late"))
            return wait(is_over, deadline)

        with mock.patch.object(producer._serving, "wait", late):
            report = self.at_once(lambda: producer.close(3600))
        self.assertEqual((1, 0, True), (len(refused), report.delivered_count, report.ok))
        self.assertEqual([], self.values())

    # Rule 9
    def test_a_listener_that_does_not_return_does_not_delay_a_close(self):
        producer = self.warm_producer()
        called, released = threading.Event(), threading.Event()
        self.addCleanup(released.set)

        def listener(delivery):
            called.set()
            released.wait(60)

        producer.send("t", b"a", on_delivery=listener)
        self.assertTrue(called.wait(50))
        self.assertTrue(self.at_once(lambda: producer.close(0)).ok)


class SendRacingCloseTest(CutShortCase):
    """The report of a close has every message that `send` accepted; `send` refuses all others."""

    def sent_while_closed(self, producer, record, owner, name):
        """Return the result or error of a `send`, and the report of a close that runs at its call of ``owner.name``."""
        reports, call = [], getattr(owner, name)
        client = producer._clients.main._client

        def close_first(*arguments):
            setattr(owner, name, call)
            reports.append(self.closed_as_time_passes(producer))
            self.wait_until(lambda: client._closed)  # on the client's thread, which has a limit in real time
            return call(*arguments)

        setattr(owner, name, close_first)
        try:
            result = producer.send("t", record)
        except ClosedError as error:
            result = error
        health = producer.health()
        self.assertEqual((0, 0), (health.outstanding_messages, health.outstanding_bytes))
        self.assertEqual([], self.values())
        return reports[0], result

    def closed_as_time_passes(self, producer):
        reports = []
        closing = threading.Thread(target=lambda: reports.append(producer.close(0)), daemon=True)
        closing.start()
        while closing.is_alive():
            self.clock.advance(1)
            closing.join(0.001)
        return reports[0]

    # Rule 9
    def test_a_message_checked_before_the_close_and_reserved_after_it_is_refused(self):
        producer = self.warm_producer()
        report, refused = self.sent_while_closed(producer, Record(b"late"), producer._table, "reserve")
        self.assertIsInstance(refused, ClosedError)
        self.assertEqual((0, True), (report.delivered_count, report.ok))

    # Rule 9
    def test_a_send_whose_reservation_was_just_closed_is_refused(self):
        producer = self.warm_producer()
        transport = producer._limits.ready["t"].transport
        report, refused = self.sent_while_closed(producer, b"late", transport, "send")
        self.assertIsInstance(refused, ClosedError)
        self.assertEqual((0, True), (report.delivered_count, report.ok))

    # Rule 9
    def test_a_message_reserved_before_the_close_is_in_its_report(self):
        for record in (b"late", Record(b"late")):
            producer = self.warm_producer()
            client = producer._clients.main._client
            report, message_id = self.sent_while_closed(producer, record, client, "produce_record")
            self.assertEqual([message_id], [delivery.message_id for delivery in report.failed + report.unknown])

    # Rule 9
    def test_a_bulk_reserved_before_the_close_is_in_the_report_of_publish(self):
        producer = self.warm_producer()
        transport = producer._limits.ready["t"].transport
        produce = transport.produce

        def close_first(*arguments):
            self.closed_as_time_passes(producer)
            return produce(*arguments)

        transport.produce = close_first
        report = producer.publish("t", [b"a", b"b"], **AWAY)
        self.assertEqual((0, 2), (report.delivered_count, len(report.failed + report.unknown)))
        self.assertTrue(self.warm_producer().retry(report, timeout=3600).ok)


class InterruptTest(CutShortCase):
    def test_the_next_flush_reports_messages_of_an_interrupted_flush(self):
        producer = self.warm_producer()
        producer.send("t", b"delivered")
        self.wait_until_settled(producer)
        self.broker.disconnect()
        producer.send("t", b"on its way")
        self.interrupted(producer, producer.flush)
        report = producer.flush(0)
        self.assertEqual((1, 1), (report.delivered_count, len(report.unknown)))

    def test_the_next_close_reports_messages_of_an_interrupted_close(self):
        producer = self.warm_producer()
        self.broker.disconnect()
        producer.send("t", b"on its way")
        self.interrupted(producer, producer.close)
        self.assertEqual(1, len(self.at_once(lambda: producer.close(0)).unknown))

    def test_messages_that_an_interrupted_retry_did_not_send_are_sent_by_the_next_retry(self):
        producer = self.crowded()
        report = producer.publish("t", [b"again"], **AWAY)
        self.interrupted(producer, lambda: producer.retry(report))
        self.broker.reconnect()
        self.assertTrue(self.at_once(lambda: producer.retry(report)).ok)
        self.assertEqual(1, self.values().count(b"again"))


class EndlessTest(CutShortCase):
    def test_repeated_retries_of_messages_in_flight_take_no_memory(self):
        producer = self.warm_producer()
        self.broker.disconnect()
        report = producer.publish("t", [b"a"], **AWAY)
        for _ in range(3):
            report = producer.retry(report, **AWAY)
        self.assertEqual({}, producer._table.waiters)
        self.broker.reconnect()
        self.assertTrue(producer.retry(report).ok)

    # Rule 7
    def test_a_listener_that_exits_is_counted_and_the_next_one_is_called(self):
        producer = self.warm_producer()
        received = threading.Event()
        producer.send("t", b"a", on_delivery=leave)
        producer.send("t", b"b", on_delivery=lambda delivery: received.set())
        self.assertTrue(received.wait(50))
        self.assertEqual(1, producer.health().failed_listeners)


def interrupt(*_arguments):
    raise KeyboardInterrupt


def leave(_delivery):
    raise SystemExit
