# SPDX-License-Identifier: Apache-2.0
"""The command ``monasca-common broker start`` as people and programs run it."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import confluent_kafka
import psutil
from oslotest import base

from monasca_common.tests.periodic import periodic
from monasca_common.tests.web import fetch

COMMAND = [sys.executable, "-m", "monasca_common.cli.main", "broker", "start", "--port", "0"]
SECONDS = 120


class TestBrokerStart(base.BaseTestCase):
    def start(self, *arguments):
        process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def assert_served(self, options):
        producer = confluent_kafka.Producer(options)
        failures = []
        producer.produce("made-when-first-used", b"x", on_delivery=lambda error, _: failures.append(error))
        producer.flush(SECONDS)
        self.assertEqual([None], failures)

    def test_the_broker_serves_any_client_until_it_is_stopped(self):
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = self.start("-f", "json")
            address = json.loads(process.stdout.readline())
            self.assertEqual({"bootstrap_servers": address["bootstrap_servers"]}, address["service"])
            self.assert_served(address["client"])
            process.send_signal(signum)
            self.assertEqual(0, process.wait(SECONDS), process.stderr.read())
            self.assertFalse(any(psutil.pid_exists(pid) for pid in address["pids"]))

    @periodic("a second server, 142 MB to fetch; MemoryRegistryTest has the contract")
    def test_a_schema_registry_runs_with_the_broker_until_both_stop(self):
        process = self.start("-f", "json", "--registry")
        url = json.loads(process.stdout.readline())["schema_registry"]["url"]
        self.assertEqual((200, "[]"), fetch(f"{url}/subjects"))
        children = psutil.Process(process.pid).children(recursive=True)
        self.assertTrue(any("runner.jar" in " ".join(each.cmdline()) for each in children))
        process.terminate()
        self.assertEqual(0, process.wait(SECONDS), process.stderr.read())
        psutil.wait_procs(children, SECONDS)
        self.assertFalse(any(each.is_running() for each in children))

    @periodic("tests the development broker itself; the normal run contains test_the_broker_serves_any_client")
    def test_unpacked_files_of_a_broker_are_removed_when_it_stops(self):
        process = self.start("-f", "json")
        address = json.loads(process.stdout.readline())
        producer = confluent_kafka.Producer({**address["client"], "compression.type": "lz4"})
        producer.produce("compressed", b"x" * 10_000)
        self.assertEqual(0, producer.flush(SECONDS))
        maps = psutil.Process(address["pids"][0]).memory_maps()
        unpacked = [Path(each.path) for each in maps if "liblz4" in each.path]
        self.assertTrue(unpacked)
        process.terminate()
        self.assertEqual(0, process.wait(SECONDS), process.stderr.read())
        self.assertEqual([], [path for path in unpacked if path.exists()])

    @periodic("tests the development broker itself; the normal run contains test_the_broker_serves_any_client")
    def test_with_tls_and_passwords_the_command_prints_the_client_options(self):
        process = self.start("-f", "json", "--tls", "--sasl")
        address = json.loads(process.stdout.readline())
        self.assertEqual("SASL_SSL", address["service"]["security_protocol"])
        self.assertTrue(Path(address["service"]["tls_ca_file"]).is_file())
        self.assert_served(address["client"])

    @periodic("tests the development broker itself; the normal run contains test_the_broker_serves_any_client")
    def test_the_output_has_configuration_to_paste(self):
        process = self.start()
        shown = [process.stdout.readline() for _ in range(6)]
        self.assertIn("Apache Kafka", shown[0])
        self.assertIn("  [kafka]\n", shown)
        self.assertTrue(any(line.startswith("  bootstrap_servers = 127.0.0.1:") for line in shown))

    @periodic("tests the development broker itself; the normal run contains test_the_broker_serves_any_client")
    def test_a_broker_that_ends_by_itself_ends_the_command_with_status_1(self):
        process = self.start("-f", "json")
        (pid,) = json.loads(process.stdout.readline())["pids"]
        psutil.Process(pid).kill()
        self.assertEqual(1, process.wait(SECONDS))
        self.assertIn("ended; its log ends with", process.stderr.read())

    @periodic("tests the development broker itself; the normal run contains test_the_broker_serves_any_client")
    def test_a_port_that_is_taken_is_named_with_its_option(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            process = self.start("--port", str(port))
            _, complaint = process.communicate(timeout=SECONDS)
        self.assertEqual(1, process.returncode)
        self.assertIn(f"another program listens on 127.0.0.1:{port}", complaint)
        self.assertIn("broker start --port", complaint)

    @periodic("tests the development broker itself; the normal run contains test_the_broker_serves_any_client")
    def test_a_signal_during_the_start_leaves_no_process_and_no_folder(self):
        process = self.start()
        child = psutil.Process(process.pid)
        while not child.children():
            self.assertIsNone(process.poll())
        children = child.children(recursive=True)
        process.send_signal(signal.SIGINT)
        self.assertEqual(0, process.wait(SECONDS), process.stderr.read())
        _, alive = psutil.wait_procs(children, timeout=SECONDS)
        self.assertEqual([], alive)
