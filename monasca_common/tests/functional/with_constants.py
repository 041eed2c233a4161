# SPDX-License-Identifier: Apache-2.0
"""A command with other constants, and without a guarantee if a mutant is named:
``python -m … '{"package.module.NAME": 0.1}' package.module:mutant api --config-file F``."""

import importlib
import json
import pkgutil
import sys

from monasca_common.cli.main import main


def command_with(constants, mutant=None):
    """Return the beginning of the command line. ``constants``: dotted name -> value. ``mutant``: a function of a module
    that is called before the command."""
    name = "" if mutant is None else f"{mutant.__module__}:{mutant.__name__}"
    return [sys.executable, "-m", __name__, json.dumps(constants), name]


def set_constants(constants):
    """Raises `AttributeError` for a name that its module does not have."""
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        owner = importlib.import_module(module)
        getattr(owner, constant)
        setattr(owner, constant, value)


if __name__ == "__main__":
    set_constants(json.loads(sys.argv[1]))
    if sys.argv[2]:
        pkgutil.resolve_name(sys.argv[2])()
    sys.exit(main(sys.argv[3:]))
