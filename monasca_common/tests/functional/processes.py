# SPDX-License-Identifier: Apache-2.0
"""Processes that end with a test, and whose logs are in the report of a failed test."""

import contextlib
import os
import signal
import subprocess

from testtools.content import text_content

from monasca_common.tests.waiting import PATIENCE_SECONDS


class RunningProcess:
    """A process that has its own group, and its log."""

    is_stopped = False  # the test has stopped it, or expects its end

    def __init__(self, process, log):
        self.process = process
        self.log = log

    def text(self):
        return self.log.read_text(errors="replace")

    def kill(self):
        """Send SIGKILL to the process and its children."""
        kill_group(self.process)
        self.wait()

    def stop(self, signum=signal.SIGTERM):
        """Return the exit status after the signal."""
        self.process.send_signal(signum)
        return self.wait()

    def wait(self):
        """Wait for the end, and return the exit status."""
        self.is_stopped = True
        return self.process.wait(PATIENCE_SECONDS)


def start_process(case, command, log, **options):
    """Start a process whose output is appended to the file ``log``; the end of the test kills its process group."""
    with log.open("ab") as output:
        options = {"stdout": output, "stderr": output, **options}
        process = subprocess.Popen(command, start_new_session=True, **options)
    case.addCleanup(process.wait, PATIENCE_SECONDS)
    case.addCleanup(kill_group, process)
    attach_file(case, log.stem, log)
    return process


def kill_group(process):
    """Send SIGKILL to a process that has its own group, and to its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def attach_file(case, name, path):
    """Attach the content that the file has at the end of the test."""
    case.addCleanup(lambda: path.exists() and case.addDetail(name, text_content(path.read_text(errors="replace"))))
