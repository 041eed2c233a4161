# SPDX-License-Identifier: Apache-2.0
"""The data folder of a cluster that may be started repeatedly.

::

    cluster.json            the settings of the cluster, which later starts must use
    certificates/           with TLS
    node-1/server.properties  server.log  data/
"""

import base64
import json
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monasca_common.devbroker.errors import BrokerFailed, BrokerTooSlow, InvalidCluster
from monasca_common.devbroker.jars import kafka_version
from monasca_common.devbroker.security import Security
from monasca_common.kafka.extras import remedy


class DataFolder:
    """The files of a cluster of ``nodes`` nodes in ``folder``."""

    def __init__(self, folder: Path, nodes: int, security: Security) -> None:
        self.folder = folder
        self.certificates = folder / "certificates"
        self._nodes = nodes
        self._security = security

    def node(self, node_id: int) -> Path:
        return self.folder / f"node-{node_id}"

    def prepare(self) -> None:
        """Create the folders. Refuse the folder of a cluster with different settings."""
        try:
            self._prepare()
        except (OSError, ValueError) as error:
            raise InvalidCluster(
                f"{self.folder} cannot be used ({error}): name a new folder, which this user can write to"
            ) from error

    def _prepare(self) -> None:
        purpose = self._purpose()
        note = self.folder / "cluster.json"
        if note.is_file():
            self._check(json.loads(note.read_text()), purpose)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise InvalidCluster(f"{self.folder} contains other files: name an empty or a new folder")
        for node_id in range(1, self._nodes + 1):
            self.node(node_id).mkdir()
        if self._security.tls:
            self._issue_certificates()
        note.write_text(json.dumps(purpose, indent=2) + "\n")

    def format(self, java: Sequence[str], timeout: float) -> None:
        """Format node 1 if needed, and copy it for the other nodes, which is faster than a JVM per node.

        Raises `BrokerTooSlow` after ``timeout`` seconds.
        """
        first = self.node(1) / "data"
        if not (first / "meta.properties").is_file():
            arguments = self._security.format_arguments()
            _run_storage_tool(java, self.node(1) / "server.properties", arguments, timeout)
        for node_id in range(2, self._nodes + 1):
            data = self.node(node_id) / "data"
            if not (data / "meta.properties").is_file():
                shutil.copytree(first, data, dirs_exist_ok=True)
                _rename_copy(data / "meta.properties", node_id)

    def _purpose(self) -> dict[str, Any]:
        security = self._security
        settings = {"tls": security.tls, "sasl": security.sasl, "acl": security.acl}
        users = sorted(security.users) if security.protocol != "PLAINTEXT" else []
        return {"kafka": kafka_version(), "nodes": self._nodes, **settings, "users": users}

    def _check(self, made_for: dict[str, Any], wanted: dict[str, Any]) -> None:
        different = [name for name in wanted if wanted[name] != made_for.get(name)]
        if different:
            was = ", ".join(f"{name}={made_for.get(name)}" for name in different)
            asked = ", ".join(f"{name}={wanted[name]}" for name in different)
            raise InvalidCluster(
                f"{self.folder} was created with {was}, not with {asked}: use the same settings, or name another folder"
            )

    def _issue_certificates(self) -> None:
        try:
            from monasca_common.devbroker.certificates import issue
        except ImportError as error:
            raise InvalidCluster(f"TLS cannot be used: {remedy(error, 'devbroker')}") from error
        issue(self.certificates, self._security.users)


def _run_storage_tool(java: Sequence[str], properties: Path, arguments: Sequence[str], timeout: float) -> None:
    """Run the tool with ``arguments`` from a file, because command lines are visible to other users and in errors."""
    with tempfile.NamedTemporaryFile("w", dir=properties.parent, prefix="format-") as file:
        file.writelines(f"{argument}\n" for argument in arguments)
        file.flush()
        given = [f"@{file.name}"] if arguments else []
        command = [*java, "kafka.tools.StorageTool", "format", "-t", _random_id(), "-c", str(properties), *given]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired as error:
            raise BrokerTooSlow("Kafka did not format its storage", timeout) from error
    if done.returncode != 0:
        raise BrokerFailed(
            f"Kafka cannot format its storage (exit status {done.returncode}):\n{done.stdout}{done.stderr}"
        )


def _rename_copy(meta: Path, node_id: int) -> None:
    """Set the node id and directory id of a copied folder, which must be unique in the cluster."""
    text = re.sub(r"(?m)^node\.id=.*$", f"node.id={node_id}", meta.read_text())
    meta.write_text(re.sub(r"(?m)^directory\.id=.*$", f"directory.id={_random_id()}", text))


def _random_id() -> str:
    """Return 16 random bytes in Kafka's format, without a leading dash, which would look like an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
