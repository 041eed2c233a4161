# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from unittest import mock

from oslo_config import cfg
from oslotest import base

from monasca_common.kafka.aio import AsyncProcessor, AsyncProducer
from monasca_common.kafka.config import producer_settings
from monasca_common.kafka.config.groups import register
from monasca_common.kafka.errors import ConfigurationError, Poison
from monasca_common.kafka.message import IdentifiedRecords, PartitionBatch, Record
from monasca_common.kafka.outgoing import PLAIN_OVERHEAD_BYTES
from monasca_common.kafka.processor.dead_letters import DeadLetters
from monasca_common.kafka.processor.handler_call import _digest
from monasca_common.kafka.processor.hooks import Hook
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.processor.retry import RetryPolicy
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.testing import Fail, MemoryKafka

try:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    from monasca_common.kafka import tracing
except ImportError as error:
    MISSING = f"{error.name} is not installed: install opentelemetry-sdk"
else:
    MISSING = ""

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CONTEXT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()
ONCE = RetryPolicy(attempts=1)
FULL = Record(b"2", b"own", (("kind", b"x"),), 1_760_000_000_000, 0, b"id")


class TracingCase(base.BaseTestCase):
    """Test cases with a tracer whose finished spans `spans` returns."""

    def setUp(self):
        super().setUp()
        if MISSING:
            self.skipTest(MISSING)
        self.trace(ALWAYS_ON)

    def trace(self, sampler):
        """Use a tracer with this sampler, without the spans of earlier tracers."""
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        patcher = mock.patch.object(tracing, "TRACER", self.tracer)
        patcher.start()
        self.addCleanup(patcher.stop)

    def spans(self, name=None):
        return [span for span in self._exporter.get_finished_spans() if name in (None, span.name)]

    def span(self, name):
        """Return the only finished span of this name."""
        (found,) = self.spans(name)
        return found


def linked(span):
    """Return the ids of the spans that a span links, with the ids of their traces."""
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def ids(span):
    """Return the ids of a span, as `linked` does."""
    return span.context.trace_id, span.context.span_id


class KafkaTracingCase(TracingCase):
    tracing = "on"

    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        for topic in ("in", "in.dlq", "out"):
            self.kafka.broker.create_topic(topic, 1)
        self.connection = replace(self.kafka.connection(), tracing=self.tracing)
        self.producer = self.kafka.producer(connection=self.connection)

    def publish_in_span(self, *records, producer=None, **arguments):
        """Publish within a span of the application, and return that span."""
        with self.tracer.start_as_current_span("application") as span:
            (producer or self.producer).publish("in", records, **arguments).raise_for_undelivered()
        return span

    def write(self, *headers_of_messages):
        """Publish messages with these headers, as another program would."""
        records = [Record(b"1", headers=headers) for headers in headers_of_messages]
        self.kafka.producer().publish("in", records).raise_for_undelivered()

    def carried(self, topic="in"):
        """Return the contexts that the messages of a topic carry."""
        return [dict(message.headers).get("traceparent") for message in self.kafka.broker.records(topic)]

    def drain(self, handler=lambda part: None, **choices):
        consumer = self.kafka.consumer("in", connection=self.connection)
        choices = {"producer": self.producer, "dead_letters": DeadLetters(), "retry": ONCE, **choices}
        try:
            return self.kafka.drain(Processor(consumer, handler, **choices))
        finally:
            consumer.close()


def context_of(span):
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}".encode()


class ProducerTest(KafkaTracingCase):
    def test_messages_of_a_publish_carry_its_span_which_continues_the_trace(self):
        application = self.publish_in_span(b"1", Record(b"2", headers=(("kind", b"x"),)))

        send = self.span("send in")
        self.assertEqual([context_of(send)] * 2, self.carried())
        self.assertEqual(application.context.span_id, send.parent.span_id)
        second = self.kafka.broker.records("in")[1]
        self.assertEqual(["kind", "traceparent", "message-id"], [name for name, _ in second.headers])

    def test_ids_and_counts_are_those_without_tracing(self):
        with self.tracer.start_as_current_span("application"):
            report = self.producer.publish("in", [b"1", Record(b"2", message_id=b"own")])

        written = [message.message_id for message in self.kafka.broker.records("in")]
        self.assertEqual([each.message_id for each in report.delivered], written)
        self.assertEqual((2, b"own"), (report.delivered_count, written[1]))

    def test_a_send_carries_the_current_span(self):
        self.producer.send("in", b"outside")
        with self.tracer.start_as_current_span("application") as span:
            self.producer.send("in", b"1")
            self.producer.send("in", Record(b"2"))
        self.producer.flush()

        self.assertEqual([None, context_of(span), context_of(span)], self.carried())

    def test_each_send_carries_the_context_of_its_call(self):
        from opentelemetry.trace import NonRecordingSpan, SpanContext, use_span

        spans = [self.tracer.start_span(name) for name in ("first", "second")]
        unsampled = NonRecordingSpan(SpanContext(1, 1, is_remote=False))
        order = [spans[0], spans[0], unsampled, spans[1], unsampled, spans[0]]
        for span in order:
            with use_span(span):
                self.producer.send("in", b"1")
        self.producer.send("in", b"outside")
        self.producer.flush()

        expected = [None if span is unsampled else context_of(span) for span in order]
        self.assertEqual([*expected, None], self.carried())

    def test_the_headers_of_a_context_are_created_once(self):
        from monasca_common.kafka import tracing

        with mock.patch.object(tracing, "PROPAGATOR", mock.Mock(wraps=tracing.PROPAGATOR)) as propagator:
            with self.tracer.start_as_current_span("application"):
                for _ in range(3):
                    self.producer.send("in", b"1")
            self.producer.flush()
        self.assertEqual(1, propagator.inject.call_count)

    def test_messages_of_a_sampled_trace_keep_their_fields_and_free_their_room(self):
        self.publish_in_span(b"1", FULL, key=b"key")
        with self.tracer.start_as_current_span("application"):
            self.producer.publish("in", IdentifiedRecords([b"3", b"3"], [b"same", b"same"])).raise_for_undelivered()

        first, second, third = self.kafka.broker.records("in")
        self.assertEqual((b"1", b"key"), (first.value, first.key))
        fields = second.value, second.key, second.timestamp_ms, second.partition, second.message_id
        self.assertEqual((b"2", b"own", 1_760_000_000_000, 0, b"id"), fields)
        self.assertEqual((b"3", None, b"same"), (third.value, third.key, third.message_id))
        bulk, identified = map(context_of, self.spans("send in"))
        self.assertEqual([bulk, bulk, identified], self.carried())
        health = self.producer.health()
        self.assertEqual((0, 0), (health.outstanding_messages, health.outstanding_bytes))

    def test_messages_carry_the_tracestate(self):
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {"traceparent": CONTEXT.decode(), "tracestate": "vendor=1"}
        with self.tracer.start_as_current_span("x", context=TraceContextTextMapPropagator().extract(carrier)):
            self.producer.publish("in", [b"1"])

        (message,) = self.kafka.broker.records("in")
        self.assertEqual(b"vendor=1", dict(message.headers)["tracestate"])
        self.drain()
        (link,) = self.span("process in").links
        self.assertEqual("1", link.context.trace_state["vendor"])

    def test_a_producer_starts_no_trace(self):
        self.producer.publish("in", [b"1"])
        self.assertEqual(([None], []), (self.carried(), self.spans()))

    def test_a_trace_that_is_not_sampled_is_not_carried(self):
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

        self.trace(ALWAYS_OFF)
        self.publish_in_span(b"1")
        with self.tracer.start_as_current_span("application"):
            self.producer.send("in", b"2")
        self.producer.flush()
        self.assertEqual([None, None], self.carried())

    def test_a_message_keeps_the_context_that_it_carries(self):
        own = (("traceparent", CONTEXT),)
        self.publish_in_span(Record(b"1", headers=own))
        self.publish_in_span(b"2", headers=own)
        self.assertEqual([CONTEXT] * 2, self.carried())

    def test_a_message_that_would_become_too_large_carries_none(self):
        self.kafka.broker.create_topic("small", 1, max_message_bytes=2000)
        largest = 2000 - PLAIN_OVERHEAD_BYTES
        self.assertTrue(self.producer.publish("small", [b"1" * largest]).ok)
        self.assertFalse(self.producer.publish("small", [b"1" * (largest + 1)]).ok)
        with self.tracer.start_as_current_span("application"):
            report = self.producer.publish("small", [b"1" * largest, b"2"])

        self.assertEqual(2, report.delivered_count)
        self.assertEqual([None, None, context_of(self.span("send small"))], self.carried("small"))

    def test_a_copy_keeps_its_headers(self):
        copying = self.kafka.producer(connection=self.connection, verbatim=True)
        self.publish_in_span(b"1", producer=copying)
        self.assertEqual([None], self.carried())

    def test_a_retry_keeps_the_context_of_the_first_attempt(self):
        self.producer.publish("in", [b"known"])
        self.kafka.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        with self.tracer.start_as_current_span("application"):
            report = self.producer.publish("in", [b"1"])
        self.assertFalse(report.ok)
        self.assertTrue(self.producer.retry(report).ok)

        send = self.span("send in")
        self.assertEqual([None, context_of(send)], self.carried())
        self.assertFalse(send.status.is_ok)
        self.assertIn("1 messages failed, 0 are unknown", send.status.description)

    def test_a_wrong_type_is_refused_as_without_tracing(self):
        with self.tracer.start_as_current_span("application"):
            for records in (["text"], [Record(b"1", headers=("pair",))], [Record(b"1", headers=((1, b"1"),))]):
                with self.assertRaises(Exception) as traced:
                    self.producer.publish("in", records)
                with self.assertRaises(type(traced.exception)) as plain:
                    self.kafka.producer().publish("in", records)
                self.assertEqual(str(plain.exception), str(traced.exception))

    def test_a_span_has_the_class_of_an_error_but_not_its_text(self):
        from monasca_common.kafka import tracing

        @tracing.current_span("store rows")
        def store():
            raise ValueError("secret")

        self.assertRaises(ValueError, store)
        self.assertEqual([], self.spans())
        with self.tracer.start_as_current_span("application"):
            self.assertRaises(ValueError, store)
        span = self.span("store rows")
        self.assertEqual((False, "ValueError"), (span.status.is_ok, span.attributes["error.type"]))
        self.assertNotIn("secret", span.to_json())

    def test_an_event_loop_carries_the_span_of_its_task(self):
        async def run():
            producer = AsyncProducer(self.producer)
            await producer.publish("in", [b"outside"])
            with self.tracer.start_as_current_span("application") as span:
                await producer.publish("in", [b"1"])
                await (await producer.send("in", Record(b"2")))
            return span

        span = asyncio.run(run())
        self.assertEqual([None, context_of(span), context_of(span)], self.carried())


class BatchTest(KafkaTracingCase):
    def test_a_batch_links_the_spans_of_its_messages_and_has_no_parent(self):
        self.publish_in_span(b"1", b"2")
        self.publish_in_span(b"3")
        self.drain()

        batch = self.span("process in")
        self.assertIsNone(batch.parent)
        self.assertEqual([ids(span) for span in self.spans("send in")], linked(batch))
        self.assertTrue(all(link.context.is_remote for link in batch.links))

    def test_the_span_is_current_in_the_handler_and_in_its_hooks(self):
        from opentelemetry.trace import get_current_span

        current = []

        class Observer(Hook):
            def before_handle(self, part, attempt):
                current.append(get_current_span())

            def after_handle(self, part, attempt, error):
                current.append(get_current_span())

            def before_commit(self, offsets):
                current.append(get_current_span())

        self.publish_in_span(b"1")
        self.drain(lambda part: current.append(get_current_span()), hooks=[Observer()])

        batch = self.span("process in")
        self.assertEqual([batch.context] * 3, [span.get_span_context() for span in current[:3]])
        self.assertFalse(current[3].get_span_context().is_valid)

    def test_batches_without_a_sampled_message_have_no_span(self):
        self.write((), (("other", b"1"),), (("traceparent", CONTEXT[:-1] + b"0"),))
        self.drain()
        self.assertEqual([], self.spans())

    def test_an_invalid_context_is_ignored(self):
        invalid = (b"", None, b"01", CONTEXT + b"-more", b"ff" + CONTEXT[2:], CONTEXT.upper(), b"\xff" * 55, b"1" * 600)
        zero = b"00-" + b"0" * 32 + CONTEXT[35:]
        self.write(*[(("traceparent", value),) for value in (*invalid, zero)])
        self.write((("traceparent", CONTEXT), ("tracestate", b"\xff,=,")))
        handled = []
        self.drain(lambda part: handled.extend(part.values))

        self.assertEqual(len(invalid) + 2, len(handled))
        ((trace_id, _),) = linked(self.span("process in"))
        self.assertEqual(int(TRACE, 16), trace_id)

    def test_the_links_of_a_batch_are_limited(self):
        self.write(*[(("traceparent", b"00-%032x-00f067aa0ba902b7-01" % number),) for number in range(1, 300)])
        self.drain()
        self.assertEqual(128, len(self.span("process in").links))

    def test_only_the_headers_with_the_context_are_read(self):
        self.write((("traceparent", CONTEXT),))
        with mock.patch.object(PartitionBatch, "headers", new_callable=mock.PropertyMock) as headers:
            self.drain()
        self.assertEqual(1, len(self.span("process in").links))
        headers.assert_not_called()

    def test_a_failed_call_has_the_class_of_its_error_but_not_its_text(self):
        self.publish_in_span(b"1")

        def handler(part):
            raise ValueError("secret")

        self.drain(handler)
        batch = self.span("process in")
        self.assertEqual((False, "ValueError"), (batch.status.is_ok, batch.attributes["error.type"]))
        self.assertNotIn("secret", batch.to_json())

    def test_what_a_handler_publishes_continues_the_trace_of_its_batch(self):
        self.publish_in_span(b"1")
        self.drain(lambda part: self.producer.publish("out", part.values).raise_for_undelivered())

        batch, send = self.span("process in"), self.span("send out")
        self.assertEqual(batch.context.span_id, send.parent.span_id)
        self.assertEqual([context_of(send)], self.carried("out"))

    def test_the_ids_of_outputs_do_not_depend_on_the_trace(self):
        self.publish_in_span(b"1")
        self.drain(lambda part: [("out", Record(b"1"))])

        (output,) = self.kafka.broker.records("out")
        own_id = f"test-group/in/0/0/{_digest('out', Record(b'1'))}/0"
        self.assertEqual(own_id.encode(), output.message_id)

    def test_an_async_handler_has_the_span(self):
        from opentelemetry.trace import get_current_span

        self.publish_in_span(b"1")
        current = []

        async def run():
            done = asyncio.Event()

            async def handler(part):
                current.append(get_current_span().get_span_context())
                await asyncio.sleep(0)
                current.append(get_current_span().get_span_context())
                done.set()

            consumer = self.kafka.consumer("in", connection=self.connection)
            processor = AsyncProcessor(Processor(consumer, handler, producer=self.producer))
            running = asyncio.ensure_future(processor.run())
            await done.wait()
            await processor.stop()
            await running

        asyncio.run(asyncio.wait_for(run(), 30))
        batch = self.span("process in")
        self.assertEqual([batch.context] * 2, current)


class DeadLetterTest(KafkaTracingCase):
    def test_a_dead_letter_keeps_the_headers_and_its_span_links_the_message(self):
        self.write((("traceparent", CONTEXT), ("tracestate", b"vendor=1"), ("own", b"1")), ())

        def handler(part):
            raise Poison("unreadable")

        self.drain(handler)
        traced, other = (message.headers for message in self.kafka.broker.records("in.dlq"))
        self.assertEqual((("traceparent", CONTEXT), ("tracestate", b"vendor=1"), ("own", b"1")), traced[:3])
        self.assertNotIn("traceparent", dict(other))
        letter = self.span("dead_letter in")
        self.assertEqual([(int(TRACE, 16), 0x00F067AA0BA902B7)], linked(letter))
        self.assertEqual((None, "Poison"), (letter.parent, letter.attributes["error.type"]))


class AttributesTest(KafkaTracingCase):
    tracing = "messaging"

    def test_spans_have_the_attributes_of_the_conventions(self):
        self.publish_in_span(b"1", b"2")

        def handler(part):
            raise Poison("unreadable", indices=[1])

        self.drain(handler)

        common = {"messaging.system": "kafka", "messaging.destination.name": "in", "messaging.client.id": "test"}
        reader = common | {"messaging.consumer.group.name": "test-group", "messaging.destination.partition.id": "0"}
        self.assertEqual(
            common
            | {
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.batch.message_count": 2,
            },
            dict(self.span("send in").attributes),
        )
        self.assertEqual(
            reader
            | {
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.batch.message_count": 2,
                "error.type": "Poison",
            },
            dict(self.spans("process in")[0].attributes),
        )
        self.assertEqual(
            reader
            | {
                "messaging.operation.name": "dead_letter",
                "messaging.operation.type": "settle",
                "messaging.batch.message_count": 1,
                "error.type": "Poison",
            },
            dict(self.spans("dead_letter in")[0].attributes),
        )

    def test_the_names_are_those_of_the_conventions(self):
        from opentelemetry.semconv._incubating.attributes import error_attributes, messaging_attributes

        known = {
            value for names in (messaging_attributes, error_attributes) for value in map(str, vars(names).values())
        }
        self.publish_in_span(b"1")

        def handler(part):
            raise Poison("unreadable")

        self.drain(handler)
        for span in self.spans():
            self.assertEqual(set(), set(span.attributes) - known)


class OptionTest(TracingCase):
    def conf(self, value):
        conf = cfg.ConfigOpts()
        conf([])
        register(conf)
        for name, given in {"bootstrap_servers": ["memory:9092"], "driver": "memory", "tracing": value}.items():
            conf.set_override(name, given, group="kafka")
        return conf

    def test_without_the_option_there_is_no_tracing_and_no_import(self):
        kafka = self.useFixture(MemoryKafka())
        self.assertIs(KafkaProducer, type(kafka.producer()))
        code = "import sys, monasca_common.kafka as k; k.Processor; print('opentelemetry' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual("False", done.stdout.strip())

    def test_only_the_api_of_opentelemetry_is_imported(self):
        code = (
            "import sys, monasca_common.kafka.tracing\n"
            "print(sorted(name for name in sys.modules if name.startswith('opentelemetry.sdk')))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual("[]", done.stdout.strip())

    def test_the_option_is_read(self):
        self.assertEqual("messaging", producer_settings(self.conf("messaging")).connection.tracing)
        self.assertEqual("off", producer_settings(self.conf("off")).connection.tracing)

    def test_a_missing_package_is_an_error_with_the_remedy(self):
        conf = self.conf("on")
        gone = {name: None for name in sys.modules if name.split(".")[0] == "opentelemetry"}
        with mock.patch.dict(sys.modules, gone):
            sys.modules.pop("monasca_common.kafka.tracing", None)
            error = self.assertRaises(ConfigurationError, producer_settings, conf)
        self.assertEqual(
            "tracing in group [kafka] is not off, but opentelemetry is not installed: install monasca-common[otel]",
            str(error),
        )
