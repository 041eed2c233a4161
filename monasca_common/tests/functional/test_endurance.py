# SPDX-License-Identifier: Apache-2.0
"""The endurance tool as a child process.

``MONASCA_ENDURANCE_MINUTES``: the minutes of load, 3 by default; in 10 minutes each kind of fault occurs once.
"""

import os
import subprocess
import sys
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.tests.functional import nginx
from monasca_common.tests.periodic import periodic

TOOL = Path(__file__).parents[3] / "tools" / "endurance.py"
MINUTES = int(os.environ.get("MONASCA_ENDURANCE_MINUTES", "3"))
START_AND_JUDGEMENT_SECONDS = 1200


@periodic("each fault is tested with its service; this test runs all services for minutes")
class EnduranceTest(base.BaseTestCase):
    TIMEOUT_SCALING_FACTOR = 4 + MINUTES / 5

    def setUp(self):
        super().setUp()
        if nginx.program() is None:
            self.skipTest(nginx.MISSING)

    def test_nothing_is_lost_duplicated_or_leaked_with_a_fault_in_each_minute(self):
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        folder.chmod(0o755)  # PostgreSQL runs as another user if root starts it
        report = folder / "endurance.md"
        done = subprocess.run(
            [sys.executable, str(TOOL), "--minutes", str(MINUTES), "--report", str(report)],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=MINUTES * 60 + START_AND_JUDGEMENT_SECONDS,
        )
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("Verdict: clean", report.read_text())
        self.assertFalse(report.with_suffix(".run").exists())
