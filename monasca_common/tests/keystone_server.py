# SPDX-License-Identifier: Apache-2.0
"""A real Keystone on SQLite under gunicorn, bootstrapped; tests create users and projects with its API."""

import contextlib
import getpass
import grp
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from keystoneauth1.identity import v3
from keystoneauth1.session import Session
from keystoneclient.v3.client import Client

from monasca_common.devbroker import ports
from monasca_common.tests.waiting import wait_until_ready
from monasca_common.tests.web import is_ok

_SECONDS = 300  # the import takes ten seconds, and longer on a busy machine
PASSWORD = "a-secret"
_CONFIGURATION = """\
[database]
connection = sqlite:///{folder}/keystone.sqlite
[fernet_tokens]
key_repository = {folder}/fernet
[fernet_receipts]
key_repository = {folder}/receipts
[credential]
key_repository = {folder}/credentials
[cache]
enabled = true
backend = dogpile.cache.memory
[identity]
password_hash_rounds = 4
"""
# Keystone passes sys.argv to oslo.config, so all options of gunicorn are in its file. The time-out is longer than tests
# suspend a worker. One thread: if two transactions read and then write, SQLite refuses one immediately, and Keystone
# returns 500.
_GUNICORN = """\
bind = "127.0.0.1:{port}"
wsgi_app = "keystone.wsgi.api:application"
worker_class = "gthread"
threads = 1
control_socket_disable = True
timeout = 600
"""
# Run each command in a child process, so that Keystone is imported only once.
_MANAGE = """
import json, os, sys
from keystone.cmd import manage

for arguments in json.loads(sys.argv[2]):
    child = os.fork()
    if child == 0:
        sys.argv = ["keystone-manage", "--config-file", sys.argv[1], *arguments]
        sys.exit(manage.main())
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(f"keystone-manage {arguments[0]} failed")
"""


class KeystoneServer:
    """Keystone with its own folder, run by the interpreter of the tests."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.log = self.folder / "keystone.log"
        (self.port,) = ports.free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}/v3"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> list[str]:
        files = f"OS_KEYSTONE_CONFIG_FILES={self.folder / 'keystone.conf'}"
        return ["env", f"--chdir={self.folder}", files, sys.executable, "-m", "gunicorn"]

    def set_up(self) -> None:
        (self.folder / "keystone.conf").write_text(_CONFIGURATION.format(folder=self.folder))
        (self.folder / "gunicorn.conf.py").write_text(_GUNICORN.format(port=self.port))
        owner = ["--keystone-user", getpass.getuser(), "--keystone-group", grp.getgrgid(os.getgid()).gr_name]
        urls = [text for kind in ("admin", "public", "internal") for text in (f"--bootstrap-{kind}-url", self.url)]
        self._manage(
            ["db_sync"],
            ["fernet_setup", *owner],
            ["bootstrap", "--bootstrap-password", PASSWORD, "--bootstrap-region-id", "RegionOne", *urls],
        )

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        self.wait_until_ready(self.process.poll)

    def wait_until_ready(self, poll: Callable[[], int | None]) -> None:
        """Wait until Keystone responds.

        ``poll``: returns the exit status of the server, or ``None`` while it runs.
        """
        wait_until_ready(lambda: is_ok(self.url), poll, self.log, seconds=_SECONDS)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(_SECONDS)
            self.process = None

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Suspend Keystone within the block: it accepts connections but does not respond."""
        assert self.process is not None
        first = psutil.Process(self.process.pid)
        processes = [first, *first.children(recursive=True)]
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in reversed(processes):
                process.resume()

    def client(self, user: str = "admin", project: str | None = "admin") -> Client:
        """Return a client of the user, scoped to the project, or without a scope for ``None``."""
        account = v3.PasswordMethod(username=user, password=PASSWORD, user_domain_id="default")
        auth = v3.Auth(self.url, [account], project_name=project, project_domain_id="default")
        return Client(session=Session(auth, timeout=_SECONDS), endpoint_override=self.url)

    def token(self, user: str = "admin", project: str | None = "admin") -> str:
        return str(self.client(user, project).session.get_token())

    def project(self, name: str) -> str:
        """Create a project, and return its id."""
        return str(self.client().projects.create(name, "default").id)

    def role(self, name: str) -> str:
        """Return the id of the role, which is created if it does not exist."""
        roles = self.client().roles
        found = roles.list(name=name) or [roles.create(name)]
        return str(found[0].id)

    def user(self, name: str, project_id: str, *role_ids: str) -> None:
        client = self.client()
        user_id = client.users.create(name, "default", password=PASSWORD).id
        for role_id in role_ids:
            client.roles.grant(role_id, user=user_id, project=project_id)

    def service(self, kind: str, url: str, region: str = "RegionOne") -> None:
        """Register a service of this type with its public address in the catalog."""
        client = self.client()
        client.endpoints.create(client.services.create(kind, kind).id, url, "public", region)

    def _manage(self, *commands: list[str]) -> None:
        command = [sys.executable, "-c", _MANAGE, str(self.folder / "keystone.conf"), json.dumps(commands)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=self.folder)
        assert done.returncode == 0, done.stderr[-4000:]
