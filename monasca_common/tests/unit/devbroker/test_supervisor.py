# SPDX-License-Identifier: Apache-2.0
import signal
import sys
from pathlib import Path
from unittest import mock

from oslotest import base

from monasca_common.devbroker.supervisor import Supervisor


class SupervisorTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.supervisor = Supervisor()
        self.addCleanup(self.supervisor.close)
        log = Path(self.create_tempfiles([("log", "")])[0])
        self.pid = self.supervisor.start([sys.executable, "-c", "import time; time.sleep(60)"], log=log)

    def interrupted_poll(self):
        """Ctrl-C comes when the request is sent, and its answer is not read yet."""
        pipe = mock.Mock(readline=mock.Mock(side_effect=KeyboardInterrupt))
        with mock.patch.object(self.supervisor._child, "stdout", pipe):
            self.assertRaises(KeyboardInterrupt, self.supervisor.poll, self.pid)

    def test_an_interrupted_request_leaves_its_answer_to_nobody(self):
        self.interrupted_poll()
        self.supervisor.signal(self.pid, signal.SIGKILL)
        while (status := self.supervisor.poll(self.pid)) is None:
            pass
        self.assertEqual(-signal.SIGKILL, status)

    def test_what_is_started_after_an_interrupt_has_its_own_process_id(self):
        self.interrupted_poll()
        self.interrupted_poll()
        log = Path(self.create_tempfiles([("other", "")])[0])
        other = self.supervisor.start([sys.executable, "-c", "raise SystemExit(7)"], log=log)
        self.assertNotEqual(self.pid, other)
        while (status := self.supervisor.poll(other)) is None:
            pass
        self.assertEqual(7, status)
