# SPDX-License-Identifier: Apache-2.0
"""The interpreters that have tempest and a plugin.

The public plugin imports a part of monasca-common 3, so it cannot share an environment with this package. It has its
own environment with tempest from PyPI, which is kept in the user's cache, named by its versions. The package's plugin
runs in the environment of this program.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[2]
_CONSTRAINTS = (_CHECKOUT / "upper-constraints.txt", _CHECKOUT / "tools" / "tempest_tests" / "constraints.txt")
# The plugin's own tests import monasca-common 3 and pytz, which the plugin does not declare.
_PACKAGES = ("tempest", "monasca-tempest-plugin", "monasca-common", "pytz")
_SECONDS = 1200  # time-out of pip on a slow network

OWN, PUBLIC = "own", "public"
#: The plugins, each with the package of its tests.
PACKAGES = {OWN: "monasca_common.tests.tempest.", PUBLIC: "monasca_tempest_tests.tests."}

Say = Callable[[str], None]


class EnvironmentUnavailable(Exception):
    """An environment cannot be created."""


def tempest_python(plugin: str, say: Say) -> Path:
    """Return the interpreter that has tempest and this plugin. Raises `EnvironmentUnavailable`."""
    if missing := [name for name in ("tempest", "keystone", "gunicorn") if find_spec(name) is None]:
        raise EnvironmentUnavailable(
            f"{', '.join(missing)} is missing: pip install -c upper-constraints.txt -e '.[api,tempest]'"
        )
    return _kept(say) if plugin == PUBLIC else Path(sys.executable)


def _kept(say: Say) -> Path:
    key = hashlib.sha256("\n".join([sys.version, *_PACKAGES, *map(Path.read_text, _CONSTRAINTS)]).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "monasca-common", "tempest")
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"tempest-{key.hexdigest()[:12]}"
    python, complete = folder / "bin" / "python", folder / "complete"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            say("creating an environment for the public plugin (takes a minute; it is kept for the next run)")
            shutil.rmtree(folder, ignore_errors=True)
            _call(sys.executable, "-m", "venv", str(folder))
            pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            _call(*pip, *(f"--constraint={file}" for file in _CONSTRAINTS), *_PACKAGES)
            complete.touch()
    return python


def _call(*command: str) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except subprocess.CalledProcessError as error:
        raise EnvironmentUnavailable(f"{' '.join(command[1:4])} failed: {error.stderr.strip()[-500:]}") from None
    except subprocess.TimeoutExpired:
        raise EnvironmentUnavailable(f"{' '.join(command[1:4])} did not end within {_SECONDS} s") from None
