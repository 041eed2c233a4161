# SPDX-License-Identifier: Apache-2.0
"""The unmodified forwarder of monasca-agent 10.0.0 in its own process."""

import http.client
import json
import socket
import subprocess
import time
from pathlib import Path

from monasca_common.devbroker import ports
from monasca_common.tests.functional.services.environments import environment
from monasca_common.tests.functional.waiting import PATIENCE_SECONDS

BATCH = 200  # the forwarder sends this number of measurements within a second; with fewer, it waits three more seconds


class Forwarder:
    """Receives measurements on its port and posts them to the API at ``url``, with a token of the given Keystone."""

    def __init__(self, folder, url, keystone_url, *, user, password, project, **api):
        self.folder = Path(folder)
        (self.port,) = ports.free_ports(1)
        self.log = self.folder / "forwarder.log"
        domain = {"user_domain_id": "default", "project_domain_id": "default"}
        account = {"username": user, "password": password, "project_name": project, "keystone_url": keystone_url}
        configuration = {
            "Main": {"hostname": "a-host", "listen_port": self.port},
            "Api": {"url": url, **account, **domain, **api},
            "Logging": {"disable_file_logging": True, "log_level": "INFO"},
        }
        (self.folder / "agent.yaml").write_text(json.dumps(configuration))  # which is YAML
        self.process = None

    def start(self):
        command = [environment("monasca-agent").program("monasca-forwarder"), f"--config-file={self.folder}/agent.yaml"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _accepts(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the forwarder does not start:\n{self.text()}")
            time.sleep(0.05)
        return self

    def post(self, measurements, tenant=None):
        """Return the status of the answer: 200 if the measurements are in the forwarder's memory."""
        connection = http.client.HTTPConnection("localhost", self.port, timeout=PATIENCE_SECONDS)
        try:
            envelopes = [{"measurement": each, "tenant_id": tenant} for each in measurements]
            connection.request("POST", "/intake", json.dumps(envelopes), {"Content-Type": "application/json"})
            return connection.getresponse().status
        finally:
            connection.close()

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_SECONDS)

    def text(self):
        return self.log.read_text(errors="replace")


def _accepts(port):
    try:
        socket.create_connection(("localhost", port), 1).close()
    except OSError:
        return False
    return True
