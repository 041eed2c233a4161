# SPDX-License-Identifier: Apache-2.0
"""nginx with the published configuration, before an API."""

import getpass
import re
import shutil
from pathlib import Path

import fixtures

from monasca_common.devbroker import certificates
from monasca_common.devbroker.ports import accepts, free_ports
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.waiting import wait_until_ready

PUBLISHED = Path(__file__).parents[3] / "deploy" / "nginx" / "monasca-api.conf"
#: The path of nginx, or ``None`` if it is not installed.
PROGRAM = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
MISSING = "no nginx is installed (Debian's package nginx-light)"

_MAIN = """\
user {user};
worker_processes 1;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
worker_rlimit_nofile 20000;
events {{ worker_connections 10000; }}
http {{
    access_log off;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/answers;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/monasca-api.conf;
}}
"""


def write_configuration(folder, port, tls_port, api_ports, **changes):
    """Write nginx's files for one or two APIs into the folder, and return the path of the main file."""
    certificates.issue(folder, [])
    first, *second = (f"server 127.0.0.1:{api_port}" for api_port in api_ports)
    patterns = {
        r"listen \[::\]:443 ssl;": "",
        r"listen 443 ssl;": f"listen 127.0.0.1:{port}; listen 127.0.0.1:{tls_port} ssl;",
        r"server 10\.0\.0\.11:8070": first,
        **({r"server 10\.0\.0\.12:8070": second[0]} if second else {r"server 10\.0\.0\.12:8070[^;]*;": ""}),
        r"/etc/nginx/tls/monasca\.(pem|key)": f"{folder}/broker.pem",
        **{rf"\b{name} [^;]+;": f"{name} {value};" for name, value in changes.items()},
    }
    text = PUBLISHED.read_text()
    for pattern, replacement in patterns.items():
        text, count = re.subn(pattern, replacement, text)
        if not count:
            raise AssertionError(f"{PUBLISHED} has no {pattern}")
    (folder / "monasca-api.conf").write_text(text)
    main = folder / "nginx.conf"
    main.write_text(_MAIN.format(folder=folder, user=getpass.getuser()))
    return main


class Nginx(fixtures.Fixture):
    """Serves ``port`` and, with TLS, ``tls_port`` before the API at ``api_port``. ``changes``: values of directives."""

    def __init__(self, api_port, **changes):
        self._api_port = api_port
        self._changes = changes

    def _setUp(self):
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.port, self.tls_port = free_ports(2)
        main = write_configuration(folder, self.port, self.tls_port, [self._api_port], **self._changes)
        self.ca_file, log = folder / "ca.pem", folder / "stderr"
        process = start_process(self, [PROGRAM, "-p", folder, "-c", main], log)
        wait_until_ready(lambda: accepts(self.port), process.poll, log)
