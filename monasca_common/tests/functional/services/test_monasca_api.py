# SPDX-License-Identifier: Apache-2.0
"""monasca-api 11.0.0 from PyPI with this library: its responses compared with the contents of Kafka and InfluxDB."""

import http.client
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import uuid
from collections import Counter
from pathlib import Path
from typing import ClassVar

import fixtures

from monasca_common.api.query import iso
from monasca_common.devbroker import KafkaCluster, ports
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.api.api_case import METRICS, ApiProcess
from monasca_common.tests.functional.kafka.producer_case import ProducerCase
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.functional.services.environments import environment
from monasca_common.tests.functional.storage import influxdb_server
from monasca_common.tests.functional.storage.test_contract_influxdb import InfluxDatabase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS

TOPIC = "metrics"
PROJECT = "a-project"
PUBLISHED_PIPELINE = "request_id auth api"
# The headers that Keystone's middleware sets; most tests have a pipeline without the middleware.
IDENTITY = {"X-Project-Id": PROJECT, "X-Roles": "monasca-user"}

_CONFIGURATION = """\
[DEFAULT]
region = RegionOne
[database]
connection = sqlite:///{folder}/alarms.sqlite
[kafka]
uri = {servers}
events_topic = {events}
alarm_state_transitions_topic = metrics
[messaging]
driver = monasca_api.common.messaging.kafka_publisher:KafkaPublisher
[influxdb]
database_name = {database}
ip_address = 127.0.0.1
port = {influxdb_port}
user = nobody
password = none
"""
_PASTE = """\
[pipeline:main]
pipeline = {pipeline}
[app:api]
paste.app_factory = monasca_api.api.server:launch
[filter:auth]
paste.filter_factory = monasca_api.healthcheck.keystone_protocol:filter_factory
[filter:request_id]
paste.filter_factory = oslo_middleware.request_id:RequestId.factory
"""
_PROMISED_AFTER_SECONDS = 1.9  # a publish waits 2 s; then the API returns 204 even if messages are unacknowledged

_PERSISTER = """\
[kafka]
bootstrap_servers = {servers}
[database]
connection = {url}
[storage]
driver = influxdb
[persister]
status_port = {port}
[kafka_metrics]
topic = metrics
group_id = {group}
dead_letter_topic = {dead_letters}
max_wait_time_seconds = 0.05
[kafka_alarm_history]
enabled = false
"""


class PublishedApi(ApiProcess):
    """The unmodified API under gunicorn, with its own home folder, in which it looks for its configuration."""

    def __init__(self, folder, configuration, *, pipeline="request_id api"):
        (self.port,) = ports.free_ports(1)
        self.folder = Path(folder)
        self.log = self.folder / "api.log"
        (self.folder / "monasca-api.conf").write_text(configuration)
        (self.folder / "api-config.ini").write_text(_PASTE.format(pipeline=pipeline))
        command = [
            environment("monasca-api").program("gunicorn"), "--bind", f"127.0.0.1:{self.port}",
            "--worker-class", "gthread", "--threads", "8", "--no-control-socket",
            f"monasca_api.api.server:get_wsgi_app(config_base_path={folder!r})",
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, "HOME": str(self.folder)},
                start_new_session=True,
            )


class PublishedApiCase(ProducerCase):
    """``self.published_api()`` starts an API. Its code contains the name of the metrics topic, so tests of a cluster
    share this topic."""

    partitions = 2
    _prepared: ClassVar[list[KafkaCluster]] = []  # clusters that have the topic

    def setUp(self):
        super().setUp()
        if self.cluster not in self._prepared:
            self.cluster.create_topic(TOPIC, self.partitions)
            self._prepared.append(self.cluster)

    def start_published_api(self, *, more="", pipeline="request_id api", **changes):
        folder = self.useFixture(fixtures.TempDir(tempfile.gettempdir())).path
        values = {"events": TOPIC, "database": "mon", "influxdb_port": ports.free_ports(1)[0], **changes}
        configuration = _CONFIGURATION.format(folder=folder, servers=self.cluster.bootstrap_servers, **values) + more
        api = PublishedApi(folder, configuration, pipeline=pipeline)
        self.addCleanup(api.kill)
        return api

    def published_api(self, **changes):
        return self.start_published_api(**changes).wait_until_ready()

    def logged(self, prefix):
        """Return the envelopes in the log whose metric names have this prefix."""
        envelopes = [json.loads(record.value) for record in self.log(TOPIC, self.partitions)]
        return [each for each in envelopes if each["metric"]["name"].startswith(prefix)]


def _metric(name, **changes):
    return {
        "name": name,
        "dimensions": {"hostname": "a", "zone": "1"},
        "timestamp": 1_700_000_000_000,
        "value": 1.5,
        "value_meta": None,
        **changes,
    }


@periodic("a published service; the normal run contains MonascaPersisterTest")
class TestPosting(PublishedApiCase):
    def setUp(self):
        super().setUp()
        self.served = self.published_api()
        self.name = f"t{uuid.uuid4().hex[:8]}"

    def post(self, body):
        return self.served.post(body, IDENTITY)[0]

    def counted(self):
        return Counter(envelope["metric"]["name"] for envelope in self.logged(self.name))

    def wait_for(self, count):
        """Wait until the log has this number of messages: on a busy machine, some arrive after the response."""
        self.wait_until(lambda: len(self.counted()) >= count, f"{count} in the log")

    def test_accepted_messages_are_in_the_log_unchanged(self):
        bulk = [
            _metric(f"{self.name}.a"),
            _metric(f"{self.name}.b", dimensions={"名": "é"}, value=-0.1, value_meta={"why": "日本", "code": "7"}),
        ]
        one = _metric(f"{self.name}.c", timestamp=1_700_000_000_001.0)
        began = time.time()
        self.assertEqual((204, 204), (self.post(bulk), self.post(one)))
        self.wait_for(3)
        logged = {envelope["metric"]["name"]: envelope for envelope in self.logged(self.name)}
        self.assertEqual([*bulk, one], [logged[f"{self.name}.{letter}"]["metric"] for letter in "abc"])
        for envelope in logged.values():
            self.assertEqual({"tenantId": PROJECT, "region": "RegionOne"}, envelope["meta"])
            self.assertTrue(began - 1 <= envelope["creation_time"] <= time.time() + 1)

    def test_an_empty_bulk_is_accepted_and_one_larger_than_the_queue_arrives_once(self):
        self.assertEqual(204, self.post([]))
        names = [f"{self.name}.{number}" for number in range(2500)]  # it sends 1000 at a time
        self.assertEqual(204, self.post([_metric(name) for name in names]))
        self.wait_for(2500)
        with each_once():
            self.assertEqual(Counter(names), self.counted())

    def test_concurrent_bulks_share_the_queue(self):
        statuses = []

        def post(client):
            statuses.append(self.post([_metric(f"{self.name}.{client}.{number}") for number in range(1000)]))

        clients = [threading.Thread(target=post, args=(client,)) for client in range(4)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(PATIENCE_SECONDS)
        self.assertEqual([204] * 4, statuses)
        self.wait_for(4000)
        counted = self.counted()
        self.assertEqual((4000, {1}), (len(counted), set(counted.values())))

    def test_a_bulk_with_violations_is_refused_as_before(self):
        name = self.name
        for bad in (
            _metric("n" * 256),
            _metric(""),
            _metric(f"{name}<"),
            _metric(f"{name}.a", value="many"),
            _metric(f"{name}.a", dimensions={"_hidden": "1"}),
            _metric(f"{name}.a", dimensions={"d" * 256: "1"}),
            _metric(f"{name}.a", dimensions={"d": ""}),
            _metric(f"{name}.a", timestamp="soon"),
            _metric(f"{name}.a", value_meta={"m": "x" * 2049}),
            {"name": f"{name}.a"},
        ):
            with self.subTest(bad=bad):
                self.assertEqual(422, self.post(bad))
                self.assertEqual(422, self.post([_metric(f"{name}.good"), bad]))
        self.assertEqual(400, self.post(b"no json"))
        self.assertEqual(401, self.served.post(_metric(name), {**IDENTITY, "X-Roles": "nobody"})[0])
        self.assertEqual([], self.logged(name))


@periodic("a published service; the normal run contains MonascaPersisterTest")
class TestHealthCheck(PublishedApiCase):
    def setUp(self):
        super().setUp()
        self.influx_port = influxdb_server.server().http_port

    def test_the_health_check_reads_the_topics(self):
        served = self.published_api(influxdb_port=self.influx_port)
        self.wait_until(lambda: served.request("GET", "/healthcheck", headers=IDENTITY)[0] == 200, served.text)
        status, _, answer = served.request("GET", "/healthcheck", headers=IDENTITY)
        self.assertEqual(
            (200, {"kafka": "OK", "alarms_database": "OK", "metrics_database": "OK"}), (status, answer), served.text()
        )
        self.cluster.nodes[0].kill()
        status, _, answer = served.request("GET", "/healthcheck", headers=IDENTITY)
        self.assertEqual((503, "Could not connect to Kafka"), (status, answer["kafka"][:26]))
        self.cluster.nodes[0].restart()
        self.wait_until(lambda: served.request("GET", "/healthcheck", headers=IDENTITY)[0] == 200)

    def test_a_missing_topic_is_reported(self):
        served = self.published_api(influxdb_port=self.influx_port, events="no-such-topic")
        status, _, answer = served.request("GET", "/healthcheck", headers=IDENTITY)
        self.assertEqual((503, "Kafka: Topic b'no-such-topic' not found"), (status, answer["kafka"]))


@periodic("a published service; the normal run contains MonascaPersisterTest")
class TestBrokerGone(PublishedApiCase):
    """While Kafka is down, the API returns 204 until its queue is full, and delivers the queue after Kafka has
    restarted."""

    def test_an_unavailable_broker_at_the_start_and_during_posts_is_tolerated(self):
        name = f"t{uuid.uuid4().hex[:8]}"
        (node,) = self.cluster.nodes
        node.kill()
        served = self.published_api(more="[kafka]\nqueue_buffering_max_messages = 50")
        (worker,), numbers, answered = served.workers(), itertools.count(), []

        def post():
            names = [f"{name}.{next(numbers)}" for _ in range(50)]
            status = served.post([_metric(each) for each in names], IDENTITY)[0]
            answered.extend(names if status == 204 else ())
            return status

        self.wait_until(lambda: post() == 503)
        node.restart()
        self.wait_until(lambda: post() == 204)
        node.kill()
        self.wait_until(lambda: post() == 503)
        node.restart()
        self.wait_until(lambda: post() == 204)
        self.assertEqual([worker], served.workers(), served.text())
        self.wait_until(lambda: set(answered) <= {envelope["metric"]["name"] for envelope in self.logged(name)})


@periodic("a published service; the normal run contains MonascaPersisterTest")
class TestKilled(PublishedApiCase):
    def test_messages_accepted_by_two_processes_are_in_the_log_after_one_is_killed(self):
        name = f"t{uuid.uuid4().hex[:8]}"
        killed, other = self.start_published_api(), self.start_published_api()
        answered, enough = {killed: [], other: []}, {killed: threading.Event(), other: threading.Event()}
        ended = threading.Event()

        def post(served, client):
            for number in itertools.count():
                if ended.is_set():
                    return
                names = [f"{name}.{client}.{number}.{part}" for part in range(20)]
                began = time.monotonic()
                try:
                    status = served.post([_metric(each) for each in names], IDENTITY)[0]
                except (OSError, http.client.HTTPException):
                    return  # killed
                if status == 204 and time.monotonic() - began < _PROMISED_AFTER_SECONDS:
                    answered[served].extend(names)
                    if len(answered[served]) > 1000:
                        enough[served].set()

        clients = [
            threading.Thread(target=post, args=(served.wait_until_ready(), client))
            for client, served in enumerate((killed, other, killed, other))
        ]
        self.addCleanup(ended.set)
        for client in clients:
            client.start()
        self.assertTrue(enough[killed].wait(PATIENCE_SECONDS))
        killed.kill()
        enough[other].clear()
        self.assertTrue(enough[other].wait(PATIENCE_SECONDS))
        ended.set()
        for client in clients:
            client.join(PATIENCE_SECONDS)
        counted = Counter(envelope["metric"]["name"] for envelope in self.logged(name))
        lost = set(answered[killed] + answered[other]) - set(counted)
        with each_once():
            self.assertEqual((set(), {1}), (lost, set(counted.values())))


@periodic("a published service; the normal run contains MonascaPersisterTest")
class TestReadingFromInfluxdb(PublishedApiCase):
    # A different cluster, because the tests above post thousands of names.
    cluster_settings = {}  # noqa: RUF012

    def test_measurements_are_read_from_influxdb(self):
        name, base_ms = f"t{uuid.uuid4().hex[:8]}", time.time_ns() // 1_000_000_000 * 1000 - 600_000
        influxdb = InfluxDatabase(self.addCleanup)
        influxdb.prepare()
        self.start_persister(influxdb.settings.connection)
        served = self.published_api(influxdb_port=influxdb_server.server().http_port, database=influxdb.name)
        rows = [
            _metric(
                f"{name}.cpu", timestamp=base_ms + 1000 * number, value=float(number), value_meta={"n": str(number)}
            )
            for number in range(5)
        ]
        self.assertEqual(204, served.post(rows, IDENTITY)[0])

        def get(path, **asked):
            query = urllib.parse.urlencode({"name": f"{name}.cpu", "start_time": iso(base_ms), **asked})
            status, _, body = served.request("GET", f"{METRICS}{path}?{query}", headers=IDENTITY)
            self.assertEqual(200, status, body)
            return body["elements"]

        self.wait_until(lambda: [len(each["measurements"]) for each in get("/measurements")] == [5])
        (measured,) = get("/measurements")
        self.assertEqual(
            [[iso(row["timestamp"]), row["value"], row["value_meta"]] for row in rows], measured["measurements"]
        )
        (listed,) = get("")
        self.assertEqual((f"{name}.cpu", rows[0]["dimensions"]), (listed["name"], listed["dimensions"]))
        (summed,) = get("/statistics", statistics="sum,count", period=3600)
        self.assertEqual([10.0, 5.0], summed["statistics"][0][1:])

    def start_persister(self, url):
        folder = Path(self.useFixture(fixtures.TempDir(tempfile.gettempdir())).path)
        configuration, log = folder / "persister.conf", folder / "persister.log"
        (port,) = ports.free_ports(1)
        values = {"servers": self.cluster.bootstrap_servers, "url": url, "port": port}
        topics = {"group": folder.name, "dead_letters": self.fixture.topic()}
        configuration.write_text(_PERSISTER.format(**values, **topics))
        command = [sys.executable, "-m", "monasca_common.cli.main", "persister", "--config-file", str(configuration)]
        start_process(self, command, log)
