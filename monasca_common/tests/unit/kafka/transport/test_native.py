# SPDX-License-Identifier: Apache-2.0
import _ctypes
import contextlib
import ctypes
import gc
import importlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections import Counter
from pathlib import Path
from unittest import mock

import fixtures
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition, cimpl
from oslotest import base

from monasca_common.kafka.errors import ConfigurationError, FatalError, RetriableError, TransportError
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.kafka.transport import native
from monasca_common.kafka.transport.base import ANY_PARTITION, Outcomes, message_id
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.tests.mock_broker import MockBroker

CHECKOUT = Path(__file__).parents[5]
PREFIX = b"0123456789abcdef"
NO_BROKER = "127.0.0.1:1"
PATIENCE_SECONDS = 30.0


def send(producer, topic, value, key, sequence, id_prefix):
    """Reserve room for one message only, and send it."""
    room = producer.new_reservation(sequence, sequence + 1, len(value) + len(key or b"") + 7, 1000, 7, id_prefix)
    given_id = producer.send(topic, value, key, room)
    assert (room.next, room.end, room.left) == (sequence + 1, sequence + 1, 0)
    return given_id


def flush(producer):
    """Return the outcomes of all queued messages. The outcomes of each call are in the order of their sequences."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    rows, undelivered, counts = [], [], Counter()
    while producer.queued() and time.monotonic() < deadline:
        outcomes = producer.flush(PATIENCE_SECONDS)
        assert list(outcomes.sequences) == sorted(outcomes.sequences)
        sizes = [end - start for start, end in itertools.pairwise((0, *outcomes.bytes))]
        rows += zip(outcomes.sequences, outcomes.partitions, outcomes.offsets, sizes, strict=True)
        undelivered += outcomes.undelivered
        counts.update(outcomes.counts)
    sequences, partitions, offsets, sizes = ([row[place] for row in sorted(rows)] for place in range(4))
    return Outcomes(sequences, partitions, offsets, list(itertools.accumulate(sizes)), undelivered, dict(counts))


class NativeCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.errors = []
        if native.reason() is not None:
            self.skipTest(native.reason())  # TestAvailability fails

    def open(self, servers=NO_BROKER, **options):
        from monasca_common.kafka.transport.native.producer import NativeProducer

        settings = ProducerSettings(ConnectionSettings(servers), **options)
        producer = NativeProducer(settings, batch_bytes=100_000, on_error=self.errors.append)
        self.addCleanup(self.close, producer)
        return producer

    def close(self, producer):
        with contextlib.suppress(AttributeError):  # the test closes it
            producer.close(1.0)

    def client_error(self):
        from monasca_common.kafka.transport.native import _librdkafka

        return _librdkafka.Error

    def silent_broker(self):
        """Return the address of a server that never responds, so that a client has no errors to report."""
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)
        return f"127.0.0.1:{server.getsockname()[1]}"

    def assert_does_not_take(self, producer, topic, value, *, left=100, largest=100):
        room = producer.new_reservation(5, 6, left, largest, 10, PREFIX)
        queued = producer.queued()
        self.assertIsNone(producer.send(topic, value, None, room))
        self.assertEqual((5, 6, left, queued), (room.next, room.end, room.left, producer.queued()))

    def undelivered(self, producer):
        """Return the purged messages of a producer without a broker."""
        producer.purge()
        outcomes = flush(producer)
        self.assertEqual(0, producer.queued())
        return {message.sequence: message for message in outcomes.undelivered}


class TestAvailability(base.BaseTestCase):
    def test_the_extension_is_built(self):
        self.assertIsNone(native.reason(), "install a C compiler and Python's headers, then run `pip install -e .`")

    def test_without_the_extension_the_reason_names_the_extension(self):
        with mock.patch.object(importlib, "import_module", side_effect=ModuleNotFoundError("no module")):
            self.assertIn("was not built", native.reason.__wrapped__())

    def test_an_extension_of_another_version_of_the_package_is_not_used(self):
        with mock.patch.object(importlib, "import_module", return_value=mock.Mock(spec=["Producer"])):
            reason = native.reason.__wrapped__()
        self.assertIn("built from another version of this package (its interface is 1, not", reason)
        self.assertIn("`pip install -e .`", reason)

    def test_an_older_librdkafka_is_not_used(self):
        for number, expected in (
            (0x020FFFFF, "it needs librdkafka 2.16 or newer, and confluent-kafka uses 2.x"),
            (0x021000FF, None),
        ):
            with mock.patch.object(native, "libversion", return_value=("2.x", number)):
                self.assertEqual(expected, native.reason.__wrapped__())

    def test_free_threaded_python_neither_builds_nor_uses_the_extension(self):
        with mock.patch.object(sysconfig, "get_config_var", return_value=1):
            self.assertEqual("it is not built for free-threaded Python", native.reason.__wrapped__())
        program = """
import runpy, setuptools, sysconfig
given = sysconfig.get_config_var
sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else given(name)
setuptools.setup = lambda **given: print(given)
runpy.run_path("setup.py")
"""
        run = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
        self.assertEqual("{'pbr': True, 'ext_modules': [], 'options': {}}\n", run.stdout, run.stderr)

    def test_the_reason_names_a_function_that_the_client_library_lacks(self):
        for library, reported_text in (
            (_ctypes.__file__, "the library has no function rd_kafka_"),
            (__file__, __file__),
        ):
            program = f"""
import sys, types
client = sys.modules["confluent_kafka.cimpl"] = types.ModuleType("confluent_kafka.cimpl")
client.__file__ = {library!r}
sys.modules["confluent_kafka"] = types.ModuleType("confluent_kafka")
sys.path.insert(0, {os.path.dirname(native.__file__)!r})
import ctypes
import _librdkafka
"""
            run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
            self.assertIn("ImportError: ", run.stderr)
            self.assertIn(reported_text, run.stderr)

    def test_only_a_build_that_requires_the_extension_fails_without_a_compiler(self):
        folder = self.useFixture(fixtures.TempDir()).path
        command = [sys.executable, "setup.py", "build_ext", "--build-lib", folder, "--build-temp", folder]
        for required, expected in (("", 0), ("required", 1)):
            environment = {**os.environ, "CC": "false", "MONASCA_COMMON_NATIVE": required}
            run = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=120)
            self.assertEqual(expected, run.returncode, run.stderr)
            self.assertIn("failed with exit code 1", run.stderr)

    def test_transactions_require_the_other_driver(self):
        settings = ProducerSettings(ConnectionSettings(NO_BROKER), transactional_id="t")
        self.assertIn("transactions", native.native_can(settings))


class TestWithoutBroker(NativeCase):
    def test_an_id_is_the_prefix_and_the_digits_of_the_sequence(self):
        producer = self.open()
        for sequence in (0, 1, 0xABCDEF, 2**47, 2**48 - 1, 2**48, 2**62):
            expected = message_id(PREFIX, sequence)
            self.assertEqual(expected, send(producer, "t", b"v", None, sequence, PREFIX))
        self.assertEqual(b"", send(producer, "t", b"v", None, 2, None))

    def test_an_undelivered_message_has_its_value_and_key(self):
        producer = self.open()
        producer.produce_record("t", b"", b"", ANY_PARTITION, 0, (), 1)
        producer.produce_record("t", None, None, 3, 12345, (("h", b"x"),), 2)
        send(producer, "t", b"value\0", b"key\0", 3, PREFIX)
        messages = [(message.value, message.key) for _, message in sorted(self.undelivered(producer).items())]
        self.assertEqual([(b"", b""), (None, None), (b"value\0", b"key\0")], messages)

    def test_purged_messages_are_reported_as_purged(self):
        producer = self.open()
        self.assertEqual(300, producer.produce("t", [b"v"] * 300, b"k", 7, PREFIX))
        self.assertEqual(300, producer.queued())
        messages = self.undelivered(producer)
        self.assertEqual(set(range(7, 307)), set(messages))
        self.assertEqual({"_PURGE_QUEUE"}, {message.error.name for message in messages.values()})
        self.assertEqual({(b"v", b"k")}, {(message.value, message.key) for message in messages.values()})

    def test_a_full_queue_accepts_no_more_messages(self):
        producer = self.open(budget_messages=100)
        self.assertEqual(200, producer.produce("t", [b"v"] * 250, None, 0, PREFIX))
        for refused in (
            self.assertRaises(self.client_error(), producer.produce, "t", [b"v"], None, 200, PREFIX),
            self.assertRaises(self.client_error(), producer.produce_record, "t", b"v", None, -1, 0, (), 200),
            self.assertRaises(self.client_error(), producer.produce_record, "t", b"v", None, -1, 0, (("h", b""),), 200),
        ):
            fault = producer.fault(refused)
            self.assertEqual((RetriableError, "_QUEUE_FULL"), (type(fault), fault.name))
        self.assert_does_not_take(producer, "t", b"v")
        self.assertEqual(200, producer.queued())

    def test_a_topic_that_cannot_exist_is_refused(self):
        producer = self.open()
        for call in (
            lambda: producer.produce("t" * 1000, [b"v"], None, 0, None),
            lambda: producer.produce_record("t" * 1000, b"v", None, -1, 0, (("h", b"v"),), 0),
        ):
            error = self.assertRaises(self.client_error(), call)
            self.assertEqual("_INVALID_ARG", producer.fault(error).name)
        for topic in ("t" * 1000, "t\0", "\ud800", b"t"):
            self.assert_does_not_take(producer, topic, b"v")
        self.assertEqual(0, producer.queued())

    def test_a_send_takes_no_more_than_is_reserved(self):
        producer = self.open()
        self.assert_does_not_take(producer, "t", b"v" * 91)
        self.assert_does_not_take(producer, "t", b"v", largest=10)
        room = producer.new_reservation(5, 7, 100, 100, 10, None)
        self.assertEqual(b"", producer.send("t", b"v" * 30, b"k" * 10, room))
        self.assertEqual((6, 50), (room.next, room.left))
        room.close()
        self.assertIsNone(producer.send("t", b"v", None, room))
        self.assertEqual((6, 6, 50), (room.next, room.end, room.left))
        producer._client.close()
        self.assertIsNone(producer.send("t", b"v", None, producer.new_reservation(7, 8, 100, 100, 10, None)))

    def test_wrong_arguments_are_refused(self):
        producer = self.open()
        room = producer.new_reservation(0, 1, 100, 100, 0, None)
        for call, arguments, text in (
            (producer.send, ("t", "v", None, room), "prefix must be bytes, not <class 'str'>"),
            (producer.send, ("t", None, None, room), "prefix must be bytes, not <class 'NoneType'>"),
            (producer.send, ("t", b"v", "k", room), "prefix must be bytes, not <class 'str'>"),
            (producer.send, ("t", b"v", None, 0), "not 'int'"),
            (producer.send, ("t", b"v"), "takes 4 arguments, not 2"),
            (producer.new_reservation, (0, 1, 1, 1, 0, "p"), "bytes"),
            (producer.new_reservation, (0, "1", 1, 1, 0, None), "int"),
            (producer.produce, ("t", [b"v"], "k", 0, None), "prefix must be bytes, not <class 'str'>"),
            (producer.produce, ("t", [b"v"], None, 0, "p"), "prefix must be bytes, not <class 'str'>"),
            (producer.produce, ("t", [b"v"], None, "0", None), "int"),
            (producer.produce, ("t", (b"v",), None, 0, None), "must be list, not tuple"),
            (producer.produce, ("t", [b"v", 1], None, 0, None), "prefix must be bytes, not <class 'int'>"),
            (producer.produce, ("t", [b"v", b"w"], None, 0, [b"1", "2"]), "prefix must be bytes, not <class 'str'>"),
            (producer.produce, ("t", [b"v"], None, 0, [None]), "prefix must be bytes, not <class 'NoneType'>"),
            (producer.produce, ("t", [b"v"]), "takes at least 5 arguments (2 given)"),
            (producer.produce_record, ("t", 1, None, -1, 0, (), 0), "prefix must be bytes, not <class 'int'>"),
            (producer.produce_record, ("t", b"v", None, -1, 0, 5, 0), "int"),
            (producer.produce_record, ("t", b"v", None, -1, 0, ("h",), 0), "each header must be a tuple"),
            (producer.produce_record, ("t", b"v", None, -1, 0, (("h",),), 0), "each header must be a tuple (str"),
            (producer.produce_record, ("t", b"v", None, -1, 0, ((b"h", b""),), 0), "each header must be a tuple (str"),
            (producer.produce_record, ("t", b"v", None, -1, 0, (("h", ""),), 0), "prefix must be bytes"),
        ):
            self.assertIn(text, str(self.assertRaises(TypeError, call, *arguments)))
        for call, arguments, text in (
            (producer.produce, ("t\0", [b"v"], None, 0, None), "topic must not contain a null character"),
            (producer.produce, ("t", [b"v"], None, 0, b"p" * 65), "the prefix of ids must have at most 64 bytes"),
            (producer.produce, ("t", [b"v"], None, 0, []), "0 ids for 1 values"),
            (producer.produce, ("t", [b"v"], None, 0, [b"1", b"2"]), "2 ids for 1 values"),
            (producer.produce, ("t", [b"v"], None, 0, [b"1"], -1, 0, [("h", b"")]), "and no ids"),
            (producer.new_reservation, (0, 1, 1, 1, 0, b"p" * 65), "bytes too long"),
            (producer.produce, ("t", [b"v"], None, 0, b"p", -1, 0, [("h", b"")]), "and no ids"),
            (producer.produce, ("t", [b"v"] * 2, None, 0, None, -1, 0, [("h", b"")]), "need one value"),
            (producer.produce, ("t", [], None, 0, None, -1, 0, [("h", b"")]), "need one value"),
        ):
            self.assertIn(text, str(self.assertRaises(ValueError, call, *arguments)))
        self.assertRaises(UnicodeEncodeError, producer.produce, "\ud800", [b"v"], None, 0, None)
        self.assertRaises(OverflowError, producer.produce, "t", [b"v"], None, 2**63, None)
        self.assertEqual(0, producer.queued())

    def test_a_wrong_option_is_a_configuration_error_without_its_value(self):
        error = self.assertRaises(ConfigurationError, self.open, options={"batch.num.messages": "s3cret"})
        self.assertIn("batch.num.messages", str(error))
        self.assertNotIn("s3cret", str(error))
        error = self.assertRaises(ConfigurationError, self.open, options={"no.such.option": "1"})
        self.assertIn("no.such.option", str(error))

    def test_options_that_contradict_each_other_are_a_configuration_error(self):
        error = self.assertRaises(ConfigurationError, self.open, options={"max.in.flight": "6"})
        self.assertIn("max.in.flight", str(error))

    def test_an_exception_from_a_signal_handler_ends_every_wait(self):
        producer = self.open(self.silent_broker())
        send(producer, "t", b"v", None, 0, PREFIX)

        def interrupt(*_):
            raise KeyboardInterrupt

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        for call in (producer.poll, producer.flush):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            self.assertRaises(KeyboardInterrupt, call, PATIENCE_SECONDS)
        self.assertEqual(1, producer.queued())

    def test_concurrent_polls_are_refused(self):
        producer = self.open(self.silent_broker())
        with PollingThread(producer):
            self.assertRaises(RuntimeError, producer.poll, 0)
            self.assertRaises(RuntimeError, producer.flush, 0)
            producer._client.close()

    def test_closing_ends_a_poll_and_refuses_everything(self):
        producer = self.open(self.silent_broker())
        client = producer._client
        with PollingThread(producer):
            producer.close(1.0)
        client.close()
        for call in (
            lambda: client.produce("t", [b"v"], None, 0, None),
            lambda: client.poll(0),
            lambda: client.flush(0),
            client.purge,
        ):
            self.assertIn("closed", str(self.assertRaises(self.client_error(), call)))
        self.assertRaises(TransportError, producer.topic_ids, ["t"], 1.0)

    def test_closing_destroys_the_client_unless_a_call_uses_it(self):
        producer = self.open(self.silent_broker())
        threads = len(os.listdir("/proc/self/task"))
        send(producer, "t", b"v", None, 0, None)
        producer.close(1.0)
        self.assertGreater(threads, len(os.listdir("/proc/self/task")))

    def test_headers_whose_iteration_closes_the_client_are_refused(self):
        producer = self.open()

        def headers():
            producer._client.close()
            yield ("name", b"value")

        error = self.assertRaises(self.client_error(), producer.produce_record, "t", b"v", None, -1, 0, headers(), 0)
        self.assertIn("closed", str(error))

    def test_a_sequence_whose_conversion_closes_the_client_is_refused(self):
        class Closing:
            def __init__(self, producer):
                self.producer = producer

            def __index__(self):
                self.producer._client.close()
                return 1

        for call in ("produce", "produce_record"):
            producer = self.open(self.silent_broker())
            arguments = {
                "produce": ("t", [b"v"], None, Closing(producer), PREFIX),
                "produce_record": ("t", b"v", None, ANY_PARTITION, 0, (), Closing(producer)),
            }
            self.assertRaises(self.client_error(), getattr(producer, call), *arguments[call])

    def test_errors_of_the_client_are_passed_on(self):
        producer = self.open()
        with self.assertLogs("monasca_common.kafka.transport.native.producer") as logs:
            while not self.errors:
                producer.poll(PATIENCE_SECONDS)
            producer.poll(0)
        self.assertIsInstance(self.errors[0], RetriableError)
        self.assertIn(self.errors[0].name, ("_TRANSPORT", "_ALL_BROKERS_DOWN"))
        self.assertIn("[monasca-common#producer-", "".join(logs.output))

    def test_a_fatal_error_has_its_own_code_and_refuses_messages(self):
        producer = self.open()
        # the first field of the error
        client = ctypes.c_void_p.from_address(id(producer._client) + object.__basicsize__)
        fail = ctypes.CDLL(cimpl.__file__).rd_kafka_test_fatal_error
        fail.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
        fail(client, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, b"for a test")
        while not any(error.fatal for error in self.errors):
            producer.poll(PATIENCE_SECONDS)
        refused = self.assertRaises(self.client_error(), producer.produce_record, "t", b"v", None, -1, 0, (), 0)
        for error in (next(error for error in self.errors if error.fatal), producer.fault(refused)):
            self.assertIsInstance(error, FatalError)
            self.assertEqual("OUT_OF_ORDER_SEQUENCE_NUMBER", error.name)
        self.assertRaises(self.client_error(), producer.produce, "t", [b"v"], None, 0, None)


class TestReconnect(NativeCase):
    def reconnections(self, clock, events):
        """Return the seconds at which the servers are added, for pairs of a second and whether anything was heard, or
        ``None`` for an error."""
        from monasca_common.kafka.transport.native.client import ClientEvents

        client, start = mock.Mock(), clock.monotonic()
        notices = ClientEvents(logging.getLogger(__name__), clock, ConnectionSettings("kafka:9092"))
        found = []
        for second, heard in events:
            clock.advance(start + second - clock.monotonic())
            if heard is None:
                notices.handle([(1, KafkaError._TRANSPORT, "Connection refused")], None)
                continue
            notices.reconnect(client, heard=heard)
            if client.add_brokers.called:
                client.add_brokers.assert_called_once_with("kafka:9092")
                client.reset_mock()
                found.append(second)
        return found

    def test_the_servers_are_added_after_five_silent_seconds_and_then_ever_more_rarely(self):
        silent = [(tenth / 10, False) for tenth in range(2000)]
        self.assertEqual([5, 15, 35, 75, 135, 195], self.reconnections(VirtualClock(), silent))

    def test_errors_limit_the_silence_to_five_seconds(self):
        for errors in ([80], [80, 81, 84], [78, 80]):
            silent = [(second, False) for second in range(90)]
            events = sorted([*silent, *((second, None) for second in errors)], key=lambda event: event[0])
            found = self.reconnections(VirtualClock(), events)
            self.assertEqual([5, 15, 35, 75, errors[0] + 5], found)

    def test_they_are_not_added_while_the_client_receives_something(self):
        heard = [(4.9, True), (9.8, False), (10, True), (14.9, False), (15, False), (16, True), (21, False)]
        self.assertEqual([15, 21], self.reconnections(VirtualClock(), heard))


class TestForkedChild(base.BaseTestCase):
    def test_a_forked_child_does_not_destroy_the_inherited_client(self):
        program = """
import os, signal
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.kafka.transport.native.producer import NativeProducer
producer = NativeProducer(
    ProducerSettings(ConnectionSettings("127.0.0.1:1")),
    batch_bytes=1000,
    on_error=lambda error: None,
)
producer.produce("t", [b"v"], None, 0, b"prefix")
child = os.fork()
if not child:
    signal.alarm(20)  # destroying it would wait for its threads, which are in the parent
    producer.close(1.0)
    del producer
    os._exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
producer.purge()
producer.flush(10)
print(status, producer.queued())
"""
        answer = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=dict(os.environ)
        )
        self.assertEqual((0, "7 0\n"), (answer.returncode, answer.stdout), answer.stderr)


class TestWithBroker(NativeCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.broker = MockBroker()
        cls.broker.create_topic("t")

    @classmethod
    def tearDownClass(cls):
        del cls.broker
        super().tearDownClass()

    def test_a_silent_client_connects_to_its_bootstrap_servers_again(self):
        self.useFixture(fixtures.MonkeyPatch(f"{native.__name__}.client._SILENT_SECONDS", 0.2))
        producer = self.open()  # no broker is left, as after metadata without brokers
        producer._notices._servers = self.broker.bootstrap_servers
        producer.produce("t", [b"v"], None, 1, None)
        self.assertEqual([1], list(flush(producer).sequences))

    def test_delivered_messages_are_columns_in_the_order_of_their_sequences(self):
        producer = self.open(self.broker.bootstrap_servers)
        values = [b"%d" % number for number in range(1000)]
        self.assertEqual(1000, producer.produce("t", values, None, 5, PREFIX))
        for number in range(1000):
            producer.produce_record("t", values[number], b"k", number % 4, 0, (), 1005 + number)
        outcomes = flush(producer)
        self.assertEqual(list(range(5, 2005)), list(outcomes.sequences))
        self.assertEqual([number % 4 for number in range(1000)], list(outcomes.partitions[1000:]))
        sizes = [len(value) for value in values] + [len(value) + 1 for value in values]
        self.assertEqual(list(itertools.accumulate(sizes)), list(outcomes.bytes))
        positions = set(zip(outcomes.partitions, outcomes.offsets, strict=True))
        self.assertEqual(2000, len(positions))
        for partition in range(4):
            offsets = [
                offset
                for where, offset in zip(outcomes.partitions, outcomes.offsets, strict=True)
                if where == partition
            ]
            self.assertEqual(sorted(offsets), offsets)
        self.assertEqual((0, [], {}), (producer.queued(), outcomes.undelivered, outcomes.counts))

    def test_messages_are_written_as_they_were_handed_over(self):
        producer = self.open(self.broker.bootstrap_servers)
        headers = (("message-id", b"own"), ("empty", b""), ("null", None), ("null", b"again"), ("\u00e9", b"\0"))
        send(producer, "written", b"sent", b"key", 0, PREFIX)
        send(producer, "written", b"no id", None, 1, None)
        producer.produce("written", [b"", b"\0"], None, 2, PREFIX)
        producer.produce_record("written", None, b"", 0, 12345, headers, 4)
        own_ids = [b"own", b"i" * 1000]
        self.assertEqual(2, producer.produce("written", [b"a", b"b"], b"k", 5, own_ids))
        self.assertEqual(7, len(flush(producer).sequences))
        written = sorted(read(self.broker.bootstrap_servers, "written", 7), key=lambda message: message.offset())
        facts = {message.value(): (message.key(), message.headers() or []) for message in written}
        identified = {
            value: [("message-id", message_id(PREFIX, at))] for value, at in ((b"sent", 0), (b"", 2), (b"\0", 3))
        }
        expected = {
            b"sent": (b"key", identified[b"sent"]),
            b"no id": (None, []),
            b"": (None, identified[b""]),
            b"\0": (None, identified[b"\0"]),
            b"a": (b"k", [("message-id", own_ids[0])]),
            b"b": (b"k", [("message-id", own_ids[1])]),
            None: (b"", list(headers)),
        }
        self.assertEqual(expected, facts)
        self.assertEqual([12345], [message.timestamp()[1] for message in written if message.value() is None])

    def test_a_message_to_a_missing_partition_is_undelivered(self):
        producer = self.open(self.broker.bootstrap_servers)
        producer.produce_record("t", b"v", b"k", 99, 0, (), 0)
        (message,) = flush(producer).undelivered
        self.assertEqual((0, "_UNKNOWN_PARTITION"), (message.sequence, message.error.name))

    def test_counted_messages_are_in_buckets_by_topic(self):
        self.broker.create_topic("other")
        producer = self.open(self.broker.bootstrap_servers)
        send(producer, "t", b"before", None, 0, None)
        flush(producer)
        producer.count(60)
        for sequence, topic in enumerate(("t", "t", "other")):
            send(producer, topic, b"four", b"key", sequence, None)
        counts = flush(producer).counts
        totals = {}
        for (topic, bucket_ms), count in counts.items():
            self.assertEqual(0, bucket_ms % 60_000)
            totals[topic] = totals.get(topic, 0) + count
        self.assertEqual({"t": 2, "other": 1}, totals)

    def test_a_bulk_goes_to_its_topic_even_if_a_finalizer_sends_in_the_meantime(self):
        """An allocation can run the garbage collector, and thus a finalizer that uses the same client."""
        producer = self.open(self.broker.bootstrap_servers)
        producer.count(60)
        sent = []

        class Cycle:
            def __init__(self):
                self.itself = self

            def __del__(self):
                sent.append(send(producer, "other", b"v", None, 1_000_000 + len(sent), None))

        before = gc.get_threshold()
        self.addCleanup(gc.set_threshold, *before)
        gc.set_threshold(1)
        values = [b"v"] * 30
        for number in range(20):
            Cycle()
            producer.produce("right", values, None, number * 30, None)
        gc.set_threshold(*before)
        gc.collect()
        self.assertTrue(sent)
        counts = flush(producer).counts
        messages = {topic: count for (topic, _), count in counts.items()}
        self.assertEqual({"right": 600, "other": len(sent)}, messages)

    def test_threads_send_concurrently_and_each_message_has_its_own_id(self):
        producer = self.open(self.broker.bootstrap_servers)
        room = producer.new_reservation(0, 20_000, 10**9, 1000, 7, PREFIX)
        ids = [[] for _ in range(4)]

        def send(own):
            sys.settrace(lambda *_: None)  # threads switch at every call
            own += [producer.send(f"topic-{id(own) % 3}", b"v", None, room) for _ in range(5000)]

        threads = [threading.Thread(target=send, args=(own,)) for own in ids]
        for thread in threads:
            thread.start()
        sequences = []
        while any(thread.is_alive() for thread in threads) or producer.queued():
            sequences += producer.flush(0.01).sequences
        self.assertEqual(list(range(20_000)), sorted(sequences))
        self.assertEqual([message_id(PREFIX, at) for at in range(20_000)], sorted(itertools.chain(*ids)))

    def test_threads_produce_concurrently(self):
        producer = self.open(self.broker.bootstrap_servers)
        sizes = (1, 60, 200, 500)

        def produce(first, size):
            for offset in range(0, 1000, size):
                values = [b"v"] * min(size, 1000 - offset)
                assert producer.produce(f"topic-{size}", values, None, first + offset, PREFIX) == len(values)

        threads = [threading.Thread(target=produce, args=(1000 * i, size)) for i, size in enumerate(sizes)]
        for thread in threads:
            thread.start()
        sequences = []
        while any(thread.is_alive() for thread in threads) or producer.queued():
            sequences += producer.flush(0.01).sequences
        self.assertEqual(list(range(4000)), sorted(sequences))


class PollingThread:
    """A context with a thread in `poll`; its exit waits until the call has returned."""

    def __init__(self, producer):
        self._producer = producer
        self._thread = threading.Thread(target=self._poll)

    def __enter__(self):
        self._thread.start()
        with contextlib.suppress(RuntimeError):
            while True:
                self._producer.poll(0)

    def __exit__(self, *_):
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()

    def _poll(self):
        from monasca_common.kafka.transport.native import _librdkafka

        while True:
            with contextlib.suppress(RuntimeError):  # during a poll of `__enter__`
                try:
                    return self._producer.poll(2 * PATIENCE_SECONDS)
                except _librdkafka.Error:  # the client is closed
                    return None


def read(servers, topic, count):
    options = {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(options)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(4)])
    messages = []
    while len(messages) < count:
        messages += consumer.consume(count, PATIENCE_SECONDS / count)
    consumer.close()
    return messages
