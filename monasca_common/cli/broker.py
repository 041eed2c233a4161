# SPDX-License-Identifier: Apache-2.0
"""``monasca-common broker start``: Apache Kafka for development."""

import argparse
import contextlib
import json
import signal
import time
from pathlib import Path
from typing import Any

from monasca_common.cli.command import MonascaCommand, add_line_format, until_interrupted
from monasca_common.devbroker import ApicurioRegistry, DevBrokerError, KafkaCluster
from monasca_common.devbroker.jars import kafka_version
from monasca_common.devbroker.supervisor import ServerProcess

_DEFAULT_PORT = 9092
_REGISTRY_PORT = 8081  # the port of Confluent's registry
_LAST_PORT = 65533  # three nodes also use the next two ports
_WATCH_SECONDS = 0.5
USER = "monasca"


class BrokerStart(MonascaCommand):
    """Start Apache Kafka on this machine and run it until Ctrl-C.

    The command requires Java 17 or newer. Kafka's jars (44 MB) are fetched at the first start and stored in the user's
    cache. Clients connect to the loopback address. Topics are created on first use. Do not use this in production. For
    example, start three nodes that keep their data:
    monasca-common broker start --nodes 3 --data-dir /tmp/kafka
    """

    configured = False
    reported = (DevBrokerError,)
    interrupting = (signal.SIGTERM, signal.SIGHUP)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--nodes",
            type=int,
            choices=(1, 3),
            default=1,
            help="number of brokers; with 3, every topic has three replicas and one broker can fail (default: 1)",
        )
        parser.add_argument(
            "--port",
            type=_port,
            default=_DEFAULT_PORT,
            metavar="P",
            help="port P for clients; three nodes use P, P+1 and P+2; 0 selects free ports (default: %(default)s)",
        )
        parser.add_argument(
            "--data-dir",
            type=Path,
            metavar="D",
            help="keep the data in this folder for the next start (default: delete the data on exit)",
        )
        parser.add_argument("--tls", action="store_true", help="use TLS, with a new certificate authority")
        parser.add_argument(
            "--sasl",
            action="store_true",
            help=f"require passwords (SCRAM-SHA-512); the users are admin and {USER}",
        )
        parser.add_argument(
            "--registry",
            action="store_true",
            help=f"also start a schema registry (Apicurio Registry, 142 MB to fetch once) on port {_REGISTRY_PORT}, or "
            "on a free port with --port 0; its schemas are lost on exit",
        )
        add_line_format(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Serve until a signal. The exit status is 1 if a server cannot start or exits, otherwise 0."""
        cluster = KafkaCluster(
            parsed_args.nodes,
            data_dir=parsed_args.data_dir,
            port=parsed_args.port or None,
            tls=parsed_args.tls,
            sasl=parsed_args.sasl,
            config={"auto.create.topics.enable": "true"},
        )
        registry = None
        if parsed_args.registry:
            registry = ApicurioRegistry(port=_REGISTRY_PORT if parsed_args.port else None)
        with until_interrupted(), registry or contextlib.nullcontext(), cluster:
            is_json = parsed_args.formatter == "json"
            self.print(json.dumps(description(cluster, registry)) if is_json else instructions(cluster, registry))
            self._watch(cluster, registry)
        return 0

    def _watch(self, cluster: KafkaCluster, registry: ApicurioRegistry | None) -> None:
        """Wait until a node or the registry exits, which is an error. A signal raises an interrupt."""
        servers: dict[str, ServerProcess] = {f"node {node.id}": node for node in cluster.nodes}
        if registry is not None:
            servers["the schema registry"] = registry
        while all(server.running for server in servers.values()):
            time.sleep(_WATCH_SECONDS)
        for name, server in servers.items():
            if not server.running:
                self._status = self.report(f"{name} ended; its log ends with\n{server.log_tail()}")


def description(cluster: KafkaCluster, registry: ApicurioRegistry | None = None) -> dict[str, Any]:
    """Return the object to print with ``-f json``: ``client`` has options for librdkafka, ``service`` options for
    ``[kafka]``, ``schema_registry`` options for ``[schema_registry]``."""
    found = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "kafka_version": kafka_version(),
        "pids": [node.pid for node in cluster.nodes],
        "client": cluster.client_options(USER),
        "service": service_options(cluster),
    }
    return found if registry is None else {**found, "schema_registry": {"url": registry.url}}


def instructions(cluster: KafkaCluster, registry: ApicurioRegistry | None = None) -> str:
    """Return text to copy into configurations and shells."""
    nodes = len(cluster.nodes)
    return "\n".join(
        [
            f"Apache Kafka {kafka_version()} is running with {nodes} node{'s' if nodes > 1 else ''}. Ctrl-C stops it.",
            "",
            "For a service (oslo.config):",
            "",
            "  [kafka]",
            *(f"  {name} = {value}" for name, value in service_options(cluster).items()),
            *(("  [schema_registry]", f"  url = {registry.url}") if registry else ()),
            "",
            "For any librdkafka client, such as kcat:",
            "",
            *(f"  {name}={value}" for name, value in cluster.client_options(USER).items()),
        ]
    )


def service_options(cluster: KafkaCluster) -> dict[str, str]:
    """Return the options of ``[kafka]`` for this cluster."""
    client = cluster.client_options(USER)
    names = {
        "bootstrap.servers": "bootstrap_servers",
        "security.protocol": "security_protocol",
        "sasl.mechanism": "sasl_mechanism",
        "sasl.username": "sasl_username",
        "sasl.password": "sasl_password",
        "ssl.ca.location": "tls_ca_file",
        "ssl.certificate.location": "tls_certificate_file",
        "ssl.key.location": "tls_key_file",
    }
    options = {names[name]: value.replace("$", "$$") for name, value in client.items()}
    if cluster.security.sasl and not cluster.security.tls:
        options["allow_insecure_credentials"] = "true"  # refused otherwise
    return options


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text} is not a port: use 1 to {_LAST_PORT}, or 0 for a free one")
    return int(text)
