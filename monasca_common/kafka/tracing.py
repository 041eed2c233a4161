# SPDX-License-Identifier: Apache-2.0
"""Tracing with OpenTelemetry: propagates trace context (W3C traceparent and tracestate) in message headers.

A producer continues its caller's trace if the trace is sampled, and never starts one. A batch has many messages, so its
span has no parent, but links to the spans that published them. This module is imported only if ``[kafka] tracing`` is
not off. The application provides the SDK; without an SDK, no trace is sampled and no context is propagated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.extras import remedy
from monasca_common.kafka.message import Headers, Message, PartitionBatch, Record
from monasca_common.kafka.outgoing import PLAIN_OVERHEAD_BYTES, as_list, size_of
from monasca_common.kafka.processor.hooks import Hook
from monasca_common.kafka.producer.outcome import DeliveryListener
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka.producer.table import Bulk
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings

try:
    from opentelemetry import trace
    from opentelemetry.context import Context, attach, detach, get_current
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise ConfigurationError(f"tracing in group [kafka] is not off, but {remedy(missing, 'otel')}") from None

TRACER = trace.get_tracer("monasca_common")
PROPAGATOR = TraceContextTextMapPropagator()

_PARENT, _STATE = "traceparent", "tracestate"
_FLAG, _SAMPLED = slice(54, 55), {b"%x" % odd for odd in range(1, 16, 2)}  # the digit with *sampled*, if it is set
_MAX_LINKS = 128  # the default limit of SDKs
_KINDS = {"process": ("process", trace.SpanKind.CONSUMER), "dead_letter": ("settle", trace.SpanKind.CLIENT)}


def is_sampled() -> bool:
    """Return whether the current trace is sampled. Without a current span, only the first, cheap check is needed."""
    return bool(get_current()) and trace.get_current_span().get_span_context().trace_flags.sampled


@contextmanager
def current_span(name: str, context: Context | None = None, *options: Any) -> Iterator[trace.Span]:
    """Start a span that is current in the block: in ``context``, or as a child of the current span if that is sampled.
    It has the class of an error but not its text, which may contain tenant data. ``options``: for ``start_span``."""
    if context is None and not is_sampled():
        yield trace.INVALID_SPAN
        return
    span, error = TRACER.start_span(name, context, *options), None
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield span
    except Exception as raised:
        error = raised
        raise
    finally:
        _end(span, error)


class TracingProducer(KafkaProducer):
    """A producer that adds the current trace context to its messages. A message that already has a context, such as a
    dead letter, keeps it; a message that would become too large gets none."""

    _last: tuple[Context | None, Headers] = None, ()  # the context of an earlier call, and the headers that carry it

    def publish(self, topic: str, records: Iterable[bytes | Record], **options: Any) -> DeliveryReport:
        if not self._carried():
            return super().publish(topic, records, **options)
        own = as_list(records)
        attributes = _attributes(self.settings.connection, "send", "send", topic, len(own))
        with current_span(f"send {topic}", None, trace.SpanKind.PRODUCER, attributes) as span:
            report = super().publish(topic, own, **options)
            if not report.ok:
                failed, unknown = len(report.failed), len(report.unknown)
                span.set_status(trace.StatusCode.ERROR, f"{failed} messages failed, {unknown} are unknown")
            return report

    def send(
        self,
        topic: str,
        record: bytes | Record,
        *,
        key: bytes | None = None,
        on_delivery: DeliveryListener | None = None,
    ) -> bytes | None:
        if type(record) is bytes and self._carried():
            record = Record(record)  # a plain send has no headers
        return KafkaProducer.send(self, topic, record, key=key, on_delivery=on_delivery)  # faster than `super`

    def _carried(self) -> Headers:
        """Return the headers that carry the current trace, or none if it is not sampled. Contexts are immutable."""
        context = get_current()
        last, carried = self._last
        if context is not last:
            carrier: dict[str, str] = {}
            if is_sampled():
                PROPAGATOR.inject(carrier)
            carried = tuple((name, text.encode()) for name, text in carrier.items())
            self._last = context, carried
        return carried

    def _bulk(
        self, topic: str, records: Sequence[Any], key: bytes | None, headers: Headers = (), *, plain: bool = True
    ) -> Bulk:
        carried = self._carried()
        if not carried:
            return super()._bulk(topic, records, key, headers, plain=plain)
        bulk = super()._bulk(topic, records, key, headers, plain=False)
        more = size_of(Record(None, headers=carried), None) - PLAIN_OVERHEAD_BYTES
        limit = self._limits.ready.get(topic)
        most = self.settings.max_message_bytes if limit is None else limit.max_bytes
        for attempt in bulk.attempts.values():
            old = attempt.record
            if old and attempt.size + more <= most and all(name != _PARENT for name, _ in old.headers):
                both = (*old.headers, *carried)  # the constructor takes half the time of `replace`
                attempt.record = Record(old.value, old.key, both, old.timestamp_ms, old.partition, old.message_id)
                attempt.size += more
                bulk.size += more
        return bulk


class TracingHook(Hook):
    """Creates a span for each handler call and each dead letter, with links to the spans that published the messages.
    The span of a call is current in the handler."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._open: dict[PartitionBatch, Any] = {}  # the span, and the token of its context

    def before_handle(self, part: PartitionBatch, attempt: int) -> None:
        links = _links(part.header)
        span = self._start("process", part.topic_partition, len(part), links)
        if span is not None:
            self._open[part] = span, attach(trace.set_span_in_context(span, Context()))

    def after_handle(self, part: PartitionBatch, attempt: int, error: BaseException | None) -> None:
        span, token = self._open.pop(part, (None, None))
        if span is not None:
            if trace.get_current_span() is span:  # otherwise it was current only in a task of an event loop
                detach(token)
            _end(span, error)

    def after_dead_letter(self, message: Message, error: Exception) -> None:
        headers = dict(message.headers)
        links = _links(lambda name: [headers.get(name)])
        span = self._start("dead_letter", (message.topic, message.partition), 1, links)
        if span is not None:
            _end(span, error)

    def _start(self, name: str, partition: tuple[str, int], count: int, links: list[trace.Link]) -> trace.Span | None:
        """Start a span with these links to sampled spans, or return ``None`` if there are no links."""
        if not links:
            return None
        kind, span_kind = _KINDS[name]
        attributes = _attributes(self._settings.connection, name, kind, partition[0], count)
        if attributes:
            attributes["messaging.consumer.group.name"] = self._settings.group_id
            attributes["messaging.destination.partition.id"] = str(partition[1])
        return TRACER.start_span(f"{name} {partition[0]}", Context(), span_kind, attributes, links)


def _end(span: trace.Span, error: BaseException | None) -> None:
    if error is not None:
        span.set_status(trace.StatusCode.ERROR)
        span.set_attribute("error.type", type(error).__qualname__)
    span.end()


def _links(header: Callable[[str], Sequence[bytes | None]]) -> list[trace.Link]:
    """Return one link to each sampled span that published any of the messages. Invalid contexts count as not sampled.

    ``header``: returns each message's value of a header, which is much cheaper than to read all its headers."""
    parents = header(_PARENT)
    if not any(parents):  # the usual case, which does not need the next pass over all messages
        return []
    pairs = zip(parents, header(_STATE), strict=True)
    sampled = {parent: state or b"" for parent, state in pairs if parent and parent[_FLAG] in _SAMPLED}
    first = list(sampled.items())[:_MAX_LINKS]
    texts = [{_PARENT: parent.decode("latin-1"), _STATE: state.decode("latin-1")} for parent, state in first]
    contexts = [trace.get_current_span(PROPAGATOR.extract(text)).get_span_context() for text in texts]
    return [trace.Link(context) for context in contexts if context.trace_flags.sampled]


def _attributes(settings: ConnectionSettings, name: str, kind: str, topic: str, count: int) -> dict[str, Any]:
    """Return the attributes of OpenTelemetry's messaging conventions, if they are enabled."""
    if settings.tracing != "messaging":
        return {}
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
        "messaging.client.id": settings.client_id,
        "messaging.batch.message_count": count,
    }
