# SPDX-License-Identifier: Apache-2.0
"""The endurance tool as a child process, on a machine that runs nothing else.

``MONASCA_STRESS_ENDURANCE_MINUTES``: the minutes of load, 10 by default, in which each kind of fault occurs once.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.tests.functional import nginx

TOOL = Path(__file__).parents[3] / "tools" / "endurance.py"
MINUTES = int(os.environ.get("MONASCA_STRESS_ENDURANCE_MINUTES", "10"))
START_AND_JUDGEMENT_SECONDS = 1200
KILLED_AFTER_SECONDS = 40.0


class EnduranceCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        if nginx.PROGRAM is None:
            self.skipTest(nginx.MISSING)
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        folder.chmod(0o755)  # PostgreSQL runs as another user if root starts it
        self.report = folder / "endurance.md"
        self.state = folder / "endurance.run" / "state.json"
        self.log = folder / "log"
        self.addCleanup(subprocess.run, ["umount", "-l", self.state.parent / "disk"], capture_output=True, check=False)

    def start(self, minutes):
        command = [sys.executable, str(TOOL), "--minutes", str(minutes), "--report", str(self.report)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def assert_clean(self, process, minutes):
        status = process.wait(minutes * 60 + START_AND_JUDGEMENT_SECONDS)
        self.assertEqual(0, status, self.log.read_text())
        self.assertIn("Verdict: clean", self.report.read_text())
        self.assertFalse(self.state.parent.exists())


class EnduranceTest(EnduranceCase):
    def test_nothing_is_lost_duplicated_or_leaked_with_a_fault_in_each_minute(self):
        self.assert_clean(self.start(MINUTES), MINUTES)


class ResumeTest(EnduranceCase):
    def test_a_killed_run_resumes_with_its_counts(self):
        killed = self.start(2)
        deadline = time.monotonic() + START_AND_JUDGEMENT_SECONDS
        while not self.state.exists() or json.loads(self.state.read_text())["elapsed"] < KILLED_AFTER_SECONDS:
            self.assertIsNone(killed.poll(), self.log.read_text())
            self.assertLess(time.monotonic(), deadline, self.log.read_text())
            time.sleep(0.5)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        self.assert_clean(self.start(2), 2)
        self.assertIn("in 2 pieces", self.report.read_text())
