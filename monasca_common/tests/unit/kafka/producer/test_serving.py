# SPDX-License-Identifier: Apache-2.0
"""The serving thread waits briefly for callers that usually return together."""

from functools import partial
from unittest import mock

from oslotest import base

from monasca_common.kafka.producer import serving
from monasca_common.kafka.producer.serving import Serving
from monasca_common.kafka.producer.table import Waiter
from monasca_common.kafka.transport.producer_clients import ProducerClients


class TestReturningCallers(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.patch(Serving, "start", lambda serving: None)
        # Otherwise the millisecond could pass on a busy machine.
        self.patch(serving, "_REAL_TIME", mock.Mock(monotonic=mock.Mock(return_value=1000.0)))
        self.transport = mock.Mock()
        self.table = mock.Mock(waiters={}, due=())
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
