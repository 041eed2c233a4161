# SPDX-License-Identifier: Apache-2.0
"""Unmodified services from PyPI, each in its own environment with the monasca-common of this checkout.

A test only needs `environment`::

    persister = environment("monasca-persister")
    subprocess.Popen([persister.program("monasca-persister"), "--config-file", path])
    subprocess.run([persister.python, "-c", "import monasca_persister"])

pip resolves the service together with a wheel of the checkout. The packages from PyPI are installed once, in an
environment in the user's cache whose name depends on their versions. For each state of the checkout, a second
environment on top of it contains only the wheel, so a test never runs the code of another checkout or of an earlier
state. ``python -m`` with this module creates all environments, or the named ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

SERVICES = {
    "monasca-persister": "monasca-persister[influxdb]==9.0.0",
    "monasca-notification": "monasca-notification==9.0.0",
    "monasca-api": "monasca-api[influxdb]==11.0.0",
    "monasca-agent": "monasca-agent==10.0.0",
}
_ONLY_WITH_OLD = {"monasca-tempest-plugin": "monasca-tempest-plugin==2.7.0"}  # imports a part of monasca-common 3
# Undeclared imports of a service, which were installed with monasca-common 3.8.0 or are the operator's choice, and
# versions of declared ones.
_UNDECLARED = {
    "monasca-notification": ["Jinja2", "PyMySQL", "psycopg2-binary"],
    "monasca-api": ["PyMySQL", "gunicorn"],
    "monasca-tempest-plugin": ["pytz", "kazoo==2.11.0", "mock==5.2.0", "simplejson==4.3.0"],
}
_CHECKOUT = Path(__file__).parents[4]
_PACKAGED = ("monasca_common", "LICENSE", "README.rst", "pyproject.toml", "requirements.txt", "setup.cfg", "setup.py")
_OURS = "monasca-common"
_OLD = "monasca-common==3.8.0"
_HOME = Path.home()  # the real home, because oslotest gives every test an empty one
_SECONDS = 600  # for one installation; a process that waits for another's installation waits twice as long
_KEEP_DAYS = {"wheel": 1, "over": 1, "packages": 30, "old": 30}  # after the last use


@dataclass(frozen=True)
class Environment:
    """An environment of a service. ``folder``: a virtual environment without pip on top of ``below``."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def program(self, name: str) -> Path:
        """Return the path of a program, such as ``monasca-persister``. Raises `FileNotFoundError` for an unknown
        program."""
        found = self.folder / "bin" / name
        if not found.exists():
            known = sorted(each.name for each in found.parent.iterdir())
            raise FileNotFoundError(f"no program {name!r} in {self.folder}, only {', '.join(known)}")
        return found

    @property
    def below(self) -> Path:
        """Return the environment with pip and all packages except monasca-common."""
        link = self.folder / "below"
        return link.readlink() if link.is_symlink() else self.folder

    def pip_check(self) -> str:
        """Return the errors of ``pip check``, or an empty string."""
        pip: list[str | Path] = [self.below / "bin" / "python", "-m", "pip", "--python", self.python, "check"]
        done = subprocess.run(pip, capture_output=True, text=True, timeout=_SECONDS)
        return "" if done.returncode == 0 else done.stdout + done.stderr


def environment(service: str) -> Environment:
    """Return the environment of one of `SERVICES`. Creates it if it is missing, which takes a minute.

    Raises `subprocess.CalledProcessError` if it cannot be created, and `TimeoutError` if another process that creates
    it does not finish.
    """
    wheel = _wheel()
    requirements = [SERVICES[service], *_UNDECLARED.get(service, [])]
    key = _digest(_pins(), (_CHECKOUT / "requirements.txt").read_text(), *requirements, platform.python_version())
    with _locked(service):
        below = _once(
            f"packages-{service}",
            key,
            lambda folder: _run(*_install(folder, *requirements, wheel), "uninstall", "--yes", _OURS),
        )
        # Both digests: of the environment below, and of the wheel on top of it.
        keys = f"{key}-{wheel.parent.name.partition('-')[2]}"
        return Environment(_once(f"over-{service}", keys, lambda folder: _lay_over(folder, below, wheel)))


def environment_of_old(service: str) -> Environment:
    """Return the environment of one of `SERVICES`, or of the public tempest plugin, with the old monasca-common that it
    requires, instead of this checkout."""
    requirements = [{**SERVICES, **_ONLY_WITH_OLD}[service], _OLD, *_UNDECLARED.get(service, [])]
    key = _digest(_pins(), *requirements, platform.python_version())
    with _locked(service):
        return Environment(_once(f"old-{service}", key, lambda folder: _install(folder, *requirements)))


def _once(name: str, key: str, create: Callable[[Path], object]) -> Path:
    """Return the folder of this name and key, which ``create`` fills if it is not complete. Remove old ones."""
    folder = _cache() / f"{name}-{key}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        create(folder)
        (folder / "complete").touch()
    os.utime(folder)
    for other in _cache().glob(f"{name}-*"):
        if time.time() - other.stat().st_mtime > _KEEP_DAYS[name.partition("-")[0]] * 24 * 3600:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _install(folder: Path, *requirements: str | Path) -> tuple[str | Path, ...]:
    """Create an environment with these requirements, and return the beginning of pip's command line."""
    _run(sys.executable, "-m", "venv", folder)
    constraints = folder / "constraints.txt"
    constraints.write_text(_pins(), encoding="utf-8")
    pip = (folder / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    _run(*pip, "install", "-c", constraints, *requirements)
    return pip


def _wheel() -> Path:
    """Return a wheel of the checkout in its current state, with the version that the tests use."""
    with _locked("wheel"):
        folder = _once("wheel", _key_of_checkout(), _build)
    [wheel] = folder.glob("*.whl")
    return wheel


def _build(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as source:
        for name in _PACKAGED:
            found = _CHECKOUT / name
            if found.is_dir():
                shutil.copytree(found, Path(source, name), ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(found, source)
        # pbr packs the files that git tracks, so use a repository that no other process writes to.
        _run("git", "init", "--quiet", source)
        _run("git", "-C", source, "add", "--all")
        named = {"PBR_VERSION": metadata.version(_OURS), "SKIP_WRITE_GIT_CHANGELOG": "1"}
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
        _run(*pip, "-w", folder, source, SKIP_GENERATE_AUTHORS="1", **named)


def _lay_over(folder: Path, below: Path, wheel: Path) -> None:
    _run(sys.executable, "-m", "venv", "--without-pip", folder)
    [packages] = (folder / "lib").glob("*/site-packages")
    packages.joinpath("below.pth").write_text(f"{below / packages.relative_to(folder)}\n", encoding="utf-8")
    (folder / "below").symlink_to(below)
    python = folder / "bin" / "python"
    pip = (below / "bin" / "python", "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check")
    _run(*pip, "install", "--no-deps", "--no-index", wheel)
    for program in filter(Path.is_file, (below / "bin").iterdir()):
        # pip writes the interpreter into the first line of programs. python is a link, and activate is not a program.
        text = program.read_bytes()
        if bytes(below / "bin" / "python") in text.partition(b"import")[0] and not program.name.startswith("pip"):
            target = folder / "bin" / program.name
            target.write_bytes(text.replace(bytes(below), bytes(folder)))
            target.chmod(0o755)


def _pins() -> str:
    """Return the versions in upper-constraints.txt, overridden by constraints.txt in this folder."""
    own = Path(__file__).with_name("constraints.txt").read_text(encoding="utf-8").splitlines()
    named = {_name(line) for line in own}
    common = (_CHECKOUT / "upper-constraints.txt").read_text(encoding="utf-8").splitlines()
    return "\n".join([line for line in common if _name(line) not in named] + own)


def _name(line: str) -> str:
    return line.partition("==")[0].strip().lower().replace("_", "-").replace(".", "-")


def _key_of_checkout() -> str:
    files = [Path(folder, name) for top in _PACKAGED for folder, _, names in os.walk(_CHECKOUT / top) for name in names]
    files += [_CHECKOUT / name for name in _PACKAGED]
    kept = sorted(path for path in files if path.is_file() and path.parent.name != "__pycache__")
    contents = [each for path in kept for each in (str(path.relative_to(_CHECKOUT)), path.read_bytes())]
    return _digest(*contents, metadata.version(_OURS), platform.python_version())


def _digest(*parts: str | bytes) -> str:
    found = hashlib.sha256()
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else part
        found.update(len(encoded).to_bytes(8) + encoded)
    return found.hexdigest()[:12]


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or _HOME / ".cache"
    return Path(root, "monasca-common", "services")


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """Hold the lock of ``name``, which excludes other processes and threads."""
    lock_file = _cache() / f"{name}.lock"
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 2 * _SECONDS
    with lock_file.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process holds {lock_file} and does not end") from None
                time.sleep(0.1)
        yield


def _run(*command: str | Path, **variables: str) -> None:
    environ = {**os.environ, **variables}
    environ.pop("PYTHONPATH", None)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=environ)
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)  # noqa: T201 - the error contains only the exit status
        done.check_returncode()


if __name__ == "__main__":
    for each in sys.argv[1:] or SERVICES:
        print(environment(each).folder)  # noqa: T201 - a command
