# SPDX-License-Identifier: Apache-2.0
"""The progress of long operations on a terminal and in a file."""

import contextlib
import io
import os
import pty

import fixtures
from oslotest import base

from monasca_common.cli.progress import Shown


class ShownTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        for name, value in (("TERM", "xterm"), ("COLUMNS", "100"), ("NO_COLOR", "1"), ("FORCE_COLOR", None)):
            self.useFixture(fixtures.EnvironmentVariable(name, value))

    def on_terminal(self, **arguments):
        """Return the output on a terminal when 3 of 10 items are done."""
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        with open(theirs, "w") as terminal:
            self.show(terminal, **arguments)
        parts = []
        with contextlib.suppress(OSError):  # after the last byte, because the other end is closed
            while True:  # the kernel delivers written data in parts
                parts.append(os.read(ours, 65_536))
        return b"".join(parts).decode()

    def show(self, stream, **arguments):
        with fixtures.MonkeyPatch("sys.stderr", stream), Shown("metrics", **arguments) as shown:
            shown.update(3, 7)

    def test_a_terminal_has_a_progress_bar(self):
        reported = self.on_terminal()
        for part in ("metrics", "\u2501", "3/10"):
            self.assertIn(part, reported)
        self.assertNotIn("done", reported)

    def test_unbounded_work_prints_lines_also_on_a_terminal(self):
        self.assertIn("metrics: 3 offsets done, 7 left", self.on_terminal(bounded=False, lines=True))

    def test_a_file_gets_progress_lines_on_request(self):
        for lines, expected in ((True, "metrics: 3 steps done, 7 left\n"), (False, "")):
            stream = io.StringIO()
            self.show(stream, lines=lines, unit="steps")
            self.assertEqual(expected, stream.getvalue())

    def test_work_without_progress_prints_no_lines(self):
        self.useFixture(fixtures.MonkeyPatch("monasca_common.cli.progress._LINE_EVERY_SECONDS", 0.0))
        stream = io.StringIO()
        with fixtures.MonkeyPatch("sys.stderr", stream), Shown("evaluate", lines=True) as shown:
            for done, left in ((0, 0), (0, 0), (5, 2), (5, 2), (7, 0), (7, 0)):
                shown.update(done, left)
        self.assertEqual(
            ["evaluate: 5 offsets done, 2 left", "evaluate: 7 offsets done, 0 left"], stream.getvalue().splitlines()
        )
