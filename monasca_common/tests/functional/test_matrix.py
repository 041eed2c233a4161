# SPDX-License-Identifier: Apache-2.0
"""The shorter form of ``tox -e matrix``: the oldest of everything. What it needs is fetched before the tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

from oslotest import base

from monasca_common.tests.periodic import periodic

# oslotest gives every test an empty HOME; what was fetched is in the one from before.
_HOME = os.environ.get("HOME", "")
_MATRIX = Path(__file__).parents[3] / "tools" / "matrix.py"
_CONTRACTS = ("KafkaTransactionTest", "ClassicPositionTest", "ConsumerProtocolTest")
_STEP_SECONDS, _SECONDS = "200", 290


@periodic("other versions; the unit tests cover the tool")
class OldestVersionsTest(base.BaseTestCase):
    def test_the_contracts_and_the_main_job_pass_with_the_oldest_versions(self):
        command = [sys.executable, str(_MATRIX), "oldest", "--json", "--timeout", _STEP_SECONDS]
        environ = {**os.environ, "HOME": _HOME}
        done = subprocess.run(
            [*command, "--contracts", *_CONTRACTS],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env=environ,
            check=False,
        )
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        [outcome] = json.loads(done.stdout)
        self.assertEqual("3.9", outcome["cell"]["kafka"].rpartition(".")[0])
        contracts = outcome["contracts"]
        # 4 of transactions, 12 of positions; that Kafka 3.9 lacks the protocol consumer is found, and not assumed.
        self.assertEqual((0, 0, 1), (contracts["failed"], contracts["skipped"], contracts["lacking"]), done.stderr)
        self.assertGreaterEqual(contracts["passed"], 16)
        self.assertEqual((1, 0), (outcome["job"]["passed"], outcome["job"]["failed"]))
