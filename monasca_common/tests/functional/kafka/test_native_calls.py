# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

from oslotest import base

from monasca_common.tests.periodic import periodic


@periodic("test_native covers each call; this one looks for crashes, lost outcomes and growing memory")
class RandomCallsTest(base.BaseTestCase):
    def test_random_calls_neither_crash_nor_lose_an_outcome(self):
        command = [sys.executable, "-X", "faulthandler", "-m", "monasca_common.tests.functional.kafka.native_calls"]
        run = subprocess.run(
            [*command, "--minutes", "0.5"],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "PYTHONMALLOC": "malloc_debug"},
        )
        self.assertEqual(0, run.returncode, run.stdout + run.stderr)
