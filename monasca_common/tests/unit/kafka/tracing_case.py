# SPDX-License-Identifier: Apache-2.0
"""Collects the spans of a test in memory."""

from __future__ import annotations

from unittest import mock

from oslotest import base

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
