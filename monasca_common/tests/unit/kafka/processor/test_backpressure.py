# SPDX-License-Identifier: Apache-2.0
import threading

from oslotest import base

from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.processor.queues import Backpressure, Load
from monasca_common.tests.unit.kafka.processor.processor_case import IN, ProcessorCase

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def load(a=(), b=()):
    return {A: Load(*a), B: Load(*b)}


class BackpressureTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.backpressure = Backpressure(max_messages=200, max_bytes=2000)

    def paused(self, blocked=(), **loads):
        self.backpressure.paused = self.backpressure.wanted({A, B}, load(**loads), blocked)
        return self.backpressure.paused

    # Rule 19
    def test_nothing_is_paused_while_half_of_the_room_is_free(self):
        self.assertEqual(set(), self.paused(a=(99, 999)))
        self.assertFalse(self.backpressure.is_full(load(a=(99, 999))))

    # Rule 19
    def test_a_partition_over_its_share_is_paused_and_the_other_continues(self):
        self.assertEqual({A}, self.paused(a=(60, 0), b=(40, 0)))

    # Rule 19
    def test_a_partition_is_paused_for_its_bytes(self):
        self.assertEqual({B}, self.paused(a=(1, 499), b=(1, 501)))

    def test_a_partition_is_resumed_only_below_half_of_its_share(self):
        self.paused(a=(100, 0))
        self.assertEqual({A}, self.paused(a=(25, 0)))
        self.assertEqual(set(), self.paused(a=(24, 0)))

    def test_a_partition_with_too_much_uncommitted_work_is_paused_even_if_its_buffer_is_empty(self):
        self.assertEqual({A}, self.paused(blocked={A}))
        self.assertEqual(set(), self.paused())

    # Rule 19
    def test_the_buffer_is_full_once_its_shared_half_is_full(self):
        self.assertTrue(self.backpressure.is_full(load(a=(60, 0), b=(40, 0))))

    # Rule 19
    def test_all_partitions_together_stay_within_the_limit(self):
        self.paused(a=(100, 0))
        self.assertEqual({A, B}, self.paused(a=(100, 0), b=(50, 0)))

    # Rule 19
    def test_a_revoked_partition_is_not_paused_when_it_is_assigned_again(self):
        self.paused(a=(100, 0))
        self.backpressure.forget([A])
        self.assertEqual(set(), self.backpressure.paused)


class ProcessingTest(ProcessorCase):
    # Rule 19
    def test_a_backlog_of_a_slow_handler_is_not_read_into_memory(self):
        self.fill(*[b"x" * 1000] * 1000)
        open_gate = threading.Event()

        def handler(part):
            open_gate.wait(50)

        running = self.start(handler, settings={"batch_size": 10, "buffer_bytes": 60_000})
        loads = running.processor._lanes.loads
        self.until(lambda: IN in loads() and loads()[IN].messages >= 20)
        self.pass_time(20)
        self.assertLessEqual(loads()[IN].messages, 60)
        open_gate.set()
        self.until(lambda: self.committed() == 1000)

    # Rule 13
    def test_the_span_of_uncommitted_work_is_bounded(self):
        self.fill(*[b"%d" % number for number in range(500)])
        open_gate = threading.Event()

        def handler(message):
            if message.offset == 0:
                open_gate.wait(50)

        running = self.start(
            handler,
            threads=2,
            order="key",
            per_message=True,
            settings={"batch_size": 20, "max_uncommitted_messages": 100},
        )

        def span():
            tracked = running.processor._tracker._partitions.get(IN)
            return 0 if tracked is None else tracked.span

        self.until(lambda: span() >= 100)
        self.pass_time(20)
        self.assertLessEqual(span(), 120)
        open_gate.set()
        self.until(lambda: self.committed() == 500)
