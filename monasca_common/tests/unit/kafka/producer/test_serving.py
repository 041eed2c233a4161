# SPDX-License-Identifier: Apache-2.0
"""The serving thread waits briefly for callers that usually return together, and limits its flushes."""

from functools import partial
from unittest import mock

from oslotest import base

from monasca_common.kafka.producer import serving
from monasca_common.kafka.producer.serving import Serving
from monasca_common.kafka.producer.table import Waiter
from monasca_common.kafka.transport.base import Outcomes
from monasca_common.kafka.transport.producer_clients import ProducerClients


class ServingCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.patch(Serving, "start", lambda serving: None)
        # Otherwise the millisecond could pass on a busy machine.
        self.patch(serving, "_REAL_TIME", mock.Mock(monotonic=mock.Mock(return_value=1000.0)))
        self.transport = mock.Mock()
        self.table = mock.MagicMock(waiters={}, due=())
        self.table.in_flight.return_value = (0, 0)
        self.clients = mock.Mock(tap=None)
        self.clients.in_use.return_value = [self.transport]
        self.clients.collect = partial(ProducerClients.collect, self.clients)
        self.serving = Serving(self.table, self.clients, mock.Mock())
        self.serving._wake = mock.Mock(wait=self.wait)
        self.waits = []

    def wait(self, clock, seconds):
        """Add a caller each time the thread waits."""
        self.waits.append(seconds)
        self.come(1)

    def come(self, callers):
        self.table.waiters |= {Waiter(lambda: False): None for _ in range(callers)}


class TestReturningCallers(ServingCase):
    def collect_for(self, callers):
        """Let ``callers`` wait, and release all of them with the next outcomes."""
        self.come(callers)
        self.serving._collect()
        self.table.waiters.clear()

    def test_the_next_flush_waits_until_all_callers_have_returned(self):
        self.collect_for(3)
        self.serving._wait_for_callers()
        self.assertEqual(3, len(self.waits))
        self.assertLessEqual(max(self.waits), 0.001)

    def test_a_late_caller_does_not_delay_other_callers(self):
        self.collect_for(3)
        self.serving._return_deadline = 1000.0
        self.come(1)
        self.serving._wait_for_callers()
        self.assertEqual([], self.waits)

    def test_a_woken_caller_counts_as_returned_only_when_its_call_ends(self):
        self.collect_for(1)
        self.come(1)
        for waiter in self.table.waiters:
            waiter.over = True
        self.serving._wait_for_callers()
        self.assertEqual(1, len(self.waits))

    def test_sends_are_polled_and_wait_for_no_caller(self):
        self.collect_for(0)
        self.serving._wait_for_callers()
        self.assertEqual([], self.waits)
        self.transport.poll.assert_called_once_with(0)
        self.transport.flush.assert_not_called()

    def test_without_a_client_there_is_nothing_to_collect(self):
        self.clients.in_use.return_value = []
        self.collect_for(0)
        self.transport.poll.assert_not_called()

    def test_a_stop_ends_the_wait_for_callers_and_no_sleep_follows(self):
        self.collect_for(3)
        self.serving._stopping = True
        self.serving._turn()
        self.assertEqual([], self.waits)


class TestFlushes(ServingCase):
    """Without outcomes and new callers, the thread mostly polls, because a flush can make librdkafka use a CPU core."""

    def setUp(self):
        super().setUp()
        self.transport.queued.return_value = 1
        self.transport.flush.return_value = self.transport.poll.return_value = Outcomes()
        self.come(1)

    def collect(self):
        """Collect outcomes, and return whether it was with a flush."""
        before = self.transport.flush.call_count
        self.serving._collect()
        return self.transport.flush.call_count > before

    def test_after_flushes_without_outcomes_it_polls_for_the_same_time(self):
        self.assertEqual([True] * 4 + [False] * 3, [self.collect() for _ in range(7)])
        self.assertEqual(self.transport.flush.call_args, self.transport.poll.call_args)

    def test_outcomes_permit_further_flushes(self):
        for outcomes in (Outcomes(sequences=[1]), Outcomes(undelivered=[mock.Mock()])):
            self.transport.poll.return_value = outcomes
            self.assertEqual([True] * 4 + [False], [self.collect() for _ in range(5)])

    def test_a_new_caller_permits_further_flushes(self):
        for _ in range(5):
            self.collect()
        self.serving._clock = mock.Mock(monotonic=mock.Mock(return_value=0.0))
        self.assertFalse(self.serving.wait(lambda: False, 0.0))
        self.assertTrue(self.collect())

    def test_a_tenth_of_a_second_permits_one_flush(self):
        for _ in range(5):
            self.collect()
        for seconds, flushes in ((0.099, False), (0.1, True), (0.1, False)):
            serving._REAL_TIME.monotonic.return_value = 1000.0 + seconds
            self.assertEqual(flushes, self.collect())

    def test_a_client_without_messages_delays_no_other_client(self):
        self.transport.queued.return_value = 0
        self.collect()
        self.transport.flush.assert_called_once_with(0)
