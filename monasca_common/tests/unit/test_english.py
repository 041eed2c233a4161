# SPDX-License-Identifier: Apache-2.0
"""The checker of wording checks sentences, and ignores programs and names."""

import importlib
import sys
from pathlib import Path

from oslotest import base

TOOLS = Path(__file__).parents[3] / "tools"
PHRASES = [
    {"pattern": r"\bmeanwhile\b", "use": "in the meantime", "why": "plain words"},
    {"pattern": r"\bso many\b", "unless": r"\bso many that\b", "use": "N", "why": "give the number"},
]
PAGE = """Title

The reader
waits Meanwhile.

Run::

    meanwhile

    meanwhile

A ``meanwhile`` one, meanwhile.
"""
PROGRAM = '''"""Write meanwhile to the log."""
name = "meanwhile"
raise ValueError(f"{name}: wait for it meanwhile")
log.info("the reader waits " "meanwhile here")
'''


class EnglishTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.patch(sys, "path", [str(TOOLS), *sys.path])
        self.english = importlib.import_module("english")

    def lines(self, suffix, text):
        (path,) = self.create_tempfiles([("checked", text)], ext=suffix)
        self.patch(self.english, "ROOT", Path(path).parent)
        return [int(line.split(":")[1]) for line in self.english.findings(Path(path), PHRASES)]

    def test_programs_and_names_of_a_page_are_not_checked(self):
        self.assertEqual([3, 12], self.lines(".rst", PAGE))

    def test_docstrings_and_messages_are_checked_and_values_are_not(self):
        self.assertEqual([1, 3, 4], self.lines(".py", PROGRAM))

    def test_an_exception_is_not_reported(self):
        page = "There are so many that the reader of this page waits.\n\nThen so many messages follow.\n"
        self.assertEqual([3], self.lines(".rst", page))

    def test_a_commit_subject_is_imperative_and_short(self):
        for subject in ("Added a test", "Adding a test", "Adds a test", "add a test", "Add " + 69 * "x"):
            self.assertIsNotNone(self.english.subject_error(subject), subject)
        for subject in ("Add a test", "Process the queue", "Speed up a test", "Add " + 68 * "x"):
            self.assertIsNone(self.english.subject_error(subject), subject)
