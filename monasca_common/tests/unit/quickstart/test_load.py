# SPDX-License-Identifier: Apache-2.0
import contextlib
import time

import psutil
from oslotest import base

from monasca_common.quickstart.load import PROCESS_NAME, OwnLoad

PATIENCE_SECONDS = 60


class OwnLoadTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.load = stack.enter_context(OwnLoad())

    def wait_for(self, condition):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_it_computes_and_rests_as_it_is_told(self):
        self.assertEqual(0.0, self.load.percent())
        self.load.work()
        self.wait_for(lambda: self.load.percent() > 0)
        self.load.rest()
        self.wait_for(lambda: self.load.percent() == 0)

    def test_it_has_a_name_of_its_own_and_ends_with_its_owner(self):
        process = psutil.Process(self.load._process.pid)
        self.assertEqual(PROCESS_NAME, process.name())
        self.load._process.stdin.close()  # as when its owner is killed
        self.assertEqual(0, self.load._process.wait(PATIENCE_SECONDS))
