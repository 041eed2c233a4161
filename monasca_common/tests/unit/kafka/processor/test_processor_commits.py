# SPDX-License-Identifier: Apache-2.0
"""Commits that a coordinator delays while the processor's loop waits for them."""

import math

from monasca_common.kafka.consumer.rebalance import RebalanceListener
from monasca_common.kafka.transport.memory import LoseAnswer
from monasca_common.tests.unit.kafka.processor.processor_case import ProcessorCase


class Witness(RebalanceListener):
    def __init__(self):
        self.lost_partitions = []

    def lost(self, partitions):
        self.lost_partitions.extend(partitions)


class UnansweredCommitTest(ProcessorCase):
    # Rule 14
    def test_a_commit_without_a_response_costs_no_membership_even_with_a_short_poll_interval(self):
        self.fill(b"1")
        # the first commit stores the start offset
        self.broker.inject("commit", LoseAnswer(math.inf), nth=2, count=None)
        listener = Witness()
        consumer = self.consumer(max_poll_interval_seconds=4, stop_timeout_seconds=2)
        consumer.listener = listener
        seen: list[bytes] = []
        running = self.start(lambda part: seen.extend(part.values), consumer=consumer)
        reported = running.processor.ignored_errors
        self.until(lambda: reported["CommitUnknown"] >= 3 or listener.lost_partitions, step=0.01)
        self.assertEqual(([], [b"1"]), (listener.lost_partitions, seen))
