# SPDX-License-Identifier: Apache-2.0
import math
import threading

from oslotest import base

from monasca_common.kafka.clock import SystemClock


class SystemClockTest(base.BaseTestCase):
    def test_a_wait_may_be_without_end(self):
        for endless in (None, math.inf, 1e300):
            self.assertTrue(SystemClock().wait(threading.Lock(), endless))

    def test_a_wait_whose_time_is_over_only_looks(self):
        taken = threading.Lock()
        with taken:
            self.assertFalse(SystemClock().wait(taken, -1))
