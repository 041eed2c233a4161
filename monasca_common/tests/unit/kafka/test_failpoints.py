# SPDX-License-Identifier: Apache-2.0
import signal
import subprocess
import sys

from oslotest import base

from monasca_common.kafka import failpoints
from monasca_common.kafka.errors import ConfigurationError

PASS_TWICE = "from monasca_common.kafka.failpoints import fail_point; fail_point('p'); print('once'); fail_point('p')"


class FailPointTest(base.BaseTestCase):
    def test_an_inactive_fail_point_has_no_effect(self):
        failpoints.fail_point("nowhere")

    def test_an_armed_point_raises_at_its_pass(self):
        with failpoints.armed("here", "raise@2"):
            failpoints.fail_point("here")
            failpoints.fail_point("elsewhere")
            self.assertRaises(failpoints.FailPointReached, failpoints.fail_point, "here")
        failpoints.fail_point("here")

    def test_the_environment_arms_a_process_to_kill_itself(self):
        environment = {failpoints.ENVIRONMENT_VARIABLE: "p=kill@2"}
        done = subprocess.run(
            [sys.executable, "-c", PASS_TWICE], env=environment, capture_output=True, timeout=60, check=False
        )
        self.assertEqual(-signal.SIGKILL, done.returncode, done.stderr.decode())

    def test_an_unknown_action_is_refused(self):
        for action in ("explode", "sleep:x", "kill@0"):
            self.assertRaises(ConfigurationError, failpoints.arm, "here", action)
