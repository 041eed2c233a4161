# SPDX-License-Identifier: Apache-2.0
"""The client of a schema registry: outages, unknown ids, lost schemas, secrets, and the contract of serializers."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
import uuid
from unittest import mock

import fixtures

from monasca_common.devbroker.certificates import issue
from monasca_common.kafka import SerializationContext, load_serializer
from monasca_common.kafka.errors import ConfigurationError, RegistryUnavailable, SchemaRefused, SerializationError
from monasca_common.kafka.testing import MemoryRegistry, VirtualClock
from monasca_common.tests.contracts.schemas import READING, RENAMED, VALUE, WITH_UNIT, RegistryCase, SchemaContract
from monasca_common.tests.threads import run_together
from monasca_common.tests.waiting import PATIENCE_SECONDS

_SHORT = 0.2  # seconds of real time until a request fails


class MemoryRegistryCase(RegistryCase):
    def setUp(self):
        super().setUp()
        self.memory = self.useFixture(MemoryRegistry())
        self.url = self.memory.url
        self.clock = VirtualClock()
        self.value = self.avro(schema=READING).dumps(VALUE, self.context)

    def avro(self, **options):
        serializer = super().avro(**options)
        serializer.registry.clock = self.clock
        return serializer

    def unavailable(self, serializer, value=None):
        return self.assertRaises(RegistryUnavailable, serializer.loads, value or self.value, self.context)

    def rejected(self, serializer, value):
        """Read until the value is rejected. Return the seconds that it waited, and the error."""
        began = self.clock.monotonic()
        for _ in range(100):
            try:
                serializer.loads(value, self.context)
            except RegistryUnavailable as later:
                self.clock.advance(later.after)
            except SerializationError as error:
                return self.clock.monotonic() - began, error
        raise AssertionError("the value still waits")


class OutageTest(MemoryRegistryCase):
    def assert_recovers(self, serializer):
        self.clock.advance(60)
        self.assertEqual(VALUE, serializer.loads(self.value, self.context))

    def test_a_failing_registry_is_unavailable_until_it_responds(self):
        for fault in (500, 503, 429, 401, 403, 302, 404):
            serializer = self.avro()
            self.memory.fault = fault
            self.assertIn(f"is unavailable (status {fault})", str(self.unavailable(serializer)))
            self.memory.fault = None
            self.assert_recovers(serializer)

    def test_a_proxy_that_returns_no_schema_is_unavailable(self):
        for answer in ({}, {"status": "ok"}, {"schema": ""}, {"schema": None}, {"schema": 5}):
            serializer = self.avro()
            with mock.patch.object(self.memory, "answer", return_value=(200, answer)):
                self.unavailable(serializer)
            self.assert_recovers(serializer)

    def test_a_response_without_a_valid_id_is_an_outage(self):
        for wrong in (2**32, -1, None, "7", True):
            for options in ({"schema": READING}, {}):
                serializer = self.avro(**options)
                answer = {"subject": "x", "version": 1, "id": wrong, "schema": json.dumps(READING)}
                with mock.patch.object(self.memory, "answer", return_value=(200, answer)):
                    self.assertRaises(RegistryUnavailable, serializer.dumps, VALUE, self.context)
                self.clock.advance(60)
                self.assertEqual(self.value, serializer.dumps(VALUE, self.context))

    def test_a_registry_that_refuses_to_return_a_schema_is_unavailable(self):
        for status, code in ((409, 409), (422, 42201)):
            serializer = self.avro()
            with mock.patch.object(self.memory, "answer", return_value=(status, {"error_code": code, "message": "x"})):
                self.assertIn(f"refuses to return schema 1: x ({code})", str(self.unavailable(serializer)))
            self.assert_recovers(serializer)

    def test_threads_do_not_wait_for_the_next_request_after_a_failure(self):
        serializer = self.avro()
        self.memory.fault = 500
        self.unavailable(serializer)
        self.clock.advance(60)

        with serializer.registry._asking:  # as during the request of another thread
            self.assertIn("status 500", str(self.unavailable(serializer)))

    def test_a_thread_waits_for_the_requests_of_others_only_for_the_time_out(self):
        serializer = self.avro(timeout_seconds=_SHORT)
        with serializer.registry._asking:
            self.assertIn("is slow", str(self.unavailable(serializer)))
        self.assertEqual(VALUE, self.avro().loads(self.value, self.context))

    def test_a_registry_that_hangs_or_never_ends_its_response_is_unavailable(self):
        for fault in ("hang", "drip"):
            serializer = self.avro(timeout_seconds=_SHORT)
            self.memory.fault = fault
            self.assertIn("is unavailable (no response in time)", str(self.unavailable(serializer)))
            self.memory.fault = None
            serializer = self.avro()
            for thread in threading.enumerate():
                if thread.name == "schema-registry":
                    thread.join(10)
                    self.assertFalse(thread.is_alive())
            self.assert_recovers(serializer)

    def test_after_a_time_out_no_request_is_sent_for_the_same_time(self):
        for timeout, backoff in ((3.0, 3.0), (300.0, 30.0)):
            serializer = self.avro(timeout_seconds=timeout)
            with mock.patch.object(serializer.registry, "_answer", return_value=(None, TimeoutError())) as answer:
                self.assertEqual(backoff, self.unavailable(serializer).after)
                self.clock.advance(backoff - 0.01)
                self.unavailable(serializer)
                self.assertEqual(1, answer.call_count)
                self.clock.advance(0.02)
                self.unavailable(serializer)
                self.assertEqual(2, answer.call_count)

    def test_the_next_url_is_tried_if_the_first_registry_hangs(self):
        hanging = self.useFixture(MemoryRegistry())
        hanging.fault = "hang"
        serializer = self.avro(url=f"{hanging.url}, {self.memory.url}", timeout_seconds=3.0)
        self.assertEqual(VALUE, serializer.loads(self.value, self.context))

    def test_a_registry_that_refuses_connections_is_unavailable(self):
        serializer = self.avro()
        self.memory.stop()
        self.assertIn("is unavailable (ConnectError)", str(self.unavailable(serializer)))
        self.memory.start()
        self.assert_recovers(serializer)

    def test_cached_schemas_need_no_registry(self):
        serializer = self.avro(schema=READING)
        serializer.dumps(VALUE, self.context)
        serializer.loads(self.value, self.context)
        self.memory.stop()
        self.clock.advance(86_400)

        self.assertEqual(VALUE, serializer.loads(self.value, self.context))
        self.assertEqual(self.value, serializer.dumps(VALUE, self.context))

    def test_the_back_off_is_bounded_and_sends_no_request(self):
        serializer = self.avro()
        self.memory.fault = 500
        asked = len(self.memory.requests)
        waits = []
        for _ in range(20):
            waits.append(self.unavailable(serializer).after)
            self.unavailable(serializer)
            self.clock.advance(waits[-1] + 0.001)

        self.assertEqual(20, len(self.memory.requests) - asked)
        self.assertLessEqual(max(waits), 30)
        self.assertGreaterEqual(min(waits[8:]), 15)

    def test_a_writer_reports_an_outage_to_its_caller(self):
        self.memory.stop()
        self.assertRaises(RegistryUnavailable, self.avro(schema=READING).dumps, VALUE, self.context)

    def test_threads_share_a_small_cache_while_the_registry_fails_at_times(self):
        values = []
        for number in range(6):
            schema = {**READING, "fields": [{"name": f"f{number}", "type": "int", "default": 0}]}
            values.append(self.avro(schema=schema).dumps({}, self.context))
        serializer = self.avro(cached_schemas=2)

        def read(start):
            for number in range(start, start + 12):
                while True:
                    try:
                        name = f"f{number % 6}"
                        self.assertEqual({name: 0}, serializer.loads(values[number % 6], self.context))
                        break
                    except RegistryUnavailable as later:
                        self.memory.fault = None
                        self.clock.advance(later.after)
                        time.sleep(0.005)  # give the processor to the thread that waits for the registry
                self.memory.fault = 500 if number % 4 == 0 else None

        run_together(read, range(6))
        self.assertEqual(2, len(serializer.registry.cached))

    def test_threads_that_need_a_schema_share_one_request(self):
        serializer = self.avro()
        asking, everyone = serializer.registry._asking, threading.Barrier(32)

        def acquire(timeout):
            everyone.wait(PATIENCE_SECONDS)  # no thread sends a request before all have missed the cache
            return asking.acquire(timeout=timeout)

        def read(_):
            self.assertEqual(VALUE, serializer.loads(self.value, self.context))

        serializer.registry._asking = mock.Mock(acquire=acquire, release=asking.release)
        requests = len(self.memory.requests)
        run_together(read, range(32))
        self.assertEqual(["GET /schemas/ids/1"], self.memory.requests[requests:])

    def test_a_registry_that_hangs_is_unavailable_to_all_waiting_threads_within_the_time_out(self):
        serializer = self.avro(timeout_seconds=_SHORT)
        self.memory.fault = "hang"
        seconds = []

        def read(_):
            began = time.monotonic()
            self.unavailable(serializer)
            seconds.append(time.monotonic() - began)

        run_together(read, range(32))
        self.assertEqual(32, len(seconds))
        self.assertLess(max(seconds), 5)
        self.memory.fault = None
        self.assert_recovers(serializer)

    def test_a_refused_request_does_not_affect_the_threads_that_wait_for_other_schemas(self):
        serializer = self.avro()
        unknown = b"\0\0\0\0\x63x"

        def read(number):
            if number % 2:
                self.unavailable(serializer, unknown)
            else:
                self.assertEqual(VALUE, serializer.loads(self.value, self.context))

        run_together(read, range(16))

    def test_a_cache_has_a_bound(self):
        other = self.avro(schema=WITH_UNIT).dumps({**VALUE, "unit": "F"}, self.context)
        serializer = self.avro(cached_schemas=1)
        for value in (self.value, other, self.value):
            serializer.loads(value, self.context)
            self.assertEqual(1, len(serializer.registry.cached))


class UnknownIdTest(MemoryRegistryCase):
    UNKNOWN = b"\0\0\0\0\x63" + b"x"

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("monasca_common.kafka.serialization.registry._SHORT_WAIT_SECONDS", 0.001))

    def test_an_unknown_id_is_rejected_with_the_smallest_cache(self):
        self.assertAlmostEqual(10, self.rejected(self.avro(cached_schemas=1), self.UNKNOWN)[0], delta=0.5)

    def test_an_unknown_id_is_requested_again_and_then_rejected_with_its_id(self):
        serializer = self.avro()
        seconds, error = self.rejected(serializer, self.UNKNOWN)

        self.assertAlmostEqual(10, seconds, delta=0.5)
        self.assertIn("no schema 99", str(error))
        self.assertGreater(self.memory.requests.count("GET /schemas/ids/99"), 5)

    def test_an_id_that_becomes_known_in_time_is_read(self):
        serializer = self.avro(mixed_topics=[self.topic])
        next_id = self.value[:4] + b"\x02" + self.value[5:]
        self.unavailable(serializer, next_id)
        self.avro(schema=WITH_UNIT).dumps({**VALUE, "unit": "F"}, self.context)

        self.clock.advance(1)
        self.assertRaises(SerializationError, serializer.loads, next_id, self.context)  # of another schema
        self.assertIn(2, serializer.registry.cached)

    def test_many_corrupt_ids_do_not_add_up_to_a_long_wait(self):
        serializer = self.avro()
        self.rejected(serializer, self.UNKNOWN)
        waits = [self.rejected(serializer, b"\0\0\0\1" + bytes([number]))[0] for number in range(20)]

        self.assertLess(sum(waits), 5)
        self.clock.advance(60)
        self.assertAlmostEqual(10, self.rejected(serializer, self.UNKNOWN)[0], delta=0.5)

    def test_corrupt_ids_in_one_batch_do_not_wait_for_each_other(self):
        serializer = self.avro()
        values = [b"\0\0\0\1" + bytes([number]) for number in range(20)]

        def read():
            """Return the number of rejected values, like a processor that decodes a batch."""
            rejected = 0
            for value in values:
                try:
                    serializer.loads(value, self.context)
                except SerializationError:
                    rejected += 1
            return rejected

        began = self.clock.monotonic()
        for _ in range(20):
            try:
                self.assertEqual(20, read())
                break
            except RegistryUnavailable as later:
                self.clock.advance(later.after)
        else:
            self.fail("the value still waits")
        self.assertLess(self.clock.monotonic() - began, 15)

    def test_a_missing_path_is_an_outage_and_not_an_unknown_id(self):
        self.url = f"{self.memory.url}/wrong"

        self.assertIn("status 404", str(self.unavailable(self.avro())))


class LostSchemasTest(MemoryRegistryCase):
    def test_an_empty_registry_rejects_nothing(self):
        for serializer in (self.avro(), self.avro()):
            self.memory.clear()
            for _ in range(15):
                self.clock.advance(self.unavailable(serializer).after)
            self.assertIn("lost its schemas", str(self.unavailable(serializer)))

    def test_a_registry_that_refuses_all_requests_rejects_nothing(self):
        serializer = self.avro()
        with mock.patch.object(self.memory, "answer", return_value=(404, {"error_code": 40403, "message": "x"})):
            for _ in range(40):
                self.clock.advance(self.unavailable(serializer).after)

    def test_a_registry_that_reassigns_its_ids_rejects_nothing(self):
        serializer = self.avro()
        serializer.loads(self.value, self.context)
        self.memory.clear()
        self.avro(schema=RENAMED).dumps({"place": "x"}, self.context)
        for _ in range(15):
            self.clock.advance(self.unavailable(serializer, b"\0\0\0\0\x07x").after)

    def compared(self, serializer):
        """Wait for the comparison of a minute, whose result the next value has."""
        self.clock.advance(61)
        with contextlib.suppress(RegistryUnavailable):
            serializer.loads(self.value, self.context)
        for thread in threading.enumerate():
            if thread.name == "schema-registry":
                thread.join(10)

    def test_values_wait_while_the_registry_has_another_schema_under_their_id(self):
        serializer = self.avro(schema=READING)
        serializer.loads(self.value, self.context)
        serializer.dumps(VALUE, self.context)
        self.memory.clear()
        self.avro(schema=RENAMED).dumps({"place": "x"}, self.context)
        self.clock.advance(59)
        self.assertEqual(VALUE, serializer.loads(self.value, self.context))

        self.compared(serializer)
        self.assertIn("assigned id 1 to two schemas", str(self.unavailable(serializer)))
        self.assertRaises(RegistryUnavailable, serializer.dumps, VALUE, self.context)
        self.memory.fault = 500
        self.compared(serializer)
        self.unavailable(serializer)
        self.memory.fault = None
        self.memory.clear()
        self.avro(schema=READING).dumps(VALUE, self.context)
        self.compared(serializer)
        self.assertEqual(VALUE, serializer.loads(self.value, self.context))
        self.assertEqual(self.value, serializer.dumps(VALUE, self.context))

    def test_an_empty_registry_and_an_outage_do_not_affect_cached_schemas(self):
        serializer = self.avro()
        serializer.loads(self.value, self.context)
        for change in (self.memory.clear, self.memory.stop):
            change()
            self.compared(serializer)
            self.assertEqual(VALUE, serializer.loads(self.value, self.context))

    def test_the_schema_of_a_writer_is_also_compared(self):
        serializer = self.avro(schema=READING)
        serializer.dumps(VALUE, self.context)
        self.memory.clear()
        self.avro(schema=RENAMED).dumps({"place": "x"}, self.context)
        self.clock.advance(61)
        serializer.dumps(VALUE, self.context)
        for thread in threading.enumerate():
            if thread.name == "schema-registry":
                thread.join(10)
        self.assertRaises(RegistryUnavailable, serializer.dumps, VALUE, self.context)

    def test_a_schema_is_not_registered_under_an_id_that_another_schema_has(self):
        serializer = self.avro(schema=RENAMED)
        serializer.loads(self.value, self.context)
        self.memory.clear()

        error = self.assertRaises(RegistryUnavailable, serializer.dumps, {"place": "x"}, self.context)
        self.assertIn("assigned id 1 to two schemas", str(error))


class SecretsTest(MemoryRegistryCase):
    SECRET = "open sesame"

    def test_no_secret_is_in_an_error_or_a_log(self):
        for options in ({"username": "ali", "password": self.SECRET}, {"bearer_token": f"{self.SECRET}\n"}):
            serializer = self.avro(allow_insecure_credentials=True, **options)
            self.memory.fault = 401
            error = self.unavailable(serializer)
            self.memory.fault = None
            self.assertNotIn("sesame", f"{error} {error.__cause__} {error.__context__} {serializer.registry.settings}")

    def test_credentials_need_tls_or_consent(self):
        error = self.assertRaises(ConfigurationError, self.avro, bearer_token=self.SECRET)
        self.assertIn("allow_insecure_credentials", str(error))
        self.assertNotIn("sesame", str(error))

    def test_contradictory_options_are_refused(self):
        for name, options in (
            ("url", {"url": None}),
            ("url", {"url": "https://ali:sesame@registry"}),
            ("url", {"url": "registry:8081"}),
            ("url", {"url": "https://registry/?token=sesame"}),
            ("url", {"url": "http://registry:65536"}),
            ("url", {"url": "http://registry:0"}),
            ("url", {"url": "http://registry:http"}),
            ("url", {"url": "http://registry:8081,http://[::1"}),
            ("topic_strategies", {"topic_strategies": ["readings=subject"]}),
            ("topic_strategies", {"topic_strategies": ["=record"]}),
            ("username", {"username": "ali", "allow_insecure_credentials": True}),
            ("tls_key_file", {"tls_certificate_file": "/etc/hosts"}),
            ("tls_ca_file", {"tls_ca_file": "/nowhere.pem"}),
            ("schema_files", {"schema_files": ["readings=/nowhere.avsc"]}),
        ):
            error = self.assertRaises(ConfigurationError, self.avro, **options)
            self.assertIn(f"{name} in group [schema_registry]", str(error))
            self.assertNotIn("sesame", str(error))

    def test_credentials_are_sent(self):
        for login, options in (
            ("Basic YWxpOmE6Yg==", {"username": "ali", "password": "a:b"}),
            ("Bearer token", {"bearer_token": "token"}),
        ):
            self.memory.login = login
            serializer = self.avro(allow_insecure_credentials=True, **options)
            self.assertEqual(VALUE, serializer.loads(self.value, self.context))
            self.assertIn("status 401", str(self.unavailable(self.avro())))

    def test_the_registry_needs_a_certificate_of_the_authority(self):
        issue(self.folder, ["ali"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "broker.pem")
        context.load_verify_locations(self.folder / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        server = self.memory._server
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = self.memory.url.replace("http:", "https:")
        files = {
            "tls_ca_file": str(self.folder / "ca.pem"),
            "tls_certificate_file": str(self.folder / "ali.pem"),
            "tls_key_file": str(self.folder / "ali.key"),
        }

        self.assertEqual(VALUE, self.avro(**files, bearer_token="token").loads(self.value, self.context))
        for wrong in (
            {},
            {"tls_ca_file": files["tls_ca_file"]},
            {**files, "tls_ca_file": str(self.folder / "other-ca.pem")},
        ):
            self.assertIn("is unavailable", str(self.unavailable(self.avro(**wrong))))


class WriterTest(MemoryRegistryCase):
    def test_a_strategy_is_required_to_write(self):
        error = self.assertRaises(
            ConfigurationError, self.avro(schema=READING, subject_name_strategy=None).dumps, VALUE, self.context
        )
        self.assertIn("subject_name_strategy", str(error))

    def test_a_topic_has_its_own_strategy_and_registration(self):
        other = f"{self.topic}-other"
        files = [f"{topic}={self.file('reading.avsc', READING)}" for topic in (self.topic, other)]
        key = self.file("key.avsc", {**RENAMED, "name": "Room"})
        serializer = self.avro(
            subject_name_strategy="topic-record",
            topic_strategies=[f"{other}=topic", f"{other}:key=record"],
            auto_register=False,
            auto_register_topics=[other, f"{other}:key"],
            schema_files=[*files, f"{other}:key={key}"],
        )
        serializer.dumps(VALUE, SerializationContext(other))
        serializer.dumps({"place": "hall"}, SerializationContext(other, "key"))
        error = self.assertRaises(SchemaRefused, serializer.dumps, VALUE, self.context)

        self.assertIn(f"{self.topic}-example.Reading", str(error))
        subjects = self.memory.answer("GET", "/subjects", {})[1]
        self.assertEqual({f"{other}-value", "example.Room", f"{self.topic}-value"}, set(subjects))

    def test_keys_and_values_have_their_own_reader_schemas(self):
        value = self.file("unit.avsc", WITH_UNIT)
        reader = self.avro(reader_schema_files=[f"{self.topic}={value}"])
        key = SerializationContext(self.topic, "key")
        self.assertEqual({**VALUE, "unit": "C"}, reader.loads(self.value, self.context))
        self.assertEqual(VALUE, reader.loads(self.value, key))
        reader = self.avro(reader_schema_files=[f"{self.topic}:key={value}"])
        self.assertEqual(VALUE, reader.loads(self.value, self.context))
        self.assertEqual({**VALUE, "unit": "C"}, reader.loads(self.value, key))

    def test_an_error_of_a_schema_file_names_its_option_and_the_remedy(self):
        removed = self.avro(schema=READING, auto_register=False)
        (self.folder / "schema").unlink()
        error = self.assertRaises(ConfigurationError, removed.dumps, VALUE, self.context)
        self.assertIn("schema_files in group [schema_registry]", str(error))
        self.memory.clear()
        for options in ({"schema": READING}, {}):
            serializer = self.avro(auto_register=False, **options)
            error = self.assertRaises(SchemaRefused, serializer.dumps, VALUE, self.context)
            self.assertIn("schema_files in group [schema_registry]", str(error))
            self.assertIn(f"{self.topic}-value", str(error))
        error = self.assertRaises(ConfigurationError, self.avro, reader="[]x")
        self.assertIn("reader_schema_files in group [schema_registry]", str(error))

    def test_a_registry_may_return_the_schema_of_a_writer_in_its_own_form(self):
        answer = self.memory.answer

        def canonical(method, path, body):  # Confluent's registry separates the namespace from the name
            status, found = answer(method, path, body)
            return status, {**found, "schema": json.dumps(READING)} if "schema" in found else found

        serializer = self.avro(schema={"type": "record", "name": "example.Reading", "fields": READING["fields"]})
        with mock.patch.object(self.memory, "answer", canonical):
            value = serializer.dumps(VALUE, self.context)
            self.assertEqual(VALUE, serializer.loads(value, self.context))

    def test_a_strategy_with_the_record_needs_a_file(self):
        error = self.assertRaises(
            ConfigurationError, self.avro(subject_name_strategy="record").dumps, VALUE, self.context
        )
        self.assertIn("schema_files", str(error))

    def test_protobuf_needs_a_generated_class(self):
        error = self.assertRaises(ConfigurationError, load_serializer, "protobuf", conf=self.conf(), type=int)
        self.assertIn("protoc", str(error))

    def test_a_latest_schema_with_an_id_that_another_schema_has_is_not_written(self):
        serializer = self.avro()
        serializer.loads(self.value, self.context)
        self.memory.clear()
        self.avro(schema=RENAMED).dumps({"place": "x"}, self.context)

        self.assertRaises(RegistryUnavailable, serializer.dumps, VALUE, self.context)


class MemoryRegistryTest(SchemaContract, RegistryCase):
    def setUp(self):
        super().setUp()
        self.memory = self.useFixture(MemoryRegistry())
        self.url = self.memory.url

    def check_backward(self, serializer, subject):
        """The registry in memory has only this level."""

    def test_a_value_is_read_whose_schema_is_in_a_header(self):
        value = self.avro(schema=READING).dumps(VALUE, self.context)
        guid = self.memory.answer("GET", f"/subjects/{self.topic}-value/versions/1", {})[1]["guid"]
        headers = (("__value_schema_id", b"\1" + uuid.UUID(guid).bytes),)

        self.assertEqual(VALUE, self.avro().loads(value[5:], SerializationContext(self.topic, headers=headers)))
