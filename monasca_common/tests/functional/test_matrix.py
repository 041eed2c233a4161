# SPDX-License-Identifier: Apache-2.0
"""A subset of the matrix environment with the oldest Kafka, which `run_tests.sh` downloads before the tests."""

import os
import subprocess
import sys

from oslotest import base

from monasca_common.devbroker.jars import JARS_VARIABLE, VERSION_VARIABLE
from monasca_common.tests.periodic import periodic

OLDEST_KAFKA = "3.9.2"
# oslotest gives every test an empty HOME; the downloaded jars are in the original HOME.
_HOME = os.environ.get("HOME", "")
_CONTRACTS = "monasca_common.tests.functional.kafka.test_contract_kafka"
_CLASSES = [f"{_CONTRACTS}.{name}" for name in ("KafkaTransactionTest", "ClassicPositionTest", "ConsumerProtocolTest")]
_JOB = "monasca_common.tests.functional.pipeline.test_pipeline_aggregate.GoldenTest"
_SECONDS = 290


@periodic("other versions; the normal run uses the default versions")
class OldestVersionsTest(base.BaseTestCase):
    def test_the_contracts_and_the_main_job_pass_with_the_oldest_versions(self):
        environ = {**os.environ, "HOME": _HOME, VERSION_VARIABLE: OLDEST_KAFKA, "OS_TEST_TIMEOUT": "200"}
        environ.pop(JARS_VARIABLE, None)
        environ.pop("KAFKA_OPTS", None)  # the archived classes of another version
        done = subprocess.run(
            [sys.executable, "-m", "unittest", *_CLASSES, _JOB],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env=environ,
            check=False,
        )
        self.assertEqual(0, done.returncode, done.stderr)
        # 4 tests of transactions, 10 of positions, the job, and one that detects that Kafka 3.9 lacks a group protocol.
        self.assertRegex(done.stderr, r"(?m)^Ran 16 tests in ")
        self.assertRegex(done.stderr, r"(?m)^OK \(expected failures=1\)$")
