# SPDX-License-Identifier: Apache-2.0
"""The system under test: Keystone, Kafka, the package's services, and the files that the plugins read."""

import configparser
import io
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import tempest_search
from tempest_warm_up import client, warm_up

from monasca_common.devbroker import KafkaCluster, ports
from monasca_common.devbroker.supervisor import Supervisor
from monasca_common.quickstart.services import ServiceFailed, ServiceProcess, run_command
from monasca_common.tests.keystone_server import PASSWORD, KeystoneServer
from monasca_common.tests.postgresql_server import PostgresqlServer

DATABASES = ("sqlite", "postgresql")
REGION = "RegionOne"
_SERVICES = ("api", "persister", "pipeline run evaluate")
_ROLES = ("monasca-user", "monasca-agent", "monasca-read-only-user", "monitoring-delegate")
# In a program that runs for minutes, quick compilation is better than good compilation.
_SPARK_OPTIONS = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_WARM_UP = "warm-up"  # name of the user and of the project
_AHEAD_SECONDS = 12 * 24 * 3600  # the plugin posts metrics up to 11 days ahead


@contextmanager
def running(database: str, folder: Path, *, delay_seconds: int) -> Iterator[str]:
    """Start all servers in the folder, and yield tempest's configuration. The servers end with this process.

    ``delay_seconds``: the time between the end of a window and its evaluation.
    """
    with ExitStack() as opened:
        say("starting Kafka")
        servers = opened.enter_context(KafkaCluster()).bootstrap_servers
        url = f"sqlite:///{folder}/monasca.sqlite"
        if database == "postgresql":
            say("starting PostgreSQL")
            url = opened.enter_context(PostgresqlServer()).url("monasca")
        supervisor = Supervisor()
        opened.callback(supervisor.close)
        listening = ports.free_ports(3)
        say("starting Keystone")
        keystone = _keystone(folder, supervisor)
        path = folder / "monasca.conf"
        path.write_text(service_configuration(servers, database, url, keystone.url, listening, delay_seconds))
        # The plugin waits 10 s for an alarm, and each partition takes a part of a second on Spark's only core.
        run_command("init", "--execute", "--partitions", "1", configuration=path)
        say("starting the API, the persister and the evaluator")
        services = [ServiceProcess(supervisor, command, path) for command in _SERVICES]
        for service, port in zip(services, listening, strict=True):
            opened.callback(service.stop)
            service.wait_until_answers(f"http://{ports.HOST}:{port}/healthcheck")
        search_port = opened.enter_context(tempest_search.serving(url))
        _fill_catalog(keystone, listening[0], search_port)
        say(f"the first alarm took {_warm(keystone, listening[0], services):.1f} s")
        yield tempest_configuration(keystone.url, PASSWORD, folder, delay_seconds)


def _warm(keystone: KeystoneServer, api_port: int, services: Sequence[ServiceProcess]) -> float:
    keystone.user(_WARM_UP, keystone.project(_WARM_UP), keystone.role("monasca-user"))

    def check() -> None:
        for service in services:
            service.check()

    return warm_up(client(api_port, keystone.token(_WARM_UP, _WARM_UP)), check)


def _keystone(folder: Path, supervisor: Supervisor) -> KeystoneServer:
    keystone = KeystoneServer(tempfile.mkdtemp(prefix="keystone-", dir=folder))
    try:
        keystone.set_up()
        pid = supervisor.start(keystone.command, log=keystone.log)
        keystone.wait_until_ready(lambda: supervisor.poll(pid))
    except AssertionError as error:
        raise ServiceFailed(str(error)) from None
    service = keystone.project("service")
    keystone.user("monasca", service, keystone.role("service"))
    for role in _ROLES:
        keystone.role(role)
    return keystone


def _fill_catalog(keystone: KeystoneServer, api_port: int, search_port: int) -> None:
    api, search = (f"http://{ports.HOST}:{port}" for port in (api_port, search_port))
    endpoints = {
        "monitoring": f"{api}/v2.0",
        "logs": f"{api}/v2.0",
        "events": api,
        "logs-search": search,
        "events-search": search,
    }
    for kind, url in endpoints.items():
        keystone.service(kind, url, REGION)


def service_configuration(
    servers: str, driver: str, database: str, keystone: str, listening: Sequence[int], delay_seconds: int
) -> str:
    """Return the configuration file of all services. ``listening``: the ports of the API, the persister and the
    evaluator."""
    api_port, persister_port, evaluator_port = listening
    quick: dict[str, object] = {"max_wait_time_seconds": 0.05}
    return _ini(
        {
            "api": {"port": api_port, "region": REGION, "access_log": "off"},
            "keystone_authtoken": {
                "www_authenticate_uri": keystone,
                "auth_url": keystone,
                # A busy Keystone also processes requests that have timed out, so use a long time-out and no retries.
                "http_connect_timeout": 240,
                "http_request_max_retries": 0,
                "auth_type": "password",
                "username": "monasca",
                "password": PASSWORD,
                "user_domain_name": "Default",
                "project_name": "service",
                "project_domain_name": "Default",
            },
            "kafka": {"bootstrap_servers": servers, "linger_ms": 5},
            "database": {"connection": database},
            "storage": {"driver": driver, "future_tolerance_seconds": _AHEAD_SECONDS},
            "persister": {"status_port": persister_port},
            "kafka_metrics": quick | {"topic": "metrics", "group_id": "metrics"},
            "kafka_alarm_history": {"topic": "alarm-state-transitions", "group_id": "alarms"},
            "spark": {"master": "local[1]", "shuffle_partitions": 1, "options": _SPARK_OPTIONS},
            "pipeline_evaluate": {"status_port": evaluator_port, "trigger_seconds": 1, "delay_seconds": delay_seconds},
            "kafka_logs": quick | {"enabled": True, "topic": "log", "group_id": "logs"},
            "kafka_events": quick | {"enabled": True, "topic": "monevents", "group_id": "events"},
        }
    )


def tempest_configuration(keystone: str, password: str, folder: Path, delay_seconds: int) -> str:
    """Return tempest.conf. The plugins' own options keep their defaults, except where this system differs."""
    others = ("cinder", "neutron", "glance", "swift", "nova", "horizon")
    return _ini(
        {
            "auth": {
                "use_dynamic_credentials": True,
                "admin_username": "admin",
                "admin_password": password,
                "admin_project_name": "admin",
                "admin_domain_name": "Default",
                "create_isolated_networks": False,
            },
            "identity": {"uri_v3": keystone, "auth_version": "v3", "region": REGION},
            "oslo_concurrency": {"lock_path": folder / "locks"},
            "monasca_common": {"delay_seconds": delay_seconds},
            "service_available": dict.fromkeys(others, False),
        }
    )


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _ini(sections: dict[str, dict[str, object]]) -> str:
    parser = configparser.RawConfigParser()
    parser.read_dict({name: {key: str(value) for key, value in section.items()} for name, section in sections.items()})
    written = io.StringIO()
    parser.write(written)
    return written.getvalue()
