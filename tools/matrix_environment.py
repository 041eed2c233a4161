# SPDX-License-Identifier: Apache-2.0
"""The environments that the cells of the matrix run in.

A Python has one virtual environment with the tested versions, and each version of confluent-kafka a folder of its own
that stands before it on the path: both are kept in the user's cache. Our own package is built of the checkout once
for each run. The Python that runs the matrix serves its own version, if the tests' packages are in it.
"""

import configparser
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kept_environments import EnvironmentUnavailable, cache, made_once, pip, run

_EXTRAS = ("devbroker", "spark", "testing")
# Those of the extra test that the cells need.
_TEST_PACKAGES = ("hypothesis", "oslotest", "python-subunit", "testtools")
_LOOKED_FOR = ("pyspark", "hypothesis", "oslotest", "subunit", "fixtures", "cryptography", "pbr", "setuptools")

Say = Callable[[str], None]


def find_pythons(minors: Sequence[str]) -> dict[str, str]:
    """The interpreters on this machine by minor version: this one, those on the PATH, pyenv's. Each was started."""
    found = {}
    for minor in minors:
        for candidate in _candidates(minor):
            if _minor_of(candidate) == minor:
                found[minor] = candidate
                break
    return found


def base_python(interpreter: str, checkout: Path, say: Say) -> str:
    """A Python with what the tests need, confluent-kafka and ours excepted. Raises `EnvironmentUnavailable`."""
    if interpreter == sys.executable and all(map(importlib.util.find_spec, _LOOKED_FOR)):
        return interpreter
    wanted = requirements(checkout)
    constraints = checkout / "upper-constraints.txt"
    version = subprocess.run([interpreter, "-VV"], capture_output=True, check=True).stdout
    key = hashlib.sha256(b"\n".join([version, constraints.read_bytes(), *map(str.encode, wanted)])).hexdigest()[:12]
    folder = cache("matrix") / f"python-{key}"
    with made_once(folder) as missing:
        if missing:
            say(f"making an environment of {interpreter} (some minutes, kept for the next time)")
            run("python -m venv", [interpreter, "-m", "venv", str(folder)])
            pip(str(folder / "bin" / "python"), "-c", str(constraints), *wanted)
    return str(folder / "bin" / "python")


def confluent_kafka(python: str, version: str, say: Say) -> Path:
    """A folder with that version for that Python, from its wheel. Raises `EnvironmentUnavailable`."""
    tag = subprocess.run(
        [python, "-c", "import sys; print(sys.implementation.cache_tag)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    folder = cache("matrix") / f"confluent-kafka-{version}-{tag}"
    with made_once(folder) as missing:
        if missing:
            say(f"fetching confluent-kafka {version} for {tag}")
            wheel = ("--only-binary", "confluent-kafka", f"confluent-kafka=={version}")
            pip(python, "--no-deps", "--target", str(folder), *wheel)
    return folder


def install_ours(checkout: Path, work: Path) -> Path:
    """A folder with our package as it would be installed: the files that git tracks, as they are in the checkout."""
    listed = subprocess.run(["git", "-C", str(checkout), "ls-files", "-z"], capture_output=True, check=False)
    if listed.returncode:
        raise EnvironmentUnavailable(f"{checkout} is not a git checkout, and a package is built of what git tracks")
    source, installed = work / "source", work / "installed"
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (checkout / name).is_file():  # else it is deleted, and not committed yet
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, source / name)
    run("git init", ["git", "init", "--quiet", str(source)])
    run("git add", ["git", "-C", str(source), "add", "--all", "--force"])
    pip(sys.executable, "--no-deps", "--no-build-isolation", "--target", str(installed), str(source))
    return installed


def requirements(checkout: Path) -> list[str]:
    """What is installed beside confluent-kafka and ours, as pip takes it."""
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(checkout / "setup.cfg")
    extras = setup["extras"]
    test = [line for line in _lines(extras["test"]) if line.startswith(_TEST_PACKAGES)]
    needed = [*_lines((checkout / "requirements.txt").read_text()), *test]
    for extra in _EXTRAS:
        needed += _lines(extras[extra])
    return sorted({line for line in needed if not line.startswith("confluent-kafka")})


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        wanted = line.partition("#")[0].strip()
        if wanted:
            yield wanted


def _candidates(minor: str) -> Iterator[str]:
    yield sys.executable
    for folder in os.get_exec_path():
        program = Path(folder, f"python{minor}")
        if os.access(program, os.X_OK):
            yield str(program)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(pyenv.glob(f"versions/{minor}.*/bin/python"), reverse=True))


def _minor_of(program: str) -> str:
    """Empty if it does not start, as pyenv's shims do not when their version is not selected."""
    asked = [program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
