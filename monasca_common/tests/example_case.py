# SPDX-License-Identifier: Apache-2.0
"""Run the programs in ``examples`` as a reader of the documentation does."""

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from oslotest import base

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 120


class ExampleCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def configure(self, topic, group, *kafka_lines):
        """Write ``example.conf`` with other brokers, topics and groups, and return its path."""
        text = (EXAMPLES / "example.conf").read_text()
        for old, new in (
            ("bootstrap_servers = 127.0.0.1:9092", "\n".join(kafka_lines)),
            ("topic = readings", f"topic = {topic}"),
            ("group_id = example", f"group_id = {group}"),
        ):
            self.assertIn(old, text)
            text = text.replace(old, new)
        path = self.folder / "example.conf"
        path.write_text(text)
        return path

    def run_example(self, name, config=None, *arguments, path=()):
        configured = [] if config is None else ["--config-file", str(config)]
        return subprocess.run(
            [sys.executable, str(EXAMPLES / name), *configured, *arguments],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            # A user's tests show no deprecation of this library or of one that it uses.
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, path)),
                "PYTHONWARNINGS": "error::DeprecationWarning",
            },
        )

    def succeeds(self, name, config=None, *arguments, path=()):
        """Run the example successfully, and return its output."""
        done = self.run_example(name, config, *arguments, path=path)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def fails(self, name, config=None, *arguments):
        """Run an example that fails with a message instead of a traceback, and return the process."""
        done = self.run_example(name, config, *arguments)
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done

    def installed(self, package):
        """Return the folders of the code and the entry points of an example's package, for ``PYTHONPATH``."""
        source = EXAMPLES / package
        project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
        info = self.folder / "site" / f"{package}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
        lines = []
        for namespace, names in project["entry-points"].items():
            lines += [f"[{namespace}]", *(f"{name} = {target}" for name, target in names.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        return [info.parent, source]
