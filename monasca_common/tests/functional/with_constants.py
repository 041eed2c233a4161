# SPDX-License-Identifier: Apache-2.0
"""A command with other constants: ``python -m … '{"package.module.NAME": 0.1}' api --config-file F``."""

import importlib
import json
import sys

from monasca_common.cli.main import main


def command_with(constants):
    """Return the beginning of the command line. ``constants``: dotted name -> value."""
    return [sys.executable, "-m", __name__, json.dumps(constants)]


def set_constants(constants):
    """Raises `AttributeError` for a name that its module does not have."""
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        owner = importlib.import_module(module)
        getattr(owner, constant)
        setattr(owner, constant, value)


if __name__ == "__main__":
    set_constants(json.loads(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
