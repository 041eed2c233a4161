# SPDX-License-Identifier: Apache-2.0
"""``tools/environment.sh``, with a script instead of Python that records its arguments, and the compatibility of
the requirements that it installs together."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.kafka.extras import DISTRIBUTION, missing_distributions

SCRIPT = Path(__file__).parents[3] / "tools" / "environment.sh"
SOURCES = "upper-constraints.txt", "requirements.txt", "setup.cfg", "setup.py", "pyproject.toml"
NATIVE = "monasca_common/kafka/transport/native"
_OF_OTHER_ENVIRONMENTS = {"docs", "lint", "remote", "tempest"}
_PYTHON = """#!/bin/sh
echo "$*" >> calls
if [ "$1 $2" = "-m venv" ]; then touch .venv/bin/pip; chmod +x .venv/bin/pip; fi
"""


class EnvironmentTest(base.BaseTestCase):
    def test_an_environment_without_pip_is_recreated(self):
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / NATIVE).mkdir(parents=True)
        for name in (*SOURCES, f"{NATIVE}/client.h"):
            (folder / name).touch()
        python = folder / ".venv" / "bin" / "python"  # left by an interrupted attempt
        python.write_text(_PYTHON)
        python.chmod(0o755)
        for _ in range(2):
            command = ["bash", "-euc", f"source {SCRIPT}; make_environment api"]
            subprocess.run(command, cwd=folder, env={"PATH": "/usr/bin:/bin", "PYTHON": str(python)}, check=True)
        calls = (folder / "calls").read_text().splitlines()
        self.assertEqual(["-m venv .venv"], [call for call in calls if "venv" in call])

    def test_requirements_of_all_extras_do_not_conflict(self):
        done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)

        self.assertEqual((0, "No broken requirements found.\n"), (done.returncode, done.stdout), done.stdout)
        extras = set(importlib.metadata.metadata(DISTRIBUTION).get_all("Provides-Extra")) - _OF_OTHER_ENVIRONMENTS
        self.assertLessEqual({"avro", "otel", "prometheus", "spark"}, extras)
        for extra in extras:
            self.assertEqual([], missing_distributions(extra), extra)
