# SPDX-License-Identifier: Apache-2.0
"""What is installed from a wheel works: files that git does not track, or that packaging forgets, are not in it."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import fixtures
from oslotest import base

CHECKOUT = Path(__file__).parents[3]
_PATIENCE_SECONDS = 120

_UPGRADE = """
import sys
from monasca_common.storage import StorageSettings, open_storage, schema
assert schema.__file__.startswith(sys.argv[1]), schema.__file__
storage = open_storage(StorageSettings("sqlite", f"sqlite:///{sys.argv[1]}/monasca.sqlite"))
storage.upgrade()
print(storage.status().found == schema.REVISION)
"""


class WheelTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        if not (CHECKOUT / ".git").exists() or not shutil.which("git"):
            self.skipTest("a wheel is made of what git tracks, and this is no checkout")
        self.folder = self.useFixture(fixtures.TempDir()).path

    def run_program(self, *arguments, **named):
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, **named)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def test_the_migrations_of_a_wheel_make_the_schema(self):
        source, installed = f"{self.folder}/source", f"{self.folder}/installed"
        self.run_program("git", "-c", "safe.directory=*", "clone", "--quiet", str(CHECKOUT), source)
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
        # Without tags git tells no version.
        self.run_program(*pip, "-w", self.folder, source, env={**os.environ, "PBR_VERSION": "0.0.1"})
        [wheel] = Path(self.folder).glob("*.whl")
        zipfile.ZipFile(wheel).extractall(installed)
        environment = {**os.environ, "PYTHONPATH": installed}
        shown = self.run_program(sys.executable, "-c", _UPGRADE, installed, env=environment, cwd=installed)
        self.assertEqual("True", shown.strip())
