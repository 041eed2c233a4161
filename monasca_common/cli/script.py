# SPDX-License-Identifier: Apache-2.0
"""The console script ``monasca-common``, which also starts if the extra ``cli`` is not installed."""

import importlib.metadata
import shlex
import sys


def main() -> int:
    """Run a command and return its exit status. If a package is missing, print how to install the extra ``cli``."""
    try:
        from monasca_common.cli.main import main as run
    except ModuleNotFoundError as error:
        wanted = f"monasca-common[cli]=={importlib.metadata.version('monasca-common')}"
        install = shlex.join((sys.executable, "-m", "pip", "install", wanted))
        sys.stderr.write(f"monasca-common: {error.name} is not installed: install the commands with {install}\n")
        return 1
    return run()
