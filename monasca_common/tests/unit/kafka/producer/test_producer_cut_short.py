# SPDX-License-Identifier: Apache-2.0
"""A close, an interrupt or a listener at the wrong moment: nobody waits longer for it, and nothing is forgotten."""

import threading
from typing import Any

from monasca_common.kafka.errors import ClosedError, DeliveryAbandoned
from monasca_common.kafka.message import Record
from monasca_common.tests.unit.kafka.producer.producer_case import AWAY, ProducerCase

FULL = 3


class CutShortCase(ProducerCase):
    def crowded(self):
        """A producer without room, whose broker is away."""
        producer = self.warm_producer(budget_messages=FULL)
        self.broker.disconnect()
        producer.publish("t", [Record(b"x")] * FULL, **AWAY)
        return producer

    def interrupted(self, producer, call):
        """Ctrl-C strikes ``call`` as it waits."""
        wait, producer._poller.wait = producer._poller.wait, interrupt
        self.assertRaises(KeyboardInterrupt, call)
        producer._poller.wait = wait


class CloseTest(CutShortCase):
    def meanwhile_closed(self, producer, call):
        """What ``call``, which waits for room, comes to when the producer is closed under it."""
        asking = threading.Event()
        ask = producer._ledger.ask_for_room

        def asked(messages, size):
            room = ask(messages, size)
            asking.set()
            return room

        producer._ledger.ask_for_room = asked
        results = []

        def caller():
            try:
                results.append(call())
            except Exception as error:
                results.append(error)

        threads = [threading.Thread(target=caller, daemon=True), threading.Thread(target=producer.close, args=(0,))]
        threads[0].start()
        self.assertTrue(asking.wait(50))
        threads[1].start()
        while any(thread.is_alive() for thread in threads):
            self.clock.advance(1)
            threads[0].join(0.001)
        return results[0]

    # Rule 9
    def test_a_publish_that_waits_for_room_is_told_that_it_was_not_sent(self):
        producer = self.crowded()
        report = self.meanwhile_closed(producer, lambda: producer.publish("t", [b"late"], timeout=3600))
        self.assertIsInstance(report.failed[0].error, DeliveryAbandoned)

    def test_a_send_that_waits_for_room_is_told_that_the_producer_is_closed(self):
        producer = self.crowded()
        self.assertIsInstance(self.meanwhile_closed(producer, lambda: producer.send("t", b"late")), ClosedError)

    def test_a_send_that_came_before_it_and_is_delivered_during_it_is_told_once(self):
        producer = self.warm_producer()
        watch, route = producer._ledger.watch, producer._client.ready["t"]
        served = threading.Thread(target=producer._poller.poll_in_passing)

        def late(pendings):
            producer._ledger.watch = watch
            pendings = list(pendings)
            producer._client.ready["t"] = route  # as who looked for it just before the close has it
            producer.send("t", b"late")
            served.start()
            served.join()
            return watch(pendings)

        producer._ledger.watch = late
        self.assertEqual(1, self.at_once(lambda: producer.close(3600)).delivered_count)

    def test_a_close_within_a_close_as_by_a_signal_handler_closes_the_client_once(self):
        producer = self.warm_producer()
        closed = []
        [transport] = producer._client.limits.transports()
        transport.close = closed.append
        abandon = producer._client.limits.abandon

        def signalled():
            producer._client.limits.abandon = abandon
            producer.close(0)
            abandon()

        producer._client.limits.abandon = signalled
        producer.close(0)
        self.assertEqual(1, len(closed))

    # Rule 9
    def test_a_listener_that_does_not_return_does_not_hold_it_up(self):
        producer = self.warm_producer()
        called, released = threading.Event(), threading.Event()
        self.addCleanup(released.set)

        def listener(delivery):
            called.set()
            released.wait(60)

        producer.send("t", b"a", on_delivery=listener)
        self.assertTrue(called.wait(50))
        self.assertTrue(self.at_once(lambda: producer.close(0)).ok)


class Outstanding(dict[Any, None]):
    """A book that calls ``before`` and ``after`` as the next message enters."""

    def __init__(self, before, after):
        self.calls = before, after

    def __setitem__(self, pending, value):
        calls, self.calls = self.calls, (None, None)
        if calls[0] is not None:
            calls[0]()
        super().__setitem__(pending, value)
        if calls[1] is not None:
            calls[1]()


class SendRacingCloseTest(CutShortCase):
    """What `send` returned is told by the close's report; what the close does not tell, `send` refuses."""

    def sent_while_closed(self, *, before=None, after=None):
        """The producer, and what its `send` came to, during which it was closed."""
        producer = self.warm_producer()
        reports = []

        def close():
            thread = threading.Thread(target=lambda: reports.append(producer.close(0)))
            thread.start()
            while thread.is_alive():
                self.clock.advance(1)
                thread.join(0.001)

        book = Outstanding(before and close, after and close)
        producer._ledger.outstanding = producer._ledger.budget._outstanding = book
        try:
            came_to = producer.send("t", b"late")
        except ClosedError as error:
            came_to = error
        self.assertEqual((0, 0), (producer.health().outstanding_messages, producer.health().outstanding_bytes))
        return reports[0], came_to

    # Rule 9
    def test_one_that_enters_after_the_close_has_looked_is_refused(self):
        report, came_to = self.sent_while_closed(before=True)
        self.assertIsInstance(came_to, ClosedError)
        self.assertEqual((0, ()), (report.delivered_count, report.failed + report.unknown))
        self.assertEqual([], self.values())

    # Rule 9
    def test_one_that_entered_before_is_told_by_the_close(self):
        report, came_to = self.sent_while_closed(after=True)
        self.assertEqual([came_to], [delivery.message_id for delivery in report.failed + report.unknown])
        self.assertEqual([], self.values())


class InterruptTest(CutShortCase):
    def test_what_an_interrupted_flush_cannot_tell_the_next_one_tells(self):
        producer = self.warm_producer()
        producer.send("t", b"delivered")
        producer._poller.poll_in_passing()
        self.broker.disconnect()
        producer.send("t", b"on its way")
        self.interrupted(producer, producer.flush)
        report = producer.flush(0)
        self.assertEqual((1, 1), (report.delivered_count, len(report.unknown)))

    def test_what_an_interrupted_close_cannot_tell_the_next_one_tells(self):
        producer = self.warm_producer()
        self.broker.disconnect()
        producer.send("t", b"on its way")
        self.interrupted(producer, producer.close)
        self.assertEqual(1, len(self.at_once(lambda: producer.close(0)).unknown))

    def test_what_an_interrupted_retry_did_not_send_the_next_one_sends(self):
        producer = self.crowded()
        report = producer.publish("t", [b"again"], **AWAY)
        self.interrupted(producer, lambda: producer.retry(report))
        self.broker.reconnect()
        self.assertTrue(self.at_once(lambda: producer.retry(report)).ok)
        self.assertEqual(1, self.values().count(b"again"))


class EndlessTest(CutShortCase):
    def test_asking_again_and_again_for_what_is_on_its_way_takes_no_memory(self):
        producer = self.warm_producer()
        self.broker.disconnect()
        report = producer.publish("t", [b"a"], **AWAY)
        [pending] = producer._ledger.outstanding
        watchers = len(pending.watchers)
        for _ in range(3):
            report = producer.retry(report, **AWAY)
        self.assertEqual(watchers, len(pending.watchers))
        self.broker.reconnect()
        self.assertTrue(producer.retry(report).ok)

    # Rule 7
    def test_a_listener_that_exits_is_counted_and_the_next_one_hears(self):
        producer = self.warm_producer()
        heard = threading.Event()
        producer.send("t", b"a", on_delivery=leave)
        producer.send("t", b"b", on_delivery=lambda delivery: heard.set())
        self.assertTrue(heard.wait(50))
        self.assertEqual(1, producer.health().failed_listeners)


def interrupt(*_arguments):
    raise KeyboardInterrupt


def leave(_delivery):
    raise SystemExit
