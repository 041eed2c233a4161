# SPDX-License-Identifier: Apache-2.0
"""The environments of Keystone and of tempest, from PyPI: neither has our packages, and ours has none of theirs.

They are made when they are first needed, and kept in the user's cache under their versions.
"""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

from kept_environments import cache, made_once, pip, run

_CONSTRAINTS = "tools/tempest-constraints.txt"
_KEYSTONE = ("keystone", "gunicorn")
# The plugin's own tests import one of monasca-common 3, and pytz, which it does not declare.
_TEMPEST = ("tempest", "monasca-tempest-plugin", "monasca-common", "pytz")

Say = Callable[[str], None]


def keystone_python(checkout: Path, say: Say) -> Path:
    """The interpreter that has Keystone. Raises `EnvironmentUnavailable`."""
    return _python("keystone", _KEYSTONE, [checkout / "upper-constraints.txt"], say)


def tempest_python(checkout: Path, say: Say) -> Path:
    """The interpreter that has tempest and the public plugin. Raises `EnvironmentUnavailable`."""
    constraints = [checkout / "upper-constraints.txt", checkout / _CONSTRAINTS]
    return _python("tempest", _TEMPEST, constraints, say)


def _python(name: str, packages: tuple[str, ...], constraints: list[Path], say: Say) -> Path:
    key = hashlib.sha256("\n".join([sys.version, *packages, *(each.read_text() for each in constraints)]).encode())
    folder = cache("tempest") / f"{name}-{key.hexdigest()[:12]}"
    python = folder / "bin" / "python"
    with made_once(folder) as missing:
        if missing:
            say(f"making an environment for {name} (a minute, kept for the next time)")
            run("python -m venv", [sys.executable, "-m", "venv", str(folder)])
            pip(str(python), *(f"--constraint={each}" for each in constraints), *packages)
    return python
