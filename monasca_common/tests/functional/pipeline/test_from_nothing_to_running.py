# SPDX-License-Identifier: Apache-2.0
"""The pages that lead from nothing to a running system and to an alarm: their commands, as they stand there."""

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
_SECONDS = 900  # an idle machine takes two minutes; what the page waits for has limits of its own
_TAIL = 3000


def blocks():
    """Those of the second page come before the end of the first."""
    first, second = (
        [textwrap.dedent(block) for block in _BLOCK.findall(page.read_text())] for page in (PAGE, ALARM_PAGE)
    )
    return [*first[:-1], *second, first[-1]]


@periodic("a walk-through of services that EndToEndTest also runs")
class FromNothingToRunningTest(base.BaseTestCase):
    @classmethod
    def setUpClass(cls):
        """Here, because a busy machine may take longer for all of it than one test may."""
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

    def test_the_files_are_found_fine_and_what_is_missing_is_made(self):
        for service in ("api", "persister", "pipeline", "notification"):
            self.assertRegex(self.shown, rf"(?m)^\| {service} +\| OK ")
        self.assertRegex(self.shown, r"(?m)^\| database +\| postgresql\S+ +\| missing ")
        self.assertRegex(self.shown, r"(?m)^\| topic +\| metrics +\| created +\| +12 +\|")

    def test_a_metric_goes_from_a_token_to_a_row(self):
        self.assertRegex(self.shown, r"(?m)^\|.*\b4096\b")

    def test_the_metric_is_aggregated_and_published(self):
        self.assertRegex(self.shown, r"(?m)^aggregate: 1 offsets done, 0 left$")
        self.assertRegex(self.shown, r"(?m)^  published_messages +1$")

    def test_the_alarm_of_one_host_comes_and_goes_and_the_webhook_is_told_each_time_under_another_id(self):
        told = [line.split() for line in self.webhook.splitlines()]
        self.assertEqual([["ALARM", "web2"], ["OK", "web1"], ["OK", "web2"]], sorted(each[1:] for each in told))
        self.assertEqual(3, len({each[0] for each in told}))

    def test_history_is_shown_and_stays_when_its_definition_is_gone(self):
        for old, new in (("UNDETERMINED", "ALARM"), ("ALARM", "OK")):
            self.assertEqual(2, len(re.findall(rf"(?m)^\|.*\| {new} +\| {old} ", self.shown)), self.shown[-_TAIL:])

    def test_nothing_is_left_behind(self):
        self.assertEqual([], self.left)


def environment(folder):
    """With other ports and folders, by the variables that the page names, and what is installed here."""
    ours = {name: str(port) for name, port in zip(_PORTS, free_ports(len(_PORTS)), strict=True)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    java = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {QUICK_JAVA}"
    folders = {"MONASCA_HOME": str(folder), "MONASCA_VENV": str(Path(sys.executable).parents[1])}
    return {**kept, **ours, **folders, "JDK_JAVA_OPTIONS": java}


def processes(folder):
    """What runs in the page's folder."""
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
