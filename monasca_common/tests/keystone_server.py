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
from typing import Any

import psutil

from monasca_common.devbroker import ports
from monasca_common.tests import web
from monasca_common.tests.waiting import wait_until_ready

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
        (self.port,) = ports.free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}/v3"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> list[str]:
        """Return the command that serves Keystone."""
        files = f"OS_KEYSTONE_CONFIG_FILES={self.folder / 'keystone.conf'}"
        return ["env", f"--chdir={self.folder}", files, sys.executable, "-m", "gunicorn"]

    @property
    def log(self) -> Path:
        return self.folder / "keystone.log"

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
        wait_until_ready(lambda: self.call("GET", "")[0] == 200, poll, self.log, seconds=_SECONDS)

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

    def call(self, method: str, path: str, body: object = None, token: str | None = None) -> tuple[int, Any, Any]:
        """Return status, headers (names in lower case) and the parsed body."""
        headers = {"X-Auth-Token": token} if token else {}
        status, answered, text = web.request(self.port, method, f"/v3{path}", body, headers, timeout=_SECONDS)
        return status, answered, json.loads(text) if text else None

    def token(self, user: str = "admin", project: str | None = "admin") -> str:
        """Return a token scoped to the project, or an unscoped token for ``None``."""
        domain = {"id": "default"}
        auth: dict[str, Any] = {
            "identity": {
                "methods": ["password"],
                "password": {"user": {"name": user, "domain": domain, "password": PASSWORD}},
            }
        }
        if project is not None:
            auth["scope"] = {"project": {"name": project, "domain": domain}}
        status, headers, body = self.call("POST", "/auth/tokens", {"auth": auth})
        assert status == 201, body
        return str(headers["x-subject-token"])

    def project(self, name: str) -> str:
        """Create a project, and return its id."""
        return self._made("/projects", "project", {"name": name, "domain_id": "default"})

    def role(self, name: str) -> str:
        """Return the id of the role, which is created if it does not exist."""
        found = self.call("GET", f"/roles?name={name}", token=self.token())[2]["roles"]
        return found[0]["id"] if found else self._made("/roles", "role", {"name": name})

    def user(self, name: str, project_id: str, *role_ids: str) -> None:
        user = {"name": name, "domain_id": "default", "password": PASSWORD}
        user_id = self._made("/users", "user", user)
        for role_id in role_ids:
            path = f"/projects/{project_id}/users/{user_id}/roles/{role_id}"
            assert self.call("PUT", path, token=self.token())[0] == 204

    def service(self, kind: str, url: str, region: str = "RegionOne") -> None:
        """Register a service of this type with its public address in the catalog."""
        service_id = self._made("/services", "service", {"type": kind, "name": kind})
        self._made(
            "/endpoints", "endpoint", {"service_id": service_id, "interface": "public", "url": url, "region": region}
        )

    def _made(self, path: str, kind: str, fields: dict[str, Any]) -> str:
        status, _, body = self.call("POST", path, {kind: fields}, self.token())
        assert status == 201, body
        return str(body[kind]["id"])

    def _manage(self, *commands: list[str]) -> None:
        command = [sys.executable, "-c", _MANAGE, str(self.folder / "keystone.conf"), json.dumps(commands)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=self.folder)
        assert done.returncode == 0, done.stderr[-4000:]
