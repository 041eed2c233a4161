# SPDX-License-Identifier: Apache-2.0
"""Run the commands of the pages that set up a running system and an alarm, exactly as the pages show them."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import psutil
from oslotest import base

from monasca_common.devbroker.ports import free_ports
from monasca_common.tests.functional.pipeline.pipeline_case import QUICK_JAVA
from monasca_common.tests.periodic import periodic

CHECKOUT = Path(__file__).parents[4]
SOURCE = CHECKOUT / "doc" / "source"
PAGE, ALARM_PAGE = SOURCE / "install" / "from-nothing-to-running.rst", SOURCE / "user" / "first_alarm.rst"
_BLOCK = re.compile(r"(?m)^\.\. code-block:: bash\n\n((?:   .*\n|\n)+)")
_LISTENING = ("KAFKA", "KEYSTONE", "API", "PERSISTER", "PIPELINE", "EVALUATOR", "WEBHOOK")
_PORTS = tuple(f"{name}_PORT" for name in _LISTENING)
_SECONDS = 900  # an idle machine takes two minutes; the waits of the page have their own limits
_TAIL = 3000


def blocks():
    """Return the blocks of both pages; those of the second page precede the last one of the first page."""
    first, second = (
        [textwrap.dedent(block) for block in _BLOCK.findall(page.read_text())] for page in (PAGE, ALARM_PAGE)
    )
    return [*first[:-1], *second, first[-1]]


@periodic("runs a page of the documentation; EndToEndTest runs the same services")
class FromNothingToRunningTest(base.BaseTestCase):
    @classmethod
    def setUpClass(cls):
        """Run all commands once for the class, because on a busy machine they take longer than the time limit of a
        test."""
        super().setUpClass()
        folder = Path(tempfile.mkdtemp(prefix="from-nothing-"))
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        cls.addClassCleanup(end_all, folder)
        output = folder / "shown.log"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", "\n".join(["set -euo pipefail", *blocks()])],
                stdout=file,
                stderr=file,
                cwd=CHECKOUT,
                env=environment(folder),
            )
        try:
            status = process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        cls.shown = output.read_text()
        if status:
            logs = [f"{path.name}:\n{path.read_text()[-_TAIL:]}" for path in sorted(folder.rglob("*log"))]
            raise AssertionError("\n".join([f"the page's commands ended with {status}", *logs]))
        cls.left = processes(folder)
        cls.webhook = (folder / "webhook.log").read_text()

    def test_configuration_checks_pass_and_the_database_and_topics_are_created(self):
        for service in ("api", "persister", "pipeline", "notification"):
            self.assertRegex(self.shown, rf"(?m)^\| {service} +\| OK ")
        self.assertRegex(self.shown, r"(?m)^\| database +\| postgresql\S+ +\| missing ")
        self.assertRegex(self.shown, r"(?m)^\| topic +\| metrics +\| created +\| +12 +\|")

    def test_a_metric_posted_with_a_token_is_stored_as_a_row(self):
        self.assertRegex(self.shown, r"(?m)^\|.*\b4096\b")

    def test_the_metric_is_aggregated_and_published(self):
        self.assertRegex(self.shown, r"(?m)^aggregate: 1 offsets done, 0 left$")
        self.assertRegex(self.shown, r"(?m)^  published_messages +1$")

    def test_the_webhook_is_notified_of_an_alarm_and_its_end_with_different_ids(self):
        reported = [line.split() for line in self.webhook.splitlines()]
        self.assertEqual([["ALARM", "web2"], ["OK", "web1"], ["OK", "web2"]], sorted(each[1:] for each in reported))
        self.assertEqual(3, len({each[0] for each in reported}))

    def test_history_is_kept_when_its_definition_is_deleted(self):
        for old, new in (("UNDETERMINED", "ALARM"), ("ALARM", "OK")):
            self.assertEqual(2, len(re.findall(rf"(?m)^\|.*\| {new} +\| {old} ", self.shown)), self.shown[-_TAIL:])

    def test_no_process_is_left(self):
        self.assertEqual([], self.left)


def environment(folder):
    """Return an environment with other ports and folders, in the variables that the page names."""
    ours = {name: str(port) for name, port in zip(_PORTS, free_ports(len(_PORTS)), strict=True)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    java = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {QUICK_JAVA}"
    folders = {"MONASCA_HOME": str(folder), "MONASCA_VENV": str(Path(sys.executable).parents[1])}
    return {**kept, **ours, **folders, "JDK_JAVA_OPTIONS": java}


def processes(folder):
    """Return the processes in the folder of the page."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found


def end_all(folder):
    for process in processes(folder):
        with contextlib.suppress(psutil.Error):
            process.kill()
