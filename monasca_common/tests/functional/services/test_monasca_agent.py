# SPDX-License-Identifier: Apache-2.0
"""monasca-agent 10.0.0 from PyPI with this library: measurements that its forwarder flushes arrive in Kafka."""

import http.client
import json
import re
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections import Counter
from pathlib import Path

import confluent_kafka
import fixtures
from oslotest import base

from monasca_common.devbroker import ports
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.api.api_case import NOW_MS, ApiProcessCase
from monasca_common.tests.functional.kafka.producer_case import ProducerCase
from monasca_common.tests.functional.processes import RunningProcess, start_process
from monasca_common.tests.functional.services.environments import environment
from monasca_common.tests.functional.services.test_monasca_api import PUBLISHED_PIPELINE, PublishedApiCase
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.keystone_server import PASSWORD, KeystoneServer
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS, wait_until_ready

BATCH = 200  # the forwarder sends this number of measurements within a second; with fewer, it waits three more seconds


class Forwarder(RunningProcess):
    """Receives measurements on its port and posts them to the API at ``url``, with a token of the given Keystone."""

    def __init__(self, case, folder, url, keystone_url, *, user, password, project, **api):
        self.case = case
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

    def start(self):
        command = [environment("monasca-agent").program("monasca-forwarder"), f"--config-file={self.folder}/agent.yaml"]
        self.process = start_process(self.case, command, self.log, cwd=self.folder)
        wait_until_ready(lambda: _accepts(self.port), self.process.poll, self.log)
        return self

    def post(self, measurements, tenant=None):
        """Return the status of the response: 200 if the measurements are in the forwarder's memory."""
        connection = http.client.HTTPConnection("localhost", self.port, timeout=PATIENCE_SECONDS)
        try:
            envelopes = [{"measurement": each, "tenant_id": tenant} for each in measurements]
            connection.request("POST", "/intake", json.dumps(envelopes), {"Content-Type": "application/json"})
            return connection.getresponse().status
        finally:
            connection.close()


def _accepts(port):
    try:
        socket.create_connection(("localhost", port), 1).close()
    except OSError:
        return False
    return True


_AGGREGATOR = """
import json, sys
from monasca_agent.common import aggregator, metrics
gathered = aggregator.MetricsAggregator("a-host")
refused = []
for name, value, dimensions, value_meta in json.load(sys.stdin):
    try:
        gathered.submit_metric(name, value, metrics.Gauge, dimensions=dimensions, value_meta=value_meta)
    except Exception as error:
        refused.append(type(error).__name__)
print(json.dumps([refused, [each["measurement"]["name"] for each in gathered.flush()]]))
"""


@periodic("a published service; the normal run contains MonascaPersisterTest")
class TestForwarder(PublishedApiCase, ApiProcessCase):
    """``self.bulk(letter)`` returns the number of measurements that the forwarder sends in one request."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.mkdtemp(prefix="keystone-")
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        cls.keystone = keystone = KeystoneServer(folder)
        keystone.set_up()
        cls.addClassCleanup(keystone.stop)
        keystone.start()
        cls.project = keystone.project("observed")
        keystone.user("agent", cls.project, keystone.role("monasca-agent"), keystone.role("monitoring-delegate"))

    def setUp(self):
        super().setUp()
        self.name = f"t{uuid.uuid4().hex[:8]}"

    def forwarder(self, api):
        folder = self.useFixture(fixtures.TempDir(tempfile.gettempdir())).path
        account = {"user": "agent", "password": PASSWORD, "project": "observed"}
        url = f"http://127.0.0.1:{api.port}/v2.0"
        timeouts = {
            "write_timeout": PATIENCE_SECONDS,
            "keystone_timeout": PATIENCE_SECONDS,
        }  # so that nothing is sent twice on a busy machine
        return Forwarder(self, folder, url, self.keystone.url, **account, **timeouts).start()

    def bulk(self, letter, count=BATCH):
        return [
            {
                "name": f"{self.name}.{letter}.{number}",
                "dimensions": {"hostname": "a-host"},
                "timestamp": NOW_MS + number,
                "value": float(number),
                "value_meta": {"n": str(number)},
            }
            for number in range(count)
        ]

    def counted(self):
        """Return how often each metric is in the log."""
        logged = (json.loads(record.value) for record in self.log(self.topic, self.partitions))
        return Counter(each["metric"]["name"] for each in logged if each["metric"]["name"].startswith(self.name))

    def wait_for(self, *bulks, times=1):
        """Wait until each measurement is in the log at least this number of times."""
        wanted = {each["name"] for bulk in bulks for each in bulk}
        self.wait_until(lambda: wanted <= {name for name, count in self.counted().items() if count >= times})

    def test_measurements_arrive_by_way_of_the_published_api_and_its_keystone(self):
        section = [
            "[keystone_authtoken]",
            f"www_authenticate_uri = {self.keystone.url}",
            f"auth_url = {self.keystone.url}",
            "auth_type = password",
            "username = admin",
            f"password = {PASSWORD}",
            "project_name = admin",
            "user_domain_id = default",
            "project_domain_id = default",
        ]
        api = self.start_published_api(more="\n".join(section), pipeline=PUBLISHED_PIPELINE)
        forwarder = self.forwarder(api.wait_until_ready(401))
        sent = self.bulk("a")
        self.assertEqual(200, forwarder.post(sent))
        self.wait_until(lambda: len(self.logged(self.name)) == BATCH)
        logged = self.logged(self.name)
        self.assertEqual(sent, sorted((each["metric"] for each in logged), key=lambda metric: metric["timestamp"]))
        self.assertEqual({self.project}, {each["meta"]["tenantId"] for each in logged})

    def test_flushed_measurements_are_in_the_log_after_a_kill(self):
        forwarder = self.forwarder(self.api())
        flushed, in_memory, later = self.bulk("a"), self.bulk("b", BATCH - 1), self.bulk("c")
        self.assertEqual(200, forwarder.post(flushed))
        self.wait_for(flushed)
        # Its response only means that the measurements are in memory, where less than a batch stays for three seconds.
        self.assertEqual(200, forwarder.post(in_memory))
        forwarder.kill()
        forwarder.start()
        self.assertEqual(200, forwarder.post(later))
        self.wait_for(later)
        counted = self.counted()
        with each_once():
            self.assertEqual({1}, set(counted.values()))
        self.assertLessEqual({each["name"] for each in flushed + later}, set(counted))

    def test_measurements_are_kept_while_the_api_is_unavailable(self):
        text = self.configuration()
        api = self.start_api(text).wait_until_ready()
        forwarder = self.forwarder(api)
        before, gone, after = (self.bulk(letter) for letter in "abc")
        forwarder.post(before)
        self.wait_for(before)
        self.assertEqual(0, api.stop())
        forwarder.post(gone)
        self.wait_until(lambda: "Queuing the messages" in forwarder.text())
        again = self.start_api(text.replace("{port}", str(api.port)))
        again.port = api.port
        again.wait_until_ready()
        # Kept measurements are sent after the next accepted ones.
        forwarder.post(after)
        self.wait_for(before, gone, after)
        with each_once():
            self.assertEqual({1}, set(self.counted().values()))

    def test_stored_measurements_without_a_timely_response_are_sent_again(self):
        forwarder = self.forwarder(self.api(api=["publish_timeout_seconds = 1"]))
        before, twice, after = (self.bulk(letter) for letter in "abc")
        forwarder.post(before)
        self.wait_for(before)
        held = self.fixture.proxy.add(Fault.hold_answer(ApiKey.PRODUCE))
        forwarder.post(twice)
        self.wait_until(lambda: "Queuing the messages" in forwarder.text())
        self.fixture.proxy.remove(held)
        forwarder.post(after)
        self.wait_for(before, twice, after)
        self.wait_for(twice, times=2)


@periodic("a published service; the normal run contains MonascaPersisterTest")
class TestAggregator(base.BaseTestCase):
    def test_violations_are_refused_as_before(self):
        good, hostname = "cpu.idle_perc", {"hostname": "a-host"}
        tried = [
            (good, 1.5, hostname, {"why": "x"}),
            ("n" * 256, 1.5, hostname, None),
            ("a<b", 1.5, hostname, None),
            ("", 1.5, hostname, None),
            (good, "many", hostname, None),
            (good, 1.5, {"k" * 256: "v"}, None),
            (good, 1.5, {"_k": "v"}, None),
            (good, 1.5, {"k": ""}, None),
            (good, 1.5, hostname, {"k": "v" * 2048}),
        ]
        python = environment("monasca-agent").python
        done = subprocess.run(
            [python, "-c", _AGGREGATOR],
            input=json.dumps(tried),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        self.assertEqual(0, done.returncode, done.stderr)
        refused, gathered = json.loads(done.stdout)
        self.assertEqual(
            ["MetricName"] * 3 + ["Value", "DimensionKey", "DimensionKey", "DimensionValue", "ValueMeta"],
            [name.removeprefix("Invalid") for name in refused],
        )
        self.assertEqual([good], gathered)


@periodic("a published service; the normal run contains MonascaPersisterTest")
class TestKafkaCheck(ProducerCase):
    def test_the_check_of_consumers_finds_the_lag_of_a_group(self):
        topic, group = self.fixture.topic(2), uuid.uuid4().hex
        producer = confluent_kafka.Producer(self.cluster.direct_options())
        for partition in (0, 0, 0, 0, 1, 1, 1):
            producer.produce(topic, b"x", partition=partition)
        self.assertEqual(0, producer.flush(PATIENCE_SECONDS))
        reader = confluent_kafka.Consumer({**self.cluster.direct_options(), "group.id": group})
        read = [confluent_kafka.TopicPartition(topic, partition, offset) for partition, offset in ((0, 1), (1, 2))]
        reader.commit(offsets=read, asynchronous=False)
        reader.close()
        self.assertEqual({f"{group} {topic}": 4}, self.lags({group: [topic], uuid.uuid4().hex: ["no-such-topic"]}))

    def lags(self, groups):
        """Return the lags that the collector's command prints, by group and topic."""
        folder = Path(self.useFixture(fixtures.TempDir(tempfile.gettempdir())).path)
        instance = {"kafka_connect_str": self.cluster.bootstrap_servers, "consumer_groups": groups}
        (folder / "agent.yaml").write_text(json.dumps({"Main": {"hostname": "a-host"}}))
        (folder / "conf.d").mkdir()
        (folder / "conf.d" / "kafka_consumer.yaml").write_text(
            json.dumps({"init_config": None, "instances": [{"name": "kafka", **instance}]})
        )
        command = [environment("monasca-agent").program("monasca-collector"), "--config-file", folder / "agent.yaml"]
        done = subprocess.run(
            [*command, "check", "kafka_consumer"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=folder
        )
        found = re.findall(
            r"Name: +kafka.consumer_lag\n Value: +(\d+)\n Dimensions: (.*?) Value Meta", done.stdout, re.S
        )
        self.assertTrue(found, done.stdout + done.stderr)
        lags = {}
        for lag, text in found:
            dimensions = dict(line.strip().split("=", 1) for line in text.splitlines())
            lags[f"{dimensions['consumer_group']} {dimensions['topic']}"] = int(lag)
        return lags
