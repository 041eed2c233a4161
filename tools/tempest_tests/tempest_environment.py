# SPDX-License-Identifier: Apache-2.0
"""The environments of Keystone and of tempest, from PyPI.

The public plugin imports a part of monasca-common 3, so that it and ours cannot be in one environment: it has one of
its own, with tempest, that is made when it is first needed, and kept in the user's cache under its versions. Ours runs
where this program runs; Keystone too, if it is there, else in an environment that is kept like the other.
"""

import hashlib
import sys
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path

from kept_environments import EnvironmentUnavailable, cache, made_once, pip, run
from tempest_suites import OWN

_CONSTRAINTS = "tools/tempest_tests/constraints.txt"
_KEYSTONE = ("keystone", "gunicorn")
# The plugin's own tests import one of monasca-common 3, and pytz, which it does not declare.
_TEMPEST = ("tempest", "monasca-tempest-plugin", "monasca-common", "pytz")

Say = Callable[[str], None]


def keystone_python(checkout: Path, say: Say) -> Path:
    """The interpreter that has Keystone. Raises `EnvironmentUnavailable`."""
    if all(map(util.find_spec, _KEYSTONE)):
        return Path(sys.executable)
    return _python("keystone", _KEYSTONE, [checkout / "upper-constraints.txt"], say)


def tempest_python(plugin: str, checkout: Path, say: Say) -> Path:
    """The interpreter that has tempest and this plugin. Raises `EnvironmentUnavailable`."""
    if plugin == OWN:
        try:
            metadata.version("tempest")
        except metadata.PackageNotFoundError:
            raise EnvironmentUnavailable(
                "tempest is missing: pip install -c upper-constraints.txt .[tempest]"
            ) from None
        return Path(sys.executable)
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
