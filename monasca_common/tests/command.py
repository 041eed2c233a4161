# SPDX-License-Identifier: Apache-2.0
"""Run ``monasca-common`` in the process of the test."""

import contextlib
import io

from monasca_common.cli.main import main


def run_main(*arguments):
    """Return the exit status, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(list(arguments))
        except SystemExit as refused:
            status = refused.code
    return status, out.getvalue(), err.getvalue()
