# SPDX-License-Identifier: Apache-2.0
"""The requests of a transaction to the client and their order, with responses that no real broker gives on demand."""

import threading

from oslotest import base

from monasca_common.kafka.errors import (
    ClosedError,
    FatalError,
    FencedError,
    RetriableError,
    StaleCommit,
    TransactionError,
    TransportError,
    WrongType,
)
from monasca_common.kafka.message import OffsetAndEpoch, TopicPartition
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.kafka.transaction import Transaction
from monasca_common.kafka.transport.memory import VirtualClock

INPUTS = {TopicPartition("in", 0): OffsetAndEpoch(1, 7)}
LATE = RetriableError("no response", name="_TIMED_OUT")
SECONDS = 60


class Client:
    """Producer, clients, transport and consumer in one object: records calls, and fails on demand."""

    settings = ProducerSettings(ConnectionSettings("nowhere:9092"), transaction_timeout_seconds=SECONDS)

    def __init__(self):
        self.clock = VirtualClock()
        self.asked = []
        self.commits = []  # the errors of the attempts to commit
        self.aborts = []  # and to abort
        self.seeks = []
        self.abort_is_due = False
        self.open_transaction = lambda: None
        self.main, self.tap = self, None
        self.generation = 1
        self.stale = None
        self.taken_between = False  # the partitions that the consumer owns, between two requests of a transaction

    def refuse_waiting(self):
        self.asked.append("refuse")

    def settle_all(self, error):
        self.asked.append("settle")

    def begin_transaction(self):
        self.asked.append("begin")

    def flush(self, timeout):
        self.asked.append("flush")
        self.generation += 1  # the group has rebalanced in the meantime
        return DeliveryReport({})

    def next_offsets(self, what):
        if self.stale is not None:
            raise self.stale
        self.take_away()
        return {partition: at.next_offset for partition, at in what.items()}

    def group_metadata(self):
        generation = self.generation
        self.take_away()
        return generation

    def take_away(self):
        """Rebalance the group: from the next request on, the generation is new and the inputs have another owner."""
        if self.taken_between:
            self.stale = StaleCommit("revoked")
            self.generation += 1

    def send_offsets(self, offsets, group_metadata, timeout):
        self.asked.append(("offsets", list(offsets.values()), group_metadata))

    def commit_transaction(self, timeout):
        self.asked.append("commit")
        self.clock.advance(timeout / 4)
        if self.commits:
            raise self.commits.pop(0)

    def abort_transaction(self, timeout):
        self.asked.append("abort")
        error = self.aborts.pop(0) if self.aborts else None
        if error is not None:
            raise error

    def seek_to_committed(self):
        self.asked.append("seek")
        if self.seeks:
            raise self.seeks.pop(0)


class TransactionTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.client = Client()

    def transaction(self):
        client = self.client
        return Transaction(client, client, threading.Lock(), client.refuse_waiting, client.settle_all)

    def transact(self):
        with self.transaction() as transaction:
            transaction.commit_offsets(self.client, INPUTS)

    # Rule 20
    def test_offsets_are_sent_with_the_current_group_metadata(self):
        self.transact()
        self.assertEqual(["begin", "flush", ("offsets", [7], 2), "commit"], self.client.asked)

    # Rule 20
    def test_offsets_of_revoked_partitions_are_never_sent_under_the_next_generation(self):
        self.client.taken_between = True
        self.assertRaises(TransactionError, self.transact)
        self.assertEqual([], [sent for sent in self.client.asked if sent[0] == "offsets"])

    # Rule 20
    def test_a_commit_whose_response_is_late_is_requested_again_and_not_aborted(self):
        self.client.commits = [LATE, LATE]
        self.transact()
        self.assertEqual(["commit"] * 3, self.client.asked[3:])

    def test_a_commit_that_never_gets_a_response_is_unknown_and_neither_aborted_nor_read_again(self):
        self.client.commits = [LATE] * 1000
        error = self.assertRaises(FatalError, self.transact)
        self.assertIn("it is unknown whether it was committed", str(error))
        self.assertEqual({"commit"}, set(self.client.asked[3:]))
        self.assertTrue(SECONDS <= self.client.clock.monotonic() < 2 * SECONDS)

    # Rule 20
    def test_a_requested_commit_is_unknown_if_its_client_is_closed_or_fenced_before_the_response(self):
        for end in (ClosedError("closed"), FencedError("another", name="_FENCED")):
            self.client.asked.clear()
            self.client.commits = [LATE, end]
            error = self.assertRaises(FatalError, self.transact)
            self.assertIn("it is unknown whether it was committed", str(error))
            self.assertEqual(["commit", "commit"], self.client.asked[-2:])
            self.client.abort_is_due = False

    def test_inputs_of_a_former_assignment_abort_the_transaction_and_are_read_again(self):
        self.client.stale = StaleCommit("revoked")
        self.assertRaises(TransactionError, self.transact)
        self.assertEqual(["begin", "flush", "flush", "refuse", "abort", "settle", "seek"], self.client.asked)

    def test_a_fenced_producer_does_not_abort(self):
        self.client.commits = [FencedError("another", name="_FENCED")]
        self.assertRaises(FencedError, self.transact)
        self.assertNotIn("abort", self.client.asked)

    def test_an_abort_without_a_response_is_requested_again_before_the_next_transaction(self):
        self.client.aborts = [LATE, LATE]
        self.assertRaises(ZeroDivisionError, self.break_down)
        self.assertEqual(["begin", "flush", "refuse", "abort", "seek"], self.client.asked)
        error = self.assertRaises(TransactionError, self.transact)
        self.assertIn("has not ended", str(error))
        self.assertEqual(["refuse", "abort"], self.client.asked[5:])
        self.transact()
        self.assertEqual(["refuse", "abort", "settle", "flush", "begin"], self.client.asked[7:12])
        self.transact()
        self.assertEqual(3, self.client.asked.count("abort"))

    def test_the_next_transaction_works_after_ctrl_c_while_a_commit_was_awaited(self):
        ended = TransportError("not valid in state Ready", name="_STATE")  # the error of an abort after a commit
        again = ["refuse", "abort", "settle", "flush", "begin"]
        for aborts, asked in (([ended], ["begin"]), ([None], ["begin"]), ([LATE, ended], again)):
            client = self.client = Client()
            client.commits, client.aborts = [KeyboardInterrupt()], list(aborts)
            self.assertRaises(KeyboardInterrupt, self.transact)
            settled = [] if aborts[0] is LATE else ["settle"]
            self.assertEqual(["commit", "flush", "refuse", "abort", *settled, "seek"], client.asked[3:])
            self.transact()
            self.assertEqual(asked, client.asked[8 + len(settled) : -3])

    def test_a_transaction_that_an_interrupt_left_open_is_aborted_by_the_next_one(self):
        self.client.commits, self.client.aborts = [KeyboardInterrupt()], [KeyboardInterrupt()]
        self.assertRaises(KeyboardInterrupt, self.transact)
        self.transact()
        self.assertEqual(["refuse", "abort", "settle", "flush", "begin"], self.client.asked[8:-3])

    def test_a_consumer_that_cannot_seek_back_is_reported(self):
        self.client.seeks = [LATE]
        error = self.assertRaises(TransactionError, self.break_down)
        self.assertIn("seek_to_committed", str(error))

    def test_a_consumer_that_cannot_take_part_is_refused_and_the_transaction_is_aborted(self):
        class Foreign:
            def poll(self, timeout):
                return None

        def commit_for_another():
            with self.transaction() as transaction:
                transaction.commit_offsets(Foreign(), INPUTS)

        error = self.assertRaises(WrongType, commit_for_another)
        self.assertEqual("commit_offsets takes a KafkaConsumer of this library, not Foreign", str(error))
        self.assertEqual(["begin", "flush", "refuse", "abort", "settle"], self.client.asked)

    def break_down(self):
        with self.transaction() as transaction:
            transaction.commit_offsets(self.client, INPUTS)
            raise ZeroDivisionError
