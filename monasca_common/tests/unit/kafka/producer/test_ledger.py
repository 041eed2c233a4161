# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.errors import DeliveryTimeout, TransportError
from monasca_common.kafka.producer.in_flight import Bulk
from monasca_common.kafka.producer.ledger import Ledger
from monasca_common.kafka.producer.outcome import Outcome
from monasca_common.kafka.producer.outgoing import MessageIds, Outgoing
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.kafka.transport.memory import VirtualClock

REJECTED = TransportError("no", code=19, name="NOT_ENOUGH_REPLICAS")


class LedgerCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.clock.advance(1000)
        self.ledger = Ledger(self.clock, lambda error: error, budget_messages=4, budget_bytes=10_000)
        self.outgoing = Outgoing(ProducerSettings(ConnectionSettings("memory")), self.ledger, MessageIds())

    def entered(self, count=1):
        bulk = self.outgoing.bulk("t", [b"x"] * count, None, ())
        self.assertTrue(self.ledger.enter(bulk))
        return bulk.latch, bulk.pendings


class TroubleTest(LedgerCase):
    def outcome_of_a_rejection(self):
        _, [pending] = self.entered()
        pending(REJECTED, None)
        return pending.outcome

    def test_a_rejection_without_trouble_is_failed(self):
        self.assertIs(Outcome.FAILED, self.outcome_of_a_rejection())

    def test_trouble_after_a_message_was_queued_makes_its_rejection_unknown(self):
        _, [pending] = self.entered()
        self.ledger.note_trouble(TransportError("cut"))
        pending(REJECTED, None)
        self.assertIs(Outcome.UNKNOWN, pending.outcome)

    # Rule 5
    def test_trouble_that_the_client_may_keep_silent_about_counts_for_half_a_minute(self):
        self.ledger.note_trouble(TransportError("cut"))
        self.clock.advance(34)
        self.ledger.tick()
        self.assertIs(Outcome.UNKNOWN, self.outcome_of_a_rejection())
        self.clock.advance(2)
        self.ledger.tick()
        self.assertIs(Outcome.FAILED, self.outcome_of_a_rejection())


class RoomTest(LedgerCase):
    # Rule 8
    def test_a_bulk_enters_whole_or_not_at_all(self):
        self.entered(3)
        self.assertFalse(self.ledger.enter(self.outgoing.bulk("t", [b"x"] * 2, None, ())))
        self.assertEqual(3, len(self.ledger.outstanding))

    def test_settling_gives_the_room_back(self):
        latch, pendings = self.entered(4)
        self.assertEqual(sum(pending.size for pending in pendings), self.ledger.budget.used_bytes)
        for pending in pendings:
            pending(REJECTED, None)
        self.assertTrue(latch.open)
        self.assertEqual(0, self.ledger.budget.used_bytes)
        self.entered(4)

    def test_what_waited_for_room_is_older_than_what_was_entered_before_it(self):
        waited = self.outgoing.bulk("t", [b"x"], None, ())
        self.clock.advance(5)
        self.ledger.tick()
        self.entered()
        self.assertEqual(0, self.ledger.oldest_age())
        self.ledger.enter(waited)
        self.assertEqual(5, self.ledger.oldest_age())

    def test_room_is_offered_once_a_quarter_is_free(self):
        _, pendings = self.entered(4)
        room = self.ledger.ask_for_room(1, 10)
        self.assertFalse(room.open)
        pendings[0](REJECTED, None)
        self.assertTrue(room.open)

    def test_room_made_before_it_was_asked_for_is_offered_at_once(self):
        self.assertTrue(self.ledger.ask_for_room(1, 10).open)


class SettleTest(LedgerCase):
    def test_a_late_answer_does_not_change_an_outcome_that_was_told(self):
        _, [pending] = self.entered()
        self.ledger.settle([pending], Outcome.UNKNOWN, DeliveryTimeout("given up"))
        pending(REJECTED, None)
        self.assertIs(Outcome.UNKNOWN, pending.outcome)
        self.assertEqual(0, self.ledger.budget.used_bytes)

    def test_a_doubtful_message_never_surely_fails(self):
        _, [pending] = self.entered()
        self.ledger.settle([pending], Outcome.UNKNOWN, DeliveryTimeout("given up"))
        again = self.outgoing.again(pending)
        self.ledger.enter(Bulk([again]))
        again(REJECTED, None)
        self.assertIs(Outcome.UNKNOWN, again.outcome)
        self.assertEqual(pending.message_id, again.message_id)

    def test_a_latch_hung_on_what_is_settled_is_open(self):
        _, [pending] = self.entered()
        self.ledger.settle([pending], Outcome.UNKNOWN, DeliveryTimeout("given up"))
        self.assertTrue(self.ledger.watch([pending]).open)
