# SPDX-License-Identifier: Apache-2.0
"""What processes wrote down, shown with a test that failed."""

from testtools.content import text_content


def attach_file(case, name, path):
    """Read when the test is over, so before the clean-up of a folder that was made earlier."""
    case.addCleanup(lambda: path.exists() and case.addDetail(name, text_content(path.read_text(errors="replace"))))
