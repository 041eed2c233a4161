# SPDX-License-Identifier: Apache-2.0
"""Attaches files of processes to the report of a failed test."""

from testtools.content import text_content


def attach_file(case, name, path):
    """Attach the content that the file has at the end of the test."""
    case.addCleanup(lambda: path.exists() and case.addDetail(name, text_content(path.read_text(errors="replace"))))
