# SPDX-License-Identifier: Apache-2.0
"""Examples that need no broker, and the behaviour of the other examples without a broker."""

import configparser
import contextlib
import importlib
import importlib.util
import io
import json
import logging
import os
import re
import socket
import sys
import textwrap
import threading
from pathlib import Path
from unittest import mock

from oslotest import base

from monasca_common import kafka
from monasca_common.cli.broker import instructions
from monasca_common.devbroker import certificates
from monasca_common.kafka import Record, TopicPartition, dead_letters
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.tests.example_case import EXAMPLES, ExampleCase
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting
from monasca_common.tests.web import fetch

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.rst").read_text()
USER = ROOT / "doc" / "source" / "user"
CLI = ROOT / "doc" / "source" / "cli"
TUTORIAL = EXAMPLES / "first_service"
_CAPTIONED = re.compile(r"code-block:: (\w+)\n   :caption: (.+)\n\n((?:   .*\n|\n)+)")


def captioned(page, language):
    """Return the text of each block of a page with a caption, by caption."""
    blocks = _CAPTIONED.findall((USER / page).read_text())
    return {caption: textwrap.dedent(text).strip("\n") for kind, caption, text in blocks if kind == language}


def load_example(name):
    """Import a program, whose folder is not a package."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FirstProgramTest(base.BaseTestCase):
    def test_the_program_of_the_first_page_prints_what_the_page_states(self):
        [program] = re.findall(r"code-block:: python\n\n((?:   .*\n|\n)+)", README)
        [printed] = re.findall(r"^This prints ``(.+)``\.$", README, re.MULTILINE)
        server = '"localhost:9092"'
        self.assertIn(server, program)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(textwrap.dedent(program).replace(server, f'{server}, driver="memory"'), {})

        self.assertEqual(f"{printed}\n", output.getvalue())


class BrokerTest(base.BaseTestCase):
    def test_the_pages_show_the_first_line_that_the_broker_prints(self):
        for nodes, page in ((1, ROOT / "README.rst"), (1, USER / "first_service.rst"), (3, CLI / "broker.rst")):
            cluster = mock.Mock(nodes=[mock.Mock()] * nodes)
            cluster.client_options.return_value = {"bootstrap.servers": "127.0.0.1:9092"}
            first_line = instructions(cluster).partition("\n")[0]
            self.assertIn(first_line, " ".join(page.read_text().split()))


class TutorialTest(ExampleCase):
    def test_each_program_prints_what_the_page_states(self):
        printed = captioned("first_service.rst", "text")
        self.assertEqual(["handle.py", "outage.py", "publish.py", "replay.py"], sorted(printed))
        for name, text in printed.items():
            self.assertEqual(f"{text}\n", self.succeeds(f"first_service/{name}"), name)

    def test_the_tests_of_the_service_pass(self):
        done = self.run_example("first_service/test_orders.py")

        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("Ran 4 tests", done.stderr)

    def test_the_page_shows_each_program(self):
        page = (USER / "first_service.rst").read_text()
        for path in TUTORIAL.glob("*.py"):
            self.assertIn(f"literalinclude:: ../../../examples/first_service/{path.name}\n", page)


class CookbookTest(ExampleCase):
    def test_each_program_is_shown_and_prints_what_the_page_states(self):
        page = (USER / "cookbook.rst").read_text()
        printed = captioned("cookbook.rst", "text")
        self.assertEqual({path.name for path in (EXAMPLES / "cookbook").glob("*.py")}, printed.keys())
        for name, text in printed.items():
            self.assertIn(f"literalinclude:: ../../../examples/cookbook/{name}\n", page)
            self.assertEqual(f"{text}\n", self.succeeds(f"cookbook/{name}"), name)


class ConsumeTest(base.BaseTestCase):
    def test_no_more_readings_are_read_than_requested(self):
        memory = self.useFixture(MemoryKafka())
        memory.producer().publish("readings", [b"{}"] * 5).raise_for_undelivered()
        stored = {}
        with mock.patch.object(sys, "path", [*sys.path, str(EXAMPLES)]), contextlib.redirect_stdout(io.StringIO()):
            consume = importlib.import_module("consume")
            consume.read(memory.consumer("readings", "readers"), stored, 3)

        self.assertEqual(3, len(stored))
        self.assertEqual([3], list(memory.broker.committed("readers").values()))


class AsyncioTest(ExampleCase):
    def test_the_asyncio_service_publishes_reads_and_handles_every_reading(self):
        config = self.configure("readings", "example", "bootstrap_servers = memory:9092", "driver = memory")

        printed = self.succeeds("asyncio_service.py", config)

        self.assertEqual(["published 10", "read 10", "published 10", "handled 10, clean True"], printed.splitlines())


class TracingExampleTest(ExampleCase):
    def test_the_example_prints_spans_of_which_the_last_links_the_trace_of_the_messages(self):
        config = self.configure("readings", "example", "bootstrap_servers = memory:9092", "driver = memory")

        printed = self.succeeds("tracing.py", config, f"--config-file={EXAMPLES / 'tracing.conf'}").splitlines()

        pattern = r"(.+) of (\w{32})(?: links (\w{32}))?"
        send, application, process = (re.fullmatch(pattern, text).groups() for text in printed)
        self.assertEqual(
            ["send readings", "read the sensors", "process readings"], [send[0], application[0], process[0]]
        )
        self.assertEqual(send[1:], application[1:])
        self.assertEqual(application[1], process[2])
        self.assertNotEqual(application[1], process[1])


class SnippetsTest(base.BaseTestCase):
    def test_the_how_to_pages_show_only_programs_that_are_run(self):
        pages = ("producing", "consuming", "processing", "asyncio", "transactions", "serializers", "formats", "testing")
        for page in pages:
            self.assertNotIn("code-block:: python", (USER / f"{page}.rst").read_text(), page)


class ProgramsOfPagesTest(base.BaseTestCase):
    """Programs that pages show next to programs of other libraries, with a Kafka in memory."""

    def setUp(self):
        super().setUp()
        self.memory = self.useFixture(MemoryKafka(bootstrap_servers="localhost:9092"))
        for topic in ("orders", "orders.dlq", "orders-dlq", "invoices"):
            self.memory.broker.create_topic(topic)

    def in_memory(self, program):
        server = '"localhost:9092"'
        self.assertIn(server, program)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(program.replace(server, f'{server}, driver="memory"'), {})
        return output.getvalue()

    def run_service(self, program):
        """Run a program until it has handled the orders, and return its output."""
        run = kafka.Processor.run

        def drain(processor):
            with mock.patch.object(kafka.Processor, "run", run):
                return self.memory.drain(processor)

        with (
            mock.patch.object(kafka.Processor, "run", drain),
            mock.patch.object(sys, "path", [*sys.path, str(TUTORIAL)]),
            mock.patch("signal.signal"),
        ):
            return self.in_memory(program)

    def run_program(self, page, *orders):
        """Run the page's program with these orders. Return the invoices and the dead letters."""
        self.memory.producer().publish("orders", orders).raise_for_undelivered()
        self.run_service(captioned(page, "python")["monasca-common"])
        return self.memory.broker.records("invoices"), self.memory.broker.records("orders-dlq")

    def test_the_tutorials_service_runs_with_the_settings_of_a_cluster(self):
        programs = captioned("first_service.rst", "python")
        self.in_memory(programs["publish_orders.py"])
        self.assertEqual("2 lamp\n", self.run_service(programs["service.py"]))
        [invoice] = self.memory.broker.records("invoices")
        self.assertEqual(b'{"item":"lamp","count":2}', invoice.value)
        [dead_letter] = self.memory.broker.records("orders.dlq")
        self.assertEqual(b"KeyError", dict(dead_letter.headers)[kafka.dead_letters.ERROR_CLASS])

    def test_the_key_argument_of_kafka_python_is_the_key_of_the_record(self):
        [invoice], _ = self.run_program("coming_from_kafka_python.rst", b"lamp")
        self.assertEqual((b"customer-7", b"lamp"), (invoice.key, invoice.value))

    def test_an_invalid_message_of_arroyo_is_a_dead_letter(self):
        [invoice], [dead_letter] = self.run_program("coming_from_arroyo.rst", b"lamp", b"")
        self.assertEqual((b"lamp", b""), (invoice.value, dead_letter.value))

    def test_a_subscriber_of_faststream_is_a_handler(self):
        [invoice], _ = self.run_program("coming_from_faststream.rst", b'{"count": 2}')
        self.assertEqual(b'{"total":20}', invoice.value)


class RunYourServiceTest(ExampleCase):
    def test_the_settings_of_the_connection_are_accepted(self):
        (self.folder / "kafka").write_text("sesame\n")
        certificates.issue(self.folder, ["shop"])
        program = captioned("run_your_service.rst", "python")["connection.py"]
        program = program.replace("/etc/shop/ca.pem", str(self.folder / "ca.pem"))
        program = re.sub(r"kafka\d\.example\.org:9093", "127.0.0.1:9", program)
        variables = {}
        with (
            mock.patch.dict(os.environ, CREDENTIALS_DIRECTORY=str(self.folder)),
            mock.patch("logging.basicConfig") as configured,
        ):
            exec(program, variables)
        logging.Formatter(configured.call_args.kwargs["format"])

        connection = variables["connection"]
        self.assertEqual("sesame", connection.security["sasl.password"])
        with kafka.open_producer(kafka.ProducerSettings(connection)) as producer:
            self.assertFalse(producer.health().finished)
            producer.close(0)

    def test_the_unit_restarts_the_service_and_waits_for_its_stop(self):
        unit = configparser.ConfigParser()
        unit.optionxform = str
        unit.read_string(captioned("run_your_service.rst", "ini")["shop.service"])
        connection = kafka.ConnectionSettings("localhost:9092")
        stop_seconds = kafka.ConsumerSettings(connection, topics=("orders",), group_id="shop").stop_timeout_seconds
        close_seconds = kafka.ProducerSettings(connection).publish_timeout_seconds
        service = unit["Service"]
        self.assertEqual("on-failure", service["Restart"])
        self.assertGreater(service.getint("TimeoutStopSec"), 2 * (stop_seconds + 1) + close_seconds + 1)


class ExamplesInMemoryTest(ExampleCase):
    def in_memory(self):
        return self.configure("readings", "example", "bootstrap_servers = memory:9092", "driver = memory")

    def test_the_tests_of_a_service_pass(self):
        done = self.run_example("test_in_memory.py")

        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("Ran 3 tests", done.stderr)

    def test_a_bulk_is_published(self):
        message = self.succeeds("produce.py", self.in_memory(), "--count", "3")

        self.assertIn("delivered 3, failed 0, unknown 0", message)

    def test_a_serializer_of_another_package_is_found_by_its_name(self):
        message = self.succeeds("custom_plugin.py", self.in_memory(), path=self.installed("csv_serializer"))

        self.assertIn("read [['hall', '21.5', 'said, and quoted']]", message)

    def test_a_serializer_of_another_package_receives_its_type(self):
        program = """
import pydantic
from monasca_common import kafka

class Reading(pydantic.BaseModel):
    celsius: float

serializer = kafka.load_serializer("pydantic", type=Reading)
assert serializer.loads(serializer.dumps(Reading(celsius=21.5))) == Reading(celsius=21.5)
for function, value in ((serializer.loads, b'{"celsius": "sesame"}'), (serializer.dumps, 5)):
    try:
        function(value)
    except kafka.SerializationError as error:
        print(error)
"""
        path = self.folder / "readings.py"
        path.write_text(program)

        printed = self.succeeds(path, path=self.installed("pydantic_serializer"))

        self.assertEqual(2, printed.count("not a value of the model"))
        self.assertNotIn("sesame", printed)

    def test_an_unknown_serializer_is_refused_with_the_remedy(self):
        done = self.fails("custom_plugin.py", self.in_memory(), "--serializer", "yaml")

        self.assertIn("serializer=yaml is not known", done.stderr)
        self.assertIn("install a package that offers it", done.stderr)

    def test_without_a_configuration_each_example_reports_what_is_missing(self):
        names = ("produce", "consume", "restart", "retry_dead_letters", "asyncio_service", "tracing")
        for name in names:
            self.assertIn("is not set", self.fails(f"{name}.py").stderr)


LETTERS = "readings.dlq"


class ReplayDeadLettersTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.program = load_example("replay_dead_letters")
        self.kafka = self.useFixture(MemoryKafka())
        for topic in ("readings", "others", LETTERS):
            self.kafka.broker.create_topic(topic, 1)
        self.producer = self.kafka.producer()
        for origin in ("readings", "others"):
            header = (dead_letters.ORIGIN_TOPIC, origin.encode())
            self.producer.publish(LETTERS, [Record(b"x", headers=(header,))]).raise_for_undelivered()

    def run_program(self):
        """Run the program, and return the exit status and the output."""
        consumer = self.kafka.consumer(LETTERS, "replay")
        program, out, err = self.program, io.StringIO(), io.StringIO()
        with (
            mock.patch.object(program.kafka, "load_producer", lambda conf: self.producer),
            mock.patch.object(program.kafka, "load_consumer", lambda conf, group: consumer),
            mock.patch.object(program.sys, "argv", ["replay_dead_letters.py"]),
            contextlib.redirect_stderr(err),
            contextlib.redirect_stdout(out),
        ):
            return program.main(), out.getvalue(), err.getvalue()

    def test_the_program_reports_the_outcome_of_each_dead_letter(self):
        status, out, _ = self.run_program()
        self.assertEqual(0, status)
        self.assertIn("replayed to readings: readings.dlq/0/0", out)
        self.assertEqual("2 replayed, 0 not replayable, 0 refused", out.splitlines()[-1])

    def test_dead_letters_of_a_missing_topic_are_kept_and_reported(self):
        self.kafka.broker.delete_topic("readings")
        status, out, _ = self.run_program()
        self.assertEqual((1, "1 replayed, 0 not replayable, 1 refused"), (status, out.splitlines()[-1]))
        self.assertIn("refused, there is no topic readings: readings.dlq/0/0", out)

    def test_ctrl_c_ends_the_program_without_a_traceback_and_keeps_its_progress(self):
        publish = self.producer.publish
        sent = []

        def interrupted(*arguments):
            if sent:
                raise KeyboardInterrupt
            sent.append(arguments)
            return publish(*arguments)

        self.producer.publish = interrupted

        status, _, err = self.run_program()

        self.assertEqual((1, "replay_dead_letters: stopped\n"), (status, err))
        self.assertEqual({TopicPartition(LETTERS, 0): 1}, self.kafka.broker.committed("replay"))


class OwnServiceTest(Waiting, ConfigurationTestCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        for topic in ("readings", "readings.dlq"):
            self.kafka.broker.create_topic(topic, 1)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        text = (
            f"[kafka]\ndriver = memory\nbootstrap_servers = {self.kafka.bootstrap_servers}\n"
            "[kafka_readings]\ntopic = readings\ngroup_id = tally\n"
            f"[tally]\nhighest = 100\nstatus_port = {self.port}\n"
        )
        conf = self.read(self.path_of(text))
        began = threading.Event()

        def until(member):
            self.member = member
            began.set()

        self.thread = threading.Thread(target=load_example("own_service").run, args=(conf, until), daemon=True)
        self.thread.start()
        self.assertTrue(began.wait(PATIENCE_SECONDS))
        self.addCleanup(self.stop)

    def stop(self):
        self.member.stop()
        self.thread.join(PATIENCE_SECONDS)

    def get(self, path):
        return fetch(f"http://127.0.0.1:{self.port}{path}")[1]

    def is_ready(self):
        return json.loads(self.get("/readyz")) == {"ready": True, "reasons": []}

    def test_the_service_counts_reports_and_commits_handled_messages(self):
        records = [Record(value, partition=0) for value in (b"1.5", b"101", b"x", b"2")]
        self.kafka.producer().publish("readings", records).raise_for_undelivered()
        self.wait_until(lambda: 'tally_readings_total{outcome="counted"} 2.0' in self.get("/metrics"))
        self.assertIn('tally_readings_total{outcome="refused"} 2.0', self.get("/metrics"))
        self.wait_until(self.is_ready)
        self.stop()

        self.assertEqual([b"101", b"x"], [each.value for each in self.kafka.broker.records("readings.dlq")])
        self.assertEqual(4, self.kafka.broker.committed("tally")[TopicPartition("readings", 0)])
