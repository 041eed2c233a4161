# SPDX-License-Identifier: Apache-2.0
"""Passwords of a running system do not leak: the test sets known passwords and searches for them everywhere else.

It searches command lines and environments of all processes, from before the start of Kafka until the last service has
ended; files left in the folder for temporary files; files in which Java describes itself; logs at DEBUG; and Spark's
web interface, REST interface and event log.
"""

import contextlib
import html
import json
import os
import re
import stat
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import fixtures
import psutil
from cryptography.hazmat.primitives import serialization
from oslotest import base

from monasca_common.api.query import iso
from monasca_common.devbroker import ports
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.tests.functional.pipeline.pipeline_case import QUICK_JAVA
from monasca_common.tests.functional.postgresql import SharedPostgresql
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.kafka_cluster import KafkaClusterFixture
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import Waiting

SECONDS = 240  # for processes that start Spark
PLANTED = re.compile(rb"planted[a-z]+")
HOUR_MS = 3_600_000
_PAGES = 60  # of Spark's user interface

_LOUD = "py4j=DEBUG,keystonemiddleware=DEBUG,keystoneauth=DEBUG,urllib3=DEBUG,oslo_policy=DEBUG,cotyledon=DEBUG"
_CONFIGURATION = """\
[DEFAULT]
debug = true
default_log_levels = {loud}
[kafka]
bootstrap_servers = {servers}
{security}
[storage]
driver = postgresql
[database]
connection = {url}
[api]
port = {api_port}
auth_strategy = {strategy}
metrics_topic = metrics
rejected_metrics_topic = metrics.dlq
[keystone_authtoken]
auth_type = password
auth_url = http://127.0.0.1:{nobody}/v3
username = monasca
password = plantedkeystone
project_name = service
user_domain_name = Default
project_domain_name = Default
http_request_max_retries = 0
[persister]
status_port = {status_port}
[kafka_metrics]
topic = metrics
group_id = persister
max_wait_time_seconds = 0.05
[kafka_alarm_history]
enabled = false
[spark]
master = local[2]
shuffle_partitions = 2
options = spark.driver.extraJavaOptions={java} -Djava.io.tmpdir={temporary}
options = spark.local.dir={temporary}
options = spark.ui.enabled=true
options = spark.ui.port={ui_port}
options = spark.eventLog.enabled=true
options = spark.eventLog.dir={events}
options = spark.eventLog.compress=false
options = spark.hadoop.fs.s3a.secret.key=plantedspark
[pipeline_aggregate]
topic = metrics
output_topic = metrics
dead_letter_topic = metrics.dlq
trigger_seconds = 0.2
tenant = noauth
"""


class Watch(threading.Thread):
    """Read the command line and the environment of each descendant process repeatedly."""

    def __init__(self):
        super().__init__(daemon=True)
        self.found = set()
        self.programs = set()
        self._over = threading.Event()

    def run(self):
        while not self._over.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                for name in ("cmdline", "environ"):
                    self._look(process.pid, name)

    def _look(self, pid, name):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/{name}").read_bytes()
            if name == "cmdline":
                self.programs.add(os.path.basename(text.split(b"\0")[0].decode()))
            self.found |= {(name, secret, text[:200]) for secret in PLANTED.findall(text)}

    def stop(self):
        self._over.set()
        self.join()


@periodic("SubmitTest checks for secrets that every user of the machine can read")
class SecretsTest(Waiting, base.BaseTestCase):
    TIMEOUT_SCALING_FACTOR = 2  # starting Spark takes minutes on a busy machine

    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.temporary, self.events, self.logs = (self.folder / name for name in ("temporary", "events", "logs"))
        for folder in (self.temporary, self.events, self.logs):
            folder.mkdir()
        self.watch = Watch()
        self.watch.start()
        self.addCleanup(self.watch.stop)
        self.api_port, self.dead_api_port, self.status_port, self.ui_port, self.nobody = ports.free_ports(5)
        self.cluster = self.start_kafka()
        self.url = self.useFixture(SharedPostgresql()).url.replace("@", ":planteddatabase@", 1)
        open_storage(StorageSettings("postgresql", self.url)).upgrade()

    def start_kafka(self):
        kafka = KafkaClusterFixture(
            tls=True, sasl=True, users={"monasca": 'plantedkafka,]="x', "admin": "plantedadmin"}
        )
        with fixtures.MonkeyPatch("tempfile.tempdir", str(self.temporary)):
            self.useFixture(kafka)
        for topic in ("metrics", "metrics.dlq"):
            kafka.cluster.create_topic(topic, 2)
        return kafka.cluster

    def configure(self, name, security, strategy="noauth", **changes):
        path = self.folder / f"{name}.conf"
        path.write_text(
            _CONFIGURATION.format(
                **{
                    "loud": _LOUD,
                    "security": "\n".join(f"{option} = {value}" for option, value in security.items()),
                    "servers": self.cluster.client_options("monasca")["bootstrap.servers"],
                    "url": self.url,
                    "strategy": strategy,
                    "api_port": self.api_port,
                    "status_port": self.status_port,
                    "ui_port": self.ui_port,
                    "nobody": self.nobody,
                    "java": QUICK_JAVA,
                    "temporary": self.temporary,
                    "events": self.events,
                    **changes,
                }
            )
        )
        return path

    def by_password(self):
        options = self.cluster.client_options("monasca")
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": options["sasl.mechanism"],
            "sasl_username": "monasca",
            "sasl_password": options["sasl.password"],
            "tls_ca_file": options["ssl.ca.location"],
        }

    def by_certificate(self):
        """Return options for a login by certificate, whose key has its own password."""
        options = self.cluster.mutual_tls_options("monasca")
        key = serialization.load_pem_private_key(Path(options["ssl.key.location"]).read_bytes(), None)
        locked = self.folder / "locked.key"
        locked.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"plantedkey"),
            )
        )
        return options["bootstrap.servers"], {
            "security_protocol": "SSL",
            "tls_ca_file": options["ssl.ca.location"],
            "tls_certificate_file": options["ssl.certificate.location"],
            "tls_key_file": locked,
            "tls_key_password": "plantedkey",
        }

    def command(self, name, configuration, *arguments):
        """Run the command, with its log in a separate file."""
        log = self.logs / f"{name}.log"
        line = [sys.executable, "-m", "monasca_common.cli.main", *arguments, "--config-file", str(configuration)]
        return start_process(self, line, log, env={**os.environ, "TMPDIR": str(self.temporary)})

    def ask(self, port, path, body=None, **headers):
        """Return status and text of the response, or nothing without a response."""
        headers["Content-Type"] = "application/json"
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError:
            return None, b""

    def aggregates(self):
        start = iso(time.time_ns() // 1_000_000 - 24 * HOUR_MS)
        query = f"name=mem.total_mb_agg&start_time={start}&merge_metrics=true"
        status, text = self.ask(self.api_port, f"/v2.0/metrics/measurements?{query}")
        return json.loads(text)["elements"] if status == 200 else []

    def leaks_in_files(self, *folders):
        """Return (file, secret) of each leak in files below the folders, which can change during the search."""
        leaks = set()
        for parent, _, names in (each for folder in folders for each in os.walk(folder)):
            for path in (Path(parent, name) for name in names):
                with contextlib.suppress(FileNotFoundError):
                    if stat.S_ISREG(path.lstat().st_mode):
                        leaks |= {(str(path), secret) for secret in PLANTED.findall(path.read_bytes())}
        return leaks

    def leaks_in_java(self):
        """Return the leaks in the files in which each JVM describes itself for its tools."""
        pids = {str(process.pid) for process in psutil.Process().children(recursive=True)}
        files = [path for path in Path("/tmp").glob("hsperfdata_*/*") if path.name in pids]
        self.assertNotEqual([], files)
        return {(str(path), secret) for path in files for secret in PLANTED.findall(path.read_bytes())}

    def leaks_in_spark(self):
        """Return (page, secret) of each leak in Spark's web pages, found by following a limited number of links."""
        [application] = json.loads(self.ask(self.ui_port, "/api/v1/applications")[1])
        rest = ("environment", "allexecutors", "jobs", "stages", "sql", "storage/rdd")
        waiting = [f"/api/v1/applications/{application['id']}/{page}" for page in rest]
        waiting += ["/environment/", "/jobs/", "/stages/", "/executors/", "/SQL/"]
        leaks, seen = set(), set(waiting)
        while waiting and len(seen) < _PAGES:
            page = waiting.pop(0)
            status, text = self.ask(self.ui_port, page)
            self.assertIsNotNone(status, page)
            leaks |= {(page, secret) for secret in PLANTED.findall(text)}
            links = [html.unescape(link.decode()) for link in re.findall(rb'href="(/[^"#]*)"', text)]
            new = [link for link in links if link not in seen and "kill" not in link and not link.startswith("/static")]
            seen.update(new)
            waiting += new
        self.assertIn(b"redacted", self.ask(self.ui_port, "/environment/")[1])
        return leaks

    def test_passwords_do_not_leak(self):
        by_password = self.configure("by_password", self.by_password())
        servers, certificate = self.by_certificate()
        api = self.command("api", by_password, "api")
        persister = self.command("persister", self.configure("persister", certificate, servers=servers), "persister")
        no_keystone = self.configure("no_keystone", self.by_password(), "keystone", api_port=self.dead_api_port)
        other_api = self.command("api-keystone", no_keystone, "api")
        pipeline = self.command("pipeline", by_password, "pipeline", "run", "aggregate")
        services = [api, persister, other_api, pipeline]

        # Each service either works or reports an error.
        self.wait_until(lambda: self.ask(self.api_port, "/v2.0")[0] == 200)
        now_ms = time.time_ns() // 1_000_000
        metric = {"name": "mem.total_mb", "dimensions": {"hostname": "a"}, "timestamp": now_ms, "value": 1.0}
        self.assertEqual(204, self.ask(self.api_port, "/v2.0/metrics", json.dumps(metric).encode())[0])
        self.wait_until(self.aggregates, seconds=SECONDS)
        token = {"X-Auth-Token": "plantedtoken"}
        self.wait_until(lambda: self.ask(self.dead_api_port, "/v2.0/metrics", **token)[0])
        away = self.configure("away", self.by_password(), url=self.url.replace("127.0.0.1", "127.0.0.2"))
        for name, arguments in (("status", ["pipeline", "status"]), ("upgrade", ["db", "upgrade"])):
            self.assertNotEqual(0, self.command(name, away, *arguments).wait(SECONDS))

        self.assertEqual(set(), self.leaks_in_java())
        self.assertEqual(set(), self.leaks_in_spark())
        self.assertEqual(set(), self.leaks_in_files(self.temporary))

        for process in services:
            process.terminate()
        self.assertEqual([0] * len(services), [process.wait(SECONDS) for process in services])
        self.assertTrue(self.watch.is_alive())
        self.watch.stop()
        self.assertEqual(set(), self.watch.found)
        self.assertIn("java", self.watch.programs)
        self.assertNotEqual([], [*self.events.rglob("*")])
        self.assertEqual(set(), self.leaks_in_files(self.temporary, self.events, self.logs))
