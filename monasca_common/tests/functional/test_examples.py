# SPDX-License-Identifier: Apache-2.0
"""The examples on a real Kafka, each in its own process."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import uuid
from collections import Counter
from pathlib import Path

import confluent_kafka
import fixtures

from monasca_common.devbroker import ApicurioRegistry
from monasca_common.kafka.testing import MemoryRegistry
from monasca_common.tests.checker import each_once
from monasca_common.tests.example_case import EXAMPLES, SECONDS, ExampleCase
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import Waiting

GIVES_UP_SECONDS, SLOW_ANSWER_SECONDS = 5, 12.0


PAGES = Path(__file__).parents[3] / "doc" / "source" / "user"


class FirstSparkJobTest(ExampleCase):
    @periodic("starts a JVM; test_own_job runs the same steps")
    def test_the_first_spark_job_prints_the_output_of_the_page(self):
        printed = self.succeeds("first_spark_job/averages.py")

        self.assertEqual(2, len(printed.splitlines()))
        self.assertIn(textwrap.indent(printed, "   "), (PAGES / "first_spark_job.rst").read_text())


class TutorialTest(Waiting, ExampleCase):
    @periodic("runs a page of the documentation; the unit tests run its programs in memory")
    def test_the_service_of_the_tutorial_handles_an_order_on_a_real_kafka(self):
        cluster = self.useFixture(SharedKafkaCluster(proxied=True)).cluster
        folder = self.folder / "first_service"
        shutil.copytree(EXAMPLES / "first_service", folder)
        self.configure("readings", "example", f"bootstrap_servers = {cluster.bootstrap_servers}")
        page = (PAGES / "first_service.rst").read_text()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}

        def run(*arguments):
            run = [sys.executable, *arguments]
            return subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)

        def run_command(line):
            return run("-m", "monasca_common.cli.main", *line.split())

        def start(output):
            return start_process(self, [sys.executable, "service.py"], output, cwd=folder, env=environment, stderr=None)

        commands = re.findall(r"^   \$ monasca-common (topic create .+)$", page, re.MULTILINE)
        self.assertEqual(3, len(commands))
        for command in commands:
            self.addCleanup(cluster.admin.delete_topic, command.split()[2])
            run_command(command).check_returncode()
        for name in ("service.py", "publish_orders.py"):
            [program] = re.findall(rf"   :caption: {name}\n\n((?:   .*\n|\n)+)", page)
            text = textwrap.dedent(program).replace("localhost:9092", cluster.bootstrap_servers)
            (folder / name).write_text(text)
        output = folder / "output"
        service = start(output)

        run("publish_orders.py").check_returncode()

        self.wait_until(lambda: output.read_text() == "2 lamp\n", output.read_text)
        shown = re.findall(r"^   \$ monasca-common (dlq .+)\n((?:   .+\n)+)", page, re.MULTILINE)
        (list_command, listed), (replay_command, replayed) = shown
        self.wait_until(
            lambda: run_command(list_command).stdout == textwrap.dedent(listed),
            lambda: run_command(list_command).stdout,
        )
        service.terminate()
        self.assertEqual(0, service.wait(SECONDS))
        [(line, previous)] = re.findall(r"insert the line ``(.+)`` after\n``(.+)``, and restart the service", page)
        program = (folder / "orders.py").read_text()
        self.assertIn(f"        {previous}\n", program)
        (folder / "orders.py").write_text(program.replace(previous, f"{previous}\n        {line}"))
        output = folder / "output.restarted"
        service = start(output)
        self.assertEqual(textwrap.dedent(replayed), run_command(replay_command).stdout)
        self.wait_until(lambda: output.read_text() == "1 lamp\n", output.read_text)
        service.terminate()
        self.assertEqual(0, service.wait(SECONDS))


class ExamplesTest(Waiting, ExampleCase):
    def setUp(self):
        super().setUp()
        # Use the settings of the other functional tests, so that a process starts one cluster for all of them.
        self.kafka = self.useFixture(SharedKafkaCluster(proxied=True))
        self.group = f"example-{uuid.uuid4().hex[:8]}"

    def on_kafka(self, topic, *lines):
        return self.configure(topic, self.group, f"bootstrap_servers = {self.kafka.cluster.bootstrap_servers}", *lines)

    @periodic("runs a page of the documentation; the unit tests run the example in memory")
    def test_the_asyncio_service_publishes_reads_and_handles_every_reading(self):
        printed = self.succeeds("asyncio_service.py", self.on_kafka(self.kafka.topic(partitions=2)))

        self.assertEqual(["published 10", "read 10", "published 10", "handled 10, clean True"], printed.splitlines())

    def test_what_is_produced_is_consumed_and_committed(self):
        topic = self.kafka.topic(partitions=2)
        config = self.on_kafka(topic)

        self.succeeds("produce.py", config, "--topic", topic, "--count", "7")
        error_text = self.succeeds("consume.py", config, "--count", "7")

        self.assertIn("7 readings", error_text)
        offsets = self.kafka.cluster.admin.group_offsets(f"{self.group}-readers")
        self.assertEqual(7, sum(offsets.values()))

    @periodic("runs a page of the documentation; the unit tests run the examples in memory")
    def test_messages_without_a_response_are_unknown_and_a_retry_waits_for_the_response(self):
        topic = self.kafka.topic()
        config = self.on_kafka(topic, f"publish_timeout_seconds = {GIVES_UP_SECONDS}")
        self.kafka.proxy.add(Fault.delay_answer(ApiKey.PRODUCE, seconds=SLOW_ANSWER_SECONDS, times=1))

        error_text = self.succeeds("produce.py", config, "--topic", topic, "--count", "5")

        self.assertIn("delivered 0, failed 0, unknown 5", error_text)
        self.assertIn("delivered 5, failed 0, unknown 0", error_text)
        self.assertIn(f"number 4 is at {topic}/0/4", error_text)  # so no message is in the log twice

    @periodic("runs a page of the documentation; the unit tests run the examples in memory")
    def test_a_producer_without_a_broker_fails_within_its_time_limit(self):
        config = self.configure(
            "readings", self.group, "bootstrap_servers = 127.0.0.1:9", "publish_timeout_seconds = 1"
        )

        done = self.fails("produce.py", config, "--patience_seconds", "1")

        self.assertIn("delivered 0", done.stdout)

    @periodic("runs a page of the documentation; the unit tests run the examples in memory")
    def test_bad_readings_become_dead_letters_with_their_origin(self):
        topic = f"example-{uuid.uuid4().hex[:8]}"

        error_text = self.succeeds("retry_dead_letters.py", self.on_kafka(topic))

        self.assertIn("the database is unavailable", error_text)
        self.assertIn("stored 2, dead letters 3", error_text)
        for reason in (
            "monasca_common.kafka.errors.Poison: 900 degrees in oven",
            "KeyError: 'celsius'",
            "SerializationError",
        ):
            self.assertIn(reason, error_text)
        self.assertIn("after 3 attempts", error_text)
        self.assertIn(f"came from {topic}/0/", error_text)

    @periodic("runs a page of the documentation; the unit tests run the examples in memory")
    def test_dead_letters_are_replayed_with_their_original_ids(self):
        topic = f"example-{uuid.uuid4().hex[:8]}"
        config = self.on_kafka(topic)
        self.succeeds("retry_dead_letters.py", config)

        error_text = self.succeeds("replay_dead_letters.py", config)

        self.assertIn("3 replayed", error_text)
        ids = Counter(dict(message.headers())["message-id"] for message in self.log_of(topic, 8))
        with each_once():
            self.assertEqual([1, 1, 2, 2, 2], sorted(ids.values()))

    def log_of(self, topic, count):
        """Return messages read by a client that is independent of the library."""
        reader = confluent_kafka.Consumer({**self.kafka.cluster.direct_options(), "group.id": "independent"})
        self.addCleanup(reader.close)
        reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        return reader.consume(count, timeout=SECONDS)

    @periodic("runs a page of the documentation; the normal run contains test_what_is_produced")
    def test_a_serializer_of_another_package_is_found_by_its_name(self):
        config = self.on_kafka(self.kafka.topic())

        error_text = self.succeeds("custom_plugin.py", config, path=self.installed("csv_serializer"))

        self.assertIn("read [['hall', '21.5', 'said, and quoted']]", error_text)

    @periodic("runs a page of the documentation; the unit tests run the examples in memory")
    def test_a_service_restarts_after_a_fatal_client_error_and_copies_each_message_once(self):
        topic, copies = self.kafka.topic(), self.kafka.topic()
        config = self.on_kafka(topic, f"transactional_id = {self.group}", "transaction_timeout_seconds = 5")
        readers = f"{self.group}-readers"
        log = Path(self.useFixture(fixtures.TempDir()).path) / "restart.log"
        command = [sys.executable, EXAMPLES / "restart.py", "--config-file", config, "--output", copies]
        service = start_process(self, command, log, stdout=subprocess.DEVNULL)
        self.addCleanup(self.kafka.proxy.clear)
        self.wait_until(lambda: self.kafka.cluster.admin.group_offsets(readers), log.read_text)
        fault = Fault.cut_request(ApiKey.FIND_COORDINATOR, where=lambda request: readers.encode() in request.frame)
        self.kafka.proxy.add(fault)
        writer = confluent_kafka.Producer(self.kafka.cluster.direct_options())
        for number in range(10):
            writer.produce(topic, b"%d" % number)
        writer.flush(SECONDS)
        # On a busy machine, another call may have exceeded its time-out before.
        finished = "restarts: send_offsets_to_transaction"
        self.wait_until(lambda: finished in log.read_text(), log.read_text)
        self.kafka.proxy.clear()
        self.wait_until(lambda: len(self.committed_of(copies)) >= 10, log.read_text)
        service.terminate()
        self.assertEqual(0, service.wait(SECONDS), log.read_text())
        self.assertEqual([b"%d" % number for number in range(10)], self.committed_of(copies))

    def committed_of(self, topic):
        return [message.value() for message in read_topic(self.kafka.cluster, topic)]


class JsonToAvroTest(ExampleCase):
    """Runs each command that the page shows for the second terminal."""

    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(SharedKafkaCluster(proxied=True))
        self.topic = f"readings-{uuid.uuid4().hex[:8]}"
        self.work = self.folder / "json_to_avro"
        shutil.copytree(EXAMPLES / "json_to_avro", self.work)

    def renamed(self, text):
        return re.sub(r"\breadings\b(?!-value)", self.topic, text).replace("readings-value", f"{self.topic}-value")

    def follow_the_page(self, url):
        for name in ("tutorial.conf", "write_reading.py"):
            text = self.renamed((self.work / name).read_text()).replace("kafka_" + self.topic, "kafka_readings")
            text = text.replace("127.0.0.1:9092", self.kafka.cluster.bootstrap_servers)
            (self.work / name).write_text(text.replace("http://127.0.0.1:8081/apis/ccompat/v7", url))
        page = (PAGES / "formats.rst").read_text()
        blocks = re.findall(r"caption: Second terminal\n\n((?:   .*\n|\n)+)", page)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        commands = 0
        for step in re.split(r"^\$ ", textwrap.dedent("\n".join(blocks)), flags=re.MULTILINE)[1:]:
            command, _, printed = self.renamed(step).partition("\n")
            if command.startswith("cd "):
                continue
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.work,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
            self.assertEqual(0, done.returncode, command + done.stderr)
            if not printed.strip():
                rows = [json.loads(line) for line in done.stdout.splitlines()]
                self.assertEqual([{"room": "hall", "celsius": 21.5}] * 3, [json.loads(row["value"]) for row in rows])
                self.assertEqual([30, 18, 30], [row["value_bytes"] for row in rows])
            else:
                self.assertEqual(printed.strip(), done.stdout.strip(), command)
            commands += 1
        self.assertEqual(9, commands)

    def test_the_commands_of_the_page_print_what_it_states(self):
        self.follow_the_page(self.useFixture(MemoryRegistry()).url)

    @periodic("a second registry, 142 MB to fetch; test_the_commands_of_the_page has the same steps")
    def test_the_commands_of_the_page_print_what_it_states_with_apicurio(self):
        with ApicurioRegistry() as registry:
            self.follow_the_page(registry.url)
